"""The error of everything that speaks to a registry."""

from __future__ import annotations

from typing import Final

from tilec.visible import visible_line

MAX_SHOWN: Final = 300


class RegistryError(Exception):
    """One refusal: `code` is E073 and a digit, with a page in `tilec/explain/`; `message` one line, `hint` the fix or empty.

    E0731 cannot be reached or breaks off, E0732 what it sent is not what it must be, E0733 it refuses us or asks for what is
    not given to it, E0734 it has not what was asked for.
    """

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        self.code, self.message, self.hint = code, message, hint
        super().__init__(f"error[{code}]: {message}")


def foreign(text: str, limit: int = MAX_SHOWN) -> str:
    """Words of a registry as they may stand in a message: printable, and not long."""
    return visible_line(text, limit)
