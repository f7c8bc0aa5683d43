"""An in-memory registry on this machine that implements the distribution specification; a test may make it lie.

`Registry.tamper` gets each response before it is sent and returns the one to send instead. Requests are recorded in `requests`,
the bytes of sent bodies in `sent`.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import ssl
import threading
import urllib.parse
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from tilec.ship.registry import oci

MANIFESTS: Final = "/manifests/"
BLOBS: Final = "/blobs/"


@dataclass
class Response:
    """A response: a body of several pieces is sent piece by piece, without a length unless a header declares one."""

    status: int
    body: bytes | Iterable[bytes] = b""
    headers: dict[str, str] = field(default_factory=dict[str, str])

    def but(self, **changes: Any) -> Response:
        """This response with other fields; `headers` are added."""
        headers = self.headers | changes.pop("headers", {})
        return replace(self, headers=headers, **changes)


@dataclass
class Request:
    """A request: its method, its path below the repository with the query, and its headers."""

    method: str
    path: str
    headers: dict[str, str]


Tamper = Callable[[Request, Response], Response]


class Registry:
    """Blobs and manifests of one repository, `team/kernels`. With `api`, it lists referrers itself."""

    def __init__(self, *, api: bool = False) -> None:
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, tuple[str, bytes]] = {}
        self.uploads: dict[str, bytes] = {}
        self.api = api
        self.tamper: Tamper | None = None
        self.requests: list[Request] = []
        self.sent = 0
        self.host = ""
        self._numbers = itertools.count()

    def response(self, request: Request, body: bytes) -> Response:
        """The honest response."""
        path, _, query = request.path.partition("?")
        if path.startswith(MANIFESTS):
            return self._manifest(request.method, path.removeprefix(MANIFESTS), request.headers.get("content-type", ""), body)
        if path.startswith("/blobs/uploads/"):
            return self._upload(request, path.removeprefix("/blobs/uploads/"), query, body)
        if path.startswith(BLOBS):
            return self._blob(request, path.removeprefix(BLOBS))
        if path.startswith("/referrers/") and self.api:
            subject = path.removeprefix("/referrers/")
            listed = [
                replace(oci.describe(kind, text), artifact_type=oci.ATTESTATIONS)
                for name, (kind, text) in sorted(self.manifests.items())
                if name.startswith("sha256:") and b'"subject":{"digest":"' + subject.encode() in text
            ]
            return Response(200, oci.index(listed), {"Content-Type": oci.INDEX})
        return Response(404)

    def _manifest(self, method: str, name: str, kind: str, body: bytes) -> Response:
        if method == "PUT":
            digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
            self.manifests[name] = self.manifests[digest] = (kind, body)
            lists = {"OCI-Subject": digest} if self.api and b'"subject"' in body else {}
            return Response(201, b"", {"Docker-Content-Digest": digest, **lists})
        if name not in self.manifests:
            return Response(404, b'{"errors":[{"code":"MANIFEST_UNKNOWN","message":"it is not here"}]}')
        kind, text = self.manifests[name]
        digest = f"sha256:{hashlib.sha256(text).hexdigest()}"
        return Response(200, text, {"Content-Type": kind, "Docker-Content-Digest": digest})

    def _blob(self, request: Request, digest: str) -> Response:
        if digest not in self.blobs:
            return Response(404)
        data = self.blobs[digest]
        wanted = request.headers.get("range", "")
        if wanted:
            offset = int(wanted.removeprefix("bytes=").rstrip("-"))
            return Response(206, data[offset:], {"Content-Range": f"bytes {offset}-{len(data) - 1}/{len(data)}"})
        return Response(200, data)

    def _upload(self, request: Request, name: str, query: str, body: bytes) -> Response:
        if request.method == "POST":
            name = f"u{next(self._numbers)}"
            self.uploads[name] = b""
        elif request.method == "PATCH":
            start = int(request.headers["content-range"].partition("-")[0])
            if start != len(self.uploads[name]):
                return Response(416)
            self.uploads[name] += body
        elif request.method == "PUT":
            data = self.uploads.pop(name) + body
            digest = urllib.parse.parse_qs(query)["digest"][0]
            if digest != f"sha256:{hashlib.sha256(data).hexdigest()}":
                return Response(400, b'{"errors":[{"code":"DIGEST_INVALID"}]}')
            self.blobs[digest] = data
            return Response(201)
        size = len(self.uploads[name])
        headers = {"Location": f"/v2/team/kernels/blobs/uploads/{name}", "Range": f"0-{max(size - 1, 0)}"}
        return Response(204 if request.method == "GET" else 202, b"", headers)


@contextlib.contextmanager
def served(registry: Registry, context: ssl.SSLContext | None = None) -> Generator[str]:
    """Serves it on this machine, with TLS if a context is given; yields the reference of its repository, without tag."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.command, self.path.removeprefix("/v2/team/kernels"), headers)
            registry.requests.append(request)
            response = registry.response(request, body)
            if registry.tamper is not None:
                response = registry.tamper(request, response)
            self._send(response)

        do_GET = do_HEAD = do_POST = do_PATCH = do_PUT = _do

        def _send(self, response: Response) -> None:
            whole = response.body if isinstance(response.body, bytes) else None
            sized = {"Content-Length": str(len(whole))} if whole is not None else {"Connection": "close"}
            self.close_connection = whole is None or response.headers.get("Connection") == "close"
            self.send_response(response.status)
            for name, value in (sized | response.headers).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                for piece in [response.body] if isinstance(response.body, bytes) else response.body:
                    self.wfile.write(piece)
                    registry.sent += len(piece)

        def handle(self) -> None:
            with contextlib.suppress(ConnectionError, ValueError):  # the client has closed the connection
                super().handle()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        server.daemon_threads = True
        server.block_on_close = False
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        registry.host = f"127.0.0.1:{server.server_port}"
        try:
            yield f"oci://{registry.host}/team/kernels"
        finally:
            server.shutdown()
            thread.join()
