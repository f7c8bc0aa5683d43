"""Attacks on data from other machines: a registry, a team's cache, a farm. Each attempt is drawn from a seed.

In: a kind, a seed, and a folder. Out: the outcome, a short word. Raises AssertionError, or passes on any other exception, if
the victim returns a wrong byte, an error without its code, or a partial file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final
from unittest import mock

from tests.fuzz import farm_attacks, wire
from tests.fuzz.farm_attacks import Attempt
from tests.loopback import listening
from tests.registry.changes import SALTS, stock
from tests.registry.server import Registry, served
from tests.registry.shipments import shipment, sidecar
from tilec.cache import Store, products
from tilec.cache.remote import guard
from tilec.cache.remote.address import Address
from tilec.cache.remote.remote import Remote, Settings
from tilec.runtime import BundleError
from tilec.ship.finder import checked
from tilec.ship.registry.client import Client
from tilec.ship.registry.connection import Limits
from tilec.ship.registry.errors import RegistryError
from tilec.ship.registry.pull import Wanted, pull
from tilec.ship.registry.reference import read_reference

LIMITS: Final = Limits(connect_seconds=2, stall_seconds=1, seconds=4, total_seconds=20, attempts=2, pause_seconds=0)
SECONDS: Final = 1.0
"""Time limit of one operation of a remote cache on a wire."""
PATIENT: Final = 20.0
"""Time limit of one operation on a shared folder, which responds at once unless it is a pipe."""
REGISTRY_CODES: Final = ("E0731", "E0732", "E0733", "E0734")


@contextlib.contextmanager
def registry_wire() -> Generator[Attempt]:
    """Attempts on a registry through a proxy."""
    found = wire.Wire()
    with served(Registry()) as served_at:
        stock(served_at)
        port = int(served_at.rpartition(":")[2].partition("/")[0])
        with wire.proxied(port, found) as other:
            proxied = served_at.replace(f":{port}/", f":{other}/")

            def attempt(kind: str, seed: int, folder: Path) -> str:
                found.begin(wire.HTTP[kind], random.Random(seed))
                out = folder / "out"
                try:
                    with Client(read_reference(f"{proxied}:v1"), limits=LIMITS) as client:
                        (got,) = pull(client, Wanted(arch="sm_90a"), out, checked)
                    assert got.path.read_bytes() == shipment("sm_90a", SALTS).data
                    others = {one.name: one.read_bytes() for one in out.iterdir() if one != got.path}
                    assert others in ({}, {f"{got.path.name}.intoto.jsonl": sidecar("new")})
                    return "right"
                except (RegistryError, BundleError) as error:
                    assert error.code in REGISTRY_CODES and error.message.isprintable() and len(error.message) < 1000, error
                    assert not out.exists() or not list(out.iterdir())
                    return "refused"
                finally:
                    shutil.rmtree(out, ignore_errors=True)

            yield attempt


def _once(folder: Path, url: str, value: int, seconds: float = SECONDS, size: int = 2000) -> tuple[bool, Remote]:
    """Makes one entry with an empty store and the remote at `url`; returns whether it was found there."""
    right = {"out": hashlib.sha256(b"%d" % value).digest() * (size // 32), "more": b"%d" % value}
    with contextlib.closing(Store(folder)) as store:

        def load(key: str) -> tuple[dict[str, bytes], int] | None:
            entry = store.lookup(key)
            return None if entry is None else (entry.outputs, entry.cost)

        store.remote = Remote(Settings((Address(url, False, seconds),)), load)
        found = products.make(store, "any", {"input": value}, lambda: right, "out", shared=True)
        assert found.outputs == right
        store.remote.publish(store.made)
        store.remote.leases.claim("c" * 64)
        store.remote.close(2 * SECONDS)
        lines = [*store.problems, *store.remote.problems, *store.remote.troubles()]
        assert all(line.isprintable() and len(line) < 1000 for line in lines), lines
        return found.hit, store.remote


@contextlib.contextmanager
def cache_wire(redis: bool) -> Generator[Attempt]:
    """Attempts on a cache through a proxy: HTTP, or RESP."""
    found, kept = wire.Wire(), dict[bytes, bytes]()
    server = _redis(kept) if redis else _http(kept)
    with server as port, wire.proxied(port, found) as other:
        scheme, end = ("redis", "0") if redis else ("http", "cache")

        def attempt(kind: str, seed: int, folder: Path) -> str:
            url = f"{scheme}://127.0.0.1:{other}/{end}"
            if seed % 2:  # an entry exists
                found.begin(None, random.Random(0))
                _once(folder / "first", url, seed)
            found.begin((wire.RESP if redis else wire.HTTP)[kind], random.Random(seed))
            hit, _ = _once(folder / "second", url, seed)
            found.begin(None, random.Random(0))
            _once(folder / "third", url, seed)
            assert _once(folder / "fourth", url, seed)[0], "what is there stays unusable"
            return "right" if hit else "made here"

        def clean(kind: str, seed: int, folder: Path) -> str:
            try:
                return attempt(kind, seed, folder)
            finally:
                for name in ("first", "second", "third", "fourth"):
                    shutil.rmtree(folder / name, ignore_errors=True)
                kept.clear()

        yield clean


def _listening(serve: Callable[[Any], None]) -> contextlib.AbstractContextManager[int]:
    def talk(connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), connection, connection.makefile("rwb") as file:
            while True:
                serve(file)
                file.flush()

    return listening(talk)


def _http(kept: dict[bytes, bytes]) -> contextlib.AbstractContextManager[int]:
    def serve(file: Any) -> None:
        method, path, _ = file.readline().split()
        size = 0
        while line := file.readline().strip():
            name, _, value = line.partition(b":")
            size = int(value) if name.lower() == b"content-length" else size
        body = file.read(size)
        if method == b"PUT":
            kept[path] = body
        data = kept.get(path)
        status = b"201 Created" if method == b"PUT" else b"404 No" if data is None else b"200 OK"
        out = data or b"" if method != b"PUT" else b""
        file.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: %d\r\n\r\n" % len(out) + (b"" if method == b"HEAD" else out))

    return _listening(serve)


def _redis(kept: dict[bytes, bytes]) -> contextlib.AbstractContextManager[int]:
    def bulk(data: bytes) -> bytes:
        return b"$%d\r\n%s\r\n" % (len(data), data)

    def serve(file: Any) -> None:
        words: list[bytes] = []
        for _ in range(int(file.readline()[1:])):
            words.append(file.read(int(file.readline()[1:])))
            file.readline()
        name, *rest = words
        if name.upper() == b"HELLO":
            file.write(b"%1\r\n" + bulk(b"proto") + b":" + rest[0] + b"\r\n")
        elif name.upper() == b"GETRANGE":
            file.write(bulk(kept.get(rest[0], b"")[: int(rest[2]) + 1]))
        elif name.upper() == b"SET":
            there = rest[0] in kept and b"NX" in rest
            if not there:
                kept[rest[0]] = rest[1]
            file.write(b"$-1\r\n" if there else b"+OK\r\n")
        elif name.upper() == b"EVAL":
            file.write(b":1\r\n")
        else:
            file.write(b"+OK\r\n")

    return _listening(serve)


FOLDER_KINDS: Final = (
    "bits",
    "an early end",
    "more",
    "empty",
    "another's",
    "a folder",
    "a link",
    "a pipe",
    "sparse",
    "no rights",
)


def on_a_folder(kind: str, seed: int, folder: Path) -> str:
    """Damages or replaces an entry of a shared folder; afterwards a good one must be there, if that is possible."""
    try:
        return _on_a_folder(kind, seed, folder)
    finally:
        for name in ("first", "second", "third", "other", "shared"):
            shutil.rmtree(folder / name, ignore_errors=True)


def _on_a_folder(kind: str, seed: int, folder: Path) -> str:
    rng, shared, seconds = random.Random(seed), folder / "shared", SECONDS if kind == "a pipe" else PATIENT
    url = f"file://{shared}"
    _once(folder / "first", url, seed, seconds)
    (path,) = [one for one in shared.iterdir() if not one.name.startswith("lease-")]
    data = path.read_bytes()
    if kind == "another's":
        _once(folder / "other", url, seed + 1, seconds)
        path.write_bytes(next(one for one in shared.iterdir() if one != path and "lease" not in one.name).read_bytes())
    elif kind in ("bits", "an early end", "more", "empty"):
        changed = (
            wire.flip(data, rng)[0] if kind == "bits" else data[: rng.randrange(len(data))] if kind == "an early end" else b""
        )
        path.write_bytes(data + rng.randbytes(rng.randrange(1, 5000)) if kind == "more" else changed)
    elif kind == "sparse":
        with open(path, "ab") as file:
            file.truncate(rng.choice((1 << 27, 1 << 40)))
    elif kind == "no rights":
        path.chmod(0)
    else:
        path.unlink()
        if kind == "a folder":
            path.mkdir()
        elif kind == "a pipe":
            os.mkfifo(path)
        else:
            path.symlink_to(rng.choice(("/etc/hostname", "/dev/zero", "nowhere", str(path))))
    hit, _ = _once(folder / "second", url, seed, seconds)
    if kind not in ("a folder", "a pipe", "a link"):
        assert _once(folder / "third", url, seed, seconds)[0], "what is there stays unusable"
    return "right" if hit else "made here"


def campaign(count: int, seed: int, parts: list[str]) -> dict[str, Any]:
    """The outcomes of `count` attempts, counted by target and kind of attack."""
    found: dict[str, dict[str, Any]] = {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(guard, "PAUSE", 0.0))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        attacks: dict[str, tuple[Attempt, list[str]]] = {
            "registry": (stack.enter_context(registry_wire()), list(wire.HTTP)),
            "HTTP cache": (stack.enter_context(cache_wire(False)), list(wire.HTTP)),
            "Redis cache": (stack.enter_context(cache_wire(True)), list(wire.RESP)),
            "shared folder": (on_a_folder, list(FOLDER_KINDS)),
            "farm": (farm_attacks.farm_answers(folder), list(farm_attacks.FARM_KINDS)),
        }
        chosen = {name: attack for name, attack in attacks.items() if name in parts or not parts}
        for name, (attempt, kinds) in chosen.items():
            rows = found[name] = {kind: {"tried": 0, "ends": {}, "wrong": []} for kind in kinds}
            for number in range(count // len(chosen)):
                row = rows[kinds[number % len(kinds)]]
                row["tried"] += 1
                try:
                    end = attempt(kinds[number % len(kinds)], seed * 1_000_003 + number, folder)
                    row["ends"][end] = row["ends"].get(end, 0) + 1
                except Exception as error:  # any other exception would be visible to a user
                    row["wrong"].append(f"{number}: {type(error).__name__}: {error}"[:400])
            print(name, {kind: (row["ends"], len(row["wrong"])) for kind, row in rows.items()}, file=sys.stderr, flush=True)
    return {"seed": seed, "attacks": found}
