"""What `tilec cache` does: size, verify, prune to a cap (least recently used first), clean."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import time
from pathlib import Path

from tilec.cache.store import Store

DEFAULT_CAP = 4 << 30  # bytes
GRACE = 600.0  # seconds in which an unreferenced file may still be on its way into the index


def _files(store: Store) -> list[tuple[Path, int, float]]:
    found: list[tuple[Path, int, float]] = []
    for path in (store.base / "blobs").glob("*/*"):
        with contextlib.suppress(OSError):
            status = path.stat()
            found.append((path, status.st_size, status.st_mtime))
    return found


def size(store: Store) -> tuple[int, int]:
    """Number of blobs and their bytes."""
    files = _files(store)
    return len(files), sum(length for _, length, _ in files)


def verify(store: Store) -> list[str]:
    """Hash every blob; damaged ones are removed, and one line names each entry that lost an output."""
    before = len(store.problems)
    for path, _, _ in _files(store):
        if not path.name.startswith(".tmp-"):
            with contextlib.suppress(OSError):
                if hashlib.sha256(path.read_bytes()).hexdigest() != path.name:
                    store.problems.append(f"blob {path.name[:12]} is corrupt")
                    path.unlink()
    for key, record in list(store.records()):
        store.lookup(key, record["label"])
    return store.problems[before:]


def prune(store: Store, cap: int = DEFAULT_CAP, *, now: float | None = None) -> tuple[int, int]:
    """Remove files no entry names, then entries by time of last use until at most `cap` bytes are left.

    Returns the number of blobs and bytes removed. A product in use by another process is at worst made again.
    """
    now = time.time() if now is None else now
    files = {path.name: (path, length, changed) for path, length, changed in _files(store)}
    records = sorted(store.records(), key=lambda item: -item[1]["used"])
    kept: set[str] = set()
    total, dropped = 0, list[str]()
    for key, record in records:
        fresh = {digest for digest in record["outputs"].values() if digest not in kept}
        length = sum(files[digest][1] for digest in fresh if digest in files)
        if total + length > cap:
            dropped.append(key)
        else:
            kept |= fresh
            total += length
    named = {digest for _, record in records for digest in record["outputs"].values()}
    store.forget(dropped)
    removed = freed = 0
    for name, (path, length, changed) in files.items():
        if name in kept or (name not in named and now - changed < GRACE):
            continue
        with contextlib.suppress(OSError):
            path.unlink()
            removed, freed = removed + 1, freed + length
    for folder in store.base.glob("damaged-*"):
        shutil.rmtree(folder, ignore_errors=True)
    return removed, freed


def clean(root: Path) -> None:
    """Remove the store below `root`, every format of it. OSError where it cannot be removed."""
    for folder in root.glob("v[0-9]*"):
        shutil.rmtree(folder)
