"""The demo page: shown, polled by htmx, and played by POST; without JavaScript by reload."""

from __future__ import annotations

import functools
from collections.abc import Callable

from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods

from inventory_demo.parts import SIDES, changed, parts
from inventory_demo.stage import RefusedStepError, stage

View = Callable[[HttpRequest], HttpResponse]

POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"


def for_one_machine(view: View) -> View:
    """For one developer's machine only, because it starts and stops processes; and with no inline script or style."""

    @functools.wraps(view)
    def guarded(request: HttpRequest) -> HttpResponse:
        if not settings.DEBUG:
            raise Http404("The demo page starts and stops processes: it is there with DEBUG = True only.")
        response = view(request)
        response["Content-Security-Policy"] = POLICY
        return response

    return guarded


@for_one_machine
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """The whole page; a POST takes a step and shows what came of it."""
    if request.method != "POST":
        found = {part.name.replace("-", "_"): part for part in parts(stage)}
        return render(request, "inventory_demo/page.html", {"parts": found, "sides": SIDES, "stage": stage})
    refusal = ""
    try:
        stage.take(request.POST.get("step", ""))
    except RefusedStepError as error:
        refusal = str(error)
    if "HX-Request" in request.headers:
        found_now = {"parts": changed(stage, request.POST.dict()), "answered": True, "refusal": refusal}
        return render(request, "inventory_demo/changes.html", found_now)
    if refusal:
        messages.warning(request, refusal)
    return redirect("page")


@for_one_machine
@never_cache
@require_GET
def state(request: HttpRequest) -> HttpResponse:
    """What has changed since the digests in the query; 204, which swaps nothing, if nothing has."""
    found = [*changed(stage, request.GET.dict())]
    if not found:
        return HttpResponse(status=204)
    return render(request, "inventory_demo/changes.html", {"parts": found})
