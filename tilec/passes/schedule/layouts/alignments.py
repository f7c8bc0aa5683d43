"""What is known to divide the addresses of accesses, for choosing their vectors.

In: a proven function. Out: powers of two in bytes; `raise_for_loads` also changes the alignment of tensors.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from tilec.ir.core import Access, Function
from tilec.ir.expr import const
from tilec.ir.layouts.blocked_layouts import FIRST_DIGIT
from tilec.ir.ops import Load
from tilec.ir.ops.memory import VectorOp
from tilec.ir.types import TensorType
from tilec.passes.analysis.divisibility import aligned_ranges, divisor, expr_divisor, promised_symbols
from tilec.target.schedule import VECTOR


class Alignments:
    """Powers of two that divide the addresses of accesses, from the alignment of tensors, their dims, strides and offsets."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.facts = aligned_ranges(function)
        self.symbols = promised_symbols(function)

    def of(self, op: VectorOp, base: int, column: int | None = None) -> int:
        """A divisor of the address of every row of an access, in bytes, if `base` divides that of the tensor; of an access that
        begins at a multiple of `column`, if that is given."""
        tensor = op.operands[0].tensor
        size, last = tensor.dtype.bytes, tensor.rank - 1
        aligned = base if tensor.strides is None or tensor.strides[-1] == const(1) else gcd(base, size)
        running = 1
        for axis in range(last, -1, -1):
            extent = op.tile.tile.shape[axis]
            first = divisor(self.facts[op.offsets[axis]]) if column is None or axis < last else column
            step = gcd(first, 0 if extent == 1 else (1 if axis < last else 0))
            stride = running if tensor.strides is None else expr_divisor(tensor.strides[axis], self.symbols)
            aligned = gcd(aligned, stride * step * size)
            running *= expr_divisor(tensor.dims[axis], self.symbols) or 1
        return aligned

    def divisor_of_rows(self, tensor: TensorType) -> int:
        """A divisor of the bytes of a row."""
        return expr_divisor(tensor.dims[-1], self.symbols) * tensor.dtype.bytes

    def raise_for_loads(self, bytes_: int) -> None:
        """Align the tensors that are only read, where nothing but the base keeps a load of whole vectors from `bytes_`: not
        those of 8 bits, of which a thread has too few side by side, nor those that the signature aligns to less than usual."""
        for op in list(self.function.body.walk()):
            if not isinstance(op, Load):
                continue
            parameter = self.function.parameter_of(op.source)
            size, tensor = op.tile.tile.dtype.bytes, parameter.value.tensor
            row = op.tile.tile.shape[-1] * size if op.tile.tile.shape else 0
            if parameter.access is not Access.IN or tensor.align < VECTOR or size * FIRST_DIGIT < VECTOR:
                continue
            if row and row % bytes_ == 0 and self.of(op, bytes_) % bytes_ == 0:
                parameter.value.type = replace(tensor, align=max(bytes_, tensor.align))
