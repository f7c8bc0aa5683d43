"""The error of all registry operations."""

from __future__ import annotations

from typing import Final

from tilec.diagnostics.visible import visible_line

MAX_SHOWN: Final = 300


class RegistryError(Exception):
    """A registry error: `code` is E073 and a digit, with a page in `tilec/diagnostics/explain/`; `message` is one line, `hint`
    a suggestion or empty.

    E0731 unreachable or connection broken, E0732 invalid response, E0733 access denied or unacceptable authentication, E0734
    not found.
    """

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        self.code, self.message, self.hint = code, message, hint
        super().__init__(f"error[{code}]: {message}")


def foreign(text: str, limit: int = MAX_SHOWN) -> str:
    """A registry's text, made safe for a message: printable and of limited length."""
    return visible_line(text, limit)
