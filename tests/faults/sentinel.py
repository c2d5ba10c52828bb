"""A Sentinel that watches a primary, run from the same binary as the servers."""

from __future__ import annotations

import signal
import subprocess
from types import TracebackType
from typing import Any, Self

import redis

from inventory_demo.server_support import ServerError, wait_for
from tests.faults.servers import port_of
from tests.services import HOST, PrivateValkey, free_port


class Sentinel:
    """One Sentinel whose own voice is enough for a failover.

    Args:
        primary: the server to watch; its replicas are found through it.
        service: the name under which clients ask for the primary; one that no other test uses.
    """

    def __init__(self, primary: PrivateValkey, service: str) -> None:
        self.service = service
        self.port = free_port()
        self._binary = primary._server.command()[0]
        self._file = primary.folder / "sentinel.conf"
        self._log = primary.folder / "sentinel.log"
        self._file.write_text(
            f"port {self.port}\nbind {HOST}\ndir {primary.folder}\nlogfile {self._log}\n"
            f"sentinel monitor {service} {HOST} {port_of(primary)} 1\n"
            f"sentinel down-after-milliseconds {service} 1000\n"
            f"sentinel failover-timeout {service} 3000\n"
        )

    def __enter__(self) -> Self:
        self._process = subprocess.Popen([self._binary, str(self._file), "--sentinel"])
        if not wait_for(lambda: self.state().get("num-slaves") == 1, seconds=20):
            raise ServerError(f"the Sentinel finds no replica: {self._log.read_text()[-2000:]}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(timeout=20)

    def state(self) -> dict[str, Any]:
        """What the Sentinel knows of the primary; empty while it does not answer."""
        try:
            with redis.Redis(host=HOST, port=self.port, socket_timeout=5) as client:
                return dict(client.sentinel_master(self.service))
        except redis.RedisError:
            return {}

    def cache(self) -> tuple[str, dict[str, Any]]:
        """LOCATION, and the rest of the entry in CACHES, with which django-redis asks this Sentinel."""
        options = {
            "CLIENT_CLASS": "django_redis.client.SentinelClient",
            "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
            "SENTINELS": [(HOST, self.port)],
            "SOCKET_TIMEOUT": 1,
        }
        return f"redis://{self.service}/1", {"OPTIONS": options}
