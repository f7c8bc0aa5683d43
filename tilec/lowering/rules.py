"""The rule of every operation without regions, where it is written: `@lowers(Unary)` above the function that lowers one.

A rule takes the context and an operation: it asks the context for what a thread holds of the operands, appends MLIR, and
assigns what the thread then holds of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from tilec.ir.core import Op
from tilec.lowering.context import Context

Rule = TypeVar("Rule", bound=Callable[[Context, Any], None])

RULES: Final[dict[type[Op], Callable[[Context, Any], None]]] = {}
"""By class of the operation; importing `tilec.lowering` fills it."""


def lowers(*kinds: type[Op]) -> Callable[[Rule], Rule]:
    """Make a function the rule of operations."""

    def register(rule: Rule) -> Rule:
        for kind in kinds:
            assert kind not in RULES, kind.opcode
            RULES[kind] = rule
        return rule

    return register
