"""Where the elements of a tile come from: symbolic positions in the result of an operation go in, those in its operand come
out."""

from __future__ import annotations

from tilec.ir.facts.range_facts import Range, exactly
from tilec.ir.ops import Broadcast, Butterfly, Permute, Reshape
from tilec.ir.types import i32
from tilec.passes.prover import terms
from tilec.passes.prover.atoms import Atoms
from tilec.passes.prover.bit_terms import bit_term
from tilec.passes.prover.terms import Poly

Positions = tuple[Poly, ...]
"""One for each axis."""


def source_positions(atoms: Atoms, op: Broadcast | Permute | Reshape, positions: Positions) -> Positions:
    """Positions in the operand of the element at `positions` of the result."""
    source, target = op.operands[0].tile, op.result.tile
    if isinstance(op, Broadcast):
        return tuple(terms.ZERO if e == 1 else p for e, p in zip(source.shape, positions, strict=False))
    if isinstance(op, Permute):
        return tuple(positions[op.axes.index(axis)] for axis in range(source.rank))
    non_unit = [p for p, extent in zip(positions, target.shape, strict=True) if extent != 1]
    if [e for e in source.shape if e != 1] == [e for e in target.shape if e != 1]:
        return tuple(terms.ZERO if extent == 1 else non_unit.pop(0) for extent in source.shape)
    linear = terms.ZERO
    for position, extent in zip(positions, target.shape, strict=True):
        linear = linear * extent + position
    found: list[Poly] = []
    for extent in reversed(source.shape):
        upper = atoms.quotient(linear, terms.const(extent))
        found.insert(0, linear - upper * extent)
        linear = upper
    return tuple(found)


def partner_positions(atoms: Atoms, op: Butterfly, positions: Positions) -> Positions | None:
    """Positions in the operand of a butterfly; None if the mask has too many runs of bits."""
    extent = op.result.tile.shape[op.axis]
    ranges = [Range(0, extent - 1), exactly(op.mask)]
    partner = bit_term(atoms, "xor", i32.bits, [positions[op.axis], terms.const(op.mask)], ranges)
    return None if partner is None else (*positions[: op.axis], partner, *positions[op.axis + 1 :])
