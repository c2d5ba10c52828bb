#!/usr/bin/env python
"""Django's command line for the example project, with its servers running while a command needs them."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext

from django.core.management import execute_from_command_line

from inventory_demo.server_support import ServerError
from inventory_demo.servers import running

# Every other command may ask the database, `makemigrations --check` included.
WITHOUT_SERVERS = {
    "check", "collectstatic", "compilemessages", "diffsettings", "findstatic", "help", "makemessages", "startapp",
    "startproject", "version",
}  # fmt: skip


def needs_servers(arguments: list[str]) -> bool:
    """Tell whether a command line asks the database or the store."""
    if not arguments or {"-h", "--help", "--version"} & set(arguments):
        return False
    return arguments[0] not in WITHOUT_SERVERS or "--database" in arguments


def looks_at_our_tables(arguments: list[str]) -> bool:
    """Tell whether a command line is of this app's own command, on the database that comes with the example project."""
    return needs_servers(arguments) and arguments[0] == "fencing" and "DATABASE_URL" not in os.environ


def create_missing_tables() -> None:
    """Migrate a database that is empty: who looks at leases or plays a drill need not have run the demo before."""
    import django

    django.setup()
    from django.core.management import call_command
    from django.db import connection

    from inventory_demo.alone import alone

    if not connection.introspection.table_names():
        with alone(lambda line: print(line, file=sys.stderr)):
            call_command("migrate", verbosity=0)


def main() -> None:
    """Run a command."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "inventory_demo.settings")
    try:
        with running() if needs_servers(sys.argv[1:]) else nullcontext():
            if looks_at_our_tables(sys.argv[1:]):
                create_missing_tables()
            execute_from_command_line(sys.argv)
    except ServerError as error:
        sys.exit(f"manage.py: {error}")


if __name__ == "__main__":
    main()
