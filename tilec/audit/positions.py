"""Shapes of accesses, and positions in the operand of an operation that moves elements: integers and z3 terms."""

from __future__ import annotations

from tilec.audit import smt
from tilec.audit.smt import Term
from tilec.ir.core import Op
from tilec.ir.ops import Broadcast, Butterfly, MemoryOp, Permute

Position = tuple[Term, ...]


def box(op: MemoryOp) -> tuple[int, ...] | None:
    """Extents of the box that an operation accesses; None for one with an index per position."""
    return None if op.indexed else op.tile.tile.shape


def tile_shape(op: MemoryOp) -> tuple[int, ...]:
    """Shape of the tile that an operation loads or stores."""
    return op.tile.tile.shape


def moved(op: Op, position: Position) -> Position:
    """The position in the operand of what a broadcast, butterfly, reshape or permute puts at a position."""
    source, target = op.operands[0].tile.shape, op.result.tile.shape
    if isinstance(op, Broadcast):
        last = position[len(position) - len(source) :]
        return tuple(smt.integer(0) if extent == 1 else at for extent, at in zip(source, last, strict=True))
    if isinstance(op, Butterfly):
        return tuple(with_bits(at, op.mask) if axis == op.axis else at for axis, at in enumerate(position))
    if isinstance(op, Permute):
        return tuple(position[op.axes.index(axis)] for axis in range(len(position)))
    if [e for e in source if e != 1] == [e for e in target if e != 1]:
        kept = iter([at for at, extent in zip(position, target, strict=True) if extent != 1])
        return tuple(smt.integer(0) if extent == 1 else next(kept) for extent in source)
    flat: Term = smt.integer(0)
    for at, extent in zip(position, target, strict=True):
        flat = smt.add(smt.mul(flat, smt.integer(extent)), at)
    found: list[Term] = []
    for extent in reversed(source):
        found.append(smt.z3.simplify(flat % extent) if extent != 1 else smt.integer(0))
        flat = smt.z3.simplify(flat / extent) if extent != 1 else flat
    return tuple(reversed(found))


def with_bits(at: Term, mask: int) -> Term:
    """A position that is not negative, with the bits of `mask` inverted: each bit that is 0 adds its value, each 1 takes it."""
    found = at
    for bit in range(mask.bit_length()):
        if mask >> bit & 1:
            is_set = smt.z3.simplify(at / (1 << bit)) % 2 == 1
            found = found + smt.choose(is_set, smt.integer(-(1 << bit)), smt.integer(1 << bit))
    return smt.z3.simplify(found)
