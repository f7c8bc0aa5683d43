"""Formats a figure of a result, given the result's name, a path in its JSON and a format.

    speed[model=qwen3-4b].decode_at_18_tok_s      members, and the element of a list that has these values
    rows[0].costs[of one].us                       elements by number, members with any name
    view.ratios.matvec.mean                        values computed from the result by `ci/evidence/views.py`

A format is one of Python's (`.3f`, `,`), or `ms`: one digit after the point below 10, none above. A prefix such as `x100`
multiplies (`x100.0f`).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from ci.evidence.views import VIEWS

STEP: Final = re.compile(r"\.?([\w-]+)|\[(\d+)\]|\[(\w+)=([^\]]+)\]|\[([^\]]+)\]")
SCALE: Final = re.compile(r"x(\d+)(.*)")


class WrongFigure(Exception):
    """A figure without a source; the message says what is missing."""


class Results:
    """The JSON of all results in a folder, each read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[str, Any] = {}

    def data(self, name: str) -> Any:
        """The JSON of a result; WrongFigure if it has none."""
        if name not in self._read:
            path = self.folder / f"{name}.json"
            if not path.exists():
                raise WrongFigure(f"`{name}` has no JSON in {self.folder}")
            self._read[name] = json.loads(path.read_text(encoding="utf-8"))
        return self._read[name]

    def value(self, name: str, path: str) -> Any:
        """The value at a path; WrongFigure if there is none."""
        data = self.data(name)
        if path.startswith("view."):
            if name not in VIEWS:
                raise WrongFigure(f"ci/evidence/views.py makes nothing of `{name}`")
            data, path = VIEWS[name](data), path.removeprefix("view.")
        offset = 0
        while offset < len(path):
            match = STEP.match(path, offset)
            if match is None:
                raise WrongFigure(f"`{path}` is no path, from `{path[offset:]}` on")
            try:
                data = _step(data, *match.groups())
            except (KeyError, IndexError, TypeError, StopIteration):
                raise WrongFigure(f"`{name}` has nothing at `{path[: match.end()]}`") from None
            offset = match.end()
        return data

    def text(self, name: str, path: str, form: str = "") -> str:
        """The formatted figure."""
        return formatted(self.value(name, path), form)


def _step(data: Any, member: str | None, number: str | None, key: str | None, value: str | None, quoted: str | None) -> Any:
    if number is not None:
        return data[int(number)]
    if key is not None:
        return next(item for item in data if str(item[key]) == value)
    return data[quoted if quoted is not None else member]


def formatted(value: Any, form: str) -> str:
    """A formatted value; WrongFigure if the format does not apply to it."""
    scaled = SCALE.fullmatch(form)
    try:
        if scaled:
            value, form = value * int(scaled[1]), scaled[2]
        if form == "ms":
            form = ".1f" if value < 9.95 else ".0f"
        return format(value, form)
    except (TypeError, ValueError):
        raise WrongFigure(f"{value!r} has no format `{form}`") from None
