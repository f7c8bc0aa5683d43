"""Which integer arithmetic the prover shows to stay within its dtype: the one table that it proves from and others believe.

`may_wrap` says which operations it has an obligation of, where they decide where memory is touched (`relevance`); for each of
these an accepted kernel has a record. `note_proofs` writes that down on the values, as `Value.fits`; passes keep it with the
value, and set it on arithmetic of their own with the reason beside it. What does not have it may wrap.
"""

from __future__ import annotations

from tilec.ir.core import Function, Op
from tilec.ir.ops import Binary, Cast, Unary
from tilec.ir.types import TileType
from tilec.passes.analysis.ranges import value_ranges
from tilec.passes.analysis.relevance import deciding_ops


def may_wrap(op: Op) -> bool:
    """Whether an operation has operands for which its result leaves its dtype, and an obligation that these do not come. The
    sum of a tile has none: it is taken as it comes, modulo its dtype."""
    if len(op.results) != 1 or not isinstance(op.result.type, TileType) or not op.result.type.dtype.is_integer:
        return False
    if isinstance(op, Binary):
        return op.kind in ("add", "sub", "mul", "shl")
    if isinstance(op, Unary):
        return op.kind in ("neg", "abs")
    return isinstance(op, Cast) and op.operands[0].tile.dtype.is_integer


def proven_to_fit(function: Function) -> list[Op]:
    """Operations of an accepted kernel, as the front end made it, that are proven to stay within their dtype wherever they are
    executed. A shift by an amount that is not known is an unknown to the prover, of which its obligation says nothing."""
    ranges = value_ranges(function)
    found = [op for op in deciding_ops(function) if may_wrap(op)]
    shifts = {op for op in found if isinstance(op, Binary) and op.kind == "shl"}
    return [op for op in found if op not in shifts or ranges[op.operands[1]].constant is not None]


def note_proofs(function: Function) -> Function:
    """Mark the results of `proven_to_fit`, in place."""
    for op in proven_to_fit(function):
        op.result.fits = True
    return function
