"""Bit operations with an operand that a declaration or a case distinction limits to few values: `x ^ (1 << s)` with
`requires(0 <= s, s < 5)`.

A declaration holds in the launches that the contract admits and in no others, while a translation is true in all. So the
result is a choice: the exact term for each of the few values, and the unknown result of the operation for every other value.
A proof that uses the declaration excludes that last case, and names the declaration.
"""

from __future__ import annotations

from tilec.ir.facts.range_facts import Range, exactly
from tilec.ir.ops import Binary
from tilec.ir.types import DType
from tilec.passes.prover import terms
from tilec.passes.prover.atoms import Atoms
from tilec.passes.prover.bit_terms import VALUES, bit_term
from tilec.passes.prover.terms import Formula, Kind, Poly


def by_declared(
    atoms: Atoms, op: Binary, operands: list[Poly], ranges: list[Range], declared: list[Range], unknown: Poly
) -> Poly | None:
    """The result of a bit operation that `bit_term` does not express; None if no operand has few values. `declared` are the
    ranges of the operands in launches that satisfy the declarations, `unknown` is the result as an opaque term."""
    dtype = op.result.tile.dtype
    for index in (1,) if op.kind in ("shl", "shr") else (1, 0):
        found: list[tuple[Formula, Poly]] = []
        for condition, value in _cases(operands[index], declared[index]):
            result = None
            if value is not None:
                fixed, known = list(operands), list(ranges)
                fixed[index], known[index] = terms.const(value), exactly(value)
                result = bit_term(atoms, op.kind, dtype.bits, fixed, known)
            if result is not None and op.kind == "shl" and not _fits(result, dtype):
                result = None  # over unbounded integers it may leave the type, where the operation itself does not
            found.append((condition, unknown if result is None else result))
        if any(result != unknown for _, result in found):
            return atoms.choice(found)
    return None


def _fits(result: Poly, dtype: DType) -> bool:
    (low, high), (least, greatest) = dtype.integer_range(), terms.interval(result)
    return low <= least and greatest <= high


def _cases(operand: Poly, declared: Range) -> list[tuple[Formula, int | None]]:
    """Conditions of which exactly one is true, each with the value of the operand under it, or None for any value; none if
    there are too many."""
    atom = operand.atom
    if atom is not None and atom.kind is Kind.CHOICE and len(atom.cases) <= VALUES + 1:
        return [(condition, value.constant) for condition, value in atom.cases]
    if declared.high - declared.low >= VALUES:
        return []
    few: list[tuple[Formula, int | None]] = [
        (terms.eq(operand, value), value) for value in range(declared.low, declared.high + 1)
    ]
    others = terms.disjunction((terms.lt(operand, declared.low), terms.lt(terms.const(declared.high), operand)))
    return [*few, (others, None)]
