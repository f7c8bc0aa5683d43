"""Selects the remotes of a build: settings of the user and of a build.toml go in, addresses come out.

A remote is used if the user named it in `TILEC_REMOTE_CACHE` or with `--remote`. A remote from a build.toml is used only if the
user allowed it: its URL equals or lies below one of `TILEC_REMOTE_ALLOW`, or the command has `--remote project`. A project from
someone else can therefore contact no host, send no credentials and write no file by itself. A build.toml can give a URL and
`read_only`, but no password, library option, or chained URL.

    TILEC_REMOTE_CACHE="redis://cache:6379/0 https://cache/tilec|read_only|timeout=2"
    TILEC_REMOTE_ALLOW="https://cache.example/"
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, urlsplit

from tilec.diagnostics.diagnostic import CompileError, Diagnostic

REMOTE: Final = "TILEC_REMOTE_CACHE"
ALLOW: Final = "TILEC_REMOTE_ALLOW"
REDIS: Final = ("redis", "rediss", "valkey", "valkeys")
HTTP: Final = ("http", "https")
FILES: Final = (
    "file", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "sftp", "ssh", "smb", "hdfs", "oss",
)  # fmt: skip
"""Schemes that `fsspec` opens; the user installs the library of each."""
SCHEMES: Final = (*REDIS, *HTTP, *FILES)
TIMEOUT: Final = 5.0
"""Default timeout of one operation, in seconds."""
MOST_REMOTES: Final = 8
LONGEST_URL: Final = 2000
PROJECT, OFF = "project", "off"
"""Values of `--remote` other than URLs: the remotes of the build.toml, and no remote at all."""


@dataclass(frozen=True, slots=True)
class Address:
    """One remote. `url` can contain a password, `shown` does not. `seconds` is the timeout of one operation."""

    url: str
    read_only: bool = False
    seconds: float = TIMEOUT

    @property
    def scheme(self) -> str:
        """The scheme of the URL, in lower case."""
        return urlsplit(self.url).scheme

    @property
    def shown(self) -> str:
        """The URL without user and password."""
        parts = urlsplit(self.url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def fault(url: str) -> str:
    """What is wrong with a URL, as the end of a sentence; empty if nothing is."""
    if not 0 < len(url) <= LONGEST_URL or not url.isascii() or not url.isprintable() or " " in url:
        return "is not a URL"
    if "::" in url:
        return "chains other URLs"
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  # raises for an invalid port
    except ValueError as error:
        return f"is not a URL: {error}"
    if parts.scheme not in SCHEMES:
        return f"has the scheme `{parts.scheme}`; known are {', '.join(SCHEMES)}"
    if parts.query or parts.fragment:
        return "has a query or a fragment"
    if {".", ".."} & set(parts.path.split("/")) or "%" in parts.path or "\\" in parts.path:
        return "has `.`, `..`, `%` or `\\` in its path"
    named = parts.hostname if parts.scheme != "file" else parts.path.strip("/")
    return "" if named else "names no host" if parts.scheme != "file" else "names no folder"


def parse(text: str) -> Address:
    """Parse an address as the user writes it: a URL, then `|read_only` and `|timeout=SECONDS`. ValueError if malformed."""
    url, *options = text.split("|")
    read_only, seconds = False, TIMEOUT
    if found := fault(url):
        raise ValueError(f"{'the URL' if '@' in url else f'`{url[:200]}`'} {found}")  # a URL with a password is not shown
    for option in options:
        name, _, value = option.partition("=")
        if name == "read_only" and value in ("", "true"):
            read_only = True
        elif name == "timeout" and value.replace(".", "", 1).isdigit() and 0.01 <= float(value) <= 600:
            seconds = float(value)
        else:
            raise ValueError(f"`{option}` is not an option of a remote; write `read_only` or `timeout=5`")
    return Address(url, read_only, seconds)


def allowed(url: str, prefixes: Iterable[str]) -> bool:
    """Whether `url` equals or lies below one of `prefixes`: same scheme, host and port, and its path parts come first."""
    wanted = urlsplit(url)
    return any(_below(wanted, urlsplit(prefix)) for prefix in prefixes if not fault(prefix))


def _below(url: SplitResult, prefix: SplitResult) -> bool:
    if (url.scheme, url.hostname, url.port) != (prefix.scheme, prefix.hostname, prefix.port):
        return False
    parts, first = url.path.strip("/").split("/"), prefix.path.strip("/").split("/")
    return first == [""] or parts[: len(first)] == first


def chosen(given: Sequence[str], project: Sequence[Address]) -> tuple[tuple[Address, ...], tuple[Address, ...]]:
    """The remotes to use, and those of the build.toml that are not allowed. `given` are the values of `--remote`.

    CompileError E0751 for a malformed remote, and for more than `MOST_REMOTES`.
    """
    if OFF in given:
        return (), ()
    found = [_read(text, "--remote") for text in given if text != PROJECT]
    found += [_read(text, REMOTE) for text in os.environ.get(REMOTE, "").split()]
    prefixes = os.environ.get(ALLOW, "").split()
    refused: list[Address] = []
    for address in project:
        (found if PROJECT in given or allowed(address.url, prefixes) else refused).append(address)
    unique = {address.url: address for address in reversed(found)}
    used = tuple(dict.fromkeys(unique[address.url] for address in found))
    if len(used) > MOST_REMOTES:
        raise CompileError(Diagnostic("E0751", f"{len(used)} remote caches are named; at most {MOST_REMOTES} are used"))
    return used, tuple(refused)


def _read(text: str, option: str) -> Address:
    try:
        return parse(text)
    except ValueError as error:
        hint = f"write `{option}{'=' if option == REMOTE else ' '}redis://HOST:6379/0`; `tilec explain E0751` has every form"
        raise CompileError(Diagnostic("E0751", f"a remote cache of `{option}`: {error}", hint=hint)) from None
