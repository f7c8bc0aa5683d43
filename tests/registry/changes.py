"""Random changes of a registry's responses, by a seed: one response of a pull, in one respect. The pull must then give the
bundle to the last bit, or one refusal that leaves nothing behind."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.registry.lies import NOT_GIVEN, REFUSED
from tests.registry.server import Answer, Asked, Registry
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
Change = Callable[[Registry, Answer, random.Random], Answer]


def _bytes(answer: Answer) -> bytes:
    assert isinstance(answer.body, bytes)
    return answer.body


def flip(registry: Registry, answer: Answer, rng: random.Random) -> Answer:
    """Some bits of the body."""
    data = bytearray(_bytes(answer) or b"\0")
    for _ in range(rng.randrange(1, 4)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return answer.but(body=bytes(data))


def cut(registry: Registry, answer: Answer, rng: random.Random) -> Answer:
    """A truncated body, with its original length or its new one."""
    data = _bytes(answer)
    part = data[: rng.randrange(len(data) or 1)]
    return answer.but(body=part) if rng.random() < 0.5 else answer.but(body=[part], headers={"Content-Length": str(len(data))})


def lengthen(registry: Registry, answer: Answer, rng: random.Random) -> Answer:
    """A body with additional bytes, with or without a length."""
    data = _bytes(answer) + rng.randbytes(rng.randrange(1, 1 << 16))
    return answer.but(body=data) if rng.random() < 0.5 else answer.but(body=[data])


def exchange(registry: Registry, answer: Answer, rng: random.Random) -> Answer:
    """Another blob or document of the registry."""
    texts = [text for _, text in registry.manifests.values()]
    return answer.but(body=rng.choice([*registry.blobs.values(), *texts]))


def status(registry: Registry, answer: Answer, rng: random.Random) -> Answer:
    """Another status."""
    return answer.but(status=rng.choice([200, 201, 202, 204, 206, 301, 304, 307, 400, 401, 403, 404, 416, 429, 500, 503]))


def header(registry: Registry, answer: Answer, rng: random.Random) -> Answer:
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
    return answer.but(headers={rng.choice([*names, "Transfer-Encoding", "Connection"]): rng.choice(values)})


CHANGES: Final[dict[str, Change]] = {
    "bits of a body": flip, "a body cut": cut, "a body lengthened": lengthen, "one body for another": exchange,
    "another status": status, "another header": header,
}  # fmt: skip


def stock(place: str) -> None:
    """Pushes the bundle to pull, and another version of it."""
    with Client(read_reference(place), push=True) as client:
        push(client, [shipment("sm_90a", (3, 4), sidecar("old"))], "older")
        push(client, [shipment("sm_90a", SALTS, sidecar("new")), shipment("sm_100a", (5,))], "v1")


def attempt(registry: Registry, place: str, change: Change, seed: int, folder: Path) -> str:
    """Pulls with one response changed, once or every time. Returns the code of the refusal, or an empty text if the bundle
    arrived; AssertionError for any other outcome."""
    rng = random.Random(seed)
    number, times = rng.randrange(12), rng.choice((1, 99))
    given = 0

    def lie(asked: Asked, answer: Answer) -> Answer:
        nonlocal given
        given += 1
        return change(registry, answer, rng) if number < given <= number + times and isinstance(answer.body, bytes) else answer

    registry.lie = lie
    try:
        with Client(read_reference(f"{place}:v1"), limits=LIMITS) as client:
            (found,) = pull(client, Wanted(arch="sm_90a"), folder, checked)
        assert found.path.read_bytes() == shipment("sm_90a", SALTS).data
        beside = {one.name: one.read_bytes() for one in folder.iterdir() if one != found.path}
        assert beside in ({}, {f"{found.path.name}.intoto.jsonl": sidecar("new")}), sorted(beside)
    except (RegistryError, BundleError) as error:
        assert error.code in CODES and error.message.isprintable() and len(error.message) < 1000, error
        assert not folder.exists() or not list(folder.iterdir())
        return error.code
    finally:
        registry.lie = None
        shutil.rmtree(folder, ignore_errors=True)
    return ""
