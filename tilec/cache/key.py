"""Keys: sha256 over typed, length-prefixed fields, so that different lists of inputs have different encodings."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

FORMAT = "v2"
Field = int | float | bool | str | bytes | None


def _encoded(value: Field) -> bytes:
    if isinstance(value, bytes):
        kind, data = b"y", value
    elif isinstance(value, bool):
        kind, data = b"b", b"1" if value else b"0"
    elif isinstance(value, int):
        kind, data = b"i", str(value).encode()
    elif isinstance(value, float):
        kind, data = b"f", value.hex().encode()
    elif isinstance(value, str):
        kind, data = b"s", value.encode("utf-8", "surrogatepass")
    else:
        kind, data = b"n", b""
    return kind + len(data).to_bytes(8, "little") + data


def key_of(stage: str, fields: Mapping[str, Field]) -> str:
    """The key (64 hex digits) of one run of `stage`: its name, the store's format and every field by name, in sorted order."""
    digest = hashlib.sha256(_encoded(FORMAT) + _encoded(stage) + len(fields).to_bytes(8, "little"))
    for name in sorted(fields):
        digest.update(_encoded(name) + _encoded(fields[name]))
    return digest.hexdigest()
