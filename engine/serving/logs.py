"""Structured logs: one JSON object a line on stderr. They have no text of prompts and generations, and no keys."""

from __future__ import annotations

import logging
import sys
import time
from contextlib import suppress
from typing import Any

import msgspec


def log(event: str, level: str = "info", **fields: Any) -> None:
    """Write a line; nothing happens if stderr is closed or full."""
    seconds = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds * 1000) % 1000:03}Z"
    line = msgspec.json.encode({"time": stamp, "level": level, "event": event, **fields}).decode()
    with suppress(OSError, AttributeError, ValueError):
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


class Lines(logging.Handler):
    """Writes what libraries log as such lines."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, with the last line of its exception."""
        fields = {"error": repr(record.exc_info[1])} if record.exc_info else {}
        log(record.name, record.levelname.lower(), message=record.getMessage(), **fields)
