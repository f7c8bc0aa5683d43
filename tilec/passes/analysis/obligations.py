"""No-wrap obligations: the integer operations that the prover shows to stay within their dtype. The prover and the passes that
use its results share this definition.

`may_wrap` selects operations by kind; those that memory accesses depend on (`relevance`) have an obligation, and an accepted
kernel has a proof record for each. `note_proofs` marks their results with `Value.fits`. Passes keep the mark, and set it on
their own arithmetic with a comment that gives the reason. An unmarked value may wrap.
"""

from __future__ import annotations

from tilec.ir.core import Function, Op
from tilec.ir.ops import Binary, Cast, Unary
from tilec.ir.types import TileType
from tilec.passes.analysis.ranges import value_ranges
from tilec.passes.analysis.relevance import deciding_ops


def may_wrap(op: Op) -> bool:
    """Whether an operation's result can leave its dtype, so that it has a no-wrap obligation. The sum reduction of a tile has
    none: it is defined modulo its dtype's range."""
    if len(op.results) != 1 or not isinstance(op.result.type, TileType) or not op.result.type.dtype.is_integer:
        return False
    if isinstance(op, Binary):
        return op.kind in ("add", "sub", "mul", "shl")
    if isinstance(op, Unary):
        return op.kind in ("neg", "abs")
    return isinstance(op, Cast) and op.operands[0].tile.dtype.is_integer


def proven_to_fit(function: Function) -> list[Op]:
    """Operations of an accepted kernel, as the frontend made it, that are proven to stay within their dtype whenever they are
    executed. Left shifts by a non-constant amount are excluded: passes use no bound of their results."""
    ranges = value_ranges(function)
    found = [op for op in deciding_ops(function) if may_wrap(op)]
    shifts = {op for op in found if isinstance(op, Binary) and op.kind == "shl"}
    return [op for op in found if op not in shifts or ranges[op.operands[1]].constant is not None]


def note_proofs(function: Function) -> Function:
    """Mark the results of `proven_to_fit`, in place."""
    for op in proven_to_fit(function):
        op.result.fits = True
    return function
