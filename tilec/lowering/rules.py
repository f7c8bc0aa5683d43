"""Registry of the lowering rules of operations without regions: `@lowers(Unary)` above the function that lowers a `Unary`.

A rule takes the context and an operation. It reads the operands' registers from the context, appends MLIR, and assigns the
result's registers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from tilec.ir.core import Op
from tilec.lowering.context import Context

Rule = TypeVar("Rule", bound=Callable[[Context, Any], None])

RULES: Final[dict[type[Op], Callable[[Context, Any], None]]] = {}
"""Keyed by operation class; importing `tilec.lowering` fills it."""


def lowers(*kinds: type[Op]) -> Callable[[Rule], Rule]:
    """Registers a function as the rule of these operations."""

    def register(rule: Rule) -> Rule:
        for kind in kinds:
            assert kind not in RULES, kind.opcode
            RULES[kind] = rule
        return rule

    return register
