"""The one way by which foreign text reaches a terminal: text goes in, what a terminal would obey in it comes out as an escape.

Names, sources, PTX, bundles, registries and models may hold control characters, which move the cursor, set the title or the
clipboard, or answer for the user; and marks of direction, which make a line read otherwise than it is (Unicode TR 36).
`visible` writes them as `\\x1b`. Messages go through it where they are made (`tilec.diagnostics.render`, `print_line`, `say`),
whatever they are printed to. All other output passes a `Guarded` stream wherever a terminal shows it; what goes to a file or a
pipe is data, and stays as it is. A guarded stream lets no colour through either (ECMA-48, select graphic rendition): black on
black is not seen. What has colours of ours goes to `tilec.terminal.coloured`, after foreign parts of it were made visible.
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
    """`text` with what a terminal would obey as escapes; line ends and tabs stay."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text) if text else text


def visible_line(text: str, most: int) -> str:
    """The same as one line of at most `most` characters before that, cut off with three dots."""
    cut = text if len(text) <= most else f"{text[: most - 3]}..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)


class Guarded(io.TextIOBase):
    """A text stream of a terminal, of which what is printed comes out visible. All but `write` is the stream's own. `styles`
    are the colours that it lets through, as parameters of select graphic rendition, such as `1;31`."""

    def __init__(self, stream: TextIO, styles: Iterable[str] = ()) -> None:
        self.raw_stream = stream
        self.let_through = frozenset(f"\x1b[{style}m" for style in styles)

    def write(self, text: str, /) -> int:
        """Write `text`, colours that are let through as they are."""
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
        """Bytes that are written here are the writer's own business."""
        return self.raw_stream.buffer


def guard_streams() -> None:
    """From now on what this process prints at a terminal, on stdout and stderr, is visible."""
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if stream is not None and not isinstance(stream, Guarded) and stream.isatty():
            setattr(sys, name, Guarded(stream))
            if name == "stderr" and sys.excepthook is sys.__excepthook__:
                sys.excepthook = _traceback  # Python 3.13 colours its own, which would be shown as escapes


def _traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None, /) -> None:
    import traceback  # here, as it is seldom needed

    traceback.print_exception(kind, error, trace)


def unguarded(stream: TextIO) -> TextIO:
    """The stream itself, for what moves the cursor or lays out text by intent, such as a progress bar or a table of `rich`; its
    texts go through `visible` first."""
    return stream.raw_stream if isinstance(stream, Guarded) else stream
