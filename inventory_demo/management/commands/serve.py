"""The example project in the browser, ready to log in."""

from __future__ import annotations

import logging
import signal
import socket
from itertools import count
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from inventory_demo.alone import alone
from inventory_demo.stage import stage

HOST = "127.0.0.1"
LOGIN = "admin"


class Command(BaseCommand):
    """Migrate, make an administrator and serve on the first free port from 8000."""

    help = "Serve the example project on the first free port from 8000, with an administrator to log in as."

    def handle(self, *args: Any, **options: Any) -> None:
        """Serve until interrupted.

        Raises:
            CommandError: this is no developer's machine.
        """
        if not settings.DEBUG:
            raise CommandError("The page starts and stops processes and has a known password: it needs DEBUG = True.")
        users = get_user_model()._default_manager
        with alone(self.stdout.write):
            call_command("migrate", verbosity=0)
            if not users.filter(username=LOGIN).exists():
                users.create_superuser(LOGIN, password=LOGIN)
        port = first_free_port(8000)
        self.stdout.write(f"The story:  http://{HOST}:{port}/")
        self.stdout.write(f"The admin:  http://{HOST}:{port}/admin/  (login {LOGIN}, password {LOGIN})")
        self.stdout.write("Ctrl-C ends both, and the worker that the page has started.")
        self.stdout.flush()
        # The page asks twice a second: that is no news.
        logging.getLogger("django.server").addFilter(lambda record: "GET /state/" not in record.getMessage())
        # So that a plain kill ends the worker in an orderly way, too.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        # In this very process, without the reloader: the stage is one object.
        try:
            call_command("runserver", f"{HOST}:{port}", use_reloader=False, verbosity=0)
        finally:
            stage.close()


def first_free_port(start: int) -> int:
    """Return the first TCP port from `start` that nobody listens on."""
    for port in count(start):
        with socket.socket() as attempt:
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                attempt.bind((HOST, port))
            except OSError:
                continue
            return port
    raise AssertionError("unreachable: beyond the last port bind() raises OverflowError")
