"""Forms and formsets of fenced rows: each row is saved as the one that its form was loaded from."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any

from django import forms
from django.core.exceptions import ObjectDoesNotExist, ValidationError
from django.forms.utils import to_current_timezone
from django.utils import formats
from django.utils.text import Truncator
from django.utils.translation import gettext as _

from fencing.admin.fencededit import Edit, is_fenced
from fencing.admin.formreads import INPUT, Read, ReadField, signed, unsigned
from fencing.admin.refusals import text_for_form
from fencing.naming import name_of_new

if TYPE_CHECKING:
    BaseForm = forms.ModelForm[Any]
    BaseFormSet = forms.BaseModelFormSet[Any, Any]
else:
    BaseForm = object
    BaseFormSet = object

MAX_SHOWN = 200


class FencedForm(BaseForm):
    """Added to a model form: its row's pin is what the form was loaded from, and not what was read to save it.

    Attributes:
        fence_edit: the POST that it belongs to; None for a page that is only shown.
        fence_read: what the form was loaded from, if it proves that.
        fence_key: the key of the row that was loaded; the instance takes what was typed for it.
        fence_token: the row's present ``last_token``.
    """

    fence_edit: Edit | None = None
    fence_read: Read | None = None
    fence_key: str = ""
    fence_token: int | None = None

    def fence_load(self, read: Read | None) -> None:
        """Tie the row to what was signed; without that, the database refuses every value."""
        self.fence_read, self.fence_key = read, str(self.instance.pk)
        self.fence_token = self.instance.last_token
        if self.is_bound:
            self.instance._fence_pin = read and read.token

    @property
    def fence_moved(self) -> bool:
        """Whether the form was loaded from another state of the row than the present one."""
        return self.fence_read is None or self.fence_read.token != self.fence_token

    def fence_show_present(self) -> None:
        """Tell at each field that differs what the row holds now."""
        for name, field in self.fields.items():
            if name == self._meta.model._meta.pk.name or is_secret(field):
                continue
            present = self.get_initial_for_field(field, name)
            if field.has_changed(present, self[name].data):
                self.add_error(name, _("Now: %(value)s") % {"value": shown(field, present)})

    def _post_clean(self) -> None:
        super()._post_clean()  # type: ignore[misc]
        if is_fenced(self._meta.model) and self.instance._state.adding and not self.errors:
            try:
                name_of_new(self.instance)
            except (TypeError, ValueError) as error:
                self.add_error(None, str(error))

    def save(self, commit: bool = True) -> Any:
        """Django's; a new row takes its lease first, if its model wants one."""
        if self.fence_edit is not None:
            self.fence_edit.hold_new(self.instance)
        return super().save(commit)


class FencedObjectForm(FencedForm):
    """The form of a page for one row."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self._fence_reads_row:
            reads = unsigned(self._meta.model, self.data.get(INPUT)) if self.is_bound else {}
            self.fence_load(reads.get(str(self.instance.pk)))

    def full_clean(self) -> None:
        """Django's; a refused form is invalid, and shows what the row holds now."""
        super().full_clean()
        edit = self.fence_edit
        if edit is None or edit.refusal is None or not self.is_bound:
            return
        if (refusal := edit.to_tell()) is not None:
            self.add_error(None, text_for_form(refusal, gone=edit.gone))
        if self._fence_reads_row and self.fence_moved:
            self.fence_show_present()

    @property
    def _fence_reads_row(self) -> bool:
        return is_fenced(self._meta.model) and not self.instance._state.adding

    def fence_signed(self) -> str:
        """What the page is to send back: the read that its values come from, or the one that it shows beside them."""
        refused = self.fence_edit is not None and self.fence_edit.refusal is not None
        read = Read(self.instance.last_token) if refused or self.fence_read is None else self.fence_read
        return signed(self._meta.model, {self.fence_key: read})


class FencedRowForm(FencedForm):
    """The form of one row among others: a row that nobody has touched is not written, whatever it holds by now."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self.instance._state.adding:
            for field in self.fields.values():
                # Django's own way to tell what was shown from what was typed.
                unseen = isinstance(field, forms.FileField) or is_secret(field)
                field.show_hidden_initial = not (field.disabled or unseen)

    def has_changed(self) -> bool:
        """Django's; what was typed over values that came back as a conflict is meant, also if it is the first value."""
        return (self.fence_read is not None and self.fence_read.conflict) or super().has_changed()


class FencedFormSet(BaseFormSet):
    """Added to a model formset: its management form carries what each row was loaded from."""

    fence_edit: Edit | None = None

    @cached_property
    def management_form(self) -> Any:
        """Django's, with the hidden input."""
        form = super().management_form
        form.fields[INPUT] = ReadField(initial=self._fence_signed)
        return form

    @property
    def _fence_model(self) -> Any:
        return self.model

    @cached_property
    def _fence_reads(self) -> dict[str, Read]:
        return unsigned(self._fence_model, self.data.get(f"{self.prefix}-{INPUT}")) if self.is_bound else {}

    def _construct_form(self, i: int, **kwargs: Any) -> Any:
        form = super()._construct_form(i, **kwargs)  # type: ignore[misc]
        if not form.instance._state.adding:
            form.fence_load(self._fence_reads.get(str(form.instance.pk)))
        return form

    def fence_touched(self) -> list[Any]:
        """The forms of existing rows that were changed, or are to be deleted."""
        return [
            form
            for form in self.initial_forms
            if not form.instance._state.adding and (form.has_changed() or self.fence_deletes(form))
        ]

    def fence_deletes(self, form: Any) -> bool:
        """Whether a row's form asks for its deletion."""
        return self.can_delete and bool(form["DELETE"].data)

    def clean(self) -> None:
        """Django's; a refused formset is invalid, and shows at each row that has moved what it holds now."""
        self._fence_show_gone()
        edit = self.fence_edit
        if edit is not None and edit.refusal is not None:
            for form in self.fence_touched():
                if form.fence_moved and not self.fence_deletes(form):
                    form.add_error(None, _("This row has changed since the page was loaded."))
                    form.fence_show_present()
            if (refusal := edit.to_tell()) is not None:
                raise ValidationError(text_for_form(refusal, gone=edit.gone))
        super().clean()

    def _fence_show_gone(self) -> None:
        """Keep what was typed for rows that are no longer there; Django pairs its forms with the rows that are left."""
        gone = [form for form in self.initial_forms if form.instance._state.adding]
        for form in gone:
            form.add_error(None, _("This row was deleted meanwhile."))
        if gone:
            self._queryset = [form.instance for form in self.initial_forms]

    def _fence_signed(self) -> str:
        rows = [form for form in self.initial_forms if not form.instance._state.adding]
        reads = {form.fence_key: self._fence_read_of(form) for form in rows}
        return signed(self._fence_model, {key: read for key, read in reads.items() if read is not None})

    def _fence_read_of(self, form: Any) -> Read | None:
        """What a row's form is to send back; a row that was not shown as it is now keeps the read that it has."""
        if not self.is_bound:
            return Read(form.fence_token)
        refused = self.fence_edit is not None and self.fence_edit.refusal is not None
        if refused and form.fence_moved and form.has_changed():
            return Read(form.fence_token, conflict=True)
        read: Read | None = form.fence_read
        return read


def form_class(kind: type[FencedForm], form: Any, edit: Edit | None) -> Any:
    """A form class with ``kind`` added, and with the fields that it has already."""
    made: Any = type(form.__name__, (kind, form), {"fence_edit": edit, "__module__": form.__module__})
    if hasattr(form, "base_fields"):
        made.base_fields, made.declared_fields = form.base_fields, form.declared_fields
    return made


def formset_class(formset: Any, edit: Edit | None) -> Any:
    """A formset class with :class:`FencedFormSet` added."""
    return type(formset.__name__, (FencedFormSet, formset), {"fence_edit": edit, "__module__": formset.__module__})


def is_secret(field: Any) -> bool:
    """Whether the field's input never shows what the row holds: then no hidden input and no message may do so either."""
    widget = field.widget
    parts = getattr(widget, "widgets", (widget,))
    return any(isinstance(part, forms.PasswordInput) and not part.render_value for part in parts)


def shown(field: Any, value: Any) -> str:
    """A row's value as a sentence can show it: names of choices and of related rows, times in the current zone."""
    if isinstance(field, forms.ModelMultipleChoiceField):
        text = ", ".join(map(field.label_from_instance, value or ()))
    elif isinstance(field, forms.ModelChoiceField):
        text = _label(field, value)
    elif isinstance(field, forms.ChoiceField):
        text = str(_flat(field.choices).get(str(value), value))
    elif isinstance(value, bool):
        text = _("yes") if value else _("no")
    else:
        text = _as_input(field, field.prepare_value(value))
    return Truncator(text).chars(MAX_SHOWN) or _("(empty)")


def _as_input(field: Any, value: Any) -> str:
    """A value as its input would show it."""
    if isinstance(value, datetime):
        value = to_current_timezone(value)
    elif isinstance(value, int | float | Decimal) and not field.localize:
        return str(value)
    return "" if value is None else str(formats.localize_input(value))


def _label(field: Any, value: Any) -> str:
    try:
        key = field.to_field_name or "pk"
        return "" if value is None else str(field.label_from_instance(field.queryset.get(**{key: value})))
    except ObjectDoesNotExist:
        return str(value)


def _flat(choices: Any) -> dict[str, str]:
    """Choices by their values as text, those in groups included."""
    flat: dict[str, str] = {}
    for value, label in choices:
        if isinstance(label, list | tuple):
            flat |= _flat(label)
        else:
            flat[str(value)] = label
    return flat
