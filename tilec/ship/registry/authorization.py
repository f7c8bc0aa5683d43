"""Answers a registry's authentication challenges with an Authorization header.

Basic (RFC 7617), and Bearer with a token service (the token specification of the CNCF distribution registry, which all public
registries implement). The scope is chosen here, never taken from the challenge or the realm URL. A password is sent only to the
registry's host, to its parent domain (`registry.example.com`, `example.com`), and to a sibling if the parent has two dots
(`registry.a.example.com`, `auth.a.example.com`), because strangers may share a shorter one (`co.uk`, `github.io`). Passwords,
and tokens obtained with them, are sent over plain http only within this machine. A token without a password may come from any
https host.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from tilec.ship.registry.challenges import read_challenges
from tilec.ship.registry.credentials import Credentials
from tilec.ship.registry.errors import RegistryError, foreign
from tilec.ship.registry.reference import DOCKER_HUB, is_loopback
from tilec.untrusted.strict_json import parse

MAX_TOKEN: Final = 1 << 16
_TOKEN: Final = re.compile(r"[A-Za-z0-9\-._~+/]+=*", re.ASCII)

Fetch = Callable[[str, urllib.parse.SplitResult, Mapping[str, str], bytes], tuple[int, bytes | None]]
"""Performs a request with method, URL, headers and body; returns the status, and the body unless it is too long."""


class Authorization:
    """The Authorization header for one repository; empty until a challenge was answered."""

    def __init__(
        self, host: str, scope: str, known: Callable[[], Credentials | None], fetch: Fetch, *, in_clear: bool = False
    ) -> None:  # fmt: skip
        self.header = ""
        self._in_clear = in_clear  # plain http to another machine
        self._host, self._scope, self._known, self._fetch = host, scope, known, fetch
        self._name = urllib.parse.urlsplit(f"//{host}").hostname or ""

    def response(self, challenges: list[str]) -> None:
        """Answer a challenge (`WWW-Authenticate`); RegistryError E0733 if that is impossible."""
        wanted = read_challenges(challenges)
        credentials = self._known()
        if self._in_clear and ("basic" in wanted if credentials is None else wanted):
            message = f"`{self._host}` requires a login, which plain http would send unencrypted"
            raise RegistryError(
                "E0733", message, f"leave out `--plain-http`, or `docker logout {self._host}` to continue anonymously"
            )
        if "bearer" in wanted:
            self.header = f"Bearer {self._token(wanted['bearer'], credentials)}"
        elif "basic" in wanted and credentials is not None and not credentials.identity_token:
            self.header = credentials.basic
        elif "basic" in wanted:
            raise RegistryError("E0733", f"`{self._host}` requires a login", f"`docker login {self._host}`")
        else:
            raise RegistryError("E0733", f"`{self._host}` refuses access and offers no login")

    def _token(self, challenge: Mapping[str, str], credentials: Credentials | None) -> str:
        realm = self._realm(challenge.get("realm", ""), credentials)
        service = challenge.get("service", "")
        scope_parameters = {"scope": self._scope} | ({"service": service} if service else {})
        if credentials is not None and credentials.identity_token:
            form = {
                "grant_type": "refresh_token",
                "client_id": "tilec",
                "refresh_token": credentials.identity_token,
                **scope_parameters,
            }
            content = {"Content-Type": "application/x-www-form-urlencoded"}
            status, body = self._fetch("POST", realm, content, urllib.parse.urlencode(form).encode())
        else:
            url = realm._replace(query="&".join(filter(None, (realm.query, urllib.parse.urlencode(scope_parameters)))))
            status, body = self._fetch("GET", url, {"Authorization": credentials.basic} if credentials else {}, b"")
        if status in (400, 401, 403):
            hint = f"`docker login {self._host}`"
            raise RegistryError("E0733", f"`{realm.hostname}` gives no token for `{self._scope}` at `{self._host}`", hint)
        try:
            data: Any = parse(body, limit=MAX_TOKEN) if status == 200 and body is not None else None
        except ValueError:
            data = None
        found = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
        token = found.get("token") or found.get("access_token")
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise RegistryError("E0732", f"the token service `{realm.hostname}` returned no valid token (status {status})")
        return token

    def _realm(self, text: str, credentials: Credentials | None) -> urllib.parse.SplitResult:
        """The URL of the token service; RegistryError E0733 if it is invalid or not permitted."""
        try:
            realm = urllib.parse.urlsplit(text)
            host = realm.hostname or ""
            is_local = realm.port is None or realm.port > 0
        except ValueError:
            realm, host, is_local = urllib.parse.SplitResult("", "", "", "", ""), "", False
        local = is_loopback(host) and is_loopback(self._name)
        if not (
            host and is_local and (realm.scheme == "https" or (realm.scheme == "http" and local)) and realm.username is None
        ):
            raise RegistryError(
                "E0733", f"`{self._host}` names a token service that is not a https address: {foreign(text, 80)}"
            )
        if is_loopback(host) and not local:
            raise RegistryError("E0733", f"`{self._host}` names a token service on this machine: {foreign(text, 80)}")
        if credentials is not None and not may_know(self._name, host):
            message = f"`{self._host}` wants your password sent to `{foreign(host, 80)}`, which is another domain"
            raise RegistryError("E0733", message, f"`docker logout {self._host}` to continue without it")
        kept = [(name, value) for name, value in urllib.parse.parse_qsl(realm.query) if name not in ("scope", "service")]
        return realm._replace(query=urllib.parse.urlencode(kept), fragment="")


def may_know(registry: str, host: str) -> bool:
    """Whether a host may receive the password for a registry: it is the same host or its parent domain, or a sibling in a
    parent domain that has two dots or is docker's."""
    if host == registry:
        return True
    parent = registry.partition(".")[2]
    named = not is_loopback(registry) and not registry.replace(".", "").isdigit() and ":" not in registry
    own = parent.count(".") > 1 or parent == DOCKER_HUB
    return named and "." in parent and (host == parent or (own and host.endswith(f".{parent}")))
