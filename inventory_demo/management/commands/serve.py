"""The example project in the browser, ready to log in."""

from __future__ import annotations

import socket
from itertools import count
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand

HOST = "127.0.0.1"
LOGIN = "admin"


class Command(BaseCommand):
    """Migrate, make an administrator and serve on the first free port from 8000."""

    help = "Serve the example project on the first free port from 8000, with an administrator to log in as."

    def handle(self, *args: Any, **options: Any) -> None:
        """Serve until interrupted."""
        call_command("migrate", verbosity=0)
        users = get_user_model()._default_manager
        if not users.filter(username=LOGIN).exists():
            users.create_superuser(LOGIN, password=LOGIN)
        port = first_free_port(8000)
        self.stdout.write(f"http://{HOST}:{port}/  (login {LOGIN}, password {LOGIN}; Ctrl-C ends)")
        call_command("runserver", f"{HOST}:{port}", use_reloader=False, verbosity=0)


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
