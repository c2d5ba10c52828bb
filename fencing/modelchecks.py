"""System checks of fenced models: what they declare, and whether their tables are what the guard expects.

``fencing.checks`` registers them; each id is explained in ``docs/checks.md``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import FieldDoesNotExist
from django.db import connections, models, router
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState

from fencing import conf, guard_audit
from fencing.fields import TokenField
from fencing.guards import FenceGuard
from fencing.models import FencedModel
from fencing.naming import make_fence, owner_of, owns_token, shares_key, template_fields
from fencing.querysets import FencedQuerySet

HINTS = {
    "E006": "Let the model's Meta inherit: class Meta(FencedModel.Meta). If it has constraints of its own, begin them with the "
    "inherited ones: constraints = [*FencedModel.Meta.constraints, ...].",
    "E007": "Remove the model's own last_token and let it come from FencedModel.",
    "E008": "Use {pk} or concrete char, integer, UUID or foreign-key fields that are not null, as plain names in braces.",
    "E009": 'Set fence_using to an alias of FENCING["BACKENDS"], or remove it.',
    "E014": "Build the manager from it: objects = MyManager.from_queryset(FencedQuerySet)(). If another base class brought the "
    "manager along, name FencedModel first.",
    "E015": "Give the field another name; db_column can keep the column's.",
    "E016": "Remove it: a row is fenced under one name, that of the class whose table has last_token.",
    "E017": "Let the link to the parent be the key: remove the child's own, or give the link primary_key=True.",
    "E018": "Give both the same fence_resource and fence_using, or make one a proxy of the other.",
    "W001": "Build the manager from it: objects = MyManager.from_queryset(FencedQuerySet)().",
    "W002": "Let Meta.base_manager_name name a manager that is built from FencedQuerySet, or inherit FencedModel.Meta.",
    "W004": "Run `manage.py fencing guards --install`, or `manage.py makemigrations` and `manage.py migrate` where no "
    "migration has created it yet.",
    "W005": "Let a migration alter the column to what FencedModel declares, a bigint.",
}

NAMING_FIELDS = (models.CharField, models.IntegerField, models.UUIDField)

# What FencedModel says by attributes of these names; a field of the same name would take their place.
ATTRIBUTES = frozenset(name for name in dir(FencedModel) if name.startswith(("fence_", "_fence_")))


# What W004 says of a guard in each state that is amiss.
STATES = {
    "missing": "is missing",
    "differs": "is not what the model declares: {detail}",
    "no column": "is missing, as is the column last_token, which it reads",
}
# Of W004 where the guard would have nothing to read: there ``fencing guards --install`` can do nothing.
WITHOUT_COLUMN = (
    "Run `manage.py makemigrations` and `manage.py migrate`: they add the column, and the guard with it. "
    "Where the model is not managed, add the column by hand."
)


def _message(number: str, text: str, model: Any, hint: str = "") -> CheckMessage:
    kind = Error if number.startswith("E") else Warning
    return kind(text, hint=hint or HINTS[number], obj=model, id=f"fencing.{number}")


def of_model(model: type[FencedModel], aliases: Collection[str]) -> Iterator[CheckMessage]:
    """A fenced model's guard, its column, its fields' names, its name of a resource, and its managers."""
    hidden = [field for field in model._meta.local_fields if ATTRIBUTES & {field.name, field.attname}]
    for field in hidden:
        yield _message("E015", f"{model._meta.label}.{field.name} hides what FencedModel means by that name.", model)
    if not model._meta.proxy and owns_token(model):
        yield from _check_table(model)
    if not hidden:
        yield from _check_resource(model, aliases)
    yield from _check_managers(model)


def sharing_tables(models_: Collection[type[FencedModel]]) -> Iterator[CheckMessage]:
    """Fenced models that name the rows of one table in different ways; proxies and children are ``of_model``'s."""
    seen: dict[tuple[str, str], tuple[type[FencedModel], object]] = {}
    for model in models_:
        if model._meta.proxy or not owns_token(model) or (name := _name_in_columns(model)) is None:
            continue
        first, its_name = seen.setdefault((router.db_for_write(model), model._meta.db_table), (model, name))
        if its_name != name:
            text = f"{model._meta.label} names the rows of table {model._meta.db_table!r} otherwise than {first._meta.label}."
            yield _message("E018", text, model)


def _name_in_columns(model: type[FencedModel]) -> object:
    """How the rows of a table are named, in terms of its columns and the lease backend; None if that cannot be told."""
    try:
        fence = make_fence(model)
        fields: dict[str, Any] = {one: fence.owner._meta.get_field(attribute) for one, attribute in fence.fields}
        return fence.using, fence.template.format(**{one: f"{{{field.column}}}" for one, field in fields.items()})
    except (FieldDoesNotExist, TypeError, ValueError):
        return None  # E008 says so


def _check_table(model: type[FencedModel]) -> Iterator[CheckMessage]:
    if not any(isinstance(constraint, FenceGuard) for constraint in model._meta.constraints):
        yield _message("E006", f"{model._meta.label} is fenced but its Meta lost the guard.", model)
    field: Any = model._meta.get_field("last_token")
    if not isinstance(field, TokenField) or field.null or field.column != "last_token":
        yield _message(
            "E007", f"{model._meta.label}.last_token is no TokenField, or may be null, or is renamed.", model
        )


def _check_resource(model: type[FencedModel], aliases: Collection[str]) -> Iterator[CheckMessage]:
    owner: Any = owner_of(model)
    if model is not owner:
        for name in ("fence_resource", "fence_using"):
            if getattr(model, name) != getattr(owner, name):
                text = f"{model._meta.label}.{name} is not that of {owner._meta.label}, whose rows it shares."
                yield _message("E016", text, model)
        if not shares_key(model):
            text = f"{model._meta.label} has another key than {owner._meta.label}, so its rows cannot be told by it."
            yield _message("E017", text, model)
        return
    using = model.fence_using
    if using != conf.DEFAULT_ALIAS and using not in aliases:
        where = f"{model._meta.label}.fence_using"
        listed = ", ".join(map(str, aliases)) or "none"
        yield _message("E009", f"{where} is {using!r}; FENCING has the aliases: {listed}.", model)
    yield from _check_template(model, model.fence_resource)


def _check_template(model: type[FencedModel], template: Any) -> Iterator[CheckMessage]:
    where = f"{model._meta.label}.fence_resource {template!r}"
    if not isinstance(template, str):
        yield _message("E008", f"{where} is no string.", model)
        return
    try:
        placeholders = template_fields(template)
    except ValueError as error:
        yield _message("E008", f"{where}: {error}", model)
        return
    for placeholder in placeholders or ("pk",):
        objection = _objection(model, placeholder)
        if objection:
            yield _message("E008", f"{where}: {placeholder!r} {objection}.", model)


def _objection(owner: type[models.Model], placeholder: str) -> str:
    """Why this field cannot stand in a resource's name, or ""."""
    if placeholder == "pk":
        field: Any = owner._meta.pk
    else:
        try:
            field = owner._meta.get_field(placeholder)
        except FieldDoesNotExist:
            return f"is no field of {owner._meta.label}, whose table has last_token"
    if field not in owner._meta.concrete_fields:
        return "is no concrete field"
    if field.model is not owner:
        return f"stands in the table of {field.model._meta.label}, where whoever writes changes the name unfenced"
    if field.null:
        return "may be null, and then the row would have no name"
    while field.remote_field:
        field = field.target_field
    if not isinstance(field, NAMING_FIELDS):
        return f"is a {type(field).__name__}, whose text may differ between SQL and Python"
    return ""


def _check_managers(model: type[FencedModel]) -> Iterator[CheckMessage]:
    several = len({model._meta.concrete_model, *model._meta.all_parents}) > 1 and not model._meta.proxy
    managers = {"base manager": model._base_manager, "default manager": model._default_manager}
    if several:
        managers |= {f"manager {one.name!r}": one for one in model._meta.managers if one is not model._default_manager}
    for what, manager in managers.items():
        if isinstance(manager.get_queryset(), FencedQuerySet):
            continue
        text = f"The {what} of {model._meta.label} is not built from FencedQuerySet: "
        if several:
            yield _message("E014", f"{text}it writes tables that have no guard, and nothing refuses it.", model)
        else:
            number = "W002" if what == "base manager" else "W001"
            yield _message(number, f"{text}only the guard is left.", model)


def in_database(alias: str) -> Iterator[CheckMessage]:
    """Whether the tables of fenced models have their guards, and columns that take every token.

    Warnings, because ``migrate`` runs them, too, before it makes good what they say. Of a guard that it is about to
    create nothing is said.

    Raises:
        django.db.Error: the database does not answer, or lets nobody look.
    """
    states = [one for one in guard_audit.audit(alias) if one.state in STATES]
    narrow = list(_narrow_columns(alias))
    to_come = _guards_to_come(alias) if states else frozenset()
    for one in states:
        if (one.model.lower(), one.guard) not in to_come:
            told = STATES[one.state].format(detail=one.detail)
            text = f"The guard {one.guard!r} of table {one.table!r} in database {alias!r} {told}."
            yield _message("W004", text, None, hint=WITHOUT_COLUMN if one.state == "no column" else "")
    yield from narrow


def _guards_to_come(alias: str) -> frozenset[tuple[str, str]]:
    """The guards, by model and name, that migrations create which are not applied to a database yet."""
    try:
        loader = MigrationLoader(connections[alias])
        applied = [key for key in loader.applied_migrations if key in loader.graph.nodes]
        return _guards_in(loader.project_state()) - _guards_in(loader.project_state(applied))
    except Exception:  # a project's migrations may fail in any way, and migrate says in which
        return frozenset()  # every guard that is amiss is told then


def _guards_in(state: ProjectState) -> frozenset[tuple[str, str]]:
    return frozenset(
        (f"{app}.{name}", constraint.name)
        for (app, name), model in state.models.items()
        for constraint in model.options.get("constraints", ())
        if isinstance(constraint, FenceGuard)
    )


def _narrow_columns(alias: str) -> Iterator[CheckMessage]:
    connection = connections[alias]
    if connection.vendor == "sqlite":
        return  # whose integers have 64 bits whatever they are called
    schema = "DATABASE()" if connection.vendor == "mysql" else "ANY (current_schemas(false))"
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name, data_type FROM information_schema.columns "
            f"WHERE column_name = 'last_token' AND data_type <> 'bigint' AND table_schema = {schema}"
        )
        narrow = dict(cursor.fetchall())
    for model in fenced_tables(alias):
        if kind := narrow.get(model._meta.db_table):
            text = f"{model._meta.label}.last_token is {kind} in database {alias!r}: too narrow for every token."
            yield _message("W005", text, model)


def fenced_tables(alias: str) -> Iterator[type[models.Model]]:
    """The models whose own tables have ``last_token`` in a database."""
    for model in apps.get_models():
        owns = issubclass(model, FencedModel) and not model._meta.proxy and owns_token(model)
        if owns and router.allow_migrate_model(alias, model):
            yield model
