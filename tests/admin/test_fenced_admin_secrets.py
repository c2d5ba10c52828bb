"""What an input never shows, as a key for a payment service, no page of a fenced row shows either."""

from __future__ import annotations

from typing import Any

import pytest
from django import forms
from django.http import HttpRequest
from django.test import Client

from fencing.admin import FencedModelAdmin, FencedTabularInline
from tests.admin.fenced_sites import RackAdmin, SlotInline
from tests.admin.pages import form_of, text_of
from tests.admin.test_fenced_admin import url, write
from tests.shop.models import Rack, Slot

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.admin.fenced_sites")]

OLD, NEW = "4711000815", "4711000816"


class TwoParts(forms.MultiWidget):
    """A secret among the parts of an input."""

    def __init__(self) -> None:
        super().__init__([forms.TextInput(), forms.PasswordInput()])

    def decompress(self, value: Any) -> list[Any]:
        return ["", value]

    def value_from_datadict(self, data: Any, files: Any, name: str) -> Any:
        return data.get(f"{name}_1")


def secret(kind: type[Any], name: str, method: str, widget: forms.Widget) -> Any:
    """A method of an admin that makes forms, which gives one field this widget."""

    def made(self: Any, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return getattr(kind, method)(self, request, *args, **{**kwargs, "widgets": {name: widget}})

    return made


@pytest.fixture(params=[forms.PasswordInput, TwoParts])
def widget(request: pytest.FixtureRequest) -> forms.Widget:
    made: forms.Widget = request.param()
    return made


@pytest.fixture
def rack() -> Rack:
    return Rack.objects.create(code="a", title=OLD)


@pytest.fixture
def slot(rack: Rack) -> Slot:
    return Slot.objects.create(rack=rack, quantity=int(OLD) % 1_000_000_007)


@pytest.fixture
def change(monkeypatch: pytest.MonkeyPatch, rack: Rack, widget: forms.Widget) -> str:
    """The page of the rack, its title being a secret."""
    monkeypatch.setattr(RackAdmin, "get_form", secret(FencedModelAdmin, "title", "get_form", widget))
    monkeypatch.setattr(RackAdmin, "prepopulated_fields", {})
    return url("rack_change", rack.pk)


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch, rack: Rack, widget: forms.Widget) -> str:
    """The list of racks, in which the title can be changed."""
    monkeypatch.setattr(RackAdmin, "list_display", ("code", "title", "size"))
    monkeypatch.setattr(RackAdmin, "list_editable", ("title", "size"))
    forms_of = secret(FencedModelAdmin, "title", "get_changelist_form", widget)
    monkeypatch.setattr(RackAdmin, "get_changelist_form", forms_of)
    return url("rack_changelist")


def test_a_refused_form_tells_no_secret(admin_client: Client, rack: Rack, change: str) -> None:
    form = form_of(admin_client.get(change))
    write(rack, title=NEW, size=3)
    response = admin_client.post(change, {**form, "size": "9"})
    assert "Now: 3" in text_of(response)
    assert OLD not in response.content.decode() and NEW not in response.content.decode()


def test_no_hidden_input_has_a_secret(admin_client: Client, listed: str) -> None:
    assert OLD not in admin_client.get(listed).content.decode()


def test_a_refused_list_tells_no_secret(admin_client: Client, rack: Rack, listed: str) -> None:
    form = form_of(admin_client.get(listed))
    write(rack, title=NEW, size=3)
    response = admin_client.post(listed, {**form, "form-0-size": "9", "_save": "Save"})
    assert "Now: 3" in text_of(response)
    assert OLD not in response.content.decode() and NEW not in response.content.decode()


def test_no_hidden_input_of_an_inline_has_a_secret(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch, slot: Slot, widget: forms.Widget
) -> None:
    monkeypatch.setattr(SlotInline, "get_formset", secret(FencedTabularInline, "quantity", "get_formset", widget))
    page = admin_client.get(url("rack_change", slot.rack_id)).content.decode()
    assert "slot_set-0-quantity" in page and str(slot.quantity) not in page


def test_a_secret_that_is_typed_is_saved(admin_client: Client, rack: Rack, change: str) -> None:
    form = form_of(admin_client.get(change))
    typed = {"title": NEW, "title_1": NEW}
    assert admin_client.post(change, {**form, **typed}).status_code == 302
    rack.refresh_from_db()
    assert rack.title == NEW
