"""A TCP proxy between a client and its lease store, or another server, that loses, holds back or cuts what passes, on demand."""

from __future__ import annotations

import secrets
import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Literal, Self

from fencing.backends.scripts import Script
from tests.services import PrivateValkey

# What can happen to one call: its request never arrives; its reply is lost and the connection with it, is cut in half,
# or is held back until the test lets it go.
Fault = Literal["request lost", "reply lost", "reply halved", "reply held"]


class Proxy:
    """Passes every connection on to a server. Only calls of a script that the test named are spoiled.

    Args:
        server: where the connections lead to: a store, or the host and port of something else.
    """

    def __init__(self, server: PrivateValkey | tuple[str, int]) -> None:
        self._target = server if isinstance(server, tuple) else str(server._server.socket)
        self._faults: list[tuple[bytes, Fault]] = []
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._changing = threading.Lock()
        self.spoiled = 0
        self.released = threading.Event()
        self._listen(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.released.set()
        self.refuse()
        for thread in self._threads:
            thread.join(timeout=10)

    def url(self) -> str:
        """An address for django-redis that no other test has a pool for."""
        return f"redis://127.0.0.1:{self.port}/1?client_name={secrets.token_hex(4)}"

    def spoil(self, script: Script, *faults: Fault) -> None:
        """Let ``faults`` happen to the next calls of ``script``, one each, in this order."""
        with self._changing:
            self._faults += [(script.sha, fault) for fault in faults]

    def lead_to(self, server: PrivateValkey) -> None:
        """Let new connections lead to another server; those that exist stay with theirs."""
        self._target = str(server._server.socket)

    def refuse(self) -> None:
        """Cut every connection, and refuse new ones."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in list(self._open):
            _cut(one)

    def accept_again(self) -> None:
        """Accept connections at the same address again."""
        self._listen(self.port)

    def _listen(self, port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept, self._listener)

    def _start(self, function: object, *args: object) -> None:
        thread = threading.Thread(target=function, args=args, name="proxy", daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _address = listener.accept()
            except OSError:
                return
            try:
                server = _connected(self._target)
            except OSError:
                client.close()
                continue
            self._open |= {client, server}
            # Set by a request that is to be spoiled, for the reply that follows it on the same connection.
            pending: list[Fault] = []
            self._start(self._pass_requests, client, server, pending)
            self._start(self._pass_replies, server, client, pending)

    def _pass_requests(self, client: socket.socket, server: socket.socket, pending: list[Fault]) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                fault = self._fault_of(data)
                if fault == "request lost":
                    break
                if fault is not None:
                    pending.append(fault)
                server.sendall(data)
        self._close(client, server)

    def _pass_replies(self, server: socket.socket, client: socket.socket, pending: list[Fault]) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                fault = pending.pop(0) if pending else None
                if fault == "reply held":
                    self.released.wait(20)
                elif fault is not None:
                    if fault == "reply halved":
                        client.sendall(data[: len(data) // 2])
                    break
                client.sendall(data)
        self._close(client, server)

    def _fault_of(self, request: bytes) -> Fault | None:
        with self._changing:
            for found in self._faults:
                if found[0] in request:
                    self._faults.remove(found)
                    self.spoiled += 1
                    return found[1]
        return None

    def _close(self, *sockets: socket.socket) -> None:
        for one in sockets:
            _cut(one)
            self._open.discard(one)


def _connected(target: str | tuple[str, int]) -> socket.socket:
    if isinstance(target, tuple):
        return socket.create_connection(target)
    found = socket.socket(socket.AF_UNIX)
    try:
        found.connect(target)
    except OSError:
        found.close()
        raise
    return found


def _cut(one: socket.socket) -> None:
    # A thread may sit in recv(): only a shutdown wakes it.
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
