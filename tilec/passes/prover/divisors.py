"""Divisions whose divisor is proven to be positive although ranges alone do not show it.

The proof ladder is asked about the scalar divisors at the top level of a kernel, which every block computes: their proof
needs no condition that would be lost if a later pass moved the operation. `tilec.passes.schedule.simplify.in_range` drops the
guard of all divisions by the same value; the result of the division does not change.
"""

from __future__ import annotations

from tilec.ir.core import Function, Op
from tilec.ir.ops import Binary
from tilec.passes.analysis.ranges import value_ranges
from tilec.passes.prover import terms
from tilec.passes.prover.discharge import Discharge
from tilec.passes.prover.index_terms import IndexTerms
from tilec.passes.prover.ladder import Ladder


def positive_divisions(function: Function) -> list[Op]:
    """Scalar divisions at the top level of a kernel from the front end whose divisor is positive in every block of every
    launch, though ranges do not show it."""
    facts = value_ranges(function)
    candidates = [op for op in function.body.ops if _is_scalar_division(op) and facts[op.operands[1]].low < 1]
    if not candidates:
        return []
    index = IndexTerms(function)
    ladder = Ladder(index)
    # `divided`: divisions before this one are executed whenever it is, and their divisors are proven to be positive.
    return [
        op
        for op in candidates
        if isinstance(ladder.discharge([*index.divided(op), terms.lt(index.scalar(op.operands[1]), 1)]), Discharge)
    ]


def _is_scalar_division(op: Op) -> bool:
    if not isinstance(op, Binary) or op.kind not in ("floordiv", "mod"):
        return False
    return op.result.tile.dtype.is_integer and not op.result.tile.rank
