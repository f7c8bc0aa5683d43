"""Selects the layer class for a URL scheme and imports its library on demand."""

from __future__ import annotations

from tilec.cache.remote.address import HTTP, REDIS, Address
from tilec.cache.remote.layer import Layer, Missing


def open_layer(address: Address) -> Layer:
    """The layer at an address; nothing is sent yet. Missing if its library is not installed."""
    package = "redis" if address.scheme in REDIS else "fsspec"
    try:
        if address.scheme in REDIS:
            from tilec.cache.remote.redis_layer import RedisLayer

            return RedisLayer(address)
        if address.scheme in HTTP:
            from tilec.cache.remote.http_layer import HttpLayer

            return HttpLayer(address)
        from tilec.cache.remote.fsspec_layer import FsspecLayer

        return FsspecLayer(address)
    except ImportError as error:
        text = str(error).split("\n")[0][:200]
        raise Missing(f"needs a package that is not installed ({text}): `pip install {error.name or package}`") from None
