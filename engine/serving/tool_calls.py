"""Finds calls of tools in generated content, in the form in which most Qwen models write them (Hermes; `xml_calls` has the
other):

    <tool_call>
    {"name": "weather", "arguments": {"city": "Paris"}}
    </tool_call>

A call ends at the first closing tag that is in no string of its JSON. What is between the tags and is no call stays text, tags
included: nothing that the model wrote is lost. The result is the same for every way to cut the text into pieces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec

from engine.serving.thinking import overlap

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call: the function's name, and its arguments as the text of a JSON object. Not `whole`: the rest of them follows."""

    name: str
    arguments: str
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the arguments of the call before it; `last`: they are whole with it."""

    text: str
    last: bool = False


class ToolCalls:
    """A finder for one generation. Texts and calls come out in the order in which they were written."""

    def __init__(self) -> None:
        self._pending = ""
        self._scanned = 0  # characters after the opening tag that are scanned
        self._in_call = self._in_string = self._escaped = False

    def push(self, piece: str) -> list[str | ToolCall]:
        """The texts and calls that became certain with this piece."""
        self._pending += piece
        found: list[str | ToolCall] = []
        while self._step(found):
            pass
        return found

    def finish(self) -> list[str | ToolCall]:
        """The rest, at the end of the generation; a call that was cut off is text."""
        rest, self._pending = self._pending, ""
        return [rest] if rest else []

    def _step(self, found: list[str | ToolCall]) -> bool:
        """Take one text or call off the front; returns whether there may be more."""
        if not self._in_call:
            text, opened, _ = self._pending.partition(OPEN)
            if not opened:
                text = text[: len(text) - overlap(text, OPEN)]
            if text:
                found.append(text)
            self._pending = self._pending[len(text) :]
            self._in_call, self._in_string, self._escaped, self._scanned = bool(opened), False, False, len(OPEN)
            return bool(opened)
        end = self._end()
        if end is None:
            return False
        body, self._pending, self._in_call = self._pending[:end], self._pending[end:], False
        found.append(call_of(body[len(OPEN) : -len(CLOSE)]) or body)
        return True

    def _end(self) -> int | None:
        """Where the call ends that `_pending` begins with; None before its closing tag has come."""
        text = self._pending
        while self._scanned < len(text):
            character = text[self._scanned]
            if self._in_string:
                self._in_string = self._escaped or character != '"'
                self._escaped = not self._escaped and character == "\\"
            elif character == '"':
                self._in_string = True
            elif character == "<":
                if text.startswith(CLOSE, self._scanned):
                    return self._scanned + len(CLOSE)
                if CLOSE.startswith(text[self._scanned :]):
                    return None
            self._scanned += 1
        return None


def call_of(body: str) -> ToolCall | None:
    """The call in a text, None if it is none: an object with a `name`, and `arguments` that are an object, or absent."""
    try:
        value: Any = msgspec.json.decode(body.encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError):
        return None
    fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    arguments: Any = fields.get("arguments", {})
    name: Any = fields.get("name")
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return ToolCall(name, msgspec.json.encode(arguments).decode())
