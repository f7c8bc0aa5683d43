"""How the checkers of schedules name an operation in a VerifyError."""

from __future__ import annotations

from tilec.ir.core import Op


def at(op: Op) -> str:
    """The operation and its source location."""
    return f"{op.opcode}{f' at {op.loc}' if op.loc else ''}"
