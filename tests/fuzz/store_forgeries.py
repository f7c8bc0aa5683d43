"""Forgeries of a store, drawn from a seed: damage, swaps, links, devices, pickles, forged entries.

In: a copy of a store and its `Scene`. Out: the store changed in place, and a line for each change.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import random
import shutil
import socket
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fuzz.store_scene import Scene
from tilec.cache.record import entry_text, note_text
from tilec.cache.seal import Sealer


class Trap:
    """Pickles as a call that creates a file, which shows that the pickle was loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.path), "w"))


Forgery = Callable[[Path, random.Random, Scene], None]


def _damage(path: Path, rng: random.Random, scene: Scene) -> None:
    data = bytearray(path.read_bytes())
    kind = rng.randrange(6)
    if kind == 0 and data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del data[rng.randrange(len(data) + 1) :]
    elif kind == 2:
        data += rng.randbytes(rng.choice((1, 100_000)))
    elif kind == 3:
        data = bytearray(pickle.dumps(Trap(scene.outside / "ran")))
    elif kind == 4:
        data = bytearray(
            rng.choice((b"", b"[" * 200_000, b"1" * 100_000, b"\x00" * 65_537, b"seal \n", b"tilec entry\nlabel x\n"))
        )
    else:
        lines = bytes(data).split(b"\n")
        rng.shuffle(lines)
        data = bytearray(b"\n".join(lines))
    path.write_bytes(data)


def _swap(path: Path, rng: random.Random, scene: Scene) -> None:
    other = rng.choice([item for item in path.parent.iterdir() if item.is_file() and not item.is_symlink()])
    data, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(data)


def _link(path: Path, rng: random.Random, scene: Scene) -> None:
    copy = scene.outside / "deep" / "b.ptx"
    targets = (
        "/dev/zero",
        "/dev/urandom",
        path.name,
        "../../../outside/a.json",
        str(copy),
        str(scene.outside),
        "/nowhere",
        "..",
    )
    _remove(path)
    path.symlink_to(rng.choice(targets))


def _hard_link(path: Path, rng: random.Random, scene: Scene) -> None:
    _remove(path)
    os.link(scene.outside / "a.cubin", path)


def _special(path: Path, rng: random.Random, scene: Scene) -> None:
    _remove(path)
    kind = rng.randrange(5)
    if kind == 0:
        os.mkfifo(path)
    elif kind == 1:
        path.mkdir()
        (path / "inner").mkdir()
        (path / "inner" / "link").symlink_to(scene.outside)
    elif kind == 2:
        with path.open("wb") as file:
            file.truncate(1 << rng.choice((30, 40)))
    elif kind == 3:
        with contextlib.suppress(OSError):  # the name is too long for a socket, or the file system has none
            here = os.getcwd()
            os.chdir(path.parent)
            with socket.socket(socket.AF_UNIX) as one:
                one.bind(path.name[:100])
            os.chdir(here)
    else:
        with contextlib.suppress(OSError):  # needs privileges
            os.mknod(path, 0o666 | 0o020000, os.makedev(1, 5))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _mode(path: Path, rng: random.Random, scene: Scene) -> None:
    path.chmod(rng.choice((0o000, 0o777, 0o666, 0o4777, 0o400, 0o1777)))


def _odd_names(path: Path, rng: random.Random, scene: Scene) -> None:
    folder = path if path.is_dir() else path.parent
    names = (b"\x1b[2J", b"new\nline", b"\xff\xfe", b"x" * 255, b"..data", b"sitecustomize.py", b".tmp-" + b"0" * 16, b"f" * 64)
    for name in rng.sample(names, 3):
        target = os.path.join(os.fsencode(folder), name)
        if rng.random() < 0.5:
            with contextlib.suppress(FileExistsError):
                os.symlink(os.fsencode(scene.outside), target)
        elif not os.path.lexists(target):
            Path(os.fsdecode(target)).write_text(f"open({str(scene.outside / 'ran')!r}, 'w')")


def _former_format(path: Path, rng: random.Random, scene: Scene) -> None:
    """An index in the former format: its rows were unpickled, and the files that they name deleted."""
    store = next(parent for parent in (path, *path.parents) if parent.name == "store")
    index = store / "v1" / "index"
    if index.exists():
        return
    index.mkdir(parents=True)
    with contextlib.closing(sqlite3.connect(index / "cache.db")) as base:
        base.execute("CREATE TABLE Settings (key TEXT NOT NULL UNIQUE, value)")
        base.execute(
            "CREATE TABLE Cache (rowid INTEGER PRIMARY KEY, key BLOB, raw INTEGER, store_time REAL, expire_time REAL, "
            "access_time REAL, access_count INTEGER, tag BLOB, size INTEGER, mode INTEGER, filename TEXT, value BLOB)"
        )
        trap = pickle.dumps(Trap(scene.outside / "ran"))
        row = (trap, 0, 0.0, 1.0, 0.0, 0, None, 0, 4, str(scene.outside / "a.json"), trap)
        base.execute(f"INSERT INTO Cache VALUES (NULL, {', '.join('?' * 11)})", row)
        base.commit()


def _forged_entry(path: Path, rng: random.Random, scene: Scene) -> None:
    """Another product under a key that will be looked up, valid except for the secret."""
    base = next((parent for parent in (path, *path.parents) if parent.name == "v2"), None)
    folders = list(base.glob("entries-*")) if base else []
    entries = [item for folder in folders if folder.is_dir() for item in folder.iterdir() if len(item.name) == 64]
    if not base or not entries or not (base / "blobs").is_dir():
        return
    entry = rng.choice(entries)
    data = b"forged"
    digest = hashlib.sha256(data).hexdigest()
    _remove(base / "blobs" / digest)
    (base / "blobs" / digest).write_bytes(data)
    names = ("cubin", "json", "ptx", "summary", "tir", "mlir", "proofs", "resources", "launch", "interface")
    sealer = rng.choice((Sealer(), Sealer(b"another secret of 32 bytes or so")))
    _remove(entry)
    entry.write_bytes(entry_text(sealer, entry.name, dict.fromkeys(names, digest), dict.fromkeys(names, len(data)), "forged"))


def _forged_note(path: Path, rng: random.Random, scene: Scene) -> None:
    """A note sealed as a store without a key seals it, with content that no build writes."""
    base = next((parent for parent in (path, *path.parents) if parent.name == "v2"), None)
    if not base or not (base / "notes").is_dir():
        return
    build = scene.root / "artifacts" / "build"
    names = [f"files:{scene.root}/kernels_src/copy_a.py", f"digests:{scene.root}", f"toolchain:{sys.prefix}"]
    names += [f"outputs:{build}|{arch}" for arch in ("sm_90a", "sm_100a")]
    names += [f"built:{scene.root}|sm_90a|copy_a-BLOCK=128"]
    values: list[Any] = [
        [], {}, 3, None, "x", [[[]]],
        {"files": {"/dev/zero": "0" * 64}, "absent": [], "constants": [], "reached": {"/dev/zero": "/dev/zero"}},
        ["../../../../outside/a", "a", "copy_a-BLOCK=1/../../../../outside/a", 3], {"files": [], "absent": 3},
        {"files": {"\0": "x"}, "absent": ["\0"], "constants": [], "reached": {"\0": "x"}}, {"x": [1, 2, 3, 4, 5, "y"]},
        {str(scene.root / "kernels_src" / "copy_a.py"): [1] * 6}, {"constant BLOCK": "int \x1b[2J"}, {"islpy": [3, 4]},
    ]  # fmt: skip
    text = rng.choice((json.dumps(rng.choice(values)), json.dumps(rng.choice(values)), "[" * 150_000, "1" * 10_000, "{", "NaN"))
    name = rng.choice(names)
    file = base / "notes" / hashlib.sha256(name.encode()).hexdigest()
    _remove(file)
    file.write_bytes(note_text(Sealer(), name, text))


FILE_FORGERIES: dict[str, Forgery] = {"damage": _damage, "swap": _swap, "hard link": _hard_link}


ANY_FORGERIES: dict[str, Forgery] = {
    "link": _link, "special": _special, "mode": _mode, "odd names": _odd_names, "former format": _former_format,
    "entry": _forged_entry, "note": _forged_note,
}  # fmt: skip


def forge(store: Path, rng: random.Random, scene: Scene) -> list[str]:
    """Changes a store in one to twelve places; returns the changes."""
    done: list[str] = []
    for _ in range(rng.choice((1, 2, 3, 6, 12))):
        paths = [path for path in sorted(store.rglob("*")) if not path.is_symlink()]
        plain = [path for path in paths if path.is_file()]
        if rng.random() < 0.5 and plain:
            kind = rng.choice(sorted(FILE_FORGERIES))
            path, action = rng.choice(plain), FILE_FORGERIES[kind]
            if path.stat().st_size > 1 << 24:
                continue
        else:
            kind = rng.choice(sorted(ANY_FORGERIES))
            folders = [path for path in paths if path.is_dir()]
            few = kind in ("link", "special", "mode") and rng.random() < 0.15 and folders
            path, action = rng.choice(folders if few else plain or paths or [store]), ANY_FORGERIES[kind]
        with contextlib.suppress(OSError):  # an earlier forgery blocks this one
            action(path, rng, scene)
            done.append(f"{kind} {ascii(str(path.relative_to(store)))[:60]}")
    return done
