"""Names of resources: made from a call's arguments, or from a row's values, in one way everywhere."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import cache, cached_property
from string import Formatter
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db.models import Field

from fencing.conf import MAX_RESOURCE_LENGTH

if TYPE_CHECKING:
    from django.db.models import Model

NAMEABLE = (str, int, UUID, Decimal, date)


def check_resource(name: object) -> str:
    """``name``, if it can name a resource.

    Raises:
        TypeError: it is no string.
        ValueError: it is empty, longer than 200 characters, or holds a character that no database keeps.
    """
    if not isinstance(name, str):
        raise TypeError(f"A resource is named by a string or a fenced model instance, not by {name!r}.")
    if not name:
        raise ValueError("A resource needs a name; this one is empty.")
    if len(name) > MAX_RESOURCE_LENGTH:
        raise ValueError(
            f"A resource's name has at most {MAX_RESOURCE_LENGTH} characters; {name[:40]!r}… has {len(name)}."
        )
    if "\0" in name or not name.isprintable():
        raise ValueError(f"A resource's name holds printable characters only; {name!r} does not.")
    return plain_text(name)


def plain_text(value: str) -> str:
    """A string as databases and stores get it: that of a member of a ``str`` enumeration is its value, not its name."""
    return str.__str__(value)


@cache
def template_fields(template: str) -> tuple[str, ...]:
    """The placeholders of ``template`` in order: plain names in braces, no format specs, no conversions.

    Raises:
        ValueError: a placeholder is more than a plain name.
    """
    found = []
    for _literal, field, spec, conversion in Formatter().parse(template):
        if field is None:
            continue
        if spec or conversion or not field.isidentifier():
            raise ValueError(
                f"Placeholder {field!r} of {template!r} must be a plain name, without format or conversion."
            )
        found.append(field)
    return tuple(found)


def nameable(value: object, placeholder: str, template: str) -> str:
    """``value`` as text for a name.

    Raises:
        TypeError: it has no stable text, as None, a float, or an object.
        ValueError: its text is empty: two different calls would share a name.
    """
    if isinstance(value, bool) or not isinstance(value, NAMEABLE):
        raise TypeError(f"{placeholder}={value!r} cannot stand in the name {template!r}; use a str, int, UUID or date.")
    if isinstance(value, str):
        text = plain_text(value)
    else:  # a member of an ``int`` enumeration is its value, too
        text = int.__repr__(value) if isinstance(value, int) else str(value)
    if not text:
        raise ValueError(f"{placeholder} is empty, so the name {template!r} would not name anything.")
    return text


def render(template: str, values: Mapping[str, object]) -> str:
    """The resource that ``template`` names with ``values``.

    Raises:
        TypeError, ValueError: a placeholder has no value, or one without a stable text, or the name is unusable.
    """
    return check_resource(fill(template, values))


def fill(template: str, values: Mapping[str, object]) -> str:
    """The text that ``template`` gives with ``values``.

    Raises:
        TypeError, ValueError: a placeholder has no value, or one without a stable text.
    """
    texts = {}
    for field in template_fields(template):
        if field not in values:
            raise TypeError(f"The name {template!r} needs {field!r}, which is no argument of the call.")
        texts[field] = nameable(values[field], field, template)
    return template.format(**texts)


def resource_of_call(
    resource: str | Callable[..., str], function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str:
    """The resource of one call of ``function``: the same name however the arguments are written."""
    if callable(resource):
        return check_resource(resource(*args, **kwargs))
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return render(resource, bound.arguments)


@dataclass(frozen=True)
class ModelFence:
    """How the rows of one fenced model are fenced.

    Attributes:
        owner: the concrete model whose table has ``last_token``; proxies and children share it.
        template: the name's template.
        fields: placeholder to attribute name, ``{"pk": "id"}``.
        using: alias of the lease backend.
        inserts: whether creating a row needs a lease.
    """

    owner: type[Model]
    template: str
    fields: tuple[tuple[str, str], ...]
    using: str
    inserts: bool

    @cached_property
    def attributes(self) -> tuple[str, ...]:
        """The attributes that the name is made of."""
        return tuple(attribute for _placeholder, attribute in self.fields)

    @cached_property
    def made(self) -> tuple[str, ...]:
        """Those whose fields make their values as they are saved, a slug of a title for example."""
        fields: list[Any] = [self.owner._meta.get_field(one) for one in self.attributes]
        return tuple(field.attname for field in fields if type(field).pre_save is not Field.pre_save)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The attributes that hold the row's primary key."""
        return tuple(field.attname for field in self.owner._meta.pk_fields)

    @cached_property
    def label(self) -> str:
        """``app_label.model_name`` of the owner, as the history shows it."""
        return self.owner._meta.label_lower

    def name(self, values: Mapping[str, object]) -> str:
        """The resource of a row with these attribute values."""
        return render(self.template, {placeholder: values[attribute] for placeholder, attribute in self.fields})

    def name_on_record(self, values: Mapping[str, object]) -> str:
        """The same for the history, "" if there is none: to mend such a row is what the fence is lifted for."""
        try:
            return self.name(values)
        except (TypeError, ValueError):
            return ""

    def present(self, instance: Model, attributes: tuple[str, ...]) -> dict[str, Any]:
        """What an instance holds now, as the database will give it back: a UUID that was set as text is one.

        A value that the database works out is not known yet, and left out.
        """
        values = {one: getattr(instance, one) for one in attributes}
        return {
            one: as_read(self.owner._meta.get_field(one), value)
            for one, value in values.items()
            if not hasattr(value, "resolve_expression")
        }


def as_read(field: Any, value: Any) -> Any:
    """A value of a field as the database will give it back: a field may keep another than it was given."""
    value = field.to_python(value)
    kept = field
    while kept.remote_field:
        kept = kept.target_field
    if value is None or hasattr(kept, "from_db_value"):
        return value
    return field.to_python(field.get_prep_value(value))


def key_as_read(model: type[Model], key: Any) -> Any:
    """A primary key as a read gives it: of several columns a tuple. One that the database is to make stays as it is."""
    if key is None or hasattr(key, "resolve_expression"):
        return key
    fields = model._meta.pk_fields
    if len(fields) == 1:
        return as_read(fields[0], key)
    return tuple(as_read(field, value) for field, value in zip(fields, key, strict=True))


_fences: dict[type[Any], ModelFence] = {}


def fence_of(model: type[Any]) -> ModelFence:
    """The fence of a model that inherits ``FencedModel``, worked out once."""
    if (fence := _fences.get(model)) is None:
        fence = _fences[model] = make_fence(model)
    return fence


def make_fence(model: type[Any]) -> ModelFence:
    """Read a model's ``fence_`` attributes; ValueError or FieldDoesNotExist for a name that cannot be made.

    Name and backend are those of the class whose table has ``last_token``, whatever a proxy or a child says: one row
    under two names could be written by two holders at a time.
    """
    owner = owner_of(model)
    if not shares_key(model):
        raise ValueError(f"{model._meta.label} has another key than {owner._meta.label}, whose rows are fenced.")
    template = getattr(owner, "fence_resource", "") or f"{owner._meta.label_lower}:{{pk}}"
    fields = []
    for placeholder in template_fields(template):
        field = owner._meta.pk if placeholder == "pk" else owner._meta.get_field(placeholder)
        fields.append((placeholder, getattr(field, "attname", placeholder)))
    return ModelFence(
        owner=owner,
        template=template,
        fields=tuple(fields),
        using=getattr(owner, "fence_using", "default"),
        inserts=getattr(model, "fence_inserts", False),
    )


def shares_key(model: type[Model]) -> bool:
    """Whether a row of the model has the key of the row that carries its token: a child may have one of its own."""
    owner, key = owner_of(model), model._meta.pk
    while key.model is not owner._meta.concrete_model and getattr(key.remote_field, "parent_link", False):
        key = key.target_field  # type: ignore[attr-defined]
    return key.model is owner._meta.concrete_model


def owner_of(model: type[Model]) -> type[Model]:
    """The concrete model whose own table has the column ``last_token``."""
    return model._meta.get_field("last_token").model


def owns_token(model: type[Model]) -> bool:
    """Whether ``last_token`` stands in this model's own table."""
    return any(field.attname == "last_token" for field in model._meta.local_concrete_fields)


def settle_name(instance: Model) -> None:
    """Let the fields of a new instance's name that make their value as they are saved make it now."""
    fence = fence_of(type(instance))
    for one in fence.made:
        field: Any = fence.owner._meta.get_field(one)
        setattr(instance, one, field.pre_save(instance, True))


def name_of_new(instance: Model) -> str:
    """The resource of an instance that is to be created; "" while what the name is made of is unknown."""
    fence = fence_of(type(instance))
    values = fence.present(instance, fence.attributes)
    return "" if len(values) < len(fence.attributes) or None in values.values() else fence.name(values)
