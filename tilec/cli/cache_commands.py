"""`tilec cache dir|size|verify|prune|clean`."""

from __future__ import annotations

import contextlib
import json
import re

from tilec.cache import Store, store_root
from tilec.cache.maintain import clean as remove_store
from tilec.cache.maintain import prune as prune_store
from tilec.cache.maintain import size as size_of
from tilec.cache.maintain import verify as verify_store
from tilec.cache.products import verify as verify_products
from tilec.cli.project import UsageError
from tilec.diagnostics import CompileError, Diagnostic


def directory() -> int:
    """Print where the store lies."""
    print(store_root())
    return 0


def size(as_json: bool) -> int:
    """Print the number of blobs and their bytes."""
    with contextlib.closing(Store(store_root())) as store:
        count, length = size_of(store)
    print(json.dumps({"blobs": count, "bytes": length}) if as_json else f"{count} blobs, {length} bytes")
    return 0


def verify() -> int:
    """Print one line per damaged entry; 1 where there are any."""
    with contextlib.closing(Store(store_root())) as store:
        found = [*store.problems, *verify_store(store), *verify_products(store)]
    for line in dict.fromkeys(found):
        print(line)
    if not found:
        print("all entries are intact, and their products those of their keys")
    return int(bool(found))


def prune(max_size: str) -> int:
    """Prune to a number of bytes such as `500M`."""
    found = re.fullmatch(r"(\d+)([KMG]?)", max_size.upper())
    if not found:
        raise UsageError(f"`{max_size}` is not a size; write 500M or 4G")
    cap = int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]]
    with contextlib.closing(Store(store_root())) as store:
        count, freed = prune_store(store, cap)
    print(f"removed {count} blobs, {freed} bytes")
    return 0


def clean() -> int:
    """Remove the store, with what all projects that share it have there."""
    root = store_root()
    try:
        remove_store(root)
    except OSError as error:
        raise CompileError(Diagnostic("E0701", f"the cache at `{root}` cannot be removed: {error.strerror}")) from None
    print(f"removed the store in {root}; built artifacts stay where they are")
    return 0
