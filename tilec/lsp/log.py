"""What goes wrong between editor and server, for its log: records of pygls and asyncio come in, lines on stderr go out.

Each fault is one line, printable and bounded, without a traceback: what a client sends is no defect of the server's. pygls
reports a message that it cannot read twice, and one that it cannot send once for each layer; each exception is told once.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

MAX_LINE: Final = 500
"""Characters; records of pygls hold whole messages, with the text of a file in them."""


class OneLine(logging.Handler):
    """Writes records as lines."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._told: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, but for one whose exception was told, or is told by the next."""
        error = _cause(record.exc_info[1]) if record.exc_info else None
        if (error is not None and error is self._told) or str(record.msg).startswith("Unable to deserialize"):
            return
        self._told = error
        with suppress(OSError, ValueError):  # nobody reads it any more
            sys.stderr.write(line_of(record.levelname, record.getMessage(), error))
            sys.stderr.flush()


def line_of(level: str, message: str, error: BaseException | None) -> str:
    """The line for a message, and for what raised it."""
    front = (message.splitlines() or [""])[0]
    said = " ".join(str(error).split()) if error is not None else ""
    text = f"{front[: MAX_LINE // 2]}: {type(error).__name__}: {said}" if error is not None else front
    shown = "".join(one if one.isprintable() else "?" for one in f"tilec lsp: {level.lower()}: {text}")
    return shown[:MAX_LINE] + "\n"


def _cause(error: BaseException | None) -> BaseException | None:
    """What an exception comes from in the end; of a group, the first of it."""
    if error is None:
        return None
    parts: Sequence[BaseException] = getattr(error, "exceptions", ())
    inner = parts[0] if parts else error.__cause__
    return error if inner is None else _cause(inner)
