"""What a drill has of its own: a table, a namespace, an alias. Everything is found by name again, and removed by it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

from django.apps import apps
from django.apps.registry import Apps
from django.conf import settings
from django.core.signals import setting_changed
from django.db import connections, models, transaction

from fencing.backends import get_backend
from fencing.backends.base import LeaseBackend
from fencing.conf import setting
from fencing.drill.plan import Plan
from fencing.models import FencedModel
from fencing.tokens import place_of


def own_setting(name: str, using: str) -> dict[str, Any]:
    """``FENCING`` as a drill has it: the user's, with one more alias in a namespace of its own, and every write on record."""
    mine = {**setting()["BACKENDS"][using], "NAMESPACE": name}
    return {**setting(), "BACKENDS": {**setting()["BACKENDS"], name: mine}, "RECORD": "all"}


@contextmanager
def having(fencing: Mapping[str, Any]) -> Iterator[None]:
    """Have the setting ``FENCING`` of a drill in this process."""
    before = settings.FENCING
    _set(fencing)
    try:
        yield
    finally:
        _set(before)


def _set(fencing: Mapping[str, Any]) -> None:
    settings.FENCING = fencing
    setting_changed.send(sender=having, setting="FENCING", value=fencing, enter=True)


def scratch_model(plan: Plan) -> type[models.Model]:
    """The model of the scratch table, known to this call only: no migration and no other program sees it.

    A row's version is its ``last_token``, and ``previous`` is the version that it was made from. Without the fence the
    writers carry the number all the same, and nobody looks at it.
    """
    # The guard's triggers are named after the class, on some databases once for all tables.
    name = plan.table.removeprefix("fencing_").title().replace("_", "")
    values: dict[str, Any] = {
        "__module__": __name__,
        "group": models.IntegerField(),
        "quantity": models.BigIntegerField(default=0),
        "count": models.BigIntegerField(default=0),
        "previous": models.BigIntegerField(default=0),
    }
    where = {"app_label": "fencing_drill", "db_table": plan.table, "apps": Apps()}
    if not plan.fenced:
        return type(
            name,
            (models.Model,),
            {**values, "last_token": models.BigIntegerField(default=0), "Meta": type("Meta", (), where)},
        )
    meta = type("Meta", (FencedModel.Meta,), {**where, "abstract": False})
    return type(
        name, (FencedModel,), {**values, "fence_resource": "drill:{group}", "fence_using": plan.name, "Meta": meta}
    )


def create_table(plan: Plan, model: type[models.Model]) -> None:
    """Create the table with its guard, and its rows."""
    connection = connections[plan.database]
    # Django's editor leaves its transaction open when the guard, which comes at its end, is refused.
    outside = connection.vendor == "postgresql"
    with (
        transaction.atomic(using=plan.database) if outside else nullcontext(),
        connection.schema_editor(atomic=not outside) as editor,
    ):
        editor.create_model(model)
    rows = [model(pk=number + 1, group=number // plan.rows + 1) for number in range(plan.resources * plan.rows)]
    model._base_manager.using(plan.database).bulk_create(rows)


def remove(plan: Plan) -> None:
    """Remove all of a drill: the store's keys, the scratch table, the rows in the app's tables. To repeat it is safe."""
    backend = get_backend(plan.name)
    # What cannot be removed must not keep the rest; it goes by another try.
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, plan.folder, ignore_errors=True)
        stack.callback(_remove_rows, plan, backend)
        stack.callback(_remove_table, plan)
        stack.callback(forget, backend)


def _remove_table(plan: Plan) -> None:
    connection = connections[plan.database]
    if plan.table in connection.introspection.table_names():
        with connection.schema_editor() as editor:
            editor.delete_model(scratch_model(plan))


def _remove_rows(plan: Plan, backend: LeaseBackend) -> None:
    # Again until there is nothing: the last statement of a process that was killed may come after it.
    # Without a word to receivers of the signals of models, who are the user's.
    while any(rows._raw_delete(rows.db) for rows in own_rows(plan, backend.config.database)):
        pass


def own_rows(plan: Plan, numbers: str) -> Iterator[Any]:
    """The rows of the app's tables that name the drill's namespace, in the database of the numbers and in its own."""
    for model in apps.get_app_config("fencing").get_models():
        if any(field.name == "namespace" for field in model._meta.fields):
            for alias in {numbers, plan.database}:
                yield model._base_manager.using(alias).filter(namespace=plan.name)


def forget(backend: LeaseBackend) -> None:
    """Let the store forget the drill's namespace, and nothing else."""
    backend.forget(place_of(backend, "drill").space)
