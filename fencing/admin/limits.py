"""How long a page may ask the database: a statement that takes longer is ended, and the page says how to ask for less."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, TypeVar

from django.contrib.admin import AdminSite
from django.db import DatabaseError, connections, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _

from fencing import conf
from fencing.bounds import milliseconds
from fencing.databases import is_cancelled, kind

View = TypeVar("View", bound=Callable[..., Any])

# Seconds; no page takes a day, and what the databases can count ends somewhere.
LONGEST = 86_400.0

# SQLite asks after so many steps of its machine whether to go on: about a thousandth of a second.
STEPS = 10_000

# The tighter bound stays: a role or a database may have its own. Both values are texts with their units.
BOUND = """
    SELECT current_setting('statement_timeout'), set_config('statement_timeout', CASE
        WHEN current_setting('statement_timeout')::interval BETWEEN interval '1 ms' AND %s::interval
        THEN current_setting('statement_timeout') ELSE %s END, true)
"""


@contextmanager
def time_limit(*aliases: str) -> Iterator[None]:
    """Inside the block no statement on these databases takes longer than ``ADMIN_TIMEOUT``.

    One that does raises a ``DatabaseError`` for which ``fencing.databases.is_cancelled`` is true; by then the block's
    transaction is rolled back. Read everything inside the block: what a template asks for later is not limited.
    """
    seconds = min(conf.admin_timeout(), LONGEST)
    with ExitStack() as stack:
        for alias in dict.fromkeys(aliases) if seconds else ():
            connection = connections[alias]
            if limit := LIMITS.get(kind(connection)):
                stack.enter_context(limit(connection, seconds))
        yield


def time_limited(*models: type[Model], narrower: str = "") -> Callable[[View], View]:
    """Limit a view of the admin, a method of an object with an ``admin_site``, on the databases of these models.

    A statement that takes too long is answered by an ordinary page, with advice.

    Args:
        models: what the view reads; default: ``reads`` of the object.
        narrower: the query string of the least that the page can be asked for, to be offered as a link; default:
            ``narrower`` of the object.
    """

    def decorate(view: View) -> View:
        @wraps(view)
        def limited(self: Any, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            try:
                with time_limit(*map(router.db_for_read, models or self.reads)):
                    return view(self, request, *args, **kwargs)
            except DatabaseError as error:
                if not is_cancelled(error):
                    raise
                return too_slow(request, self.admin_site, narrower or getattr(self, "narrower", ""))

        return limited  # type: ignore[return-value]

    return decorate


def too_slow(request: HttpRequest, site: AdminSite, narrower: str = "") -> TemplateResponse:
    """The page that says that the database was not asked any longer, and what to do; see ``time_limited``."""
    context = {
        **site.each_context(request),
        "title": _("This takes too long"),
        "seconds": f"{conf.admin_timeout():g}",
        "narrower": narrower if narrower != f"?{request.META['QUERY_STRING']}" else "",
    }
    request.current_app = site.name
    return TemplateResponse(request, "admin/fencing/too_slow.html", context)


@contextmanager
def _in_transaction(connection: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
    """PostgreSQL: for this transaction only, so that a pooler hands nothing of it to the next client."""
    nested, bound = connection.in_atomic_block, milliseconds(seconds)
    with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        cursor.execute(BOUND, [bound, bound])
        before = cursor.fetchone()[0]
        yield
        if nested:  # the outer transaction goes on; after an error, its savepoint has set the bound back
            cursor.execute("SELECT set_config('statement_timeout', %s, true)", [before])


@contextmanager
def _for_each_statement(connection: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
    """MariaDB: written before each question, so that the connection keeps nothing of it."""
    prefix = f"SET STATEMENT max_statement_time = {seconds:.3f} FOR "

    def ask(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        return execute(prefix + sql if sql.startswith("SELECT") else sql, params, many, context)

    with connection.execute_wrapper(ask):
        yield


@contextmanager
def _by_interrupting(connection: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
    """SQLite: the statement itself asks now and then whether its time is over, also while its rows are read."""
    connection.ensure_connection()
    raw: Any = connection.connection
    deadline = 0.0

    def ask(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal deadline
        deadline = time.monotonic() + seconds
        return execute(sql, params, many, context)

    raw.set_progress_handler(lambda: time.monotonic() > deadline, STEPS)
    try:
        with connection.execute_wrapper(ask):
            yield
    finally:
        raw.set_progress_handler(None, 0)


# By what ``kind`` says; other databases are not limited.
LIMITS = {"postgresql": _in_transaction, "mariadb": _for_each_statement, "sqlite": _by_interrupting}
