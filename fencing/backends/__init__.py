"""The lease stores' adapters, one instance per alias and process."""

from __future__ import annotations

import threading
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.dispatch import receiver
from django.utils.module_loading import import_string

from fencing.backends.base import LeaseBackend
from fencing.conf import DEFAULT_ALIAS, BackendConfig, backend_config

__all__ = ["LeaseBackend", "get_backend"]

_backends: dict[str, LeaseBackend] = {}
_creating = threading.Lock()


def get_backend(alias: str = DEFAULT_ALIAS) -> LeaseBackend:
    """The backend of ``FENCING["BACKENDS"][alias]``, the same instance for every caller in this process.

    Raises:
        ImproperlyConfigured: the alias is unknown, or its "BACKEND" is no dotted path of a ``LeaseBackend``.
    """
    known = _backends.get(alias)
    if known is not None:
        return known
    config = backend_config(alias)
    backend_class = _backend_class(config)
    with _creating:
        if alias not in _backends:
            _backends[alias] = backend_class(config)
        return _backends[alias]


def _backend_class(config: BackendConfig) -> type[LeaseBackend]:
    where = f'FENCING["BACKENDS"][{config.alias!r}]["BACKEND"]'
    try:
        found = import_string(config.backend)
    except (ImportError, AttributeError) as error:
        raise ImproperlyConfigured(f"{where} is {config.backend!r}, which cannot be imported: {error}") from error
    if not (isinstance(found, type) and issubclass(found, LeaseBackend)):
        raise ImproperlyConfigured(f"{where} is {config.backend!r}, which is no LeaseBackend.")
    return found


@receiver(setting_changed)
def _forget_backends(*, setting: str, **_kwargs: Any) -> None:
    """Tests override settings: the next ``get_backend`` reads them again."""
    if setting in ("FENCING", "CACHES"):
        with _creating:
            _backends.clear()
