"""Deltas under fire: whatever becomes of the workers and of the store, the stock is the sum of its accepted deltas."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from inventory_demo.server_addresses import CHECKOUT
from tests.services import PrivateValkey

DELTAS = int(os.environ.get("FENCING_TEST_DELTAS", "200"))
SEED = os.environ.get("FENCING_TEST_SEED", "1")
# Seconds for each delta: most of them are spent on pauses.
EACH = 1.0


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_stocks_are_the_sum_of_their_deltas_whatever_strikes_the_workers_and_the_store(
    process_environment: dict[str, str],
    valkey_server: Callable[..., PrivateValkey],
    record_property: Callable[[str, Any], None],
) -> None:
    environment = {
        **process_environment,
        "DJANGO_SETTINGS_MODULE": "tests.celery.fire_settings",
        "REDIS_URL": valkey_server().url(),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.celery.fire", str(DELTAS), SEED],
        env=environment, cwd=CHECKOUT, timeout=180 + EACH * DELTAS, check=True, stdout=subprocess.PIPE,
    )  # fmt: skip
    found = json.loads(done.stdout)
    print(json.dumps(found, indent=2))
    record_property("fire", found)
    assert found["all ended"], found
    assert found["lost by a worker"] == []
    assert found["wrong quantities"] == []
    assert found["repeated operations"] == []
    assert found["successes without effect"] == []
    assert found["effects without success"] == []
    assert found["faults"]["flush"] == 2
    assert found["outcomes"] == {"SUCCESS": DELTAS}, found
