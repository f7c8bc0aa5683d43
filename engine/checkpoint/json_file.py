"""Reads JSON objects of a model folder, with a limit on their size; every failure is a `ModelError` that names the file.

JSON is that of RFC 8259: `NaN` and `Infinity`, which Python's parser accepts, are refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, NoReturn, cast

from engine.checkpoint.folder_file import read_bytes
from engine.errors import ModelError

SHOWN: Final = 60
"""Maximum characters of a value in an error message."""


def show(value: object) -> str:
    """A JSON value as quoted in an error message: one line, ASCII, truncated if long."""
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(cast('list[object]', value))} entries"
    if isinstance(value, int) and value.bit_length() > 200:  # printing it may raise ValueError or take long
        return f"an integer of {value.bit_length()} bits"
    text = json.dumps(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def parse_object(text: bytes, where: Path, what: str) -> dict[str, object]:
    """The JSON object in `text`, named `what` in messages; ModelError if it is not one."""

    def refuse_constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not a JSON number")

    def refuse_twice(pairs: list[tuple[str, object]]) -> dict[str, object]:
        parsed = dict(pairs)
        if len(parsed) < len(pairs):
            seen: set[str] = set()
            name = next(key for key, _ in pairs if key in seen or seen.add(key))  # `add` returns None
            raise ValueError(f"the key {show(name)} is there twice")
        return parsed

    try:
        parsed: object = json.loads(text.decode("utf-8"), parse_constant=refuse_constant, object_pairs_hook=refuse_twice)
    except (ValueError, RecursionError) as error:  # invalid JSON or UTF-8, too many digits; RecursionError: nesting
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ModelError(f"{what} is not valid JSON ({reason})", where=where, fix="download the file again") from None
    if not isinstance(parsed, dict):
        raise ModelError(f"{what} is {show(parsed)}, not a JSON object", where=where, fix="download the file again")
    return cast("dict[str, object]", parsed)


def read_object(path: Path, limit_bytes: int, absent: str, *, links: bool = False) -> dict[str, object]:
    """The JSON object in a file of at most `limit_bytes`; `absent` and `links` as in `folder_file.open_file`."""
    return parse_object(read_bytes(path, limit_bytes, absent, links=links), path, "the file")
