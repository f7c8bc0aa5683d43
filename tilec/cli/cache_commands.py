"""`tilec cache dir|size|stats|verify|prune|clean`."""

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
from tilec.cache.statistics import LOCAL, NAMES
from tilec.cli.project import UsageError
from tilec.diagnostics.diagnostic import CompileError, Diagnostic


def directory() -> int:
    """Print the folder of the store."""
    print(store_root())
    return 0


def size(as_json: bool) -> int:
    """Print the number of blobs and their bytes."""
    with contextlib.closing(Store(store_root())) as store:
        count, length = size_of(store)
    print(json.dumps({"blobs": count, "bytes": length}) if as_json else f"{count} blobs, {length} bytes")
    return 0


def stats(as_json: bool) -> int:
    """Print the counts of all builds as a table by layer."""
    with contextlib.closing(Store(store_root())) as store:
        found = store.statistics()
    hours = found.total("saved_ms") / 3.6e6
    if as_json:
        print(json.dumps({"layers": found.counts, "saved_cpu_hours": round(hours, 4)}, indent=1, sort_keys=True))
        return 0
    layers = sorted(found.counts, key=lambda layer: (layer != LOCAL, layer))
    rows = [("", *layers)]
    rows += [
        (text, *(str(found.get(layer, name) or "") for layer in layers)) for name, text in NAMES.items() if found.total(name)
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join(cells).rstrip())
    print(f"{hours:.2f} hours of CPU saved" if layers else "nothing was counted yet")
    return 0


def verify() -> int:
    """Print one line per damaged entry. Returns 1 if there are any."""
    with contextlib.closing(Store(store_root())) as store:
        found = [*store.problems, *verify_store(store), *verify_products(store)]
    for line in dict.fromkeys(found):
        print(line)
    if not found:
        print("all entries are intact, and all products match their keys")
    return int(bool(found))


def prune(max_size: str) -> int:
    """Prune to a number of bytes such as `500M`."""
    found = re.fullmatch(r"([0-9]{1,18})([KMG]?)", max_size.upper())
    if not found:
        raise UsageError(f"`{max_size:.80}` is not a size; write 500M or 4G")
    cap = int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]]
    with contextlib.closing(Store(store_root())) as store:
        count, freed = prune_store(store, cap)
    print(f"removed {count} blobs, {freed} bytes")
    return 0


def clean() -> int:
    """Remove the store, including the entries of all other projects."""
    root = store_root()
    try:
        remove_store(root)
    except OSError as error:
        raise CompileError(Diagnostic("E0701", f"the cache at `{root}` cannot be removed: {error.strerror}")) from None
    print(f"removed the store in {root}; built artifacts stay where they are")
    return 0
