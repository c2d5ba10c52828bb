"""URLs of the example project."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

from inventory_demo.page import page, state

urlpatterns = [
    path("", page, name="page"),
    path("state/", state, name="state"),
    path("admin/", admin.site.urls),
]
