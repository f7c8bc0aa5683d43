"""`Store`: look up, make once, and keep the outputs of a stage."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import diskcache

from tilec.cache.files import write_atomically
from tilec.cache.key import FORMAT
from tilec.cache.lock import locked
from tilec.diagnostics import CompileError, Diagnostic

USED_STEP = 3600.0  # seconds: the time of last use is written at most this often
SQLITE_TIMEOUT = 60


@dataclass(frozen=True, slots=True)
class Entry:
    """The outputs of one stage by name, with their digests; `hit` is False where this process just made them."""

    outputs: dict[str, bytes] = field(repr=False)
    digests: dict[str, str]
    hit: bool


class _TextDisk(diskcache.Disk):
    """Only text and numbers: a row that claims to be a pickle is refused, not loaded."""

    def fetch(self, mode: Any, filename: Any, value: Any, read: Any) -> Any:
        if mode == 4:
            raise sqlite3.DatabaseError("the index holds a pickle")
        base: Any = super()
        return base.fetch(mode, filename, value, read)


class Store:
    """The store below `root`. `problems` collects one line per damaged entry met.

    Opening and writing raise CompileError E0701 where the folder cannot be written.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.base = root / FORMAT
        self.problems: list[str] = []
        self.added = 0
        with self._writing():
            (self.base / "blobs").mkdir(parents=True, exist_ok=True)
            self._index = self._open()

    def _open(self) -> Any:
        folder = self.base / "index"
        for attempt in (1, 2):
            try:
                index: Any = diskcache.Cache(
                    str(folder), timeout=SQLITE_TIMEOUT, disk=_TextDisk, eviction_policy="none", disk_min_file_size=1 << 30,
                    size_limit=1 << 62, sqlite_synchronous=1,
                )  # fmt: skip
                index.get("probe")
            except sqlite3.OperationalError:
                raise
            except (sqlite3.DatabaseError, diskcache.Timeout, ValueError, TypeError, AttributeError):
                if attempt == 2:
                    raise
                folder.rename(folder.with_name(f"damaged-{os.getpid()}-{time.time_ns()}"))
                self.problems.append("the index of the cache was damaged and starts empty")
            else:
                return index
        raise AssertionError

    @contextlib.contextmanager
    def _writing(self) -> Generator[None]:
        try:
            yield
        except (OSError, sqlite3.Error, diskcache.Timeout) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or "timed out"
            if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
                message = f"the index of the cache at `{self.root}` is damaged: {reason}"
                hint = "run `tilec cache clean`; what the cache held is made again"
                raise CompileError(Diagnostic("E0701", message, hint=hint)) from None
            hint = "free space or permissions there, or set `TILEC_CACHE_DIR` to a folder that can be written"
            raise CompileError(
                Diagnostic("E0701", f"the cache at `{self.root}` cannot be written: {reason}", hint=hint)
            ) from None

    def close(self) -> None:
        """Close the index."""
        self._index.close()

    def blob_path(self, digest: str) -> Path:
        """Where the blob of a digest lies."""
        return self.base / "blobs" / digest[:2] / digest

    def get_text(self, name: str) -> str | None:
        """A note kept in the index under a name of the caller's, or None."""
        with self._writing():
            value = self._index.get(f"note:{name}")
        seal, _, text = value.partition(" ") if isinstance(value, str) else ("", "", "")
        return text if seal == _seal(name, text) else None

    def set_texts(self, notes: Mapping[str, str]) -> None:
        """Keep notes by name, all or none."""
        with self._writing(), self._index.transact():
            for name, text in notes.items():
                self._index.set(f"note:{name}", f"{_seal(name, text)} {text}")

    def lookup(self, key: str, label: str = "") -> Entry | None:
        """The verified outputs of `key`, or None: never made, evicted, or damaged (then `problems` says which)."""
        digests = self.digests(key)
        if digests is None:
            return None
        outputs: dict[str, bytes] = {}
        for name, digest in digests.items():
            try:
                data = self.blob_path(digest).read_bytes()
            except OSError:
                self._damaged(key, label, f"{name} is missing")
                return None
            if hashlib.sha256(data).hexdigest() != digest:
                self._damaged(key, label, f"{name} is corrupt")
                with contextlib.suppress(OSError):
                    self.blob_path(digest).unlink()
                return None
            outputs[name] = data
        return Entry(outputs, digests, True)

    def digests(self, key: str) -> dict[str, str] | None:
        """Digests of the outputs of `key` by name, unverified; None where the index has none."""
        with self._writing():
            text = self._index.get(key)
            if text is None:
                return None
            record = parse_record(key, text)
            if record is None:
                self._index.delete(key)
                self.problems.append("an entry of the cache's index was damaged")
                return None
            if time.time() - record["used"] > USED_STEP:
                self._index.set(key, _record(key, record["outputs"], record["label"]))
            return record["outputs"]

    def _damaged(self, key: str, label: str, what: str) -> None:
        with self._writing():
            self._index.delete(key)
        self.problems.append(f"cache entry {label or key[:12]}: {what}; it is made again")

    def put(self, key: str, outputs: Mapping[str, bytes], label: str = "") -> Entry:
        """Keep the outputs of `key`; blobs first, so that the index never names a blob that was not written."""
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in outputs.items()}
        with self._writing():
            for name, data in outputs.items():
                path = self.blob_path(digests[name])
                try:
                    present = path.stat().st_size == len(data) and path.read_bytes() == data
                except OSError:
                    present = False
                if not present:
                    write_atomically(path, data)
                    self.added += len(data)
            self._index.set(key, _record(key, digests, label))
        return Entry(dict(outputs), digests, False)

    def make(self, key: str, run: Callable[[], Mapping[str, bytes]], label: str = "") -> Entry:
        """The outputs of `key`: from the store, or from `run` in one process at a time. Errors of `run` are not kept."""
        found = self.lookup(key, label)
        if found is not None:
            return found
        with contextlib.ExitStack() as stack:
            with self._writing():
                stack.enter_context(locked(self.base / "locks", key))
            return self.lookup(key, label) or self.put(key, run(), label)

    def records(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Every key with its record: `outputs`, `used` (seconds since the epoch), `label`."""
        with self._writing():
            for key in list(self._index.iterkeys()):
                if isinstance(key, str) and not key.startswith("note:"):
                    record = parse_record(key, self._index.get(key))
                    if record is not None:
                        yield key, record

    def forget(self, keys: list[str]) -> None:
        """Drop entries from the index; their blobs stay until a prune finds them unused."""
        with self._writing(), self._index.transact():
            for key in keys:
                self._index.delete(key)


def _seal(key: str, text: str) -> str:
    """Binds a value of the index to its key: damage to the database can make it answer with another row's."""
    return hashlib.sha256(f"{len(key)} {key}{text}".encode()).hexdigest()


def _record(key: str, outputs: Mapping[str, str], label: str) -> str:
    seal = _seal(key, json.dumps(outputs, sort_keys=True))
    return json.dumps({"outputs": outputs, "used": time.time(), "label": label, "seal": seal})


def parse_record(key: str, text: object) -> dict[str, Any] | None:
    """The record of `key` in the index, or None where it is not one."""
    try:
        record: Any = json.loads(text) if isinstance(text, str) else None
        outputs: dict[str, str] = record["outputs"]
        good = record["seal"] == _seal(key, json.dumps(outputs, sort_keys=True))
        good = good and all(len(digest) == 64 and int(digest, 16) >= 0 and name for name, digest in outputs.items())
        return {"outputs": outputs, "used": float(record["used"]), "label": str(record["label"])} if good else None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
