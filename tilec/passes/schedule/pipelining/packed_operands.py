"""Left operands that threads compute: packed into registers, two elements of 16 bits in each, as an instruction reads them.

In: the tile that a kernel computes, in the dtype of the product. Out: operations that pack it. The instruction that packs
rounds from f32, so a tile that was rounded from f32 is packed from there, and one of integers from their f32, if that is
exact: an integer is rounded once in either case. Small integers become f32 without a conversion, of which a multiprocessor
makes fewer than sums: the f32 number 2^23 + 2^22 + v has the bits of 2^23 + 2^22, plus v as an integer, for a small v.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tilec.ir.core import Op, Value
from tilec.ir.facts.range_facts import Range, of_dtype
from tilec.ir.layouts.layout import Layout
from tilec.ir.layouts.operand_layouts import packed_operand
from tilec.ir.ops import Binary, Bitcast, Cast, Constant, Permute, Reshape
from tilec.ir.ops.staging_ops import PackPairs
from tilec.ir.types import TileType, f32, i32
from tilec.passes.schedule.pipelining.staged_products import Emitter, Product
from tilec.target.families import Family

Facts = Mapping[Value, Range]
NOTHING_KNOWN: Final[Facts] = MappingProxyType({})
MOST_EXACT: Final = 1 << 24
"""Integers up to which all are numbers of f32 (IEEE 754, 24 bits of precision)."""
MOST_SMALL: Final = (1 << 22) - 1
"""Integers up to which their sum with `MIDDLE` has the exponent of 2^23, whose numbers are one apart."""
MIDDLE: Final = 3 << 22
MIDDLE_BITS: Final = 0x4B400000
"""The bits of `MIDDLE` as f32."""


def packed(
    out: Emitter, family: Family, product: Product, left: Value, accumulator: Layout, facts: Facts = NOTHING_KNOWN
) -> Value:
    """A computed left operand, packed into registers as an instruction reads it; `accumulator`: the MMA's. `facts`: ranges of
    integers."""
    rows, depth = left.tile.shape
    source = _in_f32(out, left, facts)
    pairs = PackPairs(operands=[source], family=family.name, dtype=left.tile.dtype.name, loc=product.mma.loc)
    result = out.add(pairs, TileType(i32, (rows, depth // 2)))
    result.layout = packed_operand(accumulator, depth)
    return result


def _in_f32(out: Emitter, left: Value, facts: Facts) -> Value:
    """An f32 matrix that rounds to the elements of `left`."""
    moves: list[Op] = []
    value = left
    while isinstance(value.owner, Permute | Reshape):
        moves.append(value.owner)
        value = value.owner.operands[0]
    unrounded = _before_rounding(out, value, facts)
    if unrounded is None:
        type_ = TileType(f32, left.tile.shape)
        return left if left.type == type_ else out.add(Cast(operands=[left]), type_)
    for move in reversed(moves):
        moved = dataclasses.replace(move, operands=[unrounded], results=[])
        unrounded = out.add(moved, TileType(f32, move.result.tile.shape))
    return unrounded


def _before_rounding(out: Emitter, value: Value, facts: Facts) -> Value | None:
    """An f32 tile that rounds to the elements of `value` and no operation has rounded; None if there is none."""
    if not isinstance(value.owner, Cast):
        return None
    (source,), type_ = value.owner.operands, TileType(f32, value.tile.shape)
    if source.type == type_:
        return source
    if not source.tile.dtype.is_integer:
        return None
    largest = _largest(source, facts)
    if largest <= MOST_SMALL:
        return _small(out, source, facts)
    return out.add(Cast(operands=[source]), type_) if largest <= MOST_EXACT else None


def _small(out: Emitter, source: Value, facts: Facts) -> Value:
    """Integers of at most 22 bits as f32. Of a difference that does not wrap both numbers become f32, which are subtracted
    exactly: one is often that of many elements, and their subtraction that of `MIDDLE` too."""
    owner, type_ = source.owner, TileType(f32, source.tile.shape)
    if isinstance(owner, Binary) and owner.kind == "sub" and _is_small_difference(owner, facts):
        left, right = (_above_middle(out, part, facts) for part in owner.operands)
        return out.binary("sub", left, right)
    return out.binary("sub", _above_middle(out, source, facts), out.add(Constant(value=float(MIDDLE)), type_))


def _is_small_difference(op: Binary, facts: Facts) -> bool:
    """Whether both numbers have at most 22 bits, and their difference is one of their dtype."""
    left, right = (_range(part, facts) for part in op.operands)
    whole = of_dtype(op.result.tile.dtype)
    fits = whole.low <= left.low - right.high and left.high - right.low <= whole.high
    return fits and all(_largest(part, facts) <= MOST_SMALL for part in op.operands)


def _above_middle(out: Emitter, value: Value, facts: Facts) -> Value:
    """`MIDDLE` and an integer of at most 22 bits, as f32."""
    type_ = TileType(i32, value.tile.shape)
    wide = value if value.type == type_ else out.add(Cast(operands=[value]), type_)
    middle = out.add(Constant(value=MIDDLE_BITS), type_)
    if value in facts and facts[value].low >= 0:  # bits that `MIDDLE_BITS` lacks
        bits = out.binary("or", wide, middle)
    else:
        bits = out.binary("add", wide, middle)
        bits.fits = True  # far below the largest i32
    return out.add(Bitcast(operands=[bits]), TileType(f32, value.tile.shape))


def _largest(value: Value, facts: Facts) -> int:
    """The largest magnitude that an element may have."""
    known = _range(value, facts)
    return max(-known.low, known.high)


def _range(value: Value, facts: Facts) -> Range:
    return facts.get(value, of_dtype(value.tile.dtype))
