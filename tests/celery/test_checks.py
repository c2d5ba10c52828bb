"""System checks of tasks: each finds what it is for, and says nothing where all is well."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery, current_app
from django.core.checks import CheckMessage
from django.test import override_settings

from fencing import checks
from fencing.celery import fenced_task, leased_task
from inventory_demo.server_addresses import CHECKOUT

REDIS = {"broker_url": "redis://localhost:6379/2", "result_backend": "redis://localhost:6379/3"}
Found = Callable[..., list[str]]


@pytest.fixture
def app() -> Iterator[Celery]:
    """A Celery application of the test's own, the present one while the test runs."""
    before: Any = current_app
    before = before._get_current_object()
    own = Celery("checked", broker=REDIS["broker_url"], backend=REDIS["result_backend"])
    yield own
    own.close()
    before.set_current()


@pytest.fixture
def found(app: Celery) -> Found:
    """Return a function that configures the app, makes one task, and returns the ids of what is found about it."""

    def find(make: Any = fenced_task, *, project: dict[str, Any] | None = None, **options: Any) -> list[str]:
        def body(sku: str) -> None: ...

        app.conf.update(project or {})
        # Celery keeps shared tasks for every app to come, the first one of a name.
        name = f"tests.checked_{uuid4().hex[:8]}"
        make(resource="stock:{sku}", name=name, **options)(body)
        return ids([one for one in checks.check_tasks() if one.obj == name])

    return find


def ids(messages: list[CheckMessage]) -> list[str]:
    """The ids; every message must also say what to do."""
    assert all(message.hint for message in messages)
    return [str(message.id).removeprefix("fencing.") for message in messages]


def test_ordinary_tasks_are_clean(found: Found) -> None:
    assert found() == []
    assert found(leased_task, on_busy="skip", acks_late=True, time_limit=600) == []
    assert found(project={"task_acks_late": True}) == []


@pytest.mark.parametrize(
    ("project", "options", "expected"),
    [
        ({}, {"ttl": 120, "time_limit": 60}, ["W030"]),
        ({"task_time_limit": 60}, {"ttl": 120}, ["W030"]),
        ({"task_time_limit": 60}, {"ttl": 60}, []),
        ({"task_time_limit": 600}, {"ttl": 5}, []),
        ({"task_time_limit": 10}, {}, []),  # the backend's ttl is meant for all of its tasks
        ({"task_soft_time_limit": 60}, {"ttl": 120}, []),
    ],
)
def test_w030_ttl_longer_than_any_run(found: Found, project: Any, options: Any, expected: list[str]) -> None:
    assert found(project=project, **options) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"busy_timeout": 10}, ["W031"]),
        ({"busy_timeout": 60, "ttl": 60}, ["W031"]),
        ({"busy_timeout": 60, "ttl": 60, "on_busy": "wait"}, ["W031"]),
        ({"busy_timeout": 61, "ttl": 60}, []),
        ({"busy_timeout": 10, "on_busy": "fail"}, []),
        ({"busy_timeout": 10, "using": "nowhere"}, []),
    ],
)
def test_w031_waiting_ends_before_a_dead_workers_lease(found: Found, options: Any, expected: list[str]) -> None:
    assert found(**options) == expected


SHORT = {"broker_transport_options": {"visibility_timeout": 60}}


@pytest.mark.parametrize(
    ("project", "options", "expected"),
    [
        (SHORT, {"acks_late": True}, ["W032"]),
        (SHORT, {"acks_late": True, "time_limit": 61}, ["W032"]),
        (SHORT, {"ttl": 61}, ["W032"]),
        ({}, {"acks_late": True, "time_limit": 3601}, ["W032"]),
        ({"broker_url": ["sqs://", "sqs://other"]}, {"acks_late": True, "time_limit": 1801}, ["W032"]),
        ({"broker_url": "redis+socket:///nowhere.sock", **SHORT}, {"acks_late": True, "time_limit": 61}, ["W032"]),
        ({"broker_url": "amqp://localhost", **SHORT}, {"acks_late": True, "ttl": 61}, []),
        (SHORT, {"acks_late": True, "time_limit": 60}, []),
        (SHORT, {"time_limit": 61}, []),
        (SHORT, {"ttl": 61, "on_busy": "skip"}, []),
    ],
)
def test_w032_delivered_again_while_it_runs(found: Found, project: Any, options: Any, expected: list[str]) -> None:
    assert found(leased_task, project=project, **options) == expected


def test_w032_is_of_no_matter_to_what_takes_effect_once(found: Found) -> None:
    assert found(project=SHORT, acks_late=True, ttl=61) == []


@pytest.mark.parametrize(
    ("make", "options", "expected"),
    [
        (fenced_task, {"atomic": False, "acks_late": True, "time_limit": 60}, ["W033"]),
        (fenced_task, {"atomic": False}, []),
        (fenced_task, {"acks_late": True}, []),
        (leased_task, {"acks_late": True, "time_limit": 60}, []),
    ],
)
def test_w033_late_acknowledgement_without_once(found: Found, make: Any, options: Any, expected: list[str]) -> None:
    assert found(make, **options) == expected


@pytest.mark.parametrize(
    ("eager", "debug", "expected"), [(True, False, ["W034"]), (True, True, []), (False, False, [])]
)
def test_w034_eager_deployment(app: Celery, eager: bool, debug: bool, expected: list[str]) -> None:
    app.conf.task_always_eager = eager
    with override_settings(DEBUG=debug):
        assert ids(checks.check_eager_mode()) == expected


@pytest.mark.parametrize(
    ("project", "options", "expected"),
    [
        ({"task_ignore_result": True}, {"on_busy": "fail"}, ["W035"]),
        ({"result_backend": None}, {"on_busy": "fail"}, ["W035"]),
        ({"task_ignore_result": True}, {"on_busy": "fail", "ignore_result": False}, []),
        ({"task_ignore_result": True, "task_store_errors_even_if_ignored": True}, {"on_busy": "fail"}, []),
        ({"task_ignore_result": True}, {"on_busy": "skip"}, []),
        ({}, {"on_busy": "fail"}, []),
        ({}, {"on_busy": "fail", "ignore_result": True}, []),
    ],
)
def test_w035_nobody_learns_that_a_task_did_nothing(
    found: Found, project: Any, options: Any, expected: list[str]
) -> None:
    assert found(project=project, **options) == expected


def test_celery_without_a_broker_is_not_looked_at(app: Celery, found: Found) -> None:
    assert found(project={"broker_url": None}, ttl=120, time_limit=60) == []


def test_checks_import_neither_celery_nor_tasks(process_environment: dict[str, str]) -> None:
    script = """
import sys, django
from django.core.checks import run_checks
from django.conf import settings
settings.configure(INSTALLED_APPS=["fencing"], USE_TZ=True, FENCING={"BACKENDS": {"default": {
    "BACKEND": "fencing.backends.memory.MemoryBackend"}}})
django.setup()
assert sorted(one.id for one in run_checks(include_deployment_checks=True, tags=["fencing"])) == ["fencing.W003", "fencing.W015"]
assert not {"celery", "fencing.celery"} & sys.modules.keys()
"""
    environment = {key: value for key, value in process_environment.items() if key != "DJANGO_SETTINGS_MODULE"}
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, cwd=CHECKOUT, env=environment)


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("celery", 'pip install "django-fencing[celery]"'),
        ("celery.exceptions", "import of celery.exceptions halted"),
    ],
)
def test_without_celery_the_extra_is_named(module: str, told: str, process_environment: dict[str, str]) -> None:
    """And nothing else that is missing is taken for it."""
    script = f"import sys; sys.modules[{module!r}] = None; import fencing.celery"
    ran = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=CHECKOUT,
        env=process_environment,
    )
    assert ran.returncode == 1
    last = ran.stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError") and told in last
