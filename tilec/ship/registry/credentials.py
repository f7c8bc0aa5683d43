"""Reads docker's stored credentials (`docker login`) for a registry's host.

`credHelpers`, `credsStore` and `auths` of `config.json` in `DOCKER_CONFIG` or `~/.docker` are read in this order. A helper is
the program `docker-credential-NAME` on the PATH, which is called by the docker-credential-helpers protocol. The file is
trusted: it belongs to the user.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from tilec.ship.registry.errors import RegistryError, foreign
from tilec.ship.registry.reference import DOCKER_HUB

MAX_CONFIG: Final = 1 << 20
HELPER_SECONDS: Final = 30
_HELPER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)
_TOKEN_USER: Final = "<token>"
_HUB_KEY: Final = "https://index.docker.io/v1/"


@dataclass(frozen=True, slots=True)
class Credentials:
    """A name and password, or an identity token for the token service; never printed."""

    username: str = ""
    password: str = ""
    identity_token: str = ""

    def __repr__(self) -> str:
        return "Credentials(...)"

    @property
    def basic(self) -> str:
        """The Authorization header's value (RFC 7617)."""
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode("ascii")


def docker_credentials(host: str) -> Credentials | None:
    """Docker's credentials for a registry's host, which may include a port; None if there are none. RegistryError E0733 if its
    configuration or helper fails."""
    config = _docker_config()
    keys = (_HUB_KEY,) if host == DOCKER_HUB else (host, f"https://{host}", f"https://{host}/", f"https://{host}/v1/")
    helpers, auths, store = config.get("credHelpers"), config.get("auths"), config.get("credsStore")
    known: dict[str, Any] = cast("dict[str, Any]", helpers) if isinstance(helpers, dict) else {}
    for key in keys:
        if isinstance(known.get(key), str):
            return _from_helper(known[key], key)
    if isinstance(store, str) and store:
        return _from_helper(store, keys[0])
    entries: dict[str, Any] = cast("dict[str, Any]", auths) if isinstance(auths, dict) else {}
    for key in keys:
        if isinstance(entries.get(key), dict):
            return _from_entry(entries[key], host)
    return None


def _docker_config() -> dict[str, Any]:
    folder = os.environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker")
    path = Path(folder) / "config.json"
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_CONFIG + 1)
        data = json.loads(text) if len(text) <= MAX_CONFIG else None
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise RegistryError("E0733", f"`{path}` cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise RegistryError("E0733", f"`{path}` is not docker's configuration", "fix it, or run `docker login` again")
    return cast("dict[str, Any]", data)


def _from_entry(entry: dict[str, Any], host: str) -> Credentials | None:
    token, both = entry.get("identitytoken"), entry.get("auth")
    try:
        if isinstance(token, str) and token.encode("utf-8"):
            return Credentials(identity_token=token)
        if not isinstance(both, str) or not both:
            return None
        username, _, password = base64.b64decode(both, validate=True).decode("utf-8").partition(":")
    except ValueError:  # invalid base64 or UTF-8
        raise RegistryError("E0733", f"docker's configuration has an invalid `auth` of `{host}`") from None
    return Credentials(username, password.rstrip("\0"))


def _from_helper(name: str, key: str) -> Credentials | None:
    program = shutil.which(f"docker-credential-{name}") if _HELPER.fullmatch(name) else None
    if program is None or not os.path.isabs(program):  # with a relative PATH the program could come from the current folder
        raise RegistryError("E0733", f"docker's credential helper `{name:.40}` for `{key}` is not on the PATH")
    try:
        done = subprocess.run([program, "get"], input=key.encode(), capture_output=True, timeout=HELPER_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        raise RegistryError("E0733", f"docker's credential helper `{name}` cannot be run, or timed out") from None
    if done.returncode:
        if b"not found" in done.stdout + done.stderr:
            return None
        stated = foreign((done.stdout or done.stderr).decode("utf-8", "replace").strip())
        raise RegistryError("E0733", f"docker's credential helper `{name}` failed: {stated}")
    try:
        found = json.loads(done.stdout)
        username, secret = str(found["Username"]), str(found["Secret"])
        (username + secret).encode("utf-8")
    except (ValueError, KeyError, TypeError):
        raise RegistryError("E0733", f"docker's credential helper `{name}` returned no valid credential") from None
    return Credentials(identity_token=secret) if username == _TOKEN_USER else Credentials(username, secret)
