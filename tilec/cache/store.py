"""`Store`: look up, make once, and store the outputs of a stage.

The store is plain files instead of a database for three reasons. A short strict reader (`record`) parses files that somebody
else may have written; a library above SQLite would load pickles and delete the files that its rows name. Each write is one
atomic rename, so builders need no transaction. Damage to one file costs one entry.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tilec.cache.key import FORMAT
from tilec.cache.location import check_own, check_private, create
from tilec.cache.lock import locked
from tilec.cache.record import DIGEST, LONGEST_ENTRY, LONGEST_NOTE, Record, entry_text, note_text, parse_entry, parse_note
from tilec.cache.seal import user_sealer
from tilec.cache.statistics import LONGEST as LONGEST_STATISTICS
from tilec.cache.statistics import Statistics, decoded, encoded
from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.untrusted.folder import Folder

if TYPE_CHECKING:
    from tilec.cache.remote.remote import Remote

USED_STEP = 3600.0  # seconds: the time of last use is written at most this often
LOCKS = "locks"
STATISTICS: Final = "statistics"
_STATISTICS_KEY: Final = hashlib.sha256(STATISTICS.encode()).hexdigest()
TAG = "CACHEDIR.TAG"
TAG_TEXT = b"Signature: 8a477f597d28d172789f06886806bc55\n# Made by tilec; `tilec cache clean` removes it.\n"
"""Excludes the folder from backups (the Cache Directory Tagging Specification, bford.info/cachedir)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The outputs of one stage by name, with their digests. `hit` is False if this process has just made them. `cost` is the
    CPU time to make them in milliseconds, 0 if unknown."""

    outputs: dict[str, bytes] = field(repr=False)
    digests: dict[str, str]
    hit: bool
    cost: int = 0


class Store:
    """The store below `root`. `problems` collects one line per damaged entry. `tilec.cache.products` asks `remote`, if set, for
    missing entries; `made` collects the keys to be shared with it.

    Opening and writing raise CompileError: E0701 if the folder cannot be written, E0711 if others can write to it and no secret
    seals its entries, E0712 if the key file cannot be used.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.base = root / FORMAT
        self.problems: list[str] = []
        self.added = 0
        self.made: list[str] = []
        self.remote: Remote | None = None
        self.sealer = user_sealer(root)
        with self._writing():
            self._open()

    def _open(self) -> None:
        create(self.root)
        if not self.sealer.keyed:
            check_private(self.root)
        top = Folder.open(self.root)
        self.folder = top.sub(FORMAT)
        self.blobs = self.folder.sub("blobs")
        self.entries = self.folder.sub(f"entries{self.sealer.suffix}")
        self.notes = self.folder.sub(f"notes{self.sealer.suffix}")
        if not self.sealer.keyed:
            for folder in (top, self.folder, self.blobs, self.entries, self.notes):
                check_own(self.root, folder.path, folder.handle)
        top.close()
        if self.folder.read(TAG, len(TAG_TEXT)) is None:
            self.folder.write(TAG, TAG_TEXT)

    @contextlib.contextmanager
    def _writing(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            hint = "free space or permissions there, or set `TILEC_CACHE_DIR` to a folder that can be written"
            message = f"the cache at `{self.root}` cannot be written: {error.strerror or error}"
            raise CompileError(Diagnostic("E0701", message, hint=hint)) from None

    def close(self) -> None:
        """Close the folders."""
        for folder in (self.folder, self.blobs, self.entries, self.notes):
            folder.close()

    def blob_path(self, digest: str) -> Path:
        """Path of the blob with a digest, whether or not it exists."""
        return self.blobs.path / digest

    def get_text(self, name: str) -> str | None:
        """The note with a name that the caller chooses, or None. Its text is untrusted: check it before use."""
        file = _note_file(name)
        found = self.notes.read(file, LONGEST_NOTE)
        if found is None:
            return None
        now = time.time()
        if abs(now - found[1].st_mtime) > USED_STEP:
            self.notes.touch(file, now)
        return parse_note(self.sealer, name, found[0])

    def set_texts(self, notes: Mapping[str, str]) -> None:
        """Store notes by name; a note longer than `LONGEST_NOTE` is dropped."""
        with self._writing():
            for name, text in notes.items():
                data = note_text(self.sealer, name, text)
                if len(data) <= LONGEST_NOTE:
                    self.notes.write(_note_file(name), data)

    def lookup(self, key: str, label: str = "") -> Entry | None:
        """The verified outputs of `key`; None if they were never made, were evicted, or are damaged (see `problems`)."""
        record = self._record(key)
        if record is None:
            return None
        outputs: dict[str, bytes] = {}
        for name, digest in record.outputs.items():
            found = self.blobs.read(digest, record.sizes[name])
            if found is None or hashlib.sha256(found[0]).hexdigest() != digest:
                self._damaged(key, label, digest, name)
                return None
            outputs[name] = found[0]
        return Entry(outputs, record.outputs, True, record.cost)

    def _damaged(self, key: str, label: str, digest: str, name: str) -> None:
        missing = not self.blobs.has(digest)
        if missing and not self.entries.has(key):  # pruned meanwhile: prune removes entries before their blobs
            return
        self.blobs.discard(digest)
        self.entries.remove(key)
        problem = f"{name} is {'missing' if missing else 'corrupt'}"
        self.problems.append(f"cache entry {label or key[:12]}: {problem}; it will be rebuilt")

    def digests(self, key: str) -> dict[str, str] | None:
        """Digests of the outputs of `key` by name, without reading the blobs; None if the store has no entry for it."""
        record = self._record(key)
        return None if record is None else record.outputs

    def _record(self, key: str) -> Record | None:
        found = self.entries.read(key, LONGEST_ENTRY)
        exists = found is not None or self.entries.has(key)
        if exists and found is None:  # another process has just written it, or it cannot be read
            found = self.entries.read(key, LONGEST_ENTRY)
        record = None if found is None else parse_entry(self.sealer, key, found[0])
        if record is None:
            if exists:
                self.problems.append("an entry of the cache's index was damaged")
                self.entries.discard(key)
            return None
        now = time.time()
        if found is not None and abs(now - found[1].st_mtime) > USED_STEP:
            self.entries.touch(key, now)
        return record

    def put(self, key: str, outputs: Mapping[str, bytes], label: str = "", cost: int = 0) -> Entry:
        """Store the outputs of `key`: blobs first, so that no entry names a blob that was not written."""
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in outputs.items()}
        sizes = {name: len(data) for name, data in outputs.items()}
        with self._writing():
            for name, data in outputs.items():
                present = self.blobs.read(digests[name], len(data))
                if present is None or present[0] != data:
                    self.blobs.write(digests[name], data)
                    self.added += len(data)
            self.entries.write(key, entry_text(self.sealer, key, digests, sizes, label, cost), used=time.time())
        return Entry(dict(outputs), digests, False, cost)

    def make(self, key: str, run: Callable[[], Mapping[str, bytes]], label: str = "") -> Entry:
        """The outputs of `key`: from the store, or from `run` in one process at a time. Errors of `run` are not cached."""
        found = self.lookup(key, label)
        if found is not None:
            return found
        with contextlib.ExitStack() as stack:
            with self._writing():
                self.folder.ensure_plain(LOCKS)
                stack.enter_context(locked(self.folder, LOCKS, key, label))
            found = self.lookup(key, label)
            if found is not None:
                return found
            start = time.process_time()
            outputs = run()
            return self.put(key, outputs, label, round((time.process_time() - start) * 1000))

    def records(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Every key with its record: `outputs`, `sizes`, `used` (seconds since the epoch), `label`."""
        for key, status in self.entries.names():
            found = self.entries.read(key, LONGEST_ENTRY) if DIGEST.fullmatch(key) else None
            record = None if found is None else parse_entry(self.sealer, key, found[0])
            if record is not None:
                yield key, {"outputs": record.outputs, "sizes": record.sizes, "used": status.st_mtime, "label": record.label}

    def statistics(self) -> Statistics:
        """The totals over all builds."""
        found = self.folder.read(STATISTICS, LONGEST_STATISTICS)
        return Statistics() if found is None else decoded(found[0])

    def count(self, counts: Statistics) -> None:
        """Add the counts of a build. A failure to write them is ignored."""
        with contextlib.suppress(OSError):
            self.folder.ensure_plain(LOCKS)
            with locked(self.folder, LOCKS, _STATISTICS_KEY, "statistics"):
                total = self.statistics()
                total.merge(counts)
                self.folder.write(STATISTICS, encoded(total))

    def forget(self, keys: list[str]) -> None:
        """Drop entries; a later prune removes their unused blobs."""
        for key in keys:
            self.entries.remove(key)


def _note_file(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
