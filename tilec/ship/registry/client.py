"""The verbs of the OCI distribution specification 1.1 for one repository.

Every document and blob is compared with its size and digest before it is returned. No more is read than a descriptor allows,
and for no longer than `Limits` allows. A broken download resumes at its offset (`Range`). Redirects are followed only for
reads, three at most, and to another host only over https and without credentials.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import math
import re
import ssl
import time
import urllib.parse
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, TypeVar, cast

from tilec.ship.registry.authorization import MAX_TOKEN, Authorization
from tilec.ship.registry.connection import Broken, Connections, Limits, Response, TooSlow
from tilec.ship.registry.credentials import docker_credentials
from tilec.ship.registry.errors import RegistryError, foreign
from tilec.ship.registry.oci import INDEX, MANIFEST, MAX_DOCUMENT, Descriptor, Document, read_document
from tilec.ship.registry.reference import DIGEST, Reference, is_loopback
from tilec.untrusted.strict_json import parse

MAX_REDIRECTS: Final = 3
MAX_ERROR: Final = 1 << 14
"""Maximum bytes of an error response, or of a body that is ignored."""
REDIRECTS: Final = (301, 302, 303, 307, 308)
TRY_AGAIN: Final = (408, 429, 500, 502, 503, 504)
_RANGE: Final = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", re.ASCII)

Result = TypeVar("Result")
Write = Callable[[int, bytes], object]
"""Receives an offset in a blob, and the bytes there."""


class Client:
    """A repository. Close it, or use it in a `with`. Every method raises RegistryError; see `tilec.ship.registry.errors`."""

    def __init__(
        self, reference: Reference, *, push: bool = False, plain_http: bool = False, limits: Limits | None = None
    ) -> None:  # fmt: skip
        host = reference.api_host
        self._name = urllib.parse.urlsplit(f"//{host}").hostname or ""
        scheme = "http" if plain_http or is_loopback(self._name) else "https"
        self.reference = reference
        self.limits = limits or Limits()
        self._base = f"{scheme}://{host}/v2/{reference.repository}/"
        self._origin = urllib.parse.urlsplit(self._base)
        self._connections = Connections(self.limits)
        self._reachable = False
        self._due = math.inf
        scope = f"repository:{reference.repository}:{'pull,push' if push else 'pull'}"
        known = lambda: docker_credentials(reference.host)  # noqa: E731
        in_clear = scheme == "http" and not is_loopback(self._name)
        self._authorization = Authorization(host, scope, known, self._ask_token, in_clear=in_clear)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._connections.close()

    # Requests

    @contextlib.contextmanager
    def together(self, size: int) -> Generator[None]:
        """Set a common deadline for all exchanges in the block, in addition to that of each: `total_seconds` plus the time for
        `size` bytes."""
        self._due = time.monotonic() + self.limits.total_seconds
        self.expect(size)
        try:
            yield
        finally:
            self._due = math.inf

    def expect(self, size: int) -> None:
        """Extend the common deadline by the time for `size` bytes."""
        self._due += size / self.limits.least_rate

    @contextlib.contextmanager
    def request(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, body: bytes | memoryview = b"", size: int = 0
    ) -> Generator[Response]:
        """One request, with authorization if the registry requires it; `path` is relative to the repository, or a whole URL
        from the registry. Raises Broken if the connection breaks, or the registry asks to retry."""
        url = self._resolve(self._origin, path)
        challenged = False
        for _ in range(MAX_REDIRECTS + 2):
            own = url[:2] == self._origin[:2]
            sent = dict(headers or {})
            if own and self._authorization.header:
                sent["Authorization"] = self._authorization.header
            challenges: list[str] | None = None
            with self._exchange(method, url, sent, body, size) as response:
                if response.status == 401 and own and not challenged:
                    challenges = response.headers("WWW-Authenticate")
                    response.body(MAX_ERROR)
                elif response.status in REDIRECTS and method in ("GET", "HEAD"):
                    url = self._resolve(url, response.header("Location"))
                    response.body(MAX_ERROR)
                elif response.status in TRY_AGAIN:
                    raise Broken(f"it answered {response.status}")
                else:
                    yield response
                    return
            if challenges is not None:
                challenged = True
                self._authorization.response(challenges)
        raise self.invalid_response("it redirects too often")

    @contextlib.contextmanager
    def _exchange(
        self, method: str, url: urllib.parse.SplitResult, headers: Mapping[str, str], body: bytes | memoryview, size: int
    ) -> Generator[Response]:
        try:
            remaining = self._due - time.monotonic()
            with self._connections.exchange(method, url, headers, body, size=size, most_seconds=remaining) as response:
                self._reachable = True
                yield response
        except ssl.SSLCertVerificationError as error:
            reason = error.verify_message or error.reason
            hint = "make its certificate's authority known to this machine, for example with `SSL_CERT_FILE`"
            raise RegistryError(
                "E0731", f"`{url.hostname}` has no certificate that this machine trusts: {reason}", hint
            ) from None

    def _resolve(self, base: urllib.parse.SplitResult, given: str) -> urllib.parse.SplitResult:
        """The absolute URL of a path or URL given by the registry; RegistryError E0732 if it is not permitted."""
        try:
            text = given if base is not self._origin or "://" in given or given.startswith("/") else self._base + given
            url = urllib.parse.urlsplit(urllib.parse.urljoin(base.geturl(), text))
            host, port = url.hostname or "", url.port
        except ValueError:
            raise self.invalid_response("it names an invalid address") from None
        plain = text.isascii() and text.isprintable() and " " not in text
        if not given or not host or port == 0 or not plain or url.username is not None or url.password is not None:
            raise self.invalid_response("it names an invalid address")
        same = url[:2] == self._origin[:2]
        local = is_loopback(host) and is_loopback(self._name) and url.scheme == "http"
        if not same and not local and (url.scheme != "https" or is_loopback(host)):
            raise self.invalid_response(
                f"it leads to `{foreign(host, 80)}`, which is neither the same host nor an https address"
            )
        return url._replace(fragment="")

    def _ask_token(
        self, method: str, url: urllib.parse.SplitResult, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, bytes | None]:
        with self._exchange(method, url, headers, body, 0) as response:
            return response.status, response.body(MAX_TOKEN)

    def again(self, verb: Callable[[], Result]) -> Result:
        """Retry a verb while it raises Broken, `Limits.attempts` times at most; then RegistryError E0731."""
        pause, last = self.limits.pause_seconds, Broken("it was never asked")
        for attempt in range(self.limits.attempts):
            try:
                return verb()
            except Broken as error:
                last = error
                if isinstance(error, TooSlow) or not self._reachable:
                    break
            if attempt + 1 < self.limits.attempts:
                time.sleep(pause)
                pause *= 2
        raise RegistryError(
            "E0731", f"`{self.reference.api_host}` cannot be reached, or closes the connection: {foreign(str(last))}"
        )

    def invalid_response(self, what: str) -> RegistryError:
        """The error for an invalid response; `what` describes the problem."""
        return RegistryError("E0732", f"`{self.reference.api_host}` sent an invalid response: {what}")

    def refused(self, response: Response, what: str) -> RegistryError:
        """The error for a response with an unexpected status; `what` names what was requested."""
        body = response.body(MAX_ERROR)
        stated = _error_message(body)
        end = f": {stated}" if stated else ""
        if response.status == 404:
            return RegistryError("E0734", f"`{self.reference.api_host}` has no {what}{end}")
        if response.status in (401, 403):
            hint = f"`docker login {self.reference.host}`"
            return RegistryError("E0733", f"`{self.reference.api_host}` refuses access to {what}{end}", hint)
        return RegistryError("E0733", f"`{self.reference.api_host}` answered {response.status} for {what}{end}")

    # Reads

    def document(self, name: str, expected: Descriptor | None = None) -> Document:
        """The manifest or index of a tag or digest, with the size and type in `expected`. RegistryError E0734 if it does not
        exist, E0732 if it is invalid."""
        return self.again(lambda: self._document(name, expected))

    def _document(self, name: str, expected: Descriptor | None) -> Document:
        document_name = f"manifest `{self.reference.repository}{'@' if DIGEST.fullmatch(name) else ':'}{name}`"
        limit = MAX_DOCUMENT if expected is None else expected.size
        with self.request("GET", f"manifests/{name}", headers={"Accept": f"{INDEX}, {MANIFEST}"}, size=limit) as response:
            if response.status != 200:
                raise self.refused(response, document_name)
            kind = response.header("Content-Type").partition(";")[0].strip()
            if kind not in (INDEX, MANIFEST):
                raise self.invalid_response(
                    f"its {document_name} is of the type `{foreign(kind, 80)}`, neither OCI manifest nor index"
                )
            self._refuse_coding(response, document_name)
            body = response.body(limit)
            stated = response.header("Docker-Content-Digest")
        if body is None:
            raise self.invalid_response(f"its {document_name} has more than {limit} bytes")
        found = f"sha256:{hashlib.sha256(body).hexdigest()}"
        if stated and stated.startswith("sha256:") and not hmac.compare_digest(stated.encode(), found.encode()):
            raise self.invalid_response(f"its {document_name} does not match the digest in the response")
        if DIGEST.fullmatch(name) and found != name:
            raise self.invalid_response(f"its {document_name} has the digest {found}")
        if expected is not None and (kind, len(body)) != (expected.media_type, expected.size):
            raise self.invalid_response(f"its {document_name} is not of the type and size that its index says")
        try:
            return read_document(body, Descriptor(kind, found, len(body)))
        except ValueError as error:
            raise self.invalid_response(f"its {document_name}: {error}") from None

    def referrers(self, subject: str) -> tuple[Descriptor, ...]:
        """The manifests that refer to `subject`, by the referrers API, or by its fallback tag if a registry lacks the API."""
        path = f"referrers/{subject}"

        def fetch_part() -> Document | None:
            with self.request("GET", path, headers={"Accept": INDEX}, size=MAX_DOCUMENT) as response:
                kind = response.header("Content-Type").partition(";")[0].strip()
                if response.status != 200 or kind != INDEX:
                    response.body(MAX_ERROR)
                    return None
                body = response.body(MAX_DOCUMENT)
            try:
                if body is None:
                    raise ValueError(f"it has more than {MAX_DOCUMENT} bytes")
                return read_document(body, Descriptor(INDEX, "", len(body)))
            except ValueError as error:
                raise self.invalid_response(f"its list of what refers to {subject}: {error}") from None

        found = self.again(fetch_part) or self.tagged(referrers_tag(subject))
        return found.layers if found is not None and found.descriptor.media_type == INDEX else ()

    def tagged(self, tag: str) -> Document | None:
        """The document of a tag; None if there is none."""
        try:
            return self.document(tag)
        except RegistryError as error:
            if error.code == "E0734":
                return None
            raise

    def blob(self, wanted: Descriptor) -> bytes:
        """A whole blob, in memory."""
        out = bytearray()

        def write(offset: int, data: bytes) -> None:
            out[offset : offset + len(data)] = data

        self.fetch(wanted, write)
        return bytes(out)

    def fetch(self, wanted: Descriptor, write: Write) -> None:
        """Pass a blob to `write` piece by piece; it may restart from offset 0. The caller must discard what was written if this
        raises: E0732 if the blob has another size or digest."""
        at, total = 0, hashlib.sha256()

        def fetch_part() -> None:
            nonlocal at, total
            headers = {"Range": f"bytes={at}-"} if at else {}
            with self.request("GET", f"blobs/{wanted.digest}", headers=headers, size=wanted.size - at) as response:
                if at and response.status in (200, 416):  # the registry does not support resuming: restart
                    at, total = 0, hashlib.sha256()
                    if response.status == 416:
                        raise Broken("it does not resume")
                self._check_blob(response, wanted, at)
                while part := response.piece():
                    if at + len(part) > wanted.size:
                        raise self.invalid_response(f"its blob {wanted.digest[:19]} has more than {wanted.size} bytes")
                    write(at, part)
                    total.update(part)
                    at += len(part)
            if at < wanted.size:
                raise Broken(f"it ended after {at} of {wanted.size} bytes")

        self.again(fetch_part)
        if f"sha256:{total.hexdigest()}" != wanted.digest:
            raise self.invalid_response(f"its blob {wanted.digest[:19]} does not match its digest")

    def _check_blob(self, response: Response, wanted: Descriptor, at: int) -> None:
        document_name = f"blob {wanted.digest[:19]}"
        if response.status != (206 if at else 200):
            raise self.refused(response, document_name)
        self._refuse_coding(response, document_name)
        if at:
            found = _RANGE.fullmatch(response.header("Content-Range"))
            if found is None or tuple(map(int, found.groups())) != (at, wanted.size - 1, wanted.size):
                raise self.invalid_response(f"its {document_name} resumes at another offset than requested")
        if response.length is not None and response.length != wanted.size - at:
            raise self.invalid_response(
                f"its {document_name} has {response.length + at} bytes where {wanted.size} are expected"
            )

    def _refuse_coding(self, response: Response, what: str) -> None:
        if response.header("Content-Encoding").lower() not in ("", "identity"):
            raise self.invalid_response(f"its {what} is compressed, which was not requested")

    # Writes

    def put_manifest(self, name: str, descriptor: Descriptor, body: bytes) -> bool:
        """Store a document under a tag or its digest; returns whether the registry lists it as a referrer of its `subject`."""

        def store_manifest() -> bool:
            content = {"Content-Type": descriptor.media_type}
            with self.request("PUT", f"manifests/{name}", headers=content, body=body) as response:
                if response.status != 201:
                    raise self.refused(response, f"storing the manifest `{name}`")
                response.body(MAX_ERROR)
                stated = response.header("Docker-Content-Digest")
                if stated.startswith("sha256:") and stated != descriptor.digest:
                    raise self.invalid_response("it stored a manifest under a wrong digest")
                return bool(response.header("OCI-Subject"))

        return self.again(store_manifest)


def referrers_tag(digest: str) -> str:
    """The fallback tag that lists referrers of a manifest if the registry has no API for that (distribution specification,
    "Referrers Tag Schema"); cosign's tags have it as a prefix."""
    return digest.replace(":", "-")


def _error_message(body: bytes | None) -> str:
    """The message of an error response in the format of the specification; empty for other formats."""
    try:
        data = parse(body or b"", limit=MAX_ERROR, printable=False)
        first = cast("dict[str, Any]", data)["errors"][0]
        return foreign(f"{first['code']} {first.get('message', '')}".strip())
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return ""
