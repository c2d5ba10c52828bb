"""Every system check: what it finds, how it names it, and that the documentation explains it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from django.apps.registry import Apps
from django.core.checks import CheckMessage, run_checks
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connections, models
from django.test import override_settings
from django.test.utils import isolate_apps

import fencing
from fencing import checks
from fencing.fields import TokenField
from fencing.models import FencedModel
from fencing.querysets import FencedQuerySet

MEMORY = {"BACKEND": "fencing.backends.memory.MemoryBackend"}


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


def test_the_project_itself_is_clean() -> None:
    assert [found for found in run_checks(tags=["fencing"]) if str(found.id).startswith("fencing.")] == []


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
        ({"BACKENDS": {"default": {**MEMORY, "BLOCK": 0}}}, "BLOCK"),
        ({"BACKENDS": {"default": {**MEMORY, "PARTITIONS": 1.5}}}, "PARTITIONS"),
        ({"BACKENDS": {"default": MEMORY}, "RECORD": "some"}, "some"),
        ({"BACKENDS": {"default": MEMORY}, "IDLE_IN_TRANSACTION": "long"}, "long"),
    ],
)
def test_e001_bad_key_or_value(value: Any, named: str) -> None:
    (found,) = (one for one in of_settings(value) if one.id != "fencing.E002")
    assert found.id == "fencing.E001"
    assert named in found.msg


@pytest.mark.parametrize("value", [{}, {"BACKENDS": {}}, {"BACKENDS": {"other": MEMORY}}])
def test_e002_no_default(value: Any) -> None:
    assert ids(of_settings(value)) == ["fencing.E002"]


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


@pytest.mark.django_db(databases="__all__")
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


@pytest.mark.django_db(databases="__all__")
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
    known = set(checks.REMEDIES) | backends
    assert titles == known
    assert {anchor.upper() for anchor in anchors} == known
