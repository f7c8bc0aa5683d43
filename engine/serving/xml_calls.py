"""Finds calls of tools in generated content, in the XML form in which Qwen3-Coder writes them:

    <tool_call>
    <function=weather>
    <parameter=city>
    Paris
    </parameter>
    </function>
    </tool_call>

A call begins when its function's name is there and a first parameter, or the function's end. From then on its arguments come as
pieces of the text of a JSON object, those of a text while the model still writes it. A value has the type that the tool's
schema gives it (`engine.serving.xml_values`), and ends at the first `</parameter>`: the form has no escapes. One line break
on either side of it is no part of it.

What only looks like the beginning of a call stays text, tags included. A call that is cut off, or that goes on with something
else, has arguments that are no whole object, and what follows is text. So nothing that the model wrote is lost, and
nobody takes a part of a call for a whole one. The result is the same for every way to cut the text into pieces.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Literal

from engine.serving.thinking import overlap
from engine.serving.tool_calls import CLOSE, OPEN, Arguments, ToolCall
from engine.serving.xml_values import TEXT, Kinds, json_text, json_value, kinds_of_tools

FUNCTION: Final = "<function="
PARAMETER: Final = "<parameter="
END_VALUE: Final = "</parameter>"
END_FUNCTION: Final = "</function>"
NAME: Final = re.compile(r"[^<>\n]{1,256}")
"""A name of a function or parameter, which is followed by `>`."""
SPACE: Final = re.compile(r"[ \t\r\n]{0,64}")

_Form = tuple[str | re.Pattern[str], ...]
_HEAD: Final[_Form] = (OPEN, SPACE, FUNCTION, NAME, ">", SPACE)
_HEADS: Final[tuple[_Form, ...]] = ((*_HEAD, PARAMETER), (*_HEAD, END_FUNCTION))
_PARAMETER: Final[_Form] = (SPACE, PARAMETER, NAME, ">")
_ENDS: Final[tuple[_Form, ...]] = ((SPACE, END_FUNCTION), (SPACE, CLOSE))

Found = str | ToolCall | Arguments


class XmlCalls:
    """A finder for one generation. Texts, calls and arguments come out in the order in which they were written. `tools`: those
    of the request, whose schemas say which type a value has."""

    def __init__(self, tools: Sequence[dict[str, Any]] = ()) -> None:
        self._tools = kinds_of_tools(tools)
        self._pending = ""
        self._state: Literal["text", "between", "value", "close"] = "text"
        self._kinds: dict[str, Kinds] = {}  # of the call's parameters
        self._value: Kinds = TEXT
        self._separator = "{"  # before the next parameter
        self._at_start = False  # whether the first character of the value is still to come
        self._scanned = 0  # characters of the value at which no closing tag begins

    def push(self, piece: str) -> list[Found]:
        """The texts, calls and arguments that became certain with this piece."""
        self._pending += piece
        found: list[Found] = []
        steps = {"text": self._text, "between": self._between, "value": self._in_value, "close": self._closing}
        while steps[self._state](found):
            pass
        return found

    def finish(self) -> list[Found]:
        """The rest, at the end of the generation. Arguments that were cut off end within a text: they are no whole object."""
        rest, self._pending = self._pending, ""
        state, self._state = self._state, "text"
        if state != "value":
            return [rest] if rest else []
        if self._value == TEXT:
            return [Arguments(json_text(rest)[1:-1])] if rest else []
        return [Arguments(json_text(rest)[:-1])]

    def _text(self, found: list[Found]) -> bool:
        """Take text off the front, or the beginning of a call; returns whether there may be more."""
        text, opened, _ = self._pending.partition(OPEN)
        if not opened:
            text = text[: len(text) - overlap(text, OPEN)]
        if text:
            found.append(self._take(len(text)))
        if not opened:
            return False
        scans = [_scan(self._pending, form) for form in _HEADS]
        if (matched := next((one for one in scans if one is not None and one[0]), None)) is not None:
            name, tag = matched[1], PARAMETER if scans[0] == matched else END_FUNCTION
            self._take(matched[0] - len(tag))
            self._kinds, self._separator, self._state = self._tools.get(name, {}), "{", "between"
            found.append(ToolCall(name, "", whole=False))
            return True
        if any(one is not None for one in scans):
            return False
        found.append(self._take(len(OPEN)))
        return True

    def _between(self, found: list[Found]) -> bool:
        """After the head or a parameter: the next parameter, or the end of the call."""
        parameter, *ends = scans = [_scan(self._pending, form) for form in (_PARAMETER, *_ENDS)]
        if parameter is not None and parameter[0]:
            self._take(parameter[0])
            name = parameter[1]
            self._value, self._state = self._kinds.get(name, TEXT), "value"
            self._at_start, self._scanned = True, 0
            quote = '"' if self._value == TEXT else ""
            found.append(Arguments(f"{self._separator}{json_text(name)}:{quote}"))
            self._separator = ","
            return True
        for end, after in zip(ends, ("close", "text"), strict=True):
            if end is not None and end[0]:
                self._take(end[0])
                found.append(Arguments("{}" if self._separator == "{" else "}", last=True))
                self._state = after
                return True
        if any(one is not None for one in scans):
            return False
        self._state = "text"
        return True

    def _in_value(self, found: list[Found]) -> bool:
        """The value of a parameter: a text as far as it is certain, another one when it is whole."""
        if self._at_start and self._pending:
            self._take(int(self._pending[0] == "\n"))
            self._at_start = False
        end = self._pending.find(END_VALUE, self._scanned)
        if end >= 0:
            raw = self._take(end).removesuffix("\n")
            self._take(len(END_VALUE))
            found.append(Arguments(json_text(raw)[1:] if self._value == TEXT else json_value(raw, self._value)))
            self._state = "between"
            return True
        kept_back = max(overlap(self._pending, "\n" + END_VALUE), overlap(self._pending, END_VALUE))
        if self._value != TEXT:
            self._scanned = len(self._pending) - kept_back
        elif text := self._take(len(self._pending) - kept_back):
            found.append(Arguments(json_text(text)[1:-1]))
        return False

    def _closing(self, _: list[Found]) -> bool:
        """After the function's end: the closing tag, which is no part of the text."""
        closed = _scan(self._pending, (SPACE, CLOSE))
        if closed is not None and not closed[0]:
            return False
        self._take(0 if closed is None else closed[0])
        self._state = "text"
        return True

    def _take(self, size: int) -> str:
        taken, self._pending = self._pending[:size], self._pending[size:]
        return taken


def _scan(text: str, form: _Form) -> tuple[int, str] | None:
    """Where a form ends that `text` begins with, and the name in it; 0 if it may still become one, None if not."""
    at, name = 0, ""
    for element in form:
        if isinstance(element, str):
            if not text.startswith(element, at):
                return (0, "") if element.startswith(text[at:]) else None
            at += len(element)
        elif (found := element.match(text, at)) is None:
            return (0, "") if at == len(text) else None
        else:
            at, name = found.end(), found[0] if element is NAME else name
    return at, name
