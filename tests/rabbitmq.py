"""The RabbitMQ of the tests: a private server from the machine's packages, or the one that `RABBITMQ_URL` names.

It starts for the first test that needs it and is shared by all processes of this checkout's runs (see
`tests.shared_server`). It listens on this machine's loopback only, on ports that were free, and its data go with it.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from inventory_demo.server_addresses import addresses
from inventory_demo.server_support import ServerError, wait_for
from tests import shared_server
from tests.services import HOST, free_port
from tests.shared_server import PLACES, program

# Not the one in /usr/sbin, which runs as the user rabbitmq only, and with the machine's data.
PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
GREETING = b"AMQP\x00\x00\x09\x01"


class RabbitMQ:
    """A server in a folder of its own, with an Erlang port mapper of its own: the machine's would outlive it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self._address = folder / "url"
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        """Its address, for Celery's `broker_url`; only while it runs."""
        return self._address.read_text()

    def start(self) -> None:
        """Start the server, empty, and wait until it answers."""
        shutil.rmtree(self.data, ignore_errors=True)
        self.data.mkdir(parents=True)
        port = free_port()
        self._address.write_text(f"amqp://guest:guest@{HOST}:{port}//")
        environment = self._environment(port)
        mapper = program("epmd")
        log = self.data / "out.log"
        with log.open("wb") as out:
            for command in (
                [mapper, "-port", environment["ERL_EPMD_PORT"], "-address", HOST],
                [str(PROGRAM)],
            ):
                self._processes.append(
                    subprocess.Popen(
                        command,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,  # the program is a script: one signal reaches it and what it starts
                    )
                )
        server = self._processes[-1]
        if not wait_for(lambda: self.answers() or server.poll() is not None, seconds=90) or server.poll() is not None:
            raise ServerError(f"rabbitmq-server does not answer: {log.read_text(errors='replace')[-2000:]}")

    def answers(self) -> bool:
        """Whether the server takes connections: it answers the protocol's greeting."""
        with suppress(OSError):
            port = int(self.url.rpartition(":")[2].rstrip("/"))
            with socket.create_connection((HOST, port), timeout=5) as attempt:
                attempt.sendall(GREETING)
                return bool(attempt.recv(1))
        return False

    def end(self) -> None:
        """Kill the server and its port mapper, and remove its data."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=20)
        self._address.unlink(missing_ok=True)
        shutil.rmtree(self.data, ignore_errors=True)

    def _environment(self, port: int) -> dict[str, str]:
        """Nothing of the machine's own RabbitMQ: neither its settings, data, names nor ports."""
        settings = self.data / "rabbitmq.conf"
        settings.write_text(f"listeners.tcp.1 = {HOST}:{port}\n")
        plugins = self.data / "plugins"
        plugins.write_text("[].")
        return {
            "PATH": PLACES,
            "HOME": str(self.data),  # of Erlang's cookie
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(free_port()),
            "ERL_EPMD_ADDRESS": HOST,
            "RABBITMQ_NODENAME": "fencing@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_CONF_ENV_FILE": str(self.data / "none"),
            "RABBITMQ_CONFIG_FILE": str(settings),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_MNESIA_BASE": str(self.data / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.data / "log"),
            # One scheduler, which does not spin while it waits: the machine has other things to do.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} +S 1:1 +sbwt none",
        }


def reason_to_lack() -> str:
    """Why there is no RabbitMQ for the tests, or ""."""
    if os.environ.get("RABBITMQ_URL"):
        return ""
    absent = [str(PROGRAM)] if not PROGRAM.exists() else []
    absent += ["epmd"] if shutil.which("epmd", path=PLACES) is None else []
    return f"{' and '.join(absent)} not found (Debian: rabbitmq-server)" if absent else ""


@contextmanager
def running() -> Iterator[str]:
    """Have the shared server running inside the block, and give its address; nothing is started with `RABBITMQ_URL`."""
    if url := os.environ.get("RABBITMQ_URL"):
        yield url
        return
    server = RabbitMQ(addresses().runtime / "rabbit")
    with shared_server.running(server):
        yield server.url


if __name__ == "__main__":
    shared_server.watch(RabbitMQ(Path(sys.argv[1])), int(sys.argv[2]))
