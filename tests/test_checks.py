"""Every system check: what it finds, how it names it, and that the documentation explains it."""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from django.apps.registry import Apps
from django.core.checks import CheckMessage, run_checks
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connections, models
from django.test import override_settings
from django.test.utils import isolate_apps

import fencing
from fencing import checks, guard_audit, mariadbchecks, modelchecks, taskchecks
from fencing.fields import TokenField
from fencing.models import FencedModel
from fencing.naming import make_fence
from fencing.querysets import FencedQuerySet
from tests.services import PrivateValkey
from tests.shop.models import Hook, Label, Tag

MEMORY = {"BACKEND": "fencing.backends.memory.MemoryBackend"}


REDIS = {"BACKEND": "fencing.backends.redis.RedisBackend", "CACHE": "leases"}


def leases_in(location: Any, **options: Any) -> dict[str, Any]:
    """CACHES with an alias for leases there."""
    entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location, "OPTIONS": options}
    return {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}, "leases": entry}


def ids(messages: Sequence[CheckMessage]) -> list[str]:
    """The ids; every message must also say what to do."""
    assert all(message.hint for message in messages)
    return [str(message.id) for message in messages]


def of_settings(value: Any) -> list[CheckMessage]:
    with override_settings(FENCING=value):
        return checks.check_settings()


def of_models(isolated: Apps) -> list[CheckMessage]:
    return checks.check_models(app_configs=[isolated.get_app_config("shop")])


@pytest.fixture
def isolated() -> Iterator[Apps]:
    """A registry in which a test may define models of the app "shop"."""
    with isolate_apps("tests.shop") as registry:
        assert registry
        yield registry


@pytest.mark.django_db(databases="__all__")
def test_the_project_itself_is_clean() -> None:
    """But for the models of the tests that leave their foreign key to the database on purpose, and the tests' tasks."""
    found = [one for one in run_checks(tags=["fencing"]) if str(one.id).startswith("fencing.")]
    assert [one for one in found if one.obj not in (Tag, Label, Hook) and not str(one.obj).startswith("tests.")] == []


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"BACKEND": {}}, "BACKEND"),
        ("redis", "redis"),
        ({"BACKENDS": "redis"}, "redis"),
        ({"BACKENDS": {"default": "redis"}}, "redis"),
        ({"BACKENDS": {"default": {**MEMORY, "TLL": 30}}}, "TLL"),
        ({"BACKENDS": {"default": {}}}, "BACKEND"),
        ({"BACKENDS": {"default": {**MEMORY, "TTL": 0}}}, "TTL"),
        ({"BACKENDS": {"default": {**MEMORY, "TTL": -1}}}, "-1"),
        ({"BACKENDS": {"default": {**MEMORY, "TTL": float("nan")}}}, "nan"),
        ({"BACKENDS": {"default": {**MEMORY, "TTL": float("inf")}}}, "inf"),
        ({"BACKENDS": {"default": {**MEMORY, "TTL": "30"}}}, "'30'"),
        ({"BACKENDS": {"default": {**MEMORY, "TTL": 1e300}}}, "at most 1000000000000 seconds"),
        ({"BACKENDS": {"default": {**MEMORY, "TTL": 10**400}}}, "at most 1000000000000 seconds"),
        ({"BACKENDS": {"default": MEMORY}, "RETENTION": timedelta.max}, "at most 1000000000000 seconds"),
        ({"BACKENDS": {"default": {**MEMORY, "BLOCK": 0}}}, "BLOCK"),
        ({"BACKENDS": {"default": {**MEMORY, "PARTITIONS": 1.5}}}, "PARTITIONS"),
        ({"BACKENDS": {"default": MEMORY}, "RECORD": "some"}, "some"),
        ({"BACKENDS": {"default": MEMORY}, "IDLE_IN_TRANSACTION": "long"}, "long"),
        ({"BACKENDS": {"default": MEMORY}, "ADMIN_TIMEOUT": "long"}, "long"),
        ({"BACKENDS": {"default": MEMORY}, 1: 2}, "unknown keys: 1"),
        ({"BACKENDS": {"default": {**MEMORY, "BACKEND": None}}}, "a string that is not empty, not None"),
        ({"BACKENDS": {"default": {**MEMORY, "CACHE": ["leases"]}}}, "['leases']"),
        ({"BACKENDS": {"default": {**MEMORY, "DATABASE": {}}}}, "DATABASE"),
        ({"BACKENDS": {"default": {**MEMORY, "NAMESPACE": ""}}}, "a string of 1 to 100 characters, not ''"),
        ({"BACKENDS": {"default": {**MEMORY, "NAMESPACE": "n" * 101}}}, "a string of 1 to 100 characters"),
        ({"BACKENDS": {"default": {**MEMORY, "OPTIONS": []}}}, "a dictionary, not []"),
    ],
)
def test_e001_bad_key_or_value(value: Any, named: str) -> None:
    (found,) = (one for one in of_settings(value) if one.id != "fencing.E002")
    assert found.id == "fencing.E001"
    assert named in found.msg


def test_e001_says_all_that_is_wrong_at_once() -> None:
    """One after the other, each would cost a further try; and what else is wrong is said as well."""
    backends = {
        "default": {**MEMORY, "TTL": 0, "BLOCK": "x", "TLL": 1},
        "other": "redis",
        "third": {**REDIS, "CACHE": "nowhere", "NAMESPACE": "third"},
    }
    bad = {"RECORD": None, "RETENTION": 0, "OPERATION_RETENTION": "x", "IDLE_IN_TRANSACTION": -2, "ADMIN_TIMEOUT": -1}
    found = of_settings({"BACKENDS": backends, **bad})
    assert ids(found) == ["fencing.E001"] * 9 + ["fencing.E020"]
    told = [message.msg for message in found]
    for where in (*(f'FENCING["{key}"]' for key in bad), *(f"['default'][\"{key}\"]" for key in ("TTL", "BLOCK"))):
        assert len([text for text in told if where in text]) == 1, where
    for text in ("['default'] has unknown keys: TLL.", "['other'] must be a dictionary, not 'redis'."):
        assert len([each for each in told if text in each]) == 1, text
    assert ids(of_settings({"BACKENDS": backends, "KEEP": 1})) == ["fencing.E001"] * 5


def test_e001_of_one_alias_lets_the_others_be_looked_at() -> None:
    backends = {"default": {**MEMORY, "TTL": 0}, "shared": {**REDIS, "NAMESPACE": "shared"}}
    caches = {**leases_in("redis://localhost/1"), "other": leases_in("redis://localhost/1")["leases"]}
    with override_settings(CACHES=caches):
        assert ids(of_settings({"BACKENDS": backends})) == ["fencing.E001", "fencing.W011"]


@pytest.mark.parametrize(
    ("key", "allowed"),
    [
        ("ADMIN_TIMEOUT", "0 or False sets no bound"), ("IDLE_IN_TRANSACTION", "0 or False sets no bound"),
        ("RETENTION", "None, the default, keeps"), ("OPERATION_RETENTION", "None, the default, keeps"),
    ],
)  # fmt: skip
def test_e001_names_the_setting_the_value_and_what_is_allowed(key: str, allowed: str) -> None:
    (found,) = of_settings({"BACKENDS": {"default": MEMORY}, key: -1})
    assert found.msg.startswith(f'FENCING["{key}"] must be a finite number of seconds above 0, not -1. {allowed}')


@pytest.mark.parametrize("value", [{}, {"BACKENDS": {}}, {"BACKENDS": {"other": MEMORY}}])
def test_e002_no_default(value: Any) -> None:
    (found,) = of_settings(value)
    assert ids([found]) == ["fencing.E002"]
    assert found.msg.startswith('FENCING["BACKENDS"] has no alias' if value else "The setting FENCING is missing")


def test_e002_says_what_to_write(settings: Any) -> None:
    """As it stands there it is a setting, for somebody who has none."""
    del settings.FENCING
    (found,) = checks.check_settings()
    assert found.id == "fencing.E002" and found.msg.startswith("The setting FENCING is missing")
    hint = str(found.hint)
    settings.CACHES = leases_in("redis://localhost/1")
    settings.FENCING = literal_eval(hint[hint.index("{") : hint.rindex("}") + 1])
    assert checks.check_settings() == []
    (entry,) = re.findall('"BACKEND": "fencing.backends.database.DatabaseBackend"', hint)
    settings.FENCING = {"BACKENDS": {"default": literal_eval(f"{{{entry}}}")}}
    assert checks.check_settings() == []


@pytest.mark.parametrize(
    "path", ["fencing.backends.nowhere.Backend", "fencing.backends.memory.No", "fencing.conf.whole"]
)
def test_e003_backend_that_cannot_be_imported(path: str) -> None:
    found = of_settings({"BACKENDS": {"default": {"BACKEND": path}}})
    assert ids(found) == ["fencing.E003"]
    assert path in found[0].msg


def test_e004_unknown_database() -> None:
    found = of_settings({"BACKENDS": {"default": {**MEMORY, "DATABASE": "elsewhere"}}})
    assert ids(found) == ["fencing.E004"]
    assert "elsewhere" in found[0].msg


def test_e005_namespace_used_twice() -> None:
    found = of_settings({"BACKENDS": {"default": MEMORY, "other": MEMORY, "third": {**MEMORY, "NAMESPACE": "own"}}})
    assert ids(found) == ["fencing.E005"]
    assert "default, other" in found[0].msg


@pytest.mark.parametrize(
    ("number", "cache", "caches"),
    [
        ("E020", "nowhere", {}),
        ("E021", "local", {"local": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}),
        ("E022", "braces", {"braces": {"BACKEND": "django_redis.cache.RedisCache", "KEY_PREFIX": "a{b}"}}),
    ],
)
def test_e020_to_e022_cache_of_the_redis_backend(number: str, cache: str, caches: Any) -> None:
    default = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    caches = {**default, **{name: {"LOCATION": "redis://localhost:1/0", **value} for name, value in caches.items()}}
    with override_settings(CACHES=caches):
        found = of_settings(
            {"BACKENDS": {"default": {"BACKEND": "fencing.backends.redis.RedisBackend", "CACHE": cache}}}
        )
    assert ids(found) == [f"fencing.{number}"]


def test_e006_meta_that_does_not_inherit(isolated: Apps) -> None:
    class Lost(FencedModel):
        class Meta:
            app_label = "shop"
            constraints = [models.UniqueConstraint(fields=["last_token"], name="lost_once")]

    class Kept(FencedModel):
        class Meta(FencedModel.Meta):
            app_label = "shop"
            constraints = (  # type: ignore[assignment]
                *FencedModel.Meta.constraints,
                models.UniqueConstraint(fields=["last_token"], name="kept_once"),
            )

    found = [(message.id, message.obj) for message in of_models(isolated)]
    assert ("fencing.E006", Lost) in found
    assert Kept not in [model for _id, model in found]


@pytest.mark.parametrize(
    ("template", "named"),
    [
        ("{nothing}", "no field"),
        ("{maybe}", "null"),
        ("{many}", "no concrete field"),
        ("{weight}", "FloatField"),
        ("{parent_id}", "null"),
        ("{pk:05}", "without format"),
        ("{pk!r}", "without format"),
        ("{code.upper}", "plain name"),
        ("{0}", "plain name"),
    ],
)
def test_e008_field_that_cannot_name_a_resource(template: str, named: str, isolated: Apps) -> None:
    class Odd(FencedModel):
        fence_resource = template
        maybe = models.CharField(max_length=9, null=True)  # noqa: DJ001
        many = models.ManyToManyField("self")
        weight = models.FloatField()
        code = models.CharField(max_length=9)
        parent = models.ForeignKey("self", models.CASCADE, null=True)

        class Meta(FencedModel.Meta):
            app_label = "shop"

    (found,) = of_models(isolated)
    assert ids([found]) == ["fencing.E008"]
    assert found.obj is Odd
    assert named in found.msg


def test_e008_is_silent_about_good_names_and_speaks_of_a_default_name_without_text(isolated: Apps) -> None:
    class Parent(models.Model):
        code = models.SlugField(primary_key=True)

        class Meta:
            app_label = "shop"

        def __str__(self) -> str:
            return self.code

    class Good(FencedModel):
        fence_resource = "a:{pk}:{code}:{number}:{key}:{parent}:{parent_id}"
        code = models.SlugField()
        number = models.PositiveIntegerField()
        key = models.UUIDField()
        parent = models.ForeignKey(Parent, models.CASCADE)

        class Meta(FencedModel.Meta):
            app_label = "shop"

    class Child(Good):
        extra = models.CharField(max_length=9)

        class Meta:
            app_label = "shop"

    class Strange(FencedModel):
        at = models.DateTimeField(primary_key=True)

        class Meta(FencedModel.Meta):
            app_label = "shop"

    (found,) = of_models(isolated)
    assert (found.id, found.obj) == ("fencing.E008", Strange)


@pytest.mark.parametrize(
    "field",
    [models.BigIntegerField(default=0), TokenField(null=True), TokenField(db_column="other")],
    ids=["no CHECK", "null", "renamed"],
)
def test_e007_another_last_token(field: Any, isolated: Apps) -> None:
    class Own(FencedModel):
        last_token = field.clone()

        class Meta(FencedModel.Meta):
            app_label = "shop"

    found = of_models(isolated)
    assert [(message.id, message.obj) for message in found] == [("fencing.E007", Own)]


def test_e008_field_of_an_unfenced_parent_and_what_is_no_string(isolated: Apps) -> None:
    class Parent(models.Model):
        code = models.SlugField()

        class Meta:
            app_label = "shop"

        def __str__(self) -> str:
            return self.code

    class Child(FencedModel, Parent):
        fence_resource = "child:{code}"

        class Meta(FencedModel.Meta):
            app_label = "shop"

    class Listed(FencedModel):
        fence_resource = ["a"]  # type: ignore[assignment]

        class Meta(FencedModel.Meta):
            app_label = "shop"

    found = {message.obj: message for message in of_models(isolated)}
    assert ids([*found.values()]) == ["fencing.E008"] * 2
    assert "shop.Parent" in found[Child].msg and "no string" in found[Listed].msg


@pytest.mark.parametrize("parent_first", [False, True])
def test_e014_manager_that_opens_a_door(parent_first: bool, isolated: Apps) -> None:
    """Tables of multi-table inheritance that have no guard: an error, where one table alone is only a warning."""

    class Parent(models.Model):
        place = models.CharField(max_length=9)

        class Meta:
            app_label = "shop"

        def __str__(self) -> str:
            return self.place

    bases = (Parent, FencedModel) if parent_first else (FencedModel, Parent)
    Child = type(  # noqa: N806
        "Child", bases, {"__module__": __name__, "Meta": type("Meta", (FencedModel.Meta,), {"app_label": "shop"})}
    )

    class Fenced(FencedModel):
        class Meta(FencedModel.Meta):
            app_label = "shop"

    class Grandchild(Fenced):
        plain = models.Manager()
        courier = models.CharField(max_length=9)

        class Meta:
            app_label = "shop"

    found = {(str(message.id), message.obj) for message in of_models(isolated)}
    assert found == {("fencing.E014", Grandchild), *([("fencing.E014", Child)] if parent_first else [])}


@pytest.mark.parametrize("name", ["fence_resource", "fence_using", "fence_name", "_fence_pin"])
def test_e015_field_that_hides_an_attribute(name: str, isolated: Apps) -> None:
    Odd = type(  # noqa: N806
        "Odd",
        (FencedModel,),
        {
            "__module__": __name__,
            name: models.CharField(max_length=9),
            "Meta": type("Meta", (FencedModel.Meta,), {"app_label": "shop"}),
        },
    )
    (found,) = of_models(isolated)
    assert (found.id, found.obj) == ("fencing.E015", Odd) and name in found.msg


def test_e016_another_name_for_the_same_rows(isolated: Apps) -> None:
    class Parent(FencedModel):
        fence_resource = "parent:{pk}"

        class Meta(FencedModel.Meta):
            app_label = "shop"

    class Child(Parent):
        fence_resource = "child:{pk}"

        class Meta:
            app_label = "shop"

    class Proxy(Parent):
        fence_using = "other"

        class Meta:
            app_label = "shop"
            proxy = True

    class Same(Parent):
        fence_resource = "parent:{pk}"

        class Meta:
            app_label = "shop"

    found = [(message.id, message.obj) for message in of_models(isolated)]
    assert found == [("fencing.E016", Child), ("fencing.E016", Proxy)]
    assert Same not in {obj for _id, obj in found}


def test_e017_child_with_a_key_of_its_own(isolated: Apps) -> None:
    """Its rows would be judged by the parent's row of the same number."""

    class Parent(FencedModel):
        class Meta(FencedModel.Meta):
            app_label = "shop"

    class Own(Parent):
        number = models.AutoField(primary_key=True)
        link = models.OneToOneField(Parent, models.CASCADE, parent_link=True)

        class Meta:
            app_label = "shop"

    class Linked(Parent):
        link = models.OneToOneField(Parent, models.CASCADE, parent_link=True, primary_key=True)

        class Meta:
            app_label = "shop"

    class Grandchild(Linked):
        class Meta:
            app_label = "shop"

    class Proxy(Grandchild):
        class Meta:
            app_label = "shop"
            proxy = True

    assert [(message.id, message.obj) for message in of_models(isolated)] == [("fencing.E017", Own)]
    assert make_fence(Proxy).owner is Parent
    with pytest.raises(ValueError, match="another key"):
        make_fence(Own)


def fenced(name: str, *, resource: str = "", meta: dict[str, Any], **fields: Any) -> Any:
    """A fenced model of the app "shop"."""
    options = type("Meta", (FencedModel.Meta,), {"app_label": "shop", "constraints": (), **meta})
    return type(name, (FencedModel,), {"__module__": __name__, "fence_resource": resource, "Meta": options, **fields})


@pytest.mark.parametrize("managed", [True, False])
@pytest.mark.parametrize(
    ("first", "second", "column", "differ"),
    [
        ("", "", "code", True),  # the default name has the model's own in it
        ("stock:{pk}", "store:{pk}", "code", True),
        ("stock:{code}", "stock:{code}", "code", False),
        ("stock:{code}", "stock:{code}", "other", True),
        ("stock:{pk}", "stock:{id}", "code", False),
        ("stock:{absent}", "stock:{pk}", "code", False),  # fencing.E008
    ],
)
def test_e018_two_names_for_the_rows_of_one_table(
    isolated: Apps, managed: bool, first: str, second: str, column: str, differ: bool
) -> None:
    """Two holders, each with a lease of its own, would write one row at a time."""
    shared = {"db_table": "shop_stock", "managed": managed}
    fenced("One", resource=first, meta={"db_table": "shop_stock"}, code=models.CharField(max_length=9))
    other = fenced("Other", resource=second, meta=shared, code=models.CharField(max_length=9, db_column=column))
    fenced("Elsewhere", resource=first, meta={"db_table": "shop_store"}, code=models.CharField(max_length=9))
    found = [(message.id, message.obj) for message in of_models(isolated) if message.id == "fencing.E018"]
    assert found == [("fencing.E018", other)] * differ


def test_e018_tables_of_two_databases(isolated: Apps) -> None:
    class Router:
        def db_for_write(self, model: Any, **_hints: Any) -> str:
            return "lite" if model.__name__ == "Other" else "default"

    for name in ("One", "Other"):
        fenced(name, meta={"db_table": "shop_stock"})
    with override_settings(DATABASE_ROUTERS=[Router()]):
        assert "fencing.E018" not in {message.id for message in of_models(isolated)}
    assert "fencing.E018" in {message.id for message in of_models(isolated)}


@pytest.mark.django_db(databases=["default", "lite"], transaction=True)
@pytest.mark.parametrize("alias", ["default", "lite"])
def test_w004_guard_that_is_missing_in_a_database(alias: str) -> None:
    assert checks.check_databases(databases=[alias]) == []
    (guard,) = (one for one in guard_audit.audit(alias) if one.model == "shop.Bin")
    trigger = "shop_bin_fence_delete" if alias == "lite" else "fencing_guard_delete ON shop_bin"
    with connections[alias].cursor() as cursor:
        cursor.execute(f"DROP TRIGGER {trigger}")
    try:
        (found,) = checks.check_databases(databases=[alias])
        assert found.id == "fencing.W004" and guard.guard in found.msg and alias in found.msg
        # A warning: migrate runs it, and may be what makes it good.
        assert not found.is_serious()
    finally:
        (broken,) = (one for one in guard_audit.audit(alias) if one.state in guard_audit.AMISS)
        guard_audit.repair(broken)
    assert checks.check_databases(databases=[alias]) == []


@pytest.mark.django_db(transaction=True)
def test_w005_column_that_is_too_narrow() -> None:
    guard = next(one for one in guard_audit.audit("default") if one.model == "shop.Crate")
    with connections["default"].cursor() as cursor:
        # A trigger that names the column keeps its type.
        cursor.execute("DROP TRIGGER fencing_guard_update ON shop_crate")
        cursor.execute("ALTER TABLE shop_crate ALTER COLUMN last_token TYPE integer")
    try:
        found = checks.check_databases(databases=["default"])
        assert ids(found) == ["fencing.W004", "fencing.W005"] and "is integer in" in found[1].msg
    finally:
        with connections["default"].cursor() as cursor:
            cursor.execute("ALTER TABLE shop_crate ALTER COLUMN last_token TYPE bigint")
        guard_audit.repair(next(one for one in guard_audit.audit("default") if one.model == guard.model))
    assert checks.check_databases(databases=["default"]) == []


def test_e009_unknown_alias(isolated: Apps) -> None:
    class Elsewhere(FencedModel):
        fence_using = "elsewhere"

        class Meta(FencedModel.Meta):
            app_label = "shop"

    assert ids(of_models(isolated)) == ["fencing.E009"]
    with override_settings(FENCING={"BACKENDS": {"default": MEMORY, "elsewhere": {**MEMORY, "NAMESPACE": "own"}}}):
        assert of_models(isolated) == []
    with override_settings(FENCING="broken"):
        assert ids(of_models(isolated)) == ["fencing.E009"]


@pytest.mark.django_db
def test_e010_database_without_a_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.check_databases(databases=["default"]) == []
    monkeypatch.setattr(connections["default"], "vendor", "oracle")
    found = checks.check_databases(databases=["default"])
    assert ids(found) == ["fencing.E010"]
    assert "oracle" in found[0].msg
    assert "shop.Bin" in found[0].msg
    assert checks.check_databases(databases=None) == []
    with override_settings(DATABASE_ROUTERS=[type("Elsewhere", (), {"allow_migrate": lambda *a, **k: False})()]):
        assert checks.check_databases(databases=["default"]) == []


def test_w016_database_that_does_not_answer(
    django_db_setup: None, django_db_blocker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silence would look as if its guards stood. Where no fenced model lives there is nothing to be told."""
    default = connections.databases["default"]
    away = {**default, "HOST": "127.0.0.1", "PORT": "1", "NAME": "nowhere"}
    monkeypatch.setitem(connections.databases, "away", away)
    monkeypatch.setitem(connections.databases, "nofile", {**connections.databases["lite"], "NAME": "/nowhere/at.all"})
    try:
        with django_db_blocker.unblock():
            for alias in ("away", "nofile"):
                (found,) = checks.check_databases(databases=[alias])
                assert ids([found]) == ["fencing.W016"] and not found.is_serious()
                assert f"{alias!r}" in found.msg and "OperationalError" in found.msg
                with override_settings(DATABASE_ROUTERS=[type("No", (), {"allow_migrate": lambda *a, **k: False})()]):
                    assert checks.check_databases(databases=[alias]) == []
    finally:
        for alias in ("away", "nofile"):
            del connections[alias]


@pytest.mark.django_db(databases=["default", "lite"])
def test_e011_store_that_does_not_answer() -> None:
    assert checks.check_stores() == []
    location = {"LOCATION": "redis://127.0.0.1:1/0", "OPTIONS": {"SOCKET_CONNECT_TIMEOUT": 1}}
    default = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
    with override_settings(
        CACHES={"default": default, "leases": {"BACKEND": "django_redis.cache.RedisCache", **location}}
    ):
        found = checks.check_stores()
        assert ids(found) == ["fencing.E011"]
        assert "'default'" in found[0].msg
        # Only asked for: migrate and the like need no lease store.
        assert "fencing.E011" not in [message.id for message in run_checks(databases=["default"])]
        assert "fencing.E011" in [message.id for message in run_checks(include_deployment_checks=True)]


@pytest.mark.django_db(databases=["default", "lite"])
def test_e012_store_that_cannot_tell_whether_it_forgot(
    valkey_server: Callable[..., PrivateValkey], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = valkey_server()
    with server.client() as client:
        client.acl_setuser("shop", enabled=True, passwords=["+s3cret"], keys=["*"], categories=["+@all", "-@dangerous"])
        with override_settings(CACHES=leases_in(server.url().replace("unix://", "unix://shop:s3cret@"))):
            (found,) = checks.check_stores()
            assert ids([found]) == ["fencing.E012"]
            assert "+info" in str(found.hint) and "s3cret" not in str(found)
            client.acl_setuser("shop", commands=["+info"])
            assert checks.check_stores() == []
            monkeypatch.setattr(redis.Redis, "info", lambda *args: {"role": "master"})
            (found,) = checks.check_stores()
            assert ids([found]) == ["fencing.E012"] and "master_replid ''" in found.msg


@pytest.mark.django_db(databases=["default", "lite"])
def test_w010_store_that_evicts(valkey_server: Callable[..., PrivateValkey]) -> None:
    server = valkey_server(maxmemory="50mb")
    with server.client() as client, override_settings(CACHES=leases_in(server.url())):
        assert checks.check_stores() == []
        client.config_set("maxmemory-policy", "allkeys-lru")
        (found,) = checks.check_stores()
        assert ids([found]) == ["fencing.W010"] and "'allkeys-lru'" in found.msg
        # Only asked for: what needs no lease store must not reach for one.
        assert "fencing.W010" not in [message.id for message in run_checks(databases=["default"])]
        client.config_set("maxmemory", 0)
        assert checks.check_stores() == [], "nothing is evicted without a limit"


@pytest.mark.parametrize(
    ("location", "other", "shared"),
    [
        ("redis://localhost:6379/1", "redis://localhost/1", True),
        ("redis://u:p@localhost:6379?db=1", "redis://localhost:6379/1", True),
        (["redis://localhost:6379/1", "redis://replica:6379/1"], "rediss://localhost:6379/1", True),
        ("redis://localhost:6379/1,redis://replica:6379/1", "redis://localhost:6379/1", True),
        ("redis://localhost", "redis://localhost:6379/0", True),
        ("unix:///run/redis.sock?db=1", "unix:///run/redis.sock?db=1", True),
        ("redis://localhost:6379/1", "redis://localhost:6379/2", False),
        ("redis://localhost:6379/1", "redis://localhost:6380/1", False),
        ("redis://localhost:6379/1", "redis://elsewhere:6379/1", False),
        ("unix:///run/redis.sock?db=1", "unix:///run/redis.sock?db=2", False),
        ("redis://localhost:x/1", "redis://localhost:6379/1", False),
    ],
)
def test_w011_leases_in_the_database_of_an_ordinary_cache(location: Any, other: str, shared: bool) -> None:
    for backend in ("django_redis.cache.RedisCache", "django.core.cache.backends.redis.RedisCache"):
        caches = {**leases_in(location), "default": {"BACKEND": backend, "LOCATION": other}}
        with override_settings(CACHES=caches):
            found = of_settings({"BACKENDS": {"default": REDIS}})
        assert ids(found) == (["fencing.W011"] if shared else [])
        assert "p@" not in str(found)


def test_w011_leases_in_the_alias_of_an_ordinary_cache() -> None:
    with override_settings(CACHES={"default": leases_in("redis://localhost/1")["leases"]}):
        found = of_settings({"BACKENDS": {"default": {**REDIS, "CACHE": "default"}}})
        assert ids(found) == ["fencing.W011"]
        assert of_settings({"BACKENDS": {"default": MEMORY}}) == []
    with override_settings(CACHES=leases_in("redis://localhost/1"), SESSION_CACHE_ALIAS="leases"):
        assert ids(of_settings({"BACKENDS": {"default": REDIS}})) == ["fencing.W011"]
    two = {**leases_in("redis://localhost/1"), "more": leases_in("redis://localhost/1")["leases"]}
    with override_settings(CACHES=two):
        both = {"default": REDIS, "second": {**REDIS, "CACHE": "more", "NAMESPACE": "second"}}
        assert of_settings({"BACKENDS": both}) == [], "leases may share with leases"


@pytest.mark.parametrize(
    ("ttl", "options", "found"),
    [
        (0.05, {"SOCKET_TIMEOUT": 0.01}, True),
        (3, {"SOCKET_TIMEOUT": 2}, True),
        (3, {"SOCKET_TIMEOUT": 1.5}, False),
        (3, {"CONNECTION_POOL_KWARGS": {"socket_timeout": 2}}, True),
        (3, {"CONNECTION_POOL_KWARGS": {"socket_timeout": 1.5}}, False),
        (3, {"REDIS_CLIENT_KWARGS": {"socket_timeout": 2}}, True),
        (3, {"REDIS_CLIENT_KWARGS": {"socket_timeout": 1.5}}, False),
        # Five seconds, where nothing is set.
        (7.5, {}, True),
        (7.6, {}, False),
        (7.5, {"CONNECTION_POOL_KWARGS": {"socket_timeout": None}}, True),
    ],
)
def test_w012_ttl_that_cannot_be_kept(ttl: float, options: dict[str, Any], found: bool) -> None:
    with override_settings(CACHES=leases_in("redis://localhost/1", **options)):
        messages = of_settings({"BACKENDS": {"default": {**REDIS, "TTL": ttl}}})
    assert ids(messages) == (["fencing.W012"] if found else [])
    assert ids(of_settings({"BACKENDS": {"default": {**MEMORY, "TTL": ttl}}})) == (
        ["fencing.W012"] if ttl < 0.1 else []
    )


def test_w013_leases_and_fenced_rows_in_one_sqlite_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections["default"], "vendor", "sqlite")
    entry = {"BACKEND": "fencing.backends.database.DatabaseBackend"}
    (found,) = of_settings({"BACKENDS": {"default": entry}})
    assert ids([found]) == ["fencing.W013"]
    assert of_settings({"BACKENDS": {"default": {**entry, "DATABASE": "lite"}}}) == []
    assert of_settings({"BACKENDS": {"default": MEMORY}}) == []


def test_e023_leases_in_a_database_that_cannot_keep_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections["default"], "vendor", "oracle")
    (found,) = of_settings({"BACKENDS": {"default": {"BACKEND": "fencing.backends.database.DatabaseBackend"}}})
    assert ids([found]) == ["fencing.E023"] and "oracle" in found.msg


MARIA = pytest.mark.django_db(databases=["default", "maria"], transaction=True)


@MARIA
def test_e001_does_not_end_the_checks_of_mariadb(settings: Any) -> None:
    settings.FENCING = {"BACKENDS": {"default": {**MEMORY, "TTL": 0}}}
    assert of_mariadb() == []


@MARIA
def test_e013_foreign_key_that_mariadb_carries_out() -> None:
    assert of_mariadb() == []
    table = "ALTER TABLE shop_crate"
    with connections["maria"].cursor() as cursor:
        references = "FOREIGN KEY (warehouse_id) REFERENCES shop_warehouse (id) ON DELETE CASCADE"
        cursor.execute(f"{table} ADD CONSTRAINT of_a_hand {references}")
    try:
        (found,) = of_mariadb()
    finally:
        with connections["maria"].cursor() as cursor:
            cursor.execute(f"{table} DROP FOREIGN KEY of_a_hand")
    assert found.id == "fencing.E013" and "'of_a_hand' in database 'maria': ON DELETE CASCADE" in found.msg


def of_mariadb() -> list[Any]:
    """The checks of MariaDB, but for the model of the tests that leaves its cascade to the database on purpose."""
    return [one for one in checks.check_databases(databases=["maria"]) if one.obj is not Tag]


@MARIA
def test_e013_on_delete_that_is_the_databases(isolated: Apps, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Django 6.1 has it; what it stands for here does not matter."""
    on_delete: Any = getattr(models, "DB_CASCADE", None) or type("ByDatabase", (), {"__call__": models.CASCADE})()
    monkeypatch.setattr(mariadbchecks, "BY_DATABASE", type(on_delete))

    class Child(FencedModel):
        parent: Any = models.ForeignKey("inventory_demo.PlainStock", on_delete)

        class Meta(FencedModel.Meta):
            app_label = "shop"

    (found,) = mariadbchecks.past_the_guard("maria", Child)
    assert found.id == "fencing.E013" and "shop.Child.parent leaves what happens" in found.msg


@MARIA
def test_w014_mariadb_that_forgets(settings: Any) -> None:
    entry = {"BACKEND": "fencing.backends.database.DatabaseBackend", "DATABASE": "maria"}
    settings.FENCING = {"BACKENDS": {"default": entry}}
    assert of_mariadb() == []
    with connections["maria"].cursor() as cursor:
        cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
        try:
            (found,) = of_mariadb()
            settings.FENCING = {"BACKENDS": {"default": {**entry, "DATABASE": "default"}}}
            assert of_mariadb() == []
        finally:
            cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
    assert found.id == "fencing.W014" and "= 2" in found.msg


def test_w001_and_w002_managers_that_do_not_fence(isolated: Apps) -> None:
    class Bare(FencedModel):
        objects = models.Manager()  # type: ignore[assignment]

        class Meta(FencedModel.Meta):
            app_label = "shop"

    class First(FencedModel):
        plain = models.Manager()

        class Meta(FencedModel.Meta):
            app_label = "shop"
            default_manager_name = "plain"

    class Based(FencedModel):
        objects = models.Manager.from_queryset(FencedQuerySet)()  # type: ignore[assignment]
        plain = models.Manager()

        class Meta(FencedModel.Meta):
            app_label = "shop"
            base_manager_name = "plain"

    class Fine(FencedModel):
        objects = models.Manager.from_queryset(FencedQuerySet)()  # type: ignore[assignment]

        class Meta(FencedModel.Meta):
            app_label = "shop"

    found = {(str(message.id), message.obj) for message in of_models(isolated)}
    assert found == {
        ("fencing.W001", Bare),
        ("fencing.W002", Bare),
        ("fencing.W001", First),
        ("fencing.W002", Based),
    }
    assert Fine not in {obj for _id, obj in found}


@pytest.mark.django_db(databases=["default", "lite"])
def test_check_command_stops_at_an_error() -> None:
    broken = override_settings(FENCING={"BACKENDS": {"default": {**MEMORY, "TTL": 0}}})
    with broken, pytest.raises(SystemCheckError, match=r"fencing\.E001"):
        call_command("check")


def test_every_check_is_documented() -> None:
    project = Path(fencing.__file__).parent
    source = "".join(path.read_text() for path in project.rglob("*.py"))
    backends = set(re.findall(r'id="fencing\.([EW]\d{3})"', source))
    documented = (project.parent / "docs" / "checks.md").read_text()
    anchors = set(re.findall(r"^\(fencing-([ew]\d{3})\)=$", documented, re.MULTILINE))
    titles = set(re.findall(r"^### fencing\.([EW]\d{3}): ", documented, re.MULTILINE))
    known = set(checks.REMEDIES) | set(modelchecks.HINTS) | set(taskchecks.HINTS) | backends
    assert titles == known
    assert {anchor.upper() for anchor in anchors} == known


def test_w015_leases_in_the_memory_of_one_process() -> None:
    with override_settings(FENCING={"BACKENDS": {"default": MEMORY}}):
        assert ids(checks.check_stores()) == ["fencing.W015"]
