"""Attacks of a registry on its clients: families of lies, each with the codes that refuse it.

A family changes the responses of `server.Registry`, which has the bundle of `tiny-1b` for two architectures under the tag `v1`,
an older version of one of them under `older`, and sidecars. The lie is the same for every retry.
"""

from __future__ import annotations

import gzip
import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from tests.registry.server import BLOBS, MANIFESTS, Registry, Request, Response
from tilec.ship.registry import oci

PIECE: Final = bytes(1 << 16)
REFUSED: Final = "E0732"
BROKEN: Final = "E0731"
NOT_GIVEN: Final = "E0733"


@dataclass(frozen=True)
class Family:
    """A lie, and the code with which a pull of `sm_90a` ends."""

    name: str
    code: str
    tamper: Callable[[Registry, Request, Response], Response]


def flipped(data: bytes) -> bytes:
    """One bit flipped, in the middle."""
    offset = len(data) // 2
    return data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :]


def endless() -> Iterator[bytes]:
    """Zeros for as long as the client reads."""
    return itertools.repeat(PIECE)


def drip() -> Iterator[bytes]:
    """A byte from time to time."""
    while True:
        time.sleep(0.01)
        yield b" "


def _body(response: Response) -> bytes:
    assert isinstance(response.body, bytes)
    return response.body


def on(kind: str, change: Callable[[Response], Response]) -> Callable[[Registry, Request, Response], Response]:
    """Changes the responses to reads of one kind of path, if the object exists."""

    def tamper(registry: Registry, request: Request, response: Response) -> Response:
        found = request.method == "GET" and request.path.startswith(kind) and response.status in (200, 206)
        return change(response) if found else response

    return tamper


def on_tag(change: Callable[[Response], Response]) -> Callable[[Registry, Request, Response], Response]:
    """Changes the index of the tag."""
    return on(f"{MANIFESTS}v1", change)


def on_manifest(change: Callable[[Response], Response]) -> Callable[[Registry, Request, Response], Response]:
    """Changes the manifests requested by digest."""
    return on(f"{MANIFESTS}sha256:", change)


def edited(change: Callable[[Any], Any]) -> Callable[[Response], Response]:
    """Changes the JSON of a document, and declares its new digest."""

    def edit(response: Response) -> Response:
        text = json.dumps(change(json.loads(_body(response)))).encode()
        return response.but(body=text, headers={"Docker-Content-Digest": oci.describe("", text).digest})

    return edit


def other_blob(registry: Registry, request: Request, response: Response) -> Response:
    """Another blob of the same size if there is one, else any other."""
    if request.method != "GET" or not request.path.startswith(BLOBS) or response.status != 200:
        return response
    data = _body(response)
    others = sorted((blob for blob in registry.blobs.values() if blob != data), key=lambda blob: abs(len(blob) - len(data)))
    return response.but(body=others[0])


def older_for_digest(registry: Registry, request: Request, response: Response) -> Response:
    """Another version's manifest under this version's digest."""
    if request.method != "GET" or not request.path.startswith(f"{MANIFESTS}sha256:"):
        return response
    older = registry.manifests["older"]
    digest = json.loads(older[1])["manifests"][0]["digest"]
    text = registry.manifests[digest][1]
    return response.but(body=text, headers={"Docker-Content-Digest": request.path.removeprefix(MANIFESTS)})


def _renamed(data: Any) -> Any:
    """The bundle for another architecture under this one's name."""
    own, other = sorted(data["manifests"], key=lambda one: one["annotations"][oci.ARCH] != "sm_90a")
    other["annotations"] = own["annotations"]
    return data | {"manifests": [other]}


def _with_first(**changes: Any) -> Callable[[Any], Any]:
    def change(data: Any) -> Any:
        for one in data["manifests"]:
            one |= changes
        return data

    return change


def _many(data: Any) -> Any:
    return data | {"manifests": data["manifests"] * 200}


def _redirect(address: str) -> Callable[[Response], Response]:
    return lambda response: Response(307, b"", {"Location": address})


def _around(registry: Registry, request: Request, response: Response) -> Response:
    return Response(307, b"", {"Location": f"/v2/team/kernels{request.path}"})


def _truncated(response: Response) -> Response:
    """Declares the whole length, and ends in the middle; a resumed download gets nothing."""
    data = _body(response)
    return response.but(body=[data[: len(data) // 2]], headers={"Content-Length": str(len(data))})


def _elsewhere(response: Response) -> Response:
    """Ends in the middle; a resumed download gets another range than requested."""
    if response.status == 206:
        return response.but(headers={"Content-Range": "bytes 0-9/10"})
    return _truncated(response)


def _unknown_again(registry: Registry, request: Request, response: Response) -> Response:
    return Response(401, b"", {"WWW-Authenticate": f'Bearer realm="http://{registry.host}/token",service="x"'})


def _challenges(challenge: str) -> Callable[[Registry, Request, Response], Response]:
    return lambda registry, request, response: Response(401, b"", {"WWW-Authenticate": challenge})


def _interim(registry: Registry, request: Request, response: Response) -> Response:
    """Endless interim responses, and never a final one."""
    return Response(100, itertools.repeat(b"HTTP/1.1 100 Continue\r\n\r\n"))


WRONG_DIGEST: Final = {"Docker-Content-Digest": f"sha256:{'0' * 64}"}
MILLION: Final = b'{"manifests":[' + b"{}," * 1_000_000 + b"{}]}"

FAMILIES: Final = (
    Family("a bit of a blob", REFUSED, on(BLOBS, lambda response: response.but(body=flipped(_body(response))))),
    Family("a bit of a manifest", REFUSED, on_manifest(lambda response: response.but(body=flipped(_body(response))))),
    Family("blobs swapped", REFUSED, other_blob),
    Family("an older manifest for a digest", REFUSED, older_for_digest),
    Family("another digest in the header", REFUSED, on_tag(lambda response: response.but(headers=WRONG_DIGEST))),
    Family("a blob that ends early", BROKEN, on(BLOBS, _truncated)),
    Family("a blob that goes on elsewhere", REFUSED, on(BLOBS, _elsewhere)),
    Family("a blob of another length", REFUSED, on(BLOBS, lambda response: response.but(body=_body(response) + b"\0"))),
    Family("a blob without end", REFUSED, on(BLOBS, lambda response: response.but(body=endless()))),
    Family("a blob under the length of another", REFUSED, on(BLOBS, lambda a: a.but(headers={"Content-Length": "1"}))),
    Family("a blob of the length of nothing", BROKEN, on(BLOBS, lambda a: a.but(headers={"Content-Length": "-5"}))),
    Family("a blob byte by byte", BROKEN, on(BLOBS, lambda response: response.but(body=drip()))),
    Family("an index byte by byte", BROKEN, on_tag(lambda response: response.but(body=drip()))),
    Family("interim answers without end", BROKEN, _interim),
    Family("an index without end", REFUSED, on_tag(lambda response: response.but(body=endless()))),
    Family("a manifest without end", REFUSED, on_manifest(lambda response: response.but(body=endless()))),
    Family("an index of a million manifests", REFUSED, on_tag(lambda response: response.but(body=MILLION))),
    Family("an index of 400 manifests", REFUSED, on_tag(edited(_many))),
    Family("JSON nested without end", REFUSED, on_tag(lambda response: response.but(body=b"[" * 1_000_000))),
    Family("an index that is a list", REFUSED, on_tag(lambda response: response.but(body=b"[]"))),
    Family("a number of 4,000 digits", REFUSED, on_tag(lambda response: response.but(body=b'{"a":' + b"9" * 4000 + b"}"))),
    Family("a bundle for another architecture", REFUSED, on_tag(edited(_renamed))),
    Family("a manifest of another size", REFUSED, on_tag(edited(_with_first(size=7)))),
    Family("a manifest of a size below nothing", REFUSED, on_tag(edited(_with_first(size=-1)))),
    Family("a manifest named by a path", REFUSED, on_tag(edited(_with_first(digest="sha256:../../../etc/passwd")))),
    Family("HTML", REFUSED, on_tag(lambda response: response.but(headers={"Content-Type": "text/html"}))),
    Family("docker's media type", REFUSED, on_manifest(
        lambda a: a.but(headers={"Content-Type": "application/vnd.docker.distribution.manifest.v2+json"})
    )),
    Family("a compressed blob", REFUSED, on(
        BLOBS, lambda response: response.but(body=gzip.compress(_body(response)), headers={"Content-Encoding": "gzip"})
    )),
    Family("a manifest that expands", REFUSED, on_manifest(
        lambda response: response.but(body=gzip.compress(bytes(1 << 20)), headers={"Content-Encoding": "gzip"})
    )),
    Family("a redirect to another host by http", REFUSED, on(BLOBS, _redirect("http://blobs.invalid/x"))),
    Family("a redirect with a password", REFUSED, on(BLOBS, _redirect("https://user:password@blobs.invalid/x"))),
    Family("a redirect to a host that is not there", BROKEN, on(BLOBS, _redirect("https://blobs.invalid/x"))),
    Family("a redirect to a file", REFUSED, on(BLOBS, _redirect("file:///etc/passwd"))),
    Family("a redirect to nowhere", REFUSED, on(BLOBS, _redirect(""))),
    Family("a redirect around", REFUSED, _around),
    Family("no answer but 500", BROKEN, lambda registry, request, response: Response(500)),
    Family("a token that is never given", NOT_GIVEN, _unknown_again),
    Family("a password for another host", NOT_GIVEN, _challenges('Bearer realm="https://elsewhere.invalid/token"')),
    Family("a password by http", NOT_GIVEN, _challenges('Bearer realm="http://elsewhere.invalid/token"')),
    Family("a challenge that is none", NOT_GIVEN, _challenges("Bearer realm=" + '"' * 9000)),
)  # fmt: skip
