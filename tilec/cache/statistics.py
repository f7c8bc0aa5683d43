"""Cache statistics: counts by layer, summed over builds.

In: counts of one build, by layer (`local`, or the URL of a remote) and name. Out: the running totals in the store's file
`statistics`, which is rewritten under a lock. The file is untrusted: only known counts are read, and an unreadable file counts
as empty.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

LOCAL: Final = "local"
NAMES: Final = {
    "hits": "entries found",
    "misses": "entries not found",
    "refused": "rejected entries: damaged, not signed, or of another key",
    "failures": "operations that timed out",
    "stored": "entries written back",
    "twice": "entries that somebody else had made meanwhile: work done twice",
    "late": "entries not written back when the build ended",
    "waited": "waits for another builder",
    "bytes_in": "bytes received",
    "bytes_out": "bytes sent",
    "saved_ms": "milliseconds of CPU saved by the entries found",
    "made": "artifacts made here",
}
MOST_LAYERS: Final = 64
LONGEST: Final = 1 << 16
"""Bytes of the file."""
_MOST: Final = 1 << 62


class Statistics:
    """Whole numbers by layer and name."""

    def __init__(self, counts: Mapping[str, Mapping[str, int]] | None = None) -> None:
        self.counts: dict[str, dict[str, int]] = {}
        for layer, found in (counts or {}).items():
            for name, value in found.items():
                self.add(layer, name, value)

    def add(self, layer: str, name: str, value: int = 1) -> None:
        """Add `value` to a count; `name` is one of `NAMES`."""
        found = self.counts.setdefault(layer, {})
        found[name] = min(found.get(name, 0) + value, _MOST)

    def merge(self, other: Statistics) -> None:
        """Add all counts of `other`."""
        for layer, name, value in other:
            self.add(layer, name, value)

    def get(self, layer: str, name: str) -> int:
        """One number."""
        return self.counts.get(layer, {}).get(name, 0)

    def total(self, name: str) -> int:
        """The sum over all layers."""
        return sum(found.get(name, 0) for found in self.counts.values())

    def drain(self) -> dict[str, dict[str, int]]:
        """Return all counts and reset them."""
        found, self.counts = self.counts, {}
        return found

    def __iter__(self) -> Iterator[tuple[str, str, int]]:
        for layer, found in list(self.counts.items()):
            for name, value in list(found.items()):
                yield layer, name, value


def encoded(statistics: Statistics) -> bytes:
    """The bytes of the file, with the `MOST_LAYERS` layers of the largest totals."""
    largest = sorted(statistics.counts, key=lambda layer: -sum(statistics.counts[layer].values()))[:MOST_LAYERS]
    return json.dumps({layer: statistics.counts[layer] for layer in largest}, indent=1, sort_keys=True).encode() + b"\n"


def decoded(data: bytes) -> Statistics:
    """The counts of a file; none if it is malformed."""
    found = Statistics()
    try:
        layers: Any = json.loads(data)
    except (ValueError, RecursionError):
        return found
    if isinstance(layers, dict):
        for layer, counts in list(cast("dict[str, Any]", layers).items())[:MOST_LAYERS]:
            if isinstance(counts, dict) and layer.isprintable() and len(layer) <= 2000:
                for name, value in cast("dict[str, Any]", counts).items():
                    if name in NAMES and type(value) is int and 0 <= value <= _MOST:
                        found.add(layer, name, value)
    return found
