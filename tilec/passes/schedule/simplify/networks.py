"""Replaces sorts by bitonic networks of butterflies, comparisons and selects.

In: a proven function. Out: the same without `sort`. A network sorts groups of 2, of 4, and so on: it compares the first element
of a group with its last, the second with the last but one, then the halves of each half, down to neighbors; the pair's lower
position keeps the smaller element (Batcher, "Sorting networks and their applications", 1968, in the form in which all groups
ascend). An axis of 2^b elements takes b (b + 1) / 2 steps.

Keys become integers with the same order. What a step moves decides its cost, so that key and position share one integer where
both fit into 64 bits; it makes equal keys different, and elements keep the order of their positions. Without other tiles equal
integers need no position, and each step is a minimum and a maximum.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.ops import (
    Binary,
    Bitcast,
    Broadcast,
    Butterfly,
    Cast,
    Compare,
    Constant,
    Iota,
    Reshape,
    Select,
    Sort,
    Unary,
)
from tilec.ir.types import DTYPES, DType, TileType, boolean, i32, i64

WORD_BITS = 32


def expand(function: Function) -> Function:
    """Replace every sort, in place."""
    replaced: dict[Value, Value] = {}
    _block(function.body, replaced)
    return function


def _block(block: Block, replaced: dict[Value, Value]) -> None:
    ops: list[Op] = []
    for op in block.ops:
        op.operands = [replaced.get(value, value) for value in op.operands]
        for region in op.regions:
            _block(region, replaced)
        if not isinstance(op, Sort):
            ops.append(op)
            continue
        network = _Network(op)
        replaced |= dict(zip(op.results, network.sorted(), strict=True))
        ops += network.ops
    block.ops = ops


@dataclass(eq=False)
class _Network:
    """The operations that replace a sort."""

    sort: Sort
    ops: list[Op] = field(default_factory=list[Op])
    _masks: dict[int, Value] = field(default_factory=dict[int, Value])

    @property
    def shape(self) -> tuple[int, ...]:
        return self.sort.operands[0].tile.shape

    @property
    def extent(self) -> int:
        return self.shape[self.sort.axis]

    def sorted(self) -> list[Value]:
        """A value for each result."""
        keys, *others = self.sort.operands
        key = self._ordered(keys)
        if not others:
            (key,), _ = self._steps([key], [])
            return [self._restored(key, keys.tile.dtype)]
        position = self._position()
        carried = [other for other in others if not is_position(other, self.sort.axis)]
        bits, low_bits = key.tile.dtype.bits, (self.extent - 1).bit_length()
        if bits > WORD_BITS:
            (key, position), carried = self._steps([key, position], carried)
        else:
            wide, shift = (i32, low_bits) if bits + low_bits <= WORD_BITS else (i64, WORD_BITS)
            both = self._binary("shl", self._cast(key, wide), shift)
            both = self._add(Binary(kind="or", operands=[both, self._cast(position, wide)]), both.tile)
            (both,), carried = self._steps([both], carried)
            position = self._cast(self._binary("and", both, (1 << low_bits) - 1), i32)
            key = self._cast(self._binary("shr", both, shift), key.tile.dtype)
        moved = iter(carried)
        results = [position if is_position(other, self.sort.axis) else next(moved) for other in others]
        return [self._restored(key, keys.tile.dtype), *results]

    # Keys as signed integers in ascending order

    def _ordered(self, keys: Value) -> Value:
        dtype = keys.tile.dtype
        signed = DTYPES[f"i{dtype.bits}"]
        found = keys if dtype == signed else self._bits(keys, signed)
        if dtype.kind == "u":
            found = self._binary("xor", found, signed.integer_range()[0])
        if dtype.is_float:
            truth = TileType(boolean, self.shape)
            is_nan = self._add(Compare(kind="ne", operands=[keys, keys]), truth)
            largest = self._constant(signed.integer_range()[1], signed)
            found = self._add(Select(operands=[is_nan, largest, self._by_magnitude(found)]), found.tile)
        return self._inverted(found)

    def _restored(self, key: Value, dtype: DType) -> Value:
        found, signed = self._inverted(key), key.tile.dtype
        if dtype.kind == "u":
            found = self._binary("xor", found, signed.integer_range()[0])
        if dtype.is_float:
            found = self._by_magnitude(found)
        return found if dtype == signed else self._bits(found, dtype)

    def _by_magnitude(self, bits: Value) -> Value:
        """Between the bits of floats and integers of the same order: all bits but the sign are inverted if that is set."""
        signed = bits.tile.dtype
        sign = self._binary("shr", bits, signed.bits - 1)
        return self._add(Binary(kind="xor", operands=[bits, self._binary("and", sign, signed.integer_range()[1])]), bits.tile)

    def _inverted(self, key: Value) -> Value:
        return self._add(Unary(kind="not", operands=[key]), key.tile) if self.sort.descending else key

    # The network

    def _steps(self, keys: list[Value], carried: list[Value]) -> tuple[list[Value], list[Value]]:
        group = 2
        while group <= self.extent:
            keys, carried = self._step(keys, carried, group - 1, group // 2)
            bit = group // 4
            while bit:
                keys, carried = self._step(keys, carried, bit, bit)
                bit //= 2
            group *= 2
        return keys, carried

    def _step(self, keys: list[Value], carried: list[Value], mask: int, bit: int) -> tuple[list[Value], list[Value]]:
        """Compares each element with its partner; the one whose position lacks the bit keeps the smaller."""
        others, keeps_smaller = [self._partner(key, mask) for key in keys], self._mask(bit)
        if not carried and len(keys) == 1 and keys[0].tile.dtype.bits <= WORD_BITS:
            ends = [self._add(Binary(kind=kind, operands=[keys[0], others[0]]), keys[0].tile) for kind in ("min", "max")]
            return [self._add(Select(operands=[keeps_smaller, *ends]), keys[0].tile)], []
        is_smaller = self._is_smaller(others, keys)
        takes = self._add(Compare(kind="eq", operands=[is_smaller, keeps_smaller]), is_smaller.tile)
        moved = [self._add(Select(operands=[takes, b, a]), a.tile) for a, b in zip(keys, others, strict=True)]
        carried = [self._add(Select(operands=[takes, self._partner(one, mask), one]), one.tile) for one in carried]
        return moved, carried

    def _is_smaller(self, left: list[Value], right: list[Value]) -> Value:
        """Whether numbers of several digits, the first of which counts most, are smaller."""
        truth = TileType(boolean, self.shape)
        found = self._add(Compare(kind="lt", operands=[left[-1], right[-1]]), truth)
        for a, b in zip(left[-2::-1], right[-2::-1], strict=True):
            equal = self._add(Compare(kind="eq", operands=[a, b]), truth)
            found = self._add(Binary(kind="and", operands=[equal, found]), truth)
            smaller = self._add(Compare(kind="lt", operands=[a, b]), truth)
            found = self._add(Binary(kind="or", operands=[smaller, found]), truth)
        return found

    def _partner(self, value: Value, mask: int) -> Value:
        return self._add(Butterfly(axis=self.sort.axis, mask=mask, operands=[value]), value.tile)

    def _mask(self, bit: int) -> Value:
        """Where the position lacks a bit."""
        if bit not in self._masks:
            line = TileType(i32, (self.extent,))
            constants = [self._add(Constant(value=number), line) for number in (bit, 0)]
            part = self._add(Binary(kind="and", operands=[self._add(Iota(), line), constants[0]]), line)
            found = self._add(Compare(kind="eq", operands=[part, constants[1]]), TileType(boolean, line.shape))
            self._masks[bit] = self._along(found)
        return self._masks[bit]

    def _position(self) -> Value:
        return self._along(self._add(Iota(), TileType(i32, (self.extent,))))

    def _along(self, line: Value) -> Value:
        """A line of elements along the axis, repeated along the others."""
        thin = tuple(extent if axis == self.sort.axis else 1 for axis, extent in enumerate(self.shape))
        if line.tile.shape != thin:
            line = self._add(Reshape(operands=[line]), TileType(line.tile.dtype, thin))
        if thin == self.shape:
            return line
        return self._add(Broadcast(operands=[line]), TileType(line.tile.dtype, self.shape))

    # Operations

    def _add(self, op: Op, type: TileType) -> Value:
        op.loc = self.sort.loc
        op.define(type)
        self.ops.append(op)
        return op.result

    def _constant(self, number: int, dtype: DType) -> Value:
        return self._add(Constant(value=number), TileType(dtype, self.shape))

    def _binary(self, kind: str, value: Value, number: int) -> Value:
        return self._add(Binary(kind=kind, operands=[value, self._constant(number, value.tile.dtype)]), value.tile)

    def _cast(self, value: Value, dtype: DType) -> Value:
        if value.tile.dtype == dtype:
            return value
        return self._add(Cast(operands=[value]), TileType(dtype, self.shape))

    def _bits(self, value: Value, dtype: DType) -> Value:
        return self._add(Bitcast(operands=[value]), TileType(dtype, self.shape))


def is_position(value: Value, axis: int) -> bool:
    """Whether each element is its position along an axis, as an author or the front end writes it."""
    extent = value.tile.shape[axis]
    owner = value.owner
    if isinstance(owner, Broadcast):
        value = owner.operands[0]
        owner = value.owner
    along = [one for one, count in enumerate(value.tile.shape) if count > 1]
    if value.tile.rank and along not in ([axis], []):
        return False
    if isinstance(owner, Reshape):
        owner = owner.operands[0].owner
    return isinstance(owner, Iota) and owner.result.tile.shape == (extent,)
