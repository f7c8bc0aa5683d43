"""Parses `oci://HOST[:PORT]/REPOSITORY[:TAG|@DIGEST]`. Each part matches the grammar of the OCI distribution specification 1.1
("Pulling manifests"), so that none can be mistaken for another part of a URL."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

SCHEME: Final = "oci://"
TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", re.ASCII)
DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_HOST: Final = re.compile(
    r"(?:\[[0-9a-fA-F:.]{2,45}\]|[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?)(?::[0-9]{1,5})?", re.ASCII
)
_REPOSITORY: Final = re.compile(
    r"[a-z0-9]++(?:(?:\.|__?|-++)[a-z0-9]++)*+(?:/[a-z0-9]++(?:(?:\.|__?|-++)[a-z0-9]++)*+)*+", re.ASCII
)
MAX_NAME: Final = 255
DOCKER_HUB: Final = "docker.io"
DOCKER_HUB_API: Final = "registry-1.docker.io"


@dataclass(frozen=True, slots=True)
class Reference:
    """A parsed reference; `tag` or `digest` or both are empty. `host` includes the port if one is given."""

    host: str
    repository: str
    tag: str = ""
    digest: str = ""

    @property
    def api_host(self) -> str:
        """The host of the registry's API; docker.io's differs from its name."""
        return DOCKER_HUB_API if self.host == DOCKER_HUB else self.host

    def __str__(self) -> str:
        end = f"@{self.digest}" if self.digest else f":{self.tag}" if self.tag else ""
        return f"{SCHEME}{self.host}/{self.repository}{end}"


def read_reference(text: str) -> Reference:
    """Parse a reference; the message of a ValueError is the end of a sentence."""
    if not text.startswith(SCHEME):
        raise ValueError(f"does not begin with `{SCHEME}`")
    rest = text.removeprefix(SCHEME)
    host, slash, path = rest.partition("/")
    if not slash or not _HOST.fullmatch(host) or not _port_in_range(host) or not _is_address(host):
        raise ValueError("names no host: write `oci://HOST/REPOSITORY`")
    name, at_sign, digest = path.partition("@")
    tag = ""
    if not at_sign and ":" in name:
        name, _, tag = name.partition(":")
        if not TAG.fullmatch(tag):
            raise ValueError(f"has the invalid tag `{tag:.40}`")
    if at_sign and not DIGEST.fullmatch(digest):
        raise ValueError("has a digest that is not `sha256:` and 64 hex digits")
    if host == DOCKER_HUB and "/" not in name:
        name = f"library/{name}"
    if len(host) + len(name) > MAX_NAME or not _REPOSITORY.fullmatch(name):
        raise ValueError(f"has the invalid repository `{name:.40}`: use lower case letters, digits, `.`, `_`, `-` and `/`")
    return Reference(host.lower(), name, tag, digest)


def _port_in_range(host: str) -> bool:
    _, colon, port = host.rpartition(":")
    return not colon or host.endswith("]") or 0 < int(port) < 1 << 16


def _is_address(host: str) -> bool:
    """Whether the text in brackets, if there is any, is an IPv6 address."""
    inside, closed, _ = host.partition("]")
    try:
        return not closed or ipaddress.ip_address(inside.removeprefix("[")).version == 6
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether a host name without port is this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
