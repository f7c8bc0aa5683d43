"""Tables of results as lines of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def grid(header: Sequence[str], rows: Iterable[Sequence[object]], *, left: int = 1) -> list[str]:
    """A table; all columns but the first `left` are numbers, aligned to the right."""
    aligned = "|---" * left + "|--:" * (len(header) - left) + "|"
    return [line(header), aligned, *map(line, rows)]


def line(cells: Iterable[object]) -> str:
    """A row of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def page(lines: Iterable[str]) -> str:
    """Lines as the text of a file."""
    return "\n".join(lines).rstrip() + "\n"
