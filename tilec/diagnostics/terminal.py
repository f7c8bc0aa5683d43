"""Decides whether output is coloured, and defines the colours of a diagnostic.

In: the `--color` option, the environment and the stream. Out: a decision for each stream, and text wrapped in escape sequences
(ECMA-48, select graphic rendition). Without colour, text has no escape sequences. In `auto`, the first that applies: a nonempty
`NO_COLOR` disables colour (https://no-color.org); `FORCE_COLOR` or `CLICOLOR_FORCE` that is neither empty nor 0 enables it
(https://force-color.org, https://bixense.com/clicolors); `TERM=dumb` disables it; a terminal enables it.
"""

from __future__ import annotations

import os
from typing import Final, Literal, TextIO, cast, get_args

from tilec.diagnostics.diagnostic import Paint, unpainted
from tilec.diagnostics.visible import Guarded

Choice = Literal["auto", "always", "never"]
CHOICES: Final[tuple[Choice, ...]] = get_args(Choice)

STYLES: Final = {
    "error": "1;31",  # bold red: the error
    "warning": "1;33",
    "note": "1;32",
    "message": "1",
    "frame": "1;34",  # bold blue: line numbers and the frame of the source
    "primary": "1;31",
    "secondary": "1;34",
    "counterexample": "1;35",
    "hint": "1;36",
}

RESET: Final = "0"

_choice: Choice = "auto"


def choose(choice: Choice) -> None:
    """Sets the value of `--color` for both streams of this process."""
    global _choice
    _choice = choice


def _forced(name: str) -> bool:
    return os.environ.get(name, "") not in ("", "0")


def wants_colour(stream: TextIO) -> bool:
    """Whether text on `stream` is coloured."""
    if _choice != "auto":
        return _choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if _forced("FORCE_COLOR") or _forced("CLICOLOR_FORCE"):
        return True
    return os.environ.get("TERM") != "dumb" and stream.isatty()


def painted(role: str, text: str) -> str:
    """`text` in the colour of a role of `STYLES`."""
    return f"\x1b[{STYLES[role]}m{text}\x1b[{RESET}m" if text else text


def paint_for(stream: TextIO) -> Paint:
    """The `Paint` with which `diagnostics.render` formats text for `stream`."""
    return painted if wants_colour(stream) else unpainted


def coloured(stream: TextIO) -> TextIO:
    """`stream` for text from `paint_for`; a guarded terminal stream passes the colours of `STYLES` and no others."""
    if not isinstance(stream, Guarded):
        return stream
    return cast("TextIO", Guarded(stream.raw_stream, (RESET, *STYLES.values())))
