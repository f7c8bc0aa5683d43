"""Reads `remote` of `[build]`: the remote caches that a project proposes. E0802 at the line of a malformed one.

    remote = ["https://cache.example/tilec", { url = "redis://cache.example:6379/0", read_only = true }]

A build.toml can be someone else's file. It gives a URL and `read_only` but no password, which everybody with the file could
read. The remote is used only if the user allows it (`tilec.cache.remote.address`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from tilec.cache.remote.address import MOST_REMOTES, Address, fault
from tilec.diagnostics.diagnostic import Span
from tilec.diagnostics.spelling import ask_first

KEYS: Final = ("url", "read_only")
EXAMPLE: Final = 'write `remote = ["https://cache.example/tilec"]`, or `{ url = "...", read_only = true }` in place of a URL'


def read_remotes(value: Any, refuse: Callable[..., None], span_of: Callable[..., Span]) -> tuple[Address, ...]:
    """The remotes of a build file, in order."""
    if not isinstance(value, list):
        refuse("E0802", "`remote` is not a list of URLs", span_of(), EXAMPLE)
        return ()
    items = cast("list[Any]", value)
    if len(items) > MOST_REMOTES:
        refuse("E0802", f"`remote` has more than {MOST_REMOTES} URLs", span_of())
        return ()
    found: list[Address] = []
    for item in items:
        table: Any = {"url": item} if isinstance(item, str) else item
        address = _read(cast("dict[str, Any]", table), refuse, span_of) if isinstance(table, dict) else None
        if not isinstance(table, dict):
            refuse("E0802", "`remote` has an item that is neither a URL nor a table", span_of(), EXAMPLE)
        elif address is not None and address.url in {other.url for other in found}:
            refuse("E0806", f"the remote `{address.url}` is named twice", span_of(), "remove one of them")
        elif address is not None:
            found.append(address)
    return tuple(found)


def _read(table: dict[str, Any], refuse: Callable[..., None], span_of: Callable[..., Span]) -> Address | None:
    for key in table:
        if key not in KEYS:
            refuse(
                "E0802",
                f"unknown key `{key}` of a remote",
                span_of(key),
                ask_first(key, KEYS, "the keys are `url`, `read_only`"),
            )
            return None
    url, read_only = table.get("url"), table.get("read_only", False)
    if not isinstance(url, str):
        refuse("E0802", "`url` of a remote is not a string", span_of("url"), EXAMPLE)
        return None
    if type(read_only) is not bool:
        refuse("E0802", "`read_only` is not true or false", span_of("read_only"), "write `read_only = true`")
        return None
    if "@" in url:
        hint = "everyone with the file could read it; name a remote with a password in `TILEC_REMOTE_CACHE`"
        refuse("E0802", "the URL of a remote has a user or a password", span_of(), hint)
        return None
    if problem := fault(url):
        refuse("E0802", f"a remote {problem}", span_of(), EXAMPLE)
        return None
    return Address(url, read_only)
