"""Random changes of a registry's responses, by a seed: one response of a pull, in one respect. The pull must then give the
bundle to the last bit, or one refusal that leaves no file."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.registry.lies import NOT_GIVEN, REFUSED
from tests.registry.server import Registry, Request, Response
from tests.registry.shipments import shipment, sidecar
from tilec.runtime import BundleError
from tilec.ship.finder import checked
from tilec.ship.registry.client import Client
from tilec.ship.registry.connection import Limits
from tilec.ship.registry.errors import RegistryError
from tilec.ship.registry.pull import Wanted, pull
from tilec.ship.registry.push import push
from tilec.ship.registry.reference import read_reference

CODES: Final = ("E0731", REFUSED, NOT_GIVEN, "E0734")
LIMITS: Final = Limits(stall_seconds=2, seconds=10, attempts=3, pause_seconds=0)
SALTS: Final = (1, 2, 1)
Change = Callable[[Registry, Response, random.Random], Response]


def _bytes(response: Response) -> bytes:
    assert isinstance(response.body, bytes)
    return response.body


def flip(registry: Registry, response: Response, rng: random.Random) -> Response:
    """Some bits of the body."""
    data = bytearray(_bytes(response) or b"\0")
    for _ in range(rng.randrange(1, 4)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return response.but(body=bytes(data))


def cut(registry: Registry, response: Response, rng: random.Random) -> Response:
    """A truncated body, with its original length or its new one."""
    data = _bytes(response)
    part = data[: rng.randrange(len(data) or 1)]
    return (
        response.but(body=part) if rng.random() < 0.5 else response.but(body=[part], headers={"Content-Length": str(len(data))})
    )


def lengthen(registry: Registry, response: Response, rng: random.Random) -> Response:
    """A body with additional bytes, with or without a length."""
    data = _bytes(response) + rng.randbytes(rng.randrange(1, 1 << 16))
    return response.but(body=data) if rng.random() < 0.5 else response.but(body=[data])


def other_object(registry: Registry, response: Response, rng: random.Random) -> Response:
    """Another blob or document of the registry."""
    texts = [text for _, text in registry.manifests.values()]
    return response.but(body=rng.choice([*registry.blobs.values(), *texts]))


def status(registry: Registry, response: Response, rng: random.Random) -> Response:
    """Another status."""
    return response.but(status=rng.choice([200, 201, 202, 204, 206, 301, 304, 307, 400, 401, 403, 404, 416, 429, 500, 503]))


def header(registry: Registry, response: Response, rng: random.Random) -> Response:
    """Another value of a header."""
    names = (
        "Content-Type",
        "Content-Length",
        "Content-Range",
        "Content-Encoding",
        "Docker-Content-Digest",
        "Location",
        "OCI-Subject",
    )
    values = (
        "",
        "0",
        "-1",
        "99999999999",
        "1",
        "x" * 5000,
        f"sha256:{'0' * 64}",
        "bytes 0-0/1",
        "gzip",
        "/v2/",
        "\\",
        "[",
        "\xff",
    )
    return response.but(headers={rng.choice([*names, "Transfer-Encoding", "Connection"]): rng.choice(values)})


CHANGES: Final[dict[str, Change]] = {
    "bits of a body": flip, "a body cut": cut, "a body lengthened": lengthen, "one body for another": other_object,
    "another status": status, "another header": header,
}  # fmt: skip


def stock(repository: str) -> None:
    """Pushes the bundle to pull, and another version of it."""
    with Client(read_reference(repository), push=True) as client:
        push(client, [shipment("sm_90a", (3, 4), sidecar("old"))], "older")
        push(client, [shipment("sm_90a", SALTS, sidecar("new")), shipment("sm_100a", (5,))], "v1")


def attempt(registry: Registry, repository: str, change: Change, seed: int, folder: Path) -> str:
    """Pulls with one response changed, once or every time. Returns the code of the refusal, or an empty text if the bundle
    arrived; AssertionError for any other outcome."""
    rng = random.Random(seed)
    number, times = rng.randrange(12), rng.choice((1, 99))
    given = 0

    def tamper(request: Request, response: Response) -> Response:
        nonlocal given
        given += 1
        return (
            change(registry, response, rng)
            if number < given <= number + times and isinstance(response.body, bytes)
            else response
        )

    registry.tamper = tamper
    try:
        with Client(read_reference(f"{repository}:v1"), limits=LIMITS) as client:
            (found,) = pull(client, Wanted(arch="sm_90a"), folder, checked)
        assert found.path.read_bytes() == shipment("sm_90a", SALTS).data
        other_files = {one.name: one.read_bytes() for one in folder.iterdir() if one != found.path}
        assert other_files in ({}, {f"{found.path.name}.intoto.jsonl": sidecar("new")}), sorted(other_files)
    except (RegistryError, BundleError) as error:
        assert error.code in CODES and error.message.isprintable() and len(error.message) < 1000, error
        assert not folder.exists() or not list(folder.iterdir())
        return error.code
    finally:
        registry.tamper = None
        shutil.rmtree(folder, ignore_errors=True)
    return ""
