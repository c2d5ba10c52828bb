"""``manage.py fencing``: what operators look at and do."""

from __future__ import annotations

import logging
import os
import sys
from argparse import SUPPRESS, ArgumentTypeError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser, OutputWrapper
from django.db import DatabaseError
from django.utils import timezone
from django.utils.connection import ConnectionDoesNotExist

from fencing import history
from fencing.backends import get_backend
from fencing.backends.base import LiveLease
from fencing.conf import DEFAULT_ALIAS
from fencing.databases import is_unmigrated
from fencing.exceptions import FencingError, LeaseHeldError
from fencing.maintenance import who
from fencing.management import drill, guards, prune
from fencing.management import history as history_command
from fencing.management.output import as_json, as_time, write_table
from fencing.reigns import logged_reigns, open_reigns
from fencing.revocation import Revocation, is_on_record, revoke
from fencing.tokens import check_token, place_of

logger = logging.getLogger("fencing")

# What a shell reports of a program that SIGPIPE ended.
READER_LEFT = 128 + 13


class Command(BaseCommand):
    """One sub-command for each thing to do; each prints a table, or with ``--json`` one object."""

    help = "Shows and revokes leases, shows the history, shows and opens reigns, compares and installs guards, forgets what is old, plays drills."

    def add_arguments(self, parser: CommandParser) -> None:
        """The sub-commands and their options."""
        subs = parser.add_subparsers(
            dest="action", required=True, metavar="leases | reigns | revoke | history | guards | prune | drill"
        )
        self._add(subs, "leases", self._leases, "the leases that exist now").add_argument(
            "--limit", type=_positive, default=1000, help="at most so many (default: %(default)s)"
        )
        self._add(subs, "reigns", self._reigns, "the log of reigns, and how far numbers are reserved").add_argument(
            "--open", action="store_true", help="count on far above everything: after a database was restored"
        )
        revoking = self._add(subs, "revoke", self._revoke, "refuse the holder of a lease from now on, and remove it")
        revoking.add_argument("resource", help="the resource's name, as `fencing leases` shows it")
        revoking.add_argument("--reason", required=True, help="why; it goes to the history")
        revoking.add_argument("--token", type=_token, help="only if the lease has this token, as it was shown")
        revoking.add_argument(
            "--database", action="append", help="where its rows are; may be repeated (default: where models write)"
        )
        history_command.add_arguments(self._add(subs, "history", self._history, history_command.ABOUT))
        about = "compare the guards in the databases with the models; exit status 1 when one is amiss"
        guards.add_arguments(self._add(subs, "guards", self._guards, about, using=False))

        prune.add_arguments(self._add(subs, "prune", self._prune, prune.ABOUT, using=False))
        drill.add_arguments(self._add(subs, "drill", self._drill, drill.ABOUT))

    def handle(self, *, run: Callable[..., None], **options: Any) -> None:
        """Run the sub-command, and tell its errors as those of a command."""
        with _reader_may_leave(self.stdout), _errors():
            run(**options)

    def _add(self, subs: Any, name: str, run: Callable[..., None], text: str, *, using: bool = True) -> CommandParser:
        parser: CommandParser = subs.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if using:
            parser.add_argument(
                "--using", default=DEFAULT_ALIAS, help='alias in FENCING["BACKENDS"] (default: %(default)s)'
            )
        parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
        _take_djangos_own(parser)
        parser.set_defaults(run=run)
        return parser

    def _leases(self, *, using: str, json: bool, limit: int, **_options: Any) -> None:
        backend = get_backend(using)
        config, space = backend.config, place_of(backend, "leases").space
        found: list[LiveLease] = []
        for partition in range(config.partitions):
            found.extend(backend.live(space, partition, limit + 1 - len(found)))
        truncated = len(found) > limit
        leases = [_shown(lease) for lease in sorted(found[:limit], key=lambda lease: lease.token)]
        if json:
            self.stdout.write(
                as_json({"using": using, "namespace": config.namespace, "leases": leases, "truncated": truncated})
            )
            return
        if not leases:
            self.stdout.write("Nobody holds a lease.")
            return
        rows = [
            [
                lease["resource"],
                lease["token"],
                lease["holder"],
                " ".join(filter(None, (lease["task_name"], lease["task_id"]))),
                as_time(lease["age"]),
                as_time(lease["remaining"]),
            ]
            for lease in leases
        ]
        write_table(self.stdout, ["RESOURCE", "TOKEN", "HOLDER", "TASK", "AGE", "LEFT"], rows)
        if truncated:
            self.stdout.write(f"There are more than {limit}; --limit shows more.")

    def _reigns(self, *, using: str, json: bool, open: bool, **_options: Any) -> None:
        opened = open_reigns(using, by=who()) if open else {}
        found = logged_reigns(using)
        if json:
            log = [
                {
                    "partition": one.partition,
                    "reign": one.reign,
                    "server": one.server,
                    "first_token": one.first,
                    "last_token": one.last,
                    "opened_at": one.opened_at,
                }
                for one in found.log
            ]
            firsts = [{"partition": at, "first": drawn + 1} for at, drawn in opened.items()]
            shown = {"namespace": found.namespace, "partitions": found.partitions, "ceiling": found.ceiling}
            self.stdout.write(as_json({"using": using, **shown, "reigns": log, "opened": firsts}))
            return
        rows = [
            [one.partition, one.first, one.last, one.server, one.reign, one.opened_at.isoformat(" ", "seconds")]
            for one in found.log
        ]
        self.stdout.write(f"Namespace {found.namespace}: numbers are reserved up to {found.ceiling}.")
        write_table(self.stdout, ["PARTITION", "FROM", "TO AT MOST", "SERVER", "REIGN", "OPENED"], rows)
        for partition, drawn in opened.items():
            self.stdout.write(f"Partition {partition} counts from {drawn + 1} on now.")

    def _drill(self, **options: Any) -> None:
        drill.run(self.stdout, self.stderr, **options)

    def _history(self, **options: Any) -> None:
        history_command.run(self.stdout, self.stderr, **options)

    def _guards(self, **options: Any) -> None:
        guards.run(self.stdout, **options)

    def _revoke(
        self,
        *,
        resource: str,
        reason: str,
        token: int | None,
        database: list[str] | None,
        using: str,
        json: bool,
        **_options: Any,
    ) -> None:
        known = is_on_record(resource, using=using)
        try:
            done = revoke(resource, reason, token=token, using=using, databases=database)
        except LeaseHeldError as error:
            raise CommandError(
                f"--token {token}: the lease of {resource!r} is another grant's by now, held by {error.holder}. "
                "Nothing was revoked; look at `fencing leases` again."
            ) from error
        try:
            history.collect(using)
        except (DatabaseError, FencingError):
            logger.warning("The end of the grant stays in the store until it is collected", exc_info=True)
        if json:
            lease = None if done.lease is None else _shown(done.lease)
            shown = {"using": using, "resource": done.resource, "token": done.token, "lease": lease}
            shown |= {"removed": done.removed, "databases": list(done.databases), "known": known or lease is not None}
            self.stdout.write(as_json(shown))
            return
        self.stdout.write(_told(done, get_backend(using).config.namespace, known=known))

    def _prune(self, **options: Any) -> None:
        prune.run(self.stdout, self.stderr, **options)


def _shown(lease: LiveLease) -> dict[str, Any]:
    return {
        "resource": lease.resource,
        "token": lease.token,
        "holder": lease.holder,
        "task_id": lease.info.task_id,
        "task_name": lease.info.task_name,
        "granted_at": lease.granted_at,
        # The store's clock and this machine's may differ.
        "age": max(0.0, round((timezone.now() - lease.granted_at).total_seconds(), 3)),
        "remaining": round(lease.remaining, 3),
    }


def _told(done: Revocation, namespace: str, *, known: bool) -> str:
    refused = f"From now on every token below {done.token} is refused for it, in database {', '.join(done.databases)}."
    if done.lease is None and not known:
        unknown = f"{done.resource!r} is not known in namespace {namespace!r}: nobody is on record who ever held it."
        return f"{unknown} Is the name right? `fencing leases` shows those that are held. {refused}"
    if done.lease is None:
        return f"Nobody held the lease of {done.resource!r}. {refused}"
    ended = "was revoked" if done.removed else "ended by itself meanwhile"
    return f"The lease of {done.resource!r}, token {done.lease.token}, {ended}. {refused}"


def _take_djangos_own(parser: CommandParser) -> None:
    """Django's options for every command, which would else be unknown after the name of the sub-command."""
    for name in ("--settings", "--pythonpath"):
        parser.add_argument(name, default=SUPPRESS, help=SUPPRESS)
    for name in ("--traceback", "--no-color", "--force-color", "--skip-checks"):
        parser.add_argument(name, action="store_true", default=SUPPRESS, help=SUPPRESS)
    parser.add_argument("-v", "--verbosity", type=int, choices=range(4), default=SUPPRESS, help=SUPPRESS)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is no number of leases; give an integer of at least 1.")
    return int(text)


def _token(text: str) -> int:
    try:
        return check_token(int(text))
    except (ValueError, FencingError):
        raise ArgumentTypeError(f"{text!r} is no token; give the number that `fencing leases` shows.") from None


@contextmanager
def _reader_may_leave(out: OutputWrapper) -> Iterator[None]:
    """End without a traceback, and not as if all were well, where the reader of the output has left, as `head -1` does."""
    try:
        try:
            yield
        finally:
            out.flush()
    except BrokenPipeError:
        # The interpreter would try to write the rest once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
        sys.exit(READER_LEFT)


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except (FencingError, ImproperlyConfigured, TypeError, ValueError) as error:
        raise CommandError(str(error)) from error
    except ConnectionDoesNotExist as error:
        raise CommandError(f"--database: {error} Give an alias of DATABASES.") from error
    except DatabaseError as error:
        if is_unmigrated(error):
            raise CommandError("The database lacks the tables of the app fencing: run `manage.py migrate`.") from error
        raise CommandError(f"The database refused: {error}") from error
