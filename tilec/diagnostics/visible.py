"""Escapes foreign text for terminals: characters that a terminal would interpret become escapes.

Names, sources, PTX, bundles, registries and models may contain control characters, which move the cursor, set the title or the
clipboard, or send input in the user's name, and bidirectional controls, which make a line read differently from its contents
(Unicode TR 36). `visible` writes them as `\\x1b`. Messages are escaped where they are created
(`tilec.diagnostics.diagnostic.render`, `print_line`, `notify`), for every destination. All other output passes through a
`Guarded` stream if it goes to a terminal; a file or a pipe gets the data unchanged. A guarded stream also blocks colours
(ECMA-48, select graphic rendition), because black on black is invisible. Text with tilec's own colours goes to
`tilec.diagnostics.terminal.coloured`, after its foreign parts were escaped.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Final, TextIO

_COLOUR: Final = re.compile(r"(\x1b\[[0-9;]*m)")
_OBEYED: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """`text` with characters that a terminal would interpret as escapes; line ends and tabs stay."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text) if text else text


def visible_line(text: str, most: int) -> str:
    """As `visible`, on one line; `text` is first cut to at most `most` characters, with three dots at the end."""
    cut = text if len(text) <= most else f"{text[: most - 3]}..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)


class Guarded(io.TextIOBase):
    """A text stream of a terminal that escapes what is printed. Everything except `write` is the stream's own. `styles` are the
    colours that it passes, as parameters of select graphic rendition, such as `1;31`."""

    def __init__(self, stream: TextIO, styles: Iterable[str] = ()) -> None:
        self.raw_stream = stream
        self.let_through = frozenset(f"\x1b[{style}m" for style in styles)

    def write(self, text: str, /) -> int:
        """Writes `text`; permitted colours stay unchanged."""
        parts = _COLOUR.split(text)
        self.raw_stream.write("".join(part if part in self.let_through else visible(part) for part in parts))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw_stream, name)

    def flush(self) -> None:
        self.raw_stream.flush()

    def isatty(self) -> bool:
        return self.raw_stream.isatty()

    def fileno(self) -> int:
        return self.raw_stream.fileno()

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Of the stream."""
        return self.raw_stream.encoding

    @property
    def errors(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Of the stream."""
        return self.raw_stream.errors

    @property
    def buffer(self) -> Any:
        """Bytes written here are not escaped."""
        return self.raw_stream.buffer


def guard_streams() -> None:
    """From now on, everything this process prints to a terminal on stdout and stderr is escaped."""
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if stream is not None and not isinstance(stream, Guarded) and stream.isatty():
            setattr(sys, name, Guarded(stream))
            if name == "stderr" and sys.excepthook is sys.__excepthook__:
                sys.excepthook = _traceback  # Python 3.13 colours its own tracebacks, which would be shown as escapes


def _traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None, /) -> None:
    import traceback  # imported here, because it is rarely needed

    traceback.print_exception(kind, error, trace)


def unguarded(stream: TextIO) -> TextIO:
    """The underlying stream, for output that moves the cursor or lays out text on purpose, such as a progress bar or a table of
    `rich`; its texts must be escaped with `visible` first."""
    return stream.raw_stream if isinstance(stream, Guarded) else stream
