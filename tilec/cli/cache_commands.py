"""`tilec cache dir|size|verify|prune|clean`."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

from tilec.build.driver import store_root
from tilec.cache import Store
from tilec.cache.maintain import clean as remove_store
from tilec.cache.maintain import prune as prune_store
from tilec.cache.maintain import size as size_of
from tilec.cache.maintain import verify as verify_store
from tilec.cli.project import UsageError
from tilec.diagnostics import CompileError, Diagnostic


def _root(project: str) -> Path:
    path = Path(project)
    return store_root((path.parent if path.suffix == ".toml" else path).resolve())


def directory(project: str) -> int:
    """Print where the store lies."""
    print(_root(project))
    return 0


def size(project: str, as_json: bool) -> int:
    """Print the number of blobs and their bytes."""
    with contextlib.closing(Store(_root(project))) as store:
        count, length = size_of(store)
    print(json.dumps({"blobs": count, "bytes": length}) if as_json else f"{count} blobs, {length} bytes")
    return 0


def verify(project: str) -> int:
    """Print one line per damaged entry; 1 where there are any."""
    with contextlib.closing(Store(_root(project))) as store:
        found = [*store.problems, *verify_store(store)]
    for line in dict.fromkeys(found):
        print(line)
    if not found:
        print("all entries are sound")
    return int(bool(found))


def prune(project: str, max_size: str) -> int:
    """Prune to a number of bytes such as `500M`."""
    found = re.fullmatch(r"(\d+)([KMG]?)", max_size.upper())
    if not found:
        raise UsageError(f"`{max_size}` is not a size; write 500M or 4G")
    cap = int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]]
    with contextlib.closing(Store(_root(project))) as store:
        count, freed = prune_store(store, cap)
    print(f"removed {count} blobs, {freed} bytes")
    return 0


def clean(project: str) -> int:
    """Remove the store."""
    root = _root(project)
    try:
        remove_store(root)
    except OSError as error:
        raise CompileError(Diagnostic("E0701", f"the cache at `{root}` cannot be removed: {error.strerror}")) from None
    print(f"removed the store in {root}")
    return 0
