"""Butterflies, which swap elements at positions that differ in given bits: of registers by renaming, of lanes by shuffles, of
warps through shared memory, where each thread has its own slots."""

from __future__ import annotations

from tilec.ir.core import Value
from tilec.ir.layouts.butterflies import WORD_BYTES, partners, parts_of, words
from tilec.ir.layouts.layout import Layout
from tilec.ir.ops import Butterfly
from tilec.ir.ops.butterfly_ops import ButterflyLoad, ButterflyStore
from tilec.ir.types import DType
from tilec.lowering.context import Context
from tilec.lowering.rules import lowers
from tilec.lowering.words import Words
from tilec.mlir.types import SsaValue, f32, i32, i64


@lowers(Butterfly)
def lower_butterfly(context: Context, op: Butterfly) -> None:
    """Within a warp."""
    layout, dtype = op.result.layout, op.result.tile.dtype
    assert layout is not None
    parts = parts_of(layout, op.axis, op.mask)
    assert not parts.warps, f"{layout} passes elements between warps"
    registers = context.registers(op.operands[0])
    if parts.lanes:
        moved = [context.shuffle(word, parts.lanes) for word in _packed(context, registers, dtype)]
        registers = _unpacked(context, moved, layout, dtype)
    _assign(context, op.result, layout, op, registers)


@lowers(ButterflyStore)
def lower_butterfly_store(context: Context, op: ButterflyStore) -> None:
    """Each word of all threads lies in a row, so that the threads of a warp use different banks."""
    scratch, tile = op.operands
    layout, dtype = tile.layout, tile.tile.dtype
    assert layout is not None
    row = context.threads * WORD_BYTES
    pointer = context.scratch(scratch, words(layout, dtype) * row)
    context.assign(scratch, [pointer])
    slots = context.offset(pointer, context.mul(context.thread(), WORD_BYTES))
    for number, word in enumerate(_packed(context, context.registers(tile), dtype)):
        context.store(word, context.offset(slots, number * row))


@lowers(ButterflyLoad)
def lower_butterfly_load(context: Context, op: ButterflyLoad) -> None:
    """Every thread loads all words of one other thread."""
    layout, dtype = op.result.layout, op.result.tile.dtype
    assert layout is not None
    (pointer,) = context.registers(op.operands[0])
    row = context.threads * WORD_BYTES
    slots = context.offset(pointer, context.mul(_partner(context, layout, op), WORD_BYTES))
    type_ = f32 if dtype.name == "f32" else i32
    loaded = [context.load(context.offset(slots, number * row), type_) for number in range(words(layout, dtype))]
    _assign(context, op.result, layout, op, _unpacked(context, loaded, layout, dtype))


def _partner(context: Context, layout: Layout, op: ButterflyLoad) -> SsaValue:
    """Index of the thread that has this thread's elements of the result."""
    parts = parts_of(layout, op.axis, op.mask)
    thread = context.thread()
    partner = context.bit_xor(thread, parts.lanes) if parts.lanes else thread
    for weight, extent, mask in parts.warps:
        if weight & (weight - 1) == 0:
            partner = context.bit_xor(partner, 32 * weight * mask)
            continue
        digit = context.urem(context.udiv(context.lshr(thread, 5), weight), extent)
        change = context.sub(context.bit_xor(digit, mask), digit)
        partner = context.add(partner, context.mul(change, 32 * weight))
    return partner


def _assign(context: Context, result: Value, layout: Layout, op: Butterfly | ButterflyLoad, registers: list[SsaValue]) -> None:
    context.assign(result, [registers[register] for register in partners(layout, op.axis, op.mask)])


def _packed(context: Context, registers: list[SsaValue], dtype: DType) -> list[SsaValue]:
    """Elements as words of 32 bits: several narrow ones in each, two words for one of 64 bits."""
    if dtype.bytes > WORD_BYTES:
        halves = [(context.trunc(value, i32), context.trunc(context.lshr(value, 32), i32)) for value in registers]
        return [half for pair in halves for half in pair]
    return _words(context, dtype).pack(registers)


def _unpacked(context: Context, moved: list[SsaValue], layout: Layout, dtype: DType) -> list[SsaValue]:
    if dtype.bytes > WORD_BYTES:
        wide = [context.zext(word, i64) for word in moved]
        return [context.bit_or(low, context.shl(high, 32)) for low, high in zip(wide[::2], wide[1::2], strict=True)]
    return _words(context, dtype).elements(moved)[: layout.num_registers]


def _words(context: Context, dtype: DType) -> Words:
    return Words(context, dtype, WORD_BYTES // dtype.bytes)
