"""The options of a server: limits, address, keys. Imports nothing that takes time, so that a command line is read first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from engine.errors import UsageError

if TYPE_CHECKING:
    from engine.serving.traces import Traces

CHUNK_TOKENS: Final = 4096
"""Default of the most tokens of prompts that are computed between two tokens of others, in as many launches as they take. With
512, requests of a GPU that is nearly busy wait six times as long for their first token as with 2048 (docs/decisions.md,
"Requests that arrive at random")."""

MOST_GUESSES: Final = 32

ToolForm = Literal["hermes", "xml"]
"""In which form a model writes calls of tools: JSON (`engine.serving.tool_calls`) or tags (`engine.serving.xml_calls`)."""
TOOL_FORMS: Final[tuple[ToolForm, ...]] = ("hermes", "xml")

INTERPRETED_ROWS: Final = 8
"""Rows of a server on the interpreter, by default: the most of a step whose caches are not in pages."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of a server. `header_seconds`: how long a client may take for the headers of a request. `stall_seconds`: how long
    no iteration may end before the server says that it is ill."""

    body_bytes: int = 8 << 20
    request_seconds: float = 600.0
    header_seconds: float = 10.0
    ping_seconds: float = 15.0
    stall_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class Options:
    """Of a server. `port` 0 takes a free one. `most_waiting`: requests that wait beyond those that fit the rows.
    `drain_seconds`: how long requests may go on after SIGTERM. `restarts`: how often within ten minutes the model is loaded
    again after the engine's process ended. `tool_form`: of calls of tools, None for what the chat template asks for."""

    host: str = "127.0.0.1"
    port: int = 8000
    model_name: str | None = None
    most_waiting: int = 256
    drain_seconds: int = 30
    restarts: int = 3
    keys: list[str] = field(default_factory=list[str])
    limits: ServerLimits = field(default_factory=ServerLimits)
    traces: Traces | None = None
    tool_form: ToolForm | None = None


def guesses_of(option: str) -> int:
    """The number of guesses of a row that `--speculate ngram:K` asks for; UsageError for another text."""
    method, _, number = option.partition(":")
    if method != "ngram" or not number.isdecimal() or not 1 <= int(number) <= MOST_GUESSES:
        raise UsageError(f"speculate is {option!r}, not ngram:K with K from 1 to {MOST_GUESSES}")
    return int(number)


def keys_of(text: str, where: str) -> list[str]:
    """The API keys in a text, one a line; UsageError if there is none."""
    keys = [line.strip() for line in text.splitlines() if line.strip()]
    if not keys:
        raise UsageError("there is no API key in it", where=where, fix="give one key a line")
    return keys
