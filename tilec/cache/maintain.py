"""The operations of `tilec cache`: size, verify, prune to a cap (least recently used first), clean.

All of them address names in the store's own folders by descriptor: nothing outside is read, written or removed, and no link is
followed. Several projects share a store, and with keys several users do. Prune drops the least recently used entries of all of
them, and clean removes everything.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from tilec.cache.lock import HOLDERS
from tilec.cache.record import DIGEST, LARGEST_OUTPUT, LONGEST_ENTRY, Record, parse_entry
from tilec.cache.store import LOCKS, STATISTICS, TAG, Store
from tilec.untrusted.folder import TEMPORARY_NAME, Folder

DEFAULT_CAP = 4 << 30  # bytes
GRACE = 600.0  # seconds for which an unreferenced file may belong to an entry that is still being written
NOTE_AGE = 90 * 86400.0  # seconds after which an unused note is dropped
FORMATS = ("v1", "v2")
_STORE_FILES = re.compile(r"(entries|notes)(-[0-9a-f]{16})?|blobs|holders", re.ASCII)
_V1 = re.compile(r"index|blobs|locks|files\.json|toolchain\.json|damaged-.*")


def size(store: Store) -> tuple[int, int]:
    """Number of blobs and their bytes."""
    sizes = [status.st_size for name, status in store.blobs.names() if DIGEST.fullmatch(name)]
    return len(sizes), sum(sizes)


def verify(store: Store) -> list[str]:
    """Hash every blob and check every seal. Damaged ones are removed; the result has one line per problem.

    Names that the store never makes are reported and kept. Entries sealed under another key are skipped. Concurrent pruning and
    writing by other processes does not count as damage.
    """
    before = len(store.problems)
    for name, _ in store.blobs.names():
        if DIGEST.fullmatch(name) and _hash(store.blobs, name) != name and store.blobs.has(name):  # unless pruned meanwhile
            store.problems.append(f"blob {name[:12]} is corrupt")
            store.blobs.discard(name)
    for key, _ in list(store.entries.names()):
        if DIGEST.fullmatch(key):
            record = _record(store, key)
            if record is not None:
                store.lookup(key, record.label)
            elif store.entries.has(key) and _record(store, key) is None and store.entries.has(key):  # unless just rewritten
                store.problems.append(f"entry {key[:12]} is damaged, or not sealed {_sealing_key_text(store)}")
                store.entries.discard(key)
    for folder in (store.blobs, store.entries, store.notes):
        for name, _ in folder.names():
            if not DIGEST.fullmatch(name) and not TEMPORARY_NAME.fullmatch(name):
                store.problems.append(f"{folder.path.name}/{ascii(name)[1:60]} is not a file of the cache")
    return store.problems[before:]


def _record(store: Store, key: str) -> Record | None:
    found = store.entries.read(key, LONGEST_ENTRY)
    return None if found is None else parse_entry(store.sealer, key, found[0])


def _sealing_key_text(store: Store) -> str:
    return "by your key" if store.sealer.keyed else "by this cache"


def _hash(folder: Folder, name: str) -> str | None:
    try:
        handle, status = folder.open_plain(name)
    except OSError:
        return None
    with open(handle, "rb", buffering=0) as file:
        if status.st_size > LARGEST_OUTPUT:
            return None
        return hashlib.file_digest(file, "sha256").hexdigest()


def _every_record(store: Store) -> Iterator[tuple[Folder, str, float, Record]]:
    """Entries of all secrets, with their folder, key and time of last use. The seal of another secret cannot be checked, so
    such an entry only keeps its blobs."""
    for name, status in list(store.folder.names()):
        if name.startswith("entries") and _STORE_FILES.fullmatch(name) and stat.S_ISDIR(status.st_mode):
            with contextlib.suppress(OSError):
                folder = store.folder.sub(name, create=False)
                for key, times in folder.names():
                    found = folder.read(key, LONGEST_ENTRY) if DIGEST.fullmatch(key) else None
                    sealer = store.sealer if name == store.entries.path.name else None
                    record = None if found is None else parse_entry(sealer, key, found[0])
                    if record is not None:
                        yield folder, key, times.st_mtime, record


def prune(store: Store, cap: int = DEFAULT_CAP, *, now: float | None = None) -> tuple[int, int]:
    """Remove the least recently used entries beyond `cap` bytes, and blobs that no entry names.

    Returns the number of blobs and bytes removed. At worst another process makes a removed product again.
    """
    now = time.time() if now is None else now
    blobs = {name: (status.st_size, status.st_mtime) for name, status in store.blobs.names() if DIGEST.fullmatch(name)}
    records = sorted(_every_record(store), key=lambda item: -item[2])
    kept: set[str] = set()
    named: set[str] = set()
    total = 0
    for folder, key, _, record in records:
        fresh = set(record.outputs.values()) - kept
        length = sum(blobs[digest][0] for digest in fresh if digest in blobs)
        named.update(record.outputs.values())
        if total + length > cap:
            folder.remove(key)
        else:
            kept |= fresh
            total += length
    removed = freed = 0
    for name, (length, changed) in blobs.items():
        if name in kept or (name not in named and now - changed < GRACE):
            continue
        if store.blobs.remove(name):
            removed, freed = removed + 1, freed + length
    _sweep(store, now)
    return removed, freed


def _sweep(store: Store, now: float) -> None:
    """Remove temporary files of builders that died, objects displaced by a file of the store, names that the store never makes,
    unused notes, and the notes of lock holders that died."""
    for name, status in list(store.folder.names()):
        if TEMPORARY_NAME.fullmatch(name) and now - status.st_mtime >= GRACE:
            store.folder.remove_tree(name)
    with contextlib.suppress(OSError), contextlib.closing(store.folder.sub(HOLDERS, create=False)) as holders:
        for name, status in list(holders.names()):
            if now - status.st_mtime >= GRACE:
                holders.remove_tree(name)
    for folder in (store.blobs, store.entries, store.notes):
        for name, status in list(folder.names()):
            age = now - status.st_mtime
            if age >= GRACE and (not DIGEST.fullmatch(name) or (folder is store.notes and age >= NOTE_AGE)):
                folder.remove_tree(name)


def clean(root: Path) -> None:
    """Remove every format of the store below `root` and nothing else. OSError if it cannot be removed."""
    try:
        top = Folder.open(root)
    except FileNotFoundError:
        return
    with contextlib.closing(top):
        for name in FORMATS:
            _clean_format(top, name)
        for name, _ in list(top.names()):
            if TEMPORARY_NAME.fullmatch(name):  # displaced by the store's folder
                top.remove_tree(name)


def _clean_format(top: Folder, name: str) -> None:
    """Remove the known names of one format, so that other files in a folder of the same name are kept."""
    try:
        base = top.sub(name, create=False)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):  # a link or a file, not a store
            return
        raise
    with contextlib.closing(base):
        for item, _ in list(base.names()):
            known = _STORE_FILES.fullmatch(item) or item in (LOCKS, STATISTICS, TAG) or TEMPORARY_NAME.fullmatch(item)
            if (known or (name == "v1" and _V1.fullmatch(item))) and not base.remove_tree(item):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(base.path / item))
    with contextlib.suppress(OSError):
        os.rmdir(name, dir_fd=top.handle)
