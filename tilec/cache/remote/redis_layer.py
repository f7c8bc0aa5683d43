"""Redis and Valkey: an entry is a value, and a lease is a separate key that expires.

`redis://USER:PASSWORD@HOST:PORT/DATABASE/PREFIX` and `rediss://` for TLS. The server decides how long entries stay
(`maxmemory-policy allkeys-lru`).
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tilec.cache.remote.address import Address
from tilec.cache.remote.layer import Nonsense, Unusable, entry_bytes

CLAIM: Final = """
local held = redis.call('get', KEYS[1])
if held and held ~= ARGV[1] then return 0 end
redis.call('set', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
"""Atomic `SET NX PX` that the holder can repeat to renew its lease."""
RELEASE: Final = "if redis.call('get', KEYS[1]) == ARGV[1] then redis.call('del', KEYS[1]) end return 0"


class RedisLayer:
    """One database of a server."""

    def __init__(self, address: Address) -> None:
        parts = urlsplit(address.url)
        database, _, prefix = parts.path.strip("/").partition("/")
        scheme = "rediss" if parts.scheme in ("rediss", "valkeys") else "redis"
        # Any: the types differ between releases of the package
        client: Any = redis.Redis
        self._client = client.from_url(
            f"{scheme}://{parts.netloc}/{database or 0}", socket_timeout=address.seconds,
            socket_connect_timeout=address.seconds, retry=Retry(NoBackoff(), 0), client_name="tilec",
        )  # fmt: skip
        self._prefix = f"tilec:{prefix}:" if prefix else "tilec:"

    def get(self, key: str, limit: int) -> bytes | None:
        """GETRANGE makes the server send at most `limit + 1` bytes."""
        try:
            found = self._client.getrange(f"{self._prefix}entry:{key}", 0, limit)
        except redis.ResponseError as error:
            if str(error).startswith("WRONGTYPE"):  # such as a list under the key of an entry
                raise Unusable("it is a value of another type") from None
            raise
        return entry_bytes(found, limit) or None

    def put(self, key: str, data: bytes, *, replace: bool) -> bool:
        """One SET, with NX unless `replace`."""
        found = self._client.set(f"{self._prefix}entry:{key}", data, nx=not replace)
        if found is not True and (found is not None or replace):
            raise Nonsense(f"the answer to SET is of the type {type(found).__name__}")
        return found is True

    def claim(self, key: str, holder: str, seconds: float) -> bool | None:
        """One script, which the server runs atomically."""
        found = self._client.eval(CLAIM, 1, f"{self._prefix}lease:{key}", holder, int(seconds * 1000))
        if type(found) is not int or found not in (0, 1):
            raise Nonsense(f"the answer to EVAL is of the type {type(found).__name__}")
        return found == 1

    def release(self, key: str, holder: str) -> None:
        """One script, which the server runs atomically."""
        self._client.eval(RELEASE, 1, f"{self._prefix}lease:{key}", holder)

    def close(self) -> None:
        """Also aborts commands in progress."""
        self._client.connection_pool.disconnect(inuse_connections=True)
