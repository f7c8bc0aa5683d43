"""Logic, shifts and bit fields: and, or, xor, not, cnot, lop3, shl, shr, shf, bfe, bfi, brev, popc, clz, bfind (PTX ISA,
sections 9.7.1 and 9.7.7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilec.emulator.errors import Lanes
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.halves import packed, quarter
from tilec.emulator.machine.lanes import where
from tilec.emulator.machine.registry import Decoder, lanewise
from tilec.emulator.machine.scalar_types import TYPES
from tilec.emulator.machine.sources import Source, Step
from tilec.emulator.ptx.syntax import Immediate

_BITS = ("b16", "b32", "b64")


def _logic(opcode: str, function: Callable[[Any, Any], Any]) -> None:
    def decode(d: Decoder) -> Step:
        kind = d.need("pred", *_BITS)
        d.finish(3)
        return d.pure(0, kind, [d.source(1, kind), d.source(2, kind)], function)

    lanewise(opcode)(decode)


_logic("and", np.bitwise_and)
_logic("or", np.bitwise_or)
_logic("xor", np.bitwise_xor)


@lanewise("not", "cnot")
def invert(d: Decoder) -> Step:
    opcode = d.instruction.opcode
    kind = d.need(*(("pred", *_BITS) if opcode == "not" else _BITS))
    d.finish(2)
    dtype = TYPES[kind][1]

    def logical(a: Lanes) -> Lanes:
        return np.asarray(a == 0).astype(dtype)

    return d.pure(0, kind, [d.source(1, kind)], np.invert if opcode == "not" else logical)


@lanewise("lop3")
def lop3(d: Decoder) -> Step:
    if d.take("or", "and"):
        raise d.unsupported("lop3 with a predicate")
    d.need("b32")
    d.finish(5)
    table = d.operands[4]
    if not isinstance(table, Immediate) or not 0 <= int(table.value) < 256:
        raise d.unsupported("the table of lop3 is not a constant of 8 bits")
    truth_table = int(table.value)

    def apply(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
        total = np.zeros(np.broadcast(a, b, c).shape, np.uint32)
        for row in range(8):
            if truth_table >> row & 1:
                total = total | ((a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c))
        return total

    return d.pure(0, "b32", [d.source(k, "b32") for k in (1, 2, 3)], apply)


def shift_left(a: Lanes, amount: Lanes, bits: int) -> Lanes:
    """Left shift; amounts of `bits` and more shift everything out (PTX ISA, shl: clamped)."""
    dtype = a.dtype.type
    big = amount >= bits
    return np.where(big, dtype(0), a << np.where(big, 0, amount).astype(dtype))


def shift_right(a: Lanes, amount: Lanes, bits: int) -> Lanes:
    """Right shift with the same clamping: logical for unsigned types, arithmetic for signed ones."""
    dtype = a.dtype.type
    if a.dtype.kind == "i":
        return a >> np.minimum(amount, bits - 1).astype(dtype)
    big = amount >= bits
    return np.where(big, dtype(0), a >> np.where(big, 0, amount).astype(dtype))


@lanewise("shl", "shr")
def shift(d: Decoder) -> Step:
    left = d.instruction.opcode == "shl"
    kind = d.need(*_BITS, *(() if left else ("u16", "u32", "u64", "s16", "s32", "s64")))
    d.finish(3)
    bits, dtype = TYPES[kind]
    source, amount = d.source(1, kind), d.source(2, "u32")
    if amount.constant is not None and int(amount.constant) < bits:
        constant = dtype(int(amount.constant))
        return d.pure(0, kind, [source], lambda a: a << constant if left else a >> constant)
    function = shift_left if left else shift_right
    return d.pure(0, kind, [source, amount], lambda a, b: function(a, b, bits))


@lanewise("shf")
def funnel(d: Decoder) -> Step:
    side, mode = d.need("l", "r"), d.need("clamp", "wrap")
    d.need("b32")
    d.finish(4)

    def apply(low: Lanes, high: Lanes, amount: Lanes) -> Lanes:
        both = np.asarray(low, np.uint64) | (np.asarray(high, np.uint64) << np.uint64(32))
        by = np.minimum(amount, 32) if mode == "clamp" else amount & np.uint32(31)
        by = np.asarray(by).astype(np.uint64)
        if side == "r":
            return (both >> by).astype(np.uint32)
        return ((both << by) >> np.uint64(32)).astype(np.uint32)

    return d.pure(0, "b32", [d.source(1, "b32"), d.source(2, "b32"), d.source(3, "u32")], apply)


def _field_operand(amount: Lanes, bits: int) -> Lanes:
    """The position or length operand of a bit field. The PTX ISA uses its low 8 bits. sm_90 does so in the 32-bit forms only
    and uses all 32 bits in the 64-bit ones (measured: lengths of bfe, positions and lengths of bfi). The emulator follows
    sm_90."""
    return amount & np.uint32(255) if bits == 32 else amount


@lanewise("bfe")
def extract(d: Decoder) -> Step:
    kind = d.need("u32", "u64", "s32", "s64")
    d.finish(4)
    bits, dtype = TYPES[kind]

    def apply(a: Lanes, position: Lanes, length: Lanes) -> Lanes:
        a, position, length = np.broadcast_arrays(a, _field_operand(position, bits), _field_operand(length, bits))
        top = np.minimum(position.astype(np.int64) + length - 1, bits - 1)
        unsigned = a.view(f"u{bits // 8}")
        field = shift_right(unsigned, position, bits)
        keep = np.where(length >= bits, 0, length).astype(unsigned.dtype)
        one = unsigned.dtype.type(1)
        mask = where(length >= bits, ~unsigned.dtype.type(0), (one << keep) - one)
        field = field & mask
        if kind[0] == "s":
            sign = (unsigned >> np.maximum(top, 0).astype(unsigned.dtype)) & unsigned.dtype.type(1)
            field_bits = np.maximum(top - position.astype(np.int64) + 1, 0)
            upper = ~np.where(
                field_bits >= bits, ~unsigned.dtype.type(0), shift_left(np.ones_like(unsigned), field_bits, bits) - 1
            )
            field = where((sign == 1) & (length > 0), field | upper.astype(unsigned.dtype), field)
        return np.where(length == 0, 0, field).astype(unsigned.dtype).view(dtype)

    return d.pure(0, kind, [d.source(1, kind), d.source(2, "u32"), d.source(3, "u32")], apply)


@lanewise("bfi")
def insert(d: Decoder) -> Step:
    kind = d.need("b32", "b64")
    d.finish(5)
    bits, dtype = TYPES[kind]

    def apply(a: Lanes, b: Lanes, position: Lanes, length: Lanes) -> Lanes:
        a, b, position, length = np.broadcast_arrays(a, b, _field_operand(position, bits), _field_operand(length, bits))
        full = where(length >= bits, ~dtype(0), shift_left(np.ones_like(a), length, bits) - dtype(1))
        ones = full.astype(dtype)
        mask = shift_left(ones, position, bits)
        return (b & ~mask) | (shift_left(a, position, bits) & mask)

    sources = [d.source(1, kind), d.source(2, kind), d.source(3, "u32"), d.source(4, "u32")]
    quarters = _inserted_quarters(sources[2], sources[3], bits)
    if quarters is None:
        return d.pure(0, kind, sources, apply)
    target, (field, base) = d.target(0, kind), sources[:2]

    def step(frame: Frame) -> None:
        value = apply(*(source.value(frame) for source in sources))
        field_poison, base_poison = field.halves(frame), base.halves(frame)
        if field_poison is None and base_poison is None:
            target(frame, value, None)
            return
        parts = [quarter(field_poison, k - quarters.start) if k in quarters else quarter(base_poison, k) for k in range(4)]
        target(frame, value, packed(parts))

    return step


def _inserted_quarters(position: Source, length: Source, bits: int) -> range | None:
    """The quarters of the result that a bfi with a constant field replaces, or None if the field is not of whole quarters.
    LLVM packs bytes with bfi and leaves the others undefined."""
    if position.constant is None or length.constant is None:
        return None
    first, count = int(position.constant), int(length.constant)
    unit = bits // 4
    if first % unit or count % unit or not 0 <= first < first + count <= bits:
        return None
    return range(first // unit, (first + count) // unit)


def _reverse(a: Lanes) -> Lanes:
    raw = np.ascontiguousarray(np.atleast_1d(a))
    width = raw.dtype.itemsize
    bits = np.unpackbits(raw.view(np.uint8).reshape(-1, width)[:, ::-1], axis=1)
    return np.packbits(bits[:, ::-1], axis=1)[:, ::-1].copy().view(raw.dtype).reshape(-1)


def leading_zeros(a: Lanes) -> Lanes:
    """Number of zeros above the highest one bit (all bits for 0), as u32."""
    raw = np.ascontiguousarray(np.atleast_1d(a))
    width = raw.dtype.itemsize
    bits = np.unpackbits(raw.view(np.uint8).reshape(-1, width)[:, ::-1], axis=1)
    return np.where(bits.any(axis=1), bits.argmax(axis=1), 8 * width).astype(np.uint32)


def count_ones(a: Lanes) -> Lanes:
    """Number of one bits in each lane, as u32."""
    raw = np.ascontiguousarray(np.atleast_1d(a))
    return np.unpackbits(raw.view(np.uint8).reshape(-1, raw.dtype.itemsize), axis=1).sum(axis=1).astype(np.uint32)


@lanewise("brev", "popc", "clz")
def counting(d: Decoder) -> Step:
    kind = d.need("b32", "b64")
    d.finish(2)
    opcode = d.instruction.opcode
    function = {"brev": _reverse, "popc": count_ones, "clz": leading_zeros}[opcode]
    return d.pure(0, kind if opcode == "brev" else "u32", [d.source(1, kind)], function)


@lanewise("bfind")
def find(d: Decoder) -> Step:
    amount = d.flag("shiftamt")
    kind = d.need("u32", "u64", "s32", "s64")
    d.finish(2)
    bits = TYPES[kind][0]

    def apply(a: Lanes) -> Lanes:
        a = np.atleast_1d(a)
        raw = np.where(a < 0, ~a, a).view(f"u{bits // 8}") if kind[0] == "s" else a
        zeros = leading_zeros(raw)
        position = np.uint32(bits - 1) - zeros
        return np.where(zeros == bits, np.uint32(0xFFFFFFFF), zeros if amount else position)

    return d.pure(0, "u32", [d.source(1, kind)], apply)
