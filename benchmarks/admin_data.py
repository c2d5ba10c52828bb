"""A history as a busy installation has it after 90 days, made inside the database."""

from __future__ import annotations

from functools import partial
from typing import Any

DAYS = 90
RESOURCES = 50_000
# One grant in ten is of these, so that a resource with very many grants is among them.
HOT = 10
# As many of the newest grants have not ended.
OPEN = 20
# Leases that exist while the pages are asked for.
LIVE = 200

# The resource of a grant; the next grant of the same one follows after as many grants.
RESOURCE = (
    f"CASE WHEN mod({{n}}, 10) = 0 THEN 'hot:' || mod({{n}} / 10, {HOT}) ELSE 'stock:' || mod({{n}}, {RESOURCES}) END"
)
NEXT = f"CASE WHEN mod({{n}}, 10) = 0 THEN {10 * HOT} ELSE {RESOURCES} END"
GRANTED = f"now() - interval '{DAYS} days' * (1 - {{n}} / %(rows)s::float8)"

GRANTS = f"""
INSERT INTO fencing_tokengrant
    (namespace, token, resource, holder, task_id, task_name, ttl, granted_at, ended_at, ended)
SELECT %(namespace)s, n, {RESOURCE.format(n="n")}, md5(n::text), md5('task' || n)::uuid::text,
    'inventory.tasks.' || (ARRAY['apply_delta', 'recount', 'ship', 'restock'])[mod(n, 4) + 1], 30,
    {GRANTED.format(n="n")},
    CASE WHEN n <= %(rows)s - {OPEN} THEN {GRANTED.format(n="n")} + interval '1 second' * mod(n, 97) / 10 END,
    CASE WHEN n > %(rows)s - {OPEN} THEN '' WHEN mod(n, 1009) = 0 THEN 'revoked' WHEN mod(n, 103) = 1 THEN 'lost'
        WHEN mod(n, 103) = 2 THEN 'expired' ELSE 'released' END
FROM generate_series(1, %(rows)s) AS n
"""

# Some grants have two writes, some none; one write in a hundred is refused, of every resource and task alike: primes
# keep what is counted by them independent of the rest.
WRITES = f"""
INSERT INTO fencing_fencedwrite
    (namespace, token, grant_token, resource, model, object_pk, action, outcome, seen, operation, note, at)
SELECT %(namespace)s, of_grant, of_grant, {RESOURCE.format(n="of_grant")}, 'inventory_demo.Stock',
    mod(of_grant, {RESOURCES})::text, 'update', outcome,
    CASE outcome WHEN 'accepted' THEN NULL ELSE of_grant + {NEXT.format(n="of_grant")} END, 'order-' || n, '',
    {GRANTED.format(n="n")} + interval '1 second' * mod(n, 89) / 10
FROM generate_series(1, %(rows)s) AS n
CROSS JOIN LATERAL (SELECT CASE WHEN mod(n, 10) = 1 AND n > 1 THEN n - 1 ELSE n END AS of_grant) AS grants
CROSS JOIN LATERAL (SELECT CASE WHEN mod(n, 101) <> 50 THEN 'accepted'
    ELSE (ARRAY['stale', 'stale', 'stale', 'stale-read', 'duplicate', 'lost'])[mod(n / 101, 6) + 1] END AS outcome) AS judged
"""

FENCED = """
INSERT INTO fencing_resource (namespace, name, last_token, holder, begins)
SELECT namespace, resource, max(token), 'somebody', 1 FROM fencing_tokengrant GROUP BY namespace, resource
"""


def fill(rows: int) -> None:
    """Fill the empty tables: as many grants and writes, and the live leases of the moment, all collected."""
    from django.db import connection

    from fencing import history
    from fencing.backends import get_backend
    from fencing.models import FencedWrite, TokenGrant, TokenRange
    from fencing.tokens import place_of

    backend = get_backend()
    place_of(backend, "any")  # creates the namespace's row
    given: dict[str, int | str | None] = {"rows": rows, "namespace": backend.config.namespace}
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = off")
        cursor.execute("SET maintenance_work_mem = '512MB'")
        for model, statement in ((TokenGrant, GRANTS), (FencedWrite, WRITES)):
            _without_indexes(model, partial(cursor.execute, statement, given))
        cursor.execute(FENCED)
        TokenRange.objects.filter(namespace=backend.config.namespace).update(ceiling=rows)
        _take_leases(backend)
        history.collect()
        cursor.execute("VACUUM ANALYZE")
        cursor.execute("RESET synchronous_commit")
        cursor.execute("RESET maintenance_work_mem")


def _without_indexes(model: Any, insert: Any) -> None:
    """Let the indexes come after the rows, just as the migrations make them."""
    from django.db import connection

    meta = model._meta
    with connection.schema_editor() as editor:
        for constraint in meta.constraints:
            editor.remove_constraint(model, constraint)
        for index in meta.indexes:
            editor.remove_index(model, index)
    insert()
    with connection.schema_editor() as editor:
        for constraint in meta.constraints:
            editor.add_constraint(model, constraint)
        for index in meta.indexes:
            editor.add_index(model, index)


def _take_leases(backend: Any) -> None:
    from fencing import tokens
    from fencing.backends.base import HolderInfo

    for number in range(LIVE):
        tokens.acquire(
            backend,
            f"stock:{number}",
            f"{number:032x}",
            3600.0,
            HolderInfo(task_id=f"task-{number}", task_name="recount"),
        )
