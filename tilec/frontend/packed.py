"""Loads and stores of packed tensors, whose bytes have two elements each along the last axis.

A box whose last axis begins at an even element and has an even extent is a box of bytes. Any other load reads the byte of each
of its elements; any other store is refused, because it would write half a byte, whose other half may be another block's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tilec.frontend import arithmetic
from tilec.frontend.arguments import Call, Missing
from tilec.frontend.codes import code_of, instead
from tilec.frontend.emitter import Term, describe, number_of
from tilec.frontend.joins import joined
from tilec.frontend.scope import Scope
from tilec.ir import ops
from tilec.ir.core import Block, Op, Value
from tilec.ir.expr import Expr
from tilec.ir.packed import Codes
from tilec.ir.types import DType, TileType, i32, i64, u8

_DEPTH: Final = 24
"""Operations followed from an offset towards its operands."""


Offsets = Callable[[tuple[int, ...]], list[Value]]
"""The offsets of an access whose box has these extents, in elements of these extents if the author counts tiles."""


def load(call: Call, tensor: Value, offsets: Offsets, extents: tuple[int, ...], in_tiles: bool, pad: Term | Missing) -> Codes:
    """The box of `extents` elements, which lies at a number of tiles or at an offset in elements; E0205 for a `pad` that the
    dtype lacks."""
    dtype = tensor.tensor.packed
    assert dtype is not None
    both = None
    if not isinstance(pad, Missing) and pad is not None:
        both = float(code_of(number_of(pad, call.at), dtype, call.at) * 17)
    found = _bytes_offsets(call, offsets, extents, in_tiles)
    if found is not None:
        return Codes(_box(call, tensor, found, extents, both), dtype)
    return Codes(_elements(call, tensor, offsets(extents), extents, both), dtype)


def store_tile(call: Call, tensor: Value, term: Term) -> Codes:
    """The tile that a store writes to a packed tensor, with its rank; E0201, E0206."""
    dtype, rank = tensor.tensor.packed, tensor.tensor.rank
    assert dtype is not None
    if not isinstance(term, Codes) or term.dtype != dtype:
        raise call.at.error("E0201", f"`{tensor.name}` holds {dtype}, and {describe(term)} is written",
                     hint=_made_of(term, dtype, rank))  # fmt: skip
    shape = term.value.tile.shape
    if len(shape) not in (0, rank):
        raise call.at.error("E0206", f"`{tensor.name}` has {rank} axes, the tile has {len(shape)}",
                     hint="`reshape` the tile before `.astype`")  # fmt: skip
    return Codes(call.emitter.reshape(term.value, shape or (1,) * rank, call.at), dtype)


def _made_of(term: Term, dtype: DType, rank: int) -> str:
    if isinstance(term, bool | int | float):
        shape = f"({'1, ' * (rank - 1)}2)" if rank > 1 else "2"
        return f"write a tile of whole bytes, such as `full({shape}, {term}, {instead(dtype)}).astype({dtype})`"
    return f"convert the tile with `.astype({dtype})`"


def stored_bytes(call: Call, tensor: Value, codes: Codes, offsets: Offsets, in_tiles: bool) -> tuple[Value, list[Value]]:
    """A tile of bytes, and their offsets; E0219 unless whole bytes are written."""
    shape = codes.value.tile.shape
    found = _bytes_offsets(call, offsets, shape, in_tiles)
    if found is None:
        odd = shape[-1] % 2 == 1
        what = f"{shape[-1]} element{'s' * (shape[-1] > 1)}" if odd else "elements from an offset that may be odd"
        hint = "store an even number of elements along the last axis" if odd else "write the offset as an even number: `2 * i`"
        raise call.at.error("E0219", f"`{tensor.name}` is written in halves of bytes: {what} along the last axis", hint=hint)
    pairs = (*shape[:-1], shape[-1] // 2, 2)
    value = call.emitter.reshape(codes.value, pairs, call.at)
    shifted = call.emitter.binary_op("shl", value, _nibbles(call, pairs), call.at)
    op = ops.Reduce(kind="sum", axis=len(pairs) - 1, operands=[shifted])
    return call.emitter.emit(op, call.at, TileType(u8, pairs[:-1]))[0], found


def _box(call: Call, tensor: Value, offsets: list[Value], extents: tuple[int, ...], pad: float | None) -> Value:
    """Codes of a box of whole bytes."""
    shape = (*extents[:-1], extents[-1] // 2)
    op = ops.Load(pad=pad, unsafe=call.emitter.unsafe, operands=[tensor, *offsets])
    loaded = call.emitter.emit(op, call.at, TileType(u8, shape))[0]
    # Bytes are taken apart as they were loaded, so that a thread keeps the vectors that it has loaded.
    fifteen, four = (call.emitter.constant(number, loaded.tile, call.at) for number in (15, 4))
    halves = call.emitter.binary_op("and", loaded, fifteen, call.at), call.emitter.binary_op("shr", loaded, four, call.at)
    return call.emitter.reshape(joined(call, *halves), extents, call.at)


def _elements(call: Call, tensor: Value, offsets: list[Value], extents: tuple[int, ...], pad: float | None) -> Value:
    """Codes of any box: the byte of each element, and the half of it."""
    emitter, at = call.emitter, call.at
    indices = [_positions(call, offset, axis, extents) for axis, offset in enumerate(offsets)]
    last = indices[-1]
    two, one = (emitter.constant(number, last.tile, at) for number in (2, 1))
    indices[-1] = emitter.binary_op("floordiv", last, two, at)
    op = ops.Gather(pad=pad, unsafe=emitter.unsafe, operands=[tensor, *indices])
    loaded = emitter.emit(op, at, TileType(u8, extents))[0]
    half = emitter.cast(emitter.binary_op("and", last, one, at), u8, at)
    return _low_bits(call, loaded, emitter.binary_op("shl", half, emitter.constant(2, half.tile, at), at))


def _positions(call: Call, offset: Value, axis: int, extents: tuple[int, ...]) -> Value:
    """Index of each element of a box along one axis."""
    emitter, at = call.emitter, call.at
    steps = emitter.emit(ops.Iota(), at, TileType(i32, (extents[axis],)))[0]
    steps = emitter.cast(steps, offset.tile.dtype, at)
    along = emitter.binary_op("add", emitter.broadcast(offset, steps.tile.shape, at), steps, at)
    ones = tuple(extent if number == axis else 1 for number, extent in enumerate(extents))
    return emitter.broadcast(emitter.reshape(along, ones, at), extents, at)


def _nibbles(call: Call, pairs: tuple[int, ...]) -> Value:
    """How far the elements of each pair are shifted in their byte: 0 and 4."""
    emitter, at = call.emitter, call.at
    half = emitter.cast(emitter.emit(ops.Iota(), at, TileType(i32, (2,)))[0], u8, at)
    return emitter.broadcast(emitter.binary_op("shl", half, emitter.constant(2, half.tile, at), at), pairs, at)


def _low_bits(call: Call, value: Value, amount: Value) -> Value:
    shifted = call.emitter.binary_op("shr", value, amount, call.at)
    return call.emitter.binary_op("and", shifted, call.emitter.constant(15, shifted.tile, call.at), call.at)


def _bytes_offsets(call: Call, offsets: Offsets, extents: tuple[int, ...], in_tiles: bool) -> list[Value] | None:
    """Offsets of a box of whole bytes, in bytes on the last axis; None if its last extent is odd, or its last offset not seen
    to be even."""
    if extents[-1] % 2:
        return None
    if in_tiles:
        return offsets((*extents[:-1], extents[-1] // 2))
    *outer, last = offsets(extents)
    # Of an offset that i32 or i64 computes, the halves of its factors are taken: their structure shows vectors. Arithmetic of
    # other dtypes wraps at numbers that tensors have, so that there the offset itself is computed, and proven not to wrap.
    even = _Even(call.scope).of
    if last.tile.dtype in (i32, i64):
        half = _half(call, last, even)
    else:
        half = _floor_half(call, last) if even(last) else None
    return None if half is None else [*outer, half]


def _times(call: Call, value: Value, factor: int) -> Value:
    product = arithmetic.binary(call.emitter, "mul", value, factor, call.at) if factor != 1 else value
    return arithmetic.integer_scalar(call.emitter, product, call.at, "an index")


def _half(call: Call, value: Value, even: Callable[[Value], bool]) -> Value | None:
    """Half of an even value, from the constants and products that make it even; None if it may be odd."""
    emitter, op = call.emitter, value.owner
    if not even(value):
        return None
    if isinstance(op, ops.Constant):
        return emitter.constant(int(op.value) // 2, value.tile, call.at)
    if isinstance(op, ops.Binary) and op.kind in ("add", "sub", "mul"):
        left, right = op.operands
        if op.kind != "mul":
            halves = [_half(call, side, even) for side in (left, right)]
            if halves[0] is not None and halves[1] is not None:
                return emitter.binary_op(op.kind, halves[0], halves[1], call.at)
        for side, other in ((right, left), (left, right)) if op.kind == "mul" else ():
            if isinstance(side.owner, ops.Constant) and even(side):
                return _times(call, other, int(side.owner.value) // 2)
    return _floor_half(call, value)


def _floor_half(call: Call, value: Value) -> Value:
    return call.emitter.binary_op("floordiv", value, call.emitter.constant(2, value.tile, call.at), call.at)


class _Even:
    """Whether integers are even, from the operations that compute them and what `requires` states."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.known: dict[Value, bool] = {}

    def of(self, value: Value, depth: int = 0) -> bool:
        """Whether it is even in every launch that satisfies the contract; False if that is not seen."""
        if value not in self.known:
            self.known[value] = depth < _DEPTH and (self._host(value) or self._computed(value, depth + 1))
        return self.known[value]

    def _host(self, value: Value) -> bool:
        expr = self.scope.emitter.host(value)
        return expr is not None and self._expression(expr)

    def _expression(self, expr: Expr) -> bool:
        if expr.constant is not None:
            return expr.constant % 2 == 0
        if any(_says_even(one.condition, expr) for one in self.scope.function.requires):
            return True
        if expr.op == "*":
            return any(map(self._expression, expr.args))
        return expr.op in ("+", "-", "min", "max") and all(map(self._expression, expr.args))

    def _computed(self, value: Value, depth: int) -> bool:
        op = value.owner
        if isinstance(op, Block):
            bounds, step = self.scope.emitter.counted.get(value), self.scope.emitter.steps.get(value)
            return bounds is not None and step is not None and self.of(bounds[0], depth) and self.of(step, depth)
        if isinstance(op, ops.Constant):
            return int(op.value) % 2 == 0
        if isinstance(op, ops.Cast):  # of integers: low bits, or the sign's
            return op.operands[0].tile.dtype.is_integer and self.of(op.operands[0], depth)
        if not isinstance(op, Op) or not isinstance(op, ops.Binary):
            return False
        sides = [self.of(side, depth) for side in op.operands]
        match op.kind:
            case "mul" | "and":
                return any(sides)
            case "shl":
                amount = op.operands[1].owner
                return sides[0] or (isinstance(amount, ops.Constant) and int(amount.value) >= 1)
            case "add" | "sub" | "min" | "max" | "or" | "xor":
                return all(sides)
            case _:
                return False


def _says_even(condition: Expr, expr: Expr) -> bool:
    """Whether a condition is `expr % c == 0` for an even `c`."""
    if condition.op != "==" or condition.args[1].constant != 0 or condition.args[0].op != "%":
        return False
    value, divisor = condition.args[0].args
    return value == expr and bool(divisor.constant) and divisor.evaluate({}) % 2 == 0
