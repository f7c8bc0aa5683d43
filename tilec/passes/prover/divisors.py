"""Which divisions have a divisor that is shown to be positive, where ranges alone do not show it.

The proof ladder is asked about the scalar divisors at the top of a kernel, which every block computes: their proof needs no
condition that a later move of the operation could leave behind. `tilec.passes.schedule.in_range` drops the guard of all
divisions by the same value; the value of the division is the same either way.
"""

from __future__ import annotations

from tilec.ir.core import Function, Op
from tilec.ir.ops import Binary
from tilec.passes.analysis.ranges import value_ranges
from tilec.passes.prover import terms
from tilec.passes.prover.index_terms import IndexTerms
from tilec.passes.prover.ladder import Discharge, Ladder


def positive_divisions(function: Function) -> list[Op]:
    """Scalar divisions at the top of a kernel, as the front end made it, by what is positive in every block of every launch."""
    facts = value_ranges(function)
    asked = [op for op in function.body.ops if _is_scalar_division(op) and facts[op.operands[1]].low < 1]
    if not asked:
        return []
    index = IndexTerms(function)
    ladder = Ladder(index)
    # `divided`: the divisions before this one have divisors that are proven, and are executed whenever this one is.
    return [
        op
        for op in asked
        if isinstance(ladder.discharge([*index.divided(op), terms.lt(index.scalar(op.operands[1]), 1)]), Discharge)
    ]


def _is_scalar_division(op: Op) -> bool:
    if not isinstance(op, Binary) or op.kind not in ("floordiv", "mod"):
        return False
    return op.result.tile.dtype.is_integer and not op.result.tile.rank
