"""Errors of the launcher: the broken clause of the launch contract, the argument, the given and the required value."""

from __future__ import annotations

from typing import Any, Final

MAX_SHOWN: Final = 1000
"""Maximum characters of each part of a message: an expression of an untrusted manifest may be much longer."""


def shown(value: Any, limit: int = 200) -> str:
    """`repr` of a given value, truncated if long. The type if it cannot be printed: Python refuses to print integers of more
    than 4,300 digits."""
    try:
        text = repr(value)
    except Exception:
        return f"a value of type {type(value).__name__} that cannot be printed"
    return _cut(text, limit)


def _cut(text: str, limit: int = MAX_SHOWN) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


class LaunchError(Exception):
    """A launch that violates the contract, or that the driver refused.

    `code` is E09 followed by two digits and has a page in `tilec/diagnostics/explain/`; `argument` is the offending parameter,
    empty if the launch as a whole is at fault; `given` and `required` are the two sides of the clause, as printed.
    """

    def __init__(
        self, code: str, message: str, *, kernel: str = "", argument: str = "", given: str = "", required: str = ""
    ) -> None:
        message, given, required = _cut(message), _cut(given), _cut(required)
        kernel, argument = _cut(kernel, 200), _cut(argument, 200)
        self.code = code
        self.message = message
        self.kernel = kernel
        self.argument = argument
        self.given = given
        self.required = required
        where = f"kernel `{kernel}`" if kernel else ""
        if argument:
            where += f", argument `{argument}`" if where else f"argument `{argument}`"
        text = f"error[{code}]: {where}: {message}" if where else f"error[{code}]: {message}"
        if given:
            text += f"; given {given}"
        if required:
            text += f"; required {required}"
        super().__init__(text)


class BundleError(Exception):
    """A refused bundle. `code` is E07 followed by two digits and has a page in `tilec/diagnostics/explain/`; `hint` is a
    suggestion, empty if that page suffices."""

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        self.code = code
        self.message = message
        self.hint = hint
        super().__init__(f"error[{code}]: {message}; {hint}" if hint else f"error[{code}]: {message}")
