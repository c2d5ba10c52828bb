"""One instance per process and alias, until the settings change."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from fencing.backends import get_backend
from fencing.backends.base import LeaseBackend
from fencing.backends.memory import MemoryBackend

MEMORY = {"BACKEND": "fencing.backends.memory.MemoryBackend"}


def test_one_instance_per_alias(settings: Any) -> None:
    settings.FENCING = {"BACKENDS": {"default": MEMORY, "other": {**MEMORY, "NAMESPACE": "other"}}}
    assert isinstance(get_backend(), MemoryBackend)
    assert get_backend() is get_backend("default")
    assert get_backend("other") is not get_backend()
    assert get_backend("other").config.namespace == "other"


def test_threads_get_the_same_instance(settings: Any) -> None:
    settings.FENCING = {"BACKENDS": {"default": MEMORY}}
    together, found = threading.Barrier(8), list[LeaseBackend]()

    def ask() -> None:
        together.wait(timeout=10)
        found.append(get_backend())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
    assert len(found) == 8
    assert len(set(map(id, found))) == 1


@pytest.mark.parametrize("setting", ["FENCING", "CACHES"])
def test_changed_settings_are_read_again(settings: Any, setting: str) -> None:
    settings.FENCING = {"BACKENDS": {"default": MEMORY}}
    before = get_backend()
    setattr(settings, setting, dict(getattr(settings, setting)))
    assert get_backend() is not before


@pytest.mark.parametrize(
    "path", ["no.such.Backend", "fencing.backends.memory.Missing", "Backend", "fencing.conf.seconds", ""]
)
def test_what_is_no_backend_is_named(settings: Any, path: str) -> None:
    settings.FENCING = {"BACKENDS": {"default": {"BACKEND": path}}}
    with pytest.raises(ImproperlyConfigured, match=f"'{path}'"):
        get_backend()


def test_an_unknown_alias_is_named(settings: Any) -> None:
    settings.FENCING = {"BACKENDS": {"default": MEMORY}}
    with pytest.raises(ImproperlyConfigured, match="'elsewhere'"):
        get_backend("elsewhere")
