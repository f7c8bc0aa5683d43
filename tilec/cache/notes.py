"""What may keep notes, and the reading of notes that hold JSON.

A note is a convenience: what it says is looked at before use, and one that says something else than was expected is no note.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol, cast


class Notes(Protocol):
    """Texts by name, as `Store` keeps them."""

    def get_text(self, name: str) -> str | None:
        """The text of a name, or None."""
        ...

    def set_texts(self, notes: Mapping[str, str]) -> None:
        """Keep texts by name."""
        ...


def read_json(notes: Notes, name: str) -> Any:
    """The JSON of a note; None where there is none or it is none. Nothing is said about its shape."""
    text = notes.get_text(name)
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None


def read_texts(notes: Notes, name: str) -> dict[str, str] | None:
    """The note's map from text to text; None where it is anything else."""
    data = read_json(notes, name)
    return text_map(data)


def text_map(data: Any) -> dict[str, str] | None:
    """`data` where it maps text to text, else None."""
    if not isinstance(data, dict):
        return None
    items = cast("dict[Any, Any]", data)
    return items if all(isinstance(key, str) and isinstance(value, str) for key, value in items.items()) else None


def text_list(data: Any) -> list[str] | None:
    """`data` where it is a list of texts, else None."""
    if not isinstance(data, list):
        return None
    items = cast("list[Any]", data)
    return items if all(isinstance(item, str) for item in items) else None
