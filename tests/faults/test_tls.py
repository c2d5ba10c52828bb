"""A server that speaks TLS only: for scripts, and for the connections on which waiters listen."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fencing.backends.base import Held
from fencing.exceptions import LeaseBackendError
from tests.backends.stores import NOBODY, PrivateRedis, redis_store
from tests.services import HOST, free_port, missing


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate of its own for this machine, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        missing("openssl is not installed")
    found = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=fencing"]
    command += ["-addext", f"subjectAltName=IP:{HOST}", "-out", str(found[0]), "-keyout", str(found[1])]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return found


def test_leases_and_waits_over_tls(certificate: tuple[Path, Path], settings: Any) -> None:
    """Of the two servers Debian's Redis is built with TLS."""
    known, key = map(str, certificate)
    port = free_port()
    options = {"tls-port": str(port), "tls-cert-file": known, "tls-key-file": key, "tls-auth-clients": "no"}
    with PrivateRedis(**options):
        url = f"rediss://{HOST}:{port}/1"
        with pytest.raises(LeaseBackendError, match="CERTIFICATE_VERIFY_FAILED"):
            redis_store(settings, f"{url}?ssl_cert_reqs=required").needs_range()
        store = redis_store(settings, f"{url}?ssl_ca_certs={known}")
        store.open()
        token = store.grant("holder")
        with store.backend.waiter("waiter", 30.0, NOBODY) as waiter:
            assert isinstance(waiter.ask(store.place()), Held)
            assert store.backend.release(store.place(), "holder", token)
            handed = waiter.sleep(Held(holder="holder", token=token, remaining=10.0), 10.0)
        assert handed is not None and handed.token > token
        assert store.backend.release(store.place(), "waiter", handed.token)
