"""Finds the span of a key in a TOML file: `tomllib` returns no positions, but errors must point at the line."""

from __future__ import annotations

import re
from functools import lru_cache

from tilec.diagnostics.diagnostic import Span

_HEADER = re.compile(r"^\s*(\[\[?)\s*([\w.\-]+)\s*\]\]?")
_KEY = re.compile(r"^\s*(?:\"([^\"]+)\"|([\w\-]+))(?:\.[\w\-]+)*\s*=")


@lru_cache(2)
def _scanned(text: str) -> list[tuple[int, str, re.Match[str] | None, re.Match[str] | None]]:
    """The lines, numbered from 1, each with its match as a table header or a key."""
    lines = enumerate(text.split("\n"), 1)
    return [(number, line, _HEADER.match(line), _KEY.match(line)) for number, line in lines]


def locate(text: str, file: str, table: str, index: int = 0, key: str = "", inner: str = "") -> Span:
    """Span of `inner` in the value of `key` in the `index`-th table named `table`, or of the last part of this path that
    exists."""
    count, inside, best = -1, False, Span(file, 1, 0, 1, 1)
    in_key = False
    for number, line, header, found in _scanned(text):
        if header:
            in_key = False
            name = header[2]
            if name == table:
                count += 1
                inside = count == index
                if inside:
                    best = Span(file, number, header.start(1), number, header.end())
            elif inside and key and name == f"{table}.{key}":
                best, in_key = Span(file, number, header.start(1), number, header.end()), True
            else:
                inside = inside and name.startswith(f"{table}.")
            continue
        if not inside or not key:
            continue
        if found and not (in_key and inner):
            group = 1 if found[1] else 2
            in_key = found[group] == key
            if in_key:
                best = Span(file, number, found.start(group), number, found.end(group))
        if in_key and inner:
            match = re.search(rf"(?<![\w\-]){re.escape(inner)}(?=\s*=)", line)
            if match:
                return Span(file, number, match.start(), number, match.end())
    return best
