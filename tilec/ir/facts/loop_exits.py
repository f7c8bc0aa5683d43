"""Loops that can end early: those whose remaining iterations change nothing once a carried condition is false.

`break` becomes such a condition (`tilec.frontend.loop_exits`): the body is a branch on it, and if it is false every carried
value stays what it is, the condition included. So nothing that follows can tell an iteration without it from none, and the loop
is left by one branch, which all threads of the block take together, because conditions are scalars.
"""

from __future__ import annotations

from tilec.ir.core import Effect, Op
from tilec.ir.ops import For, If, Yield
from tilec.ir.types import TileType, boolean


def exit_condition(op: For) -> int | None:
    """The position among the carried values of a condition without which iterations change nothing; None if there is none."""
    body = op.regions[0]
    acting = [one for one in body.ops[:-1] if (one.regions or one.effect is not Effect.NONE) and not _claims(one)]
    if len(acting) != 1 or not isinstance(acting[0], If) or acting[0].operands[0] not in body.arguments[1:]:
        return None
    (branch,) = acting
    condition, otherwise = branch.operands[0], branch.regions[1]
    if condition.type != TileType(boolean) or len(otherwise.ops) != 1:
        return None
    unchanged = dict(zip(branch.results, otherwise.ops[0].operands, strict=True))
    for argument, following in zip(body.arguments[1:], body.ops[-1].operands, strict=True):
        if unchanged.get(following, following) is not argument:
            return None
    return body.arguments.index(condition) - 1


def _claims(op: Op) -> bool:
    """Whether an operation is a branch that does nothing but claim."""
    inner = [one for region in op.regions for one in region.walk()]
    return (
        isinstance(op, If)
        and not op.results
        and not any(one.regions or one.effect is not Effect.NONE for one in inner if not isinstance(one, Yield))
    )
