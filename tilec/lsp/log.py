"""Log of communication errors between editor and server: takes records of pygls and asyncio, writes lines to stderr.

Each error is one line, printable and bounded, without a traceback, because a client's message is not an internal error. pygls
reports an unreadable message twice, and an unsendable one once per layer; each exception is logged once.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

MAX_LINE: Final = 500
"""Maximum characters per line; records of pygls contain whole messages, including file texts."""


class OneLine(logging.Handler):
    """Writes each record as one line."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._logged_error: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a record, unless its exception was already logged or the next record logs it."""
        error = _cause(record.exc_info[1]) if record.exc_info else None
        if (error is not None and error is self._logged_error) or str(record.msg).startswith("Unable to deserialize"):
            return
        self._logged_error = error
        with suppress(OSError, ValueError):  # stderr is closed
            sys.stderr.write(line_of(record.levelname, record.getMessage(), error))
            sys.stderr.flush()


def line_of(level: str, message: str, error: BaseException | None) -> str:
    """The line for a message and its exception."""
    first_line = (message.splitlines() or [""])[0]
    error_text = " ".join(str(error).split()) if error is not None else ""
    text = f"{first_line[: MAX_LINE // 2]}: {type(error).__name__}: {error_text}" if error is not None else first_line
    printable = "".join(one if one.isprintable() else "?" for one in f"tilec lsp: {level.lower()}: {text}")
    return printable[:MAX_LINE] + "\n"


def _cause(error: BaseException | None) -> BaseException | None:
    """The root cause of an exception; for a group, that of its first exception."""
    if error is None:
        return None
    parts: Sequence[BaseException] = getattr(error, "exceptions", ())
    inner = parts[0] if parts else error.__cause__
    return error if inner is None else _cause(inner)
