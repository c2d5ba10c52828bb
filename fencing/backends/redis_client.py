"""How the Redis backend reaches its server or cluster: the client of a cache alias, and connections of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

from django.core.cache import InvalidCacheBackendError, caches
from django_redis import get_redis_connection
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as BrokenConnection
from redis.exceptions import (
    MasterDownError,
    NoScriptError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
)
from redis.retry import Retry

from fencing.backends.scripts import Script
from fencing.backends.wire import request
from fencing.exceptions import LeaseBackendError

# Seconds to wait for the answer to a subscription.
LISTEN_TIMEOUT = 5.0
# Seconds that a call may wait for the server where the settings name none; older redis-py would wait for ever.
SOCKET_TIMEOUT = 5.0
# What redis-py raises: a cluster that cannot be reached, or a slot that nobody serves, is no RedisError.
PROBLEMS = (RedisError, RedisClusterException)
# What a server answers that has become a replica, and so has done nothing; others are like broken connections to it.
DEMOTED = (ReadOnlyError, MasterDownError)
# How servers say that the user may not run a command which a script calls: Valkey, and Redis until and since 7.0.
FORBIDDEN = ("ACL failure", "can't run this command", "NOPERM")


class RedisClient:
    """What a cache alias of django-redis leads to.

    Args:
        alias: the lease backend's alias, for errors.
        cache: the alias in ``CACHES``.
    """

    broken = RedisError
    # What a server answers that does not do what it is asked.
    refused = ResponseError

    def __init__(self, alias: str, cache: str) -> None:
        self._alias = alias
        self._cache = cache
        self._pid = os.getpid()
        self._idle: list[Any] = []

    @cached_property
    def redis(self) -> Any:
        """The client as redis-py has it, for everything but scripts; LeaseBackendError where the alias leads to none."""
        try:
            client: Any = get_redis_connection(self._cache)
        except InvalidCacheBackendError as error:
            raise self._no_alias(error) from error
        except NotImplementedError as error:
            raise LeaseBackendError(self._alias, f"CACHES[{self._cache!r}] is not a django-redis cache.") from error
        except ValueError:
            # The error of a malformed URL may quote a part of the password.
            detail = f'CACHES[{self._cache!r}]["LOCATION"] is not an address of a Redis.'
            raise LeaseBackendError(self._alias, detail) from None
        # A cluster's client has no pool of its own.
        if (pool := getattr(client, "connection_pool", None)) and not pool.connection_kwargs.get("socket_timeout"):
            pool.connection_kwargs["socket_timeout"] = SOCKET_TIMEOUT
        return client

    @cached_property
    def key_prefix(self) -> str:
        """What the cache alias puts before its keys."""
        try:
            return str(caches[self._cache].key_prefix)
        except InvalidCacheBackendError as error:
            raise self._no_alias(error) from error

    def run(self, script: Script, keys: Sequence[bytes], *args: bytes) -> tuple[Any, bool]:
        """The reply of ``script``, and whether the request was sent twice.

        Every script may be: a connection that broke is no reason to fail, nor is one to a server that is no primary any
        more. A server that is silent is not asked again, so that each call ends within its timeout.
        """
        sent = (b"%d" % len(keys), *keys, *args)
        try:
            try:
                return self._evaluate(self._call, script, sent), False
            except (BrokenConnection, *DEMOTED) as error:
                return self._evaluate(self._call_again, script, sent), not isinstance(error, DEMOTED)
        except PROBLEMS as error:
            raise self._problem(error) from error

    def pool_of(self, key: bytes) -> Any:
        """The pool of the server that has ``key``: a node of a cluster knows its own subscribers only."""
        client = self.redis
        if not hasattr(client, "connection_pool"):
            client = client.get_redis_connection(client.get_node_from_key(key))
        return client.connection_pool

    @staticmethod
    def connect_to_listen(pool: Any) -> Any:
        """A connection outside the pool, which would repeat what is read and lacks it meanwhile."""
        return _connection(
            pool, socket_timeout=LISTEN_TIMEOUT, protocol=2, health_check_interval=0, retry=Retry(NoBackoff(), 0)
        )

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise LeaseBackendError for what redis-py raises."""
        try:
            yield
        except PROBLEMS as error:
            raise self._problem(error) from error

    @staticmethod
    def _evaluate(call: Callable[..., Any], script: Script, sent: tuple[bytes, ...]) -> Any:
        try:
            return call(b"EVALSHA", script.sha, *sent)
        except NoScriptError:
            return call(b"EVAL", script.source, *sent)

    @cached_property
    def _call(self) -> Callable[..., Any]:
        """Send a command and return its reply."""
        return self._call_server if hasattr(self.redis, "connection_pool") else self._call_cluster

    @cached_property
    def _sentinel(self) -> Any:
        """The pool, where it asks a Sentinel for its server."""
        pool = self.redis.connection_pool
        return pool if hasattr(pool, "master_address") else None

    def _call_cluster(self, name: bytes, *args: bytes) -> Any:
        """Its client looks which node has the keys."""
        return self.redis.execute_command(name.decode(), *args)

    def _call_server(self, *command: bytes) -> Any:
        """Send on a connection of our own: fetching one from redis-py's pool costs half of a grant."""
        if self._pid != os.getpid():
            # The sockets are the parent's.
            self._pid, self._idle = os.getpid(), []
        connection = None
        with suppress(IndexError):
            connection = self._idle.pop()
        if connection is None:
            # Out here: an error would else be told with an IndexError as its context.
            connection = _connection(self.redis.connection_pool)
        if self._sentinel is not None and (connection.host, connection.port) != self._sentinel.master_address:
            # The Sentinel has named another primary since, to whoever made a connection.
            connection.disconnect()
            connection = _connection(self.redis.connection_pool)
        return self._exchange(connection, command)

    def _call_again(self, *command: bytes) -> Any:
        """Send anew after a connection broke: what broke one may have broken all that idle."""
        if self._call == self._call_cluster:
            return self._call_cluster(*command)
        with suppress(IndexError):
            while True:
                self._idle.pop().disconnect()
        return self._exchange(_connection(self.redis.connection_pool), command)

    def _exchange(self, connection: Any, command: tuple[bytes, ...]) -> Any:
        try:
            connection.send_packed_command([request(*command)])
            reply = connection.read_response()
        except DEMOTED:
            connection.disconnect()
            raise
        except ResponseError:
            self._idle.append(connection)
            raise
        except BaseException:
            # An answer may still be on its way.
            connection.disconnect()
            raise
        self._idle.append(connection)
        return reply

    def _no_alias(self, error: InvalidCacheBackendError) -> LeaseBackendError:
        return LeaseBackendError(self._alias, f"CACHES has no usable alias {self._cache!r}: {error}")

    def _problem(self, error: Exception) -> LeaseBackendError:
        detail = f"the store did not answer as it should: {type(error).__name__}: {error}"
        if "channel" in str(error):
            detail += f". Give its user the channels &{self.key_prefix}fencing:* to wait on."
        elif any(words in str(error) for words in FORBIDDEN):
            detail += ". Give its user +info: the scripts read `INFO replication` to notice a server that forgot."
        return LeaseBackendError(self._alias, detail)


def _connection(pool: Any, **options: Any) -> Any:
    """A connection to the server behind ``pool`` that the pool does not know."""
    connection = pool.connection_class(**{**pool.connection_kwargs, **options})
    # Not left to the first command, which would not ask a Sentinel where the primary is.
    connection.connect()
    return connection
