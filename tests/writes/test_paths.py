"""Every way to write, done for real in the three states that a lease can be in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any

import django
import pytest
from django.apps import apps
from django.db import DatabaseError, models

from fencing import lease, unfenced
from fencing.exceptions import FencingError
from fencing.models import FencedQuerySet, FencedWrite
from fencing.scope import held_leases, holding, let_go
from inventory_demo.models import Stock
from tests.writes.paths import CREATED, NOTHING, STATES, UNFENCED, WRITTEN, Path, Scene
from tests.writes.ways import FAMILIES

Pair = Callable[[str], Any]

pytestmark = pytest.mark.django_db(databases=["default", "lite"], transaction=True)


def tables() -> list[type[models.Model]]:
    """Everything that a way to write could change."""
    return [*apps.get_app_config("shop").get_models(include_auto_created=True), Stock]


def everything(alias: str) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of all tables, but not when they were changed."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    for model in tables():
        names = [field.attname for field in model._meta.local_concrete_fields if field.attname != "changed_at"]
        rows: models.QuerySet[Any, Any] = models.QuerySet(model, using=alias)
        found[model._meta.label] = sorted(rows.values_list(*names), key=repr)
    return found


def numbers(alias: str) -> dict[str, dict[Any, int]]:
    """The last token of every fenced row, by table and key."""
    owners = [model for model in tables() if any(f.attname == "last_token" for f in model._meta.local_concrete_fields)]
    return {
        model._meta.label: dict(models.QuerySet(model, using=alias).values_list("pk", "last_token")) for model in owners
    }


@contextmanager
def state_of(state: str, path: Path, scene: Scene, overtaken: Pair) -> Iterator[None]:
    """The writer's lease, and what somebody newer has done by now."""
    resource = path.subject.resource(scene.key, scene.row or scene.more)
    if state == "none":
        yield
    elif state == "live":
        with lease(resource) as scene.lease:
            yield
    else:
        with overtaken(resource) as (sleeper, newer):
            with newer.atomic(using=scene.alias):
                if scene.row is not None:
                    # Past the managers, which may hide the row.
                    FencedQuerySet(type(scene.row), using=scene.alias).get(pk=scene.row.pk).save()
            scene.lease = sleeper
            with only(sleeper):
                yield


@contextmanager
def only(held: Any) -> Iterator[None]:
    """As if this context were the sleeper's: it holds nothing but the lease that it takes for its own."""
    for other in held_leases():
        let_go(other)
    with holding(held):
        yield


def outcome(path: Path, state: str, alias: str, overtaken: Pair) -> str:
    """What becomes of one way to write in one state, in the words of the page."""
    row = path.subject.make(alias, state)
    scene = Scene(alias=alias, key=state, row=row, more=path.subject.more(alias, row))
    with state_of(state, path, scene, overtaken):
        before, then = everything(alias), numbers(alias)
        known = FencedWrite.objects.using(alias).count()
        try:
            path.write(scene)
        except (FencingError, DatabaseError) as error:
            assert everything(alias) == before, "it was refused, and has written"
            return type(error).__name__
        after, now = everything(alias), numbers(alias)
        added = FencedWrite.objects.using(alias).order_by("id")[known:]
        recorded = {(one.outcome, one.grant_token) for one in added}
    if after == before:
        return NOTHING
    new = {(table, pk) for table, rows in now.items() for pk in rows if pk not in then[table]}
    if new and state != "none" and recorded:
        assert all(now[table][pk] == scene.lease.token for table, pk in new)
        assert recorded == {("accepted", scene.lease.token)}
        return CREATED
    if new and not recorded:
        zero = all(now[table][pk] == 0 for table, pk in new)
        return CREATED if zero and path.none == CREATED else UNFENCED
    if not recorded:
        return UNFENCED
    changed = [(table, pk) for table, rows in now.items() for pk, seen in rows.items() if then[table][pk] != seen]
    assert all(now[table][pk] > then[table][pk] for table, pk in changed)
    if scene.lease is not None and {one for one, _token in recorded} == {"accepted"}:
        assert recorded == {("accepted", scene.lease.token)}
    return WRITTEN


@pytest.mark.parametrize("family", FAMILIES)
def test_what_becomes_of_every_way_to_write(alias: str, family: str, overtaken: Pair) -> None:
    wrong = []
    for path in FAMILIES[family]:
        if django.VERSION[:2] < path.since:
            continue
        for state in STATES:
            expected = getattr(path, state)
            try:
                found = copy_context().run(outcome, path, state, alias, overtaken)
            except Exception as error:
                found = f"{type(error).__name__}: {error}"
            if found != expected:
                wrong.append(f"{path.how}, {state}: {found}, not {expected}")
            clear(alias)
    assert not wrong, "\n".join(wrong)


def clear(alias: str) -> None:
    """Leave no row for the next way."""
    with unfenced("the next way to write", database=alias):
        for model in tables():
            rows: models.QuerySet[Any] = models.QuerySet(model, using=alias)
            rows.delete()
    FencedWrite.objects.using(alias).all().delete()
