"""The interface of a store of notes, and readers for notes that hold JSON.

A note is only a shortcut: its contents are checked before use, and an unexpected one counts as missing.
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
    """The JSON of a note; None if the note is missing or is not JSON. Its shape is not checked."""
    text = notes.get_text(name)
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None


def read_texts(notes: Notes, name: str) -> dict[str, str] | None:
    """The note's map from text to text; None if it is anything else."""
    data = read_json(notes, name)
    return text_map(data)


def text_map(data: Any) -> dict[str, str] | None:
    """`data` if it maps text to text, else None."""
    if not isinstance(data, dict):
        return None
    items = cast("dict[Any, Any]", data)
    return items if all(isinstance(key, str) and isinstance(value, str) for key, value in items.items()) else None


def text_list(data: Any) -> list[str] | None:
    """`data` if it is a list of texts, else None."""
    if not isinstance(data, list):
        return None
    items = cast("list[Any]", data)
    return items if all(isinstance(item, str) for item in items) else None
