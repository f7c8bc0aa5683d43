"""`print` as calls of `vprintf`, which the CUDA driver provides (CUDA programming guide, "Formatted output"; its ABI: a generic
pointer to the format, and one to a buffer in which arguments are one after the other as fields of a structure in C).

The first thread that has an element calls it once, with a format that has the whole line, so that lines are not torn. Integers
and booleans are passed as 32 bits, or as 64, floats as f64. The buffer is in local memory; one serves all calls of a thread.
"""

from __future__ import annotations

from typing import Final

from tilec.ir.core import Function
from tilec.ir.layouts.layout import Layout
from tilec.ir.ops import Print, prints
from tilec.ir.printed_text import pieces, significant_digits
from tilec.ir.types import DType, i32
from tilec.lowering.context import Context
from tilec.lowering.coordinates import TileCoordinates, conjunction, is_first_owner
from tilec.lowering.narrow_floats import widened
from tilec.lowering.rules import lowers
from tilec.mlir.types import SsaValue, f64
from tilec.mlir.types import i32 as word

LARGEST_ARGUMENT: Final = 8
"""Bytes."""


def buffer_bytes(function: Function) -> int:
    """Bytes that the arguments of any line of the kernel take at most; 0 if it prints nothing."""
    return LARGEST_ARGUMENT * max((op.axes + len(op.shape) + len(op.values) for op in prints(function)), default=0)


@lowers(Print)
def lower_print(context: Context, op: Print) -> None:
    """One call for each element, by the first thread that has it."""
    layout = op.anchor.layout if op.anchor is not None else None
    layout = layout or Layout(len(op.shape), (), (), ())
    coordinates = TileCoordinates(context, layout, op.shape)
    text = context.printed_text(_format(op))
    blocks = [context.scalar(one) for one in op.block_indices]
    values = [(one.tile.dtype, context.registers(one)) for one in op.values]
    chosen = None if op.condition is None else context.registers(op.condition)
    position = [[coordinates.coordinate(n, axis) for axis in range(len(op.shape))] for n in range(layout.num_registers)]
    with context.where(is_first_owner(context, layout)):
        for register in range(layout.num_registers):
            original = coordinates.is_original(register)
            with context.where(conjunction(context, original, None if chosen is None else chosen[register])):
                numbers = [*blocks, *position[register]]
                fields = [_argument(context, registers[register], dtype) for dtype, registers in values]
                context.call_vprintf(text, [*numbers, *fields])


def _format(op: Print) -> str:
    """The format of a line, in C's notation."""
    texts = [piece.replace("%", "%%") for piece in pieces(op.text)]
    fields = [_specifier(one.tile.dtype) for one in op.values]
    at = f" at ({_listed(len(op.shape))})" if op.shape else ""
    text = texts[0] + "".join(field + piece for field, piece in zip(fields, texts[1:], strict=True))
    return f"bid ({_listed(op.axes)}){at}: {text}\n"


def _listed(count: int) -> str:
    return ", ".join(["%d"] * count)


def _specifier(dtype: DType) -> str:
    if dtype.is_float:
        return f"%.{significant_digits(dtype)}g"
    letter = "u" if dtype.kind == "u" else "d"
    return f"%ll{letter}" if dtype.bits > i32.bits else f"%{letter}"


def _argument(context: Context, value: SsaValue, dtype: DType) -> SsaValue:
    """A value as C passes it to a function with `...`."""
    if dtype.is_float:
        return context.fpext(widened(context, value, dtype), f64)
    return value if value.type.bits >= word.bits else context.extended(value, word, signed=dtype.kind == "i")
