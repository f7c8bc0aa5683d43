"""State of lowering one kernel: MLIR text so far, what each thread holds of each value, and the shared-memory plan.

Tiles are lists of per-thread SSA names in register order of their layout, scalars one name. Values are held in the MLIR type
of their dtype (`storage`); bool is i1.
"""

from __future__ import annotations

import struct

from tilec.ir.core import Function, Op, Value
from tilec.ir.exchange import exchange_bytes
from tilec.ir.expr import Expr
from tilec.ir.layout import Layout
from tilec.ir.shared_plan import scratch_offset
from tilec.ir.types import DType
from tilec.lowering.launch_terms import argument, launch_term, leaves_of
from tilec.lowering.narrow_floats import narrowed
from tilec.lowering.tensor_core import Writer, arith, number, offset_pointer


def storage(dtype: DType) -> str:
    """The MLIR type of a dtype; signedness is in the operations, f8 is carried as i8."""
    if dtype.is_float and dtype.bits > 8:
        return dtype.name
    return "i1" if dtype.kind == "b" else f"i{dtype.bits}"


def literal(out: Writer, value: float, dtype: DType) -> str:
    """A constant of a dtype; floats by their bits, so that infinities and rounding survive the text."""
    type_ = storage(dtype)
    if dtype.kind == "b":
        return out.value(f"llvm.mlir.constant({'true' if value else 'false'}) : i1")
    if not dtype.is_float:
        return number(out, int(value), type_)
    wide = struct.unpack("<I", struct.pack("<f", value))[0]
    name = out.value(f"llvm.mlir.constant(0x{wide:08X} : f32) : f32")
    return narrowed(out, name, dtype)


class Context:
    """Where the rules write. Satisfies `tilec.lowering.mma.TileContext`."""

    def __init__(self, function: Function, taken: dict[Op, int]) -> None:
        self.function = function
        self.leaves = leaves_of(function)
        self.threads = function.num_warps * 32
        self.lines: list[str] = []
        self.shared_bytes = 0
        self._count = 0
        self._held: dict[Value, list[str]] = {}
        self._taken = taken
        self._thread = self._base = ""
        self.current: Op | None = None
        self.line = 0  # of the tile IR's text, 0 where operations have none

    def begin(self) -> None:
        """Bind parameters and read the special registers."""
        for parameter in self.function.parameters:
            self._held[parameter.value] = [argument(parameter.name)]
        self._thread = self.value("nvvm.read.ptx.sreg.tid.x : i32")
        self._base = self.value("llvm.mlir.addressof @dynamic_shared : !llvm.ptr<3>")

    def name(self) -> str:
        """A fresh SSA name."""
        self._count += 1
        return f"%{self._count}"

    def value(self, text: str) -> str:
        """Append an operation with one result and return its name."""
        name = self.name()
        self.lines.append(f"{name} = {text}")
        return name

    def effect(self, text: str) -> None:
        """Append text without a result."""
        self.lines.append(text)

    def at_line(self, line: int) -> None:
        """What follows comes from this line of the tile IR's text."""
        if line != self.line:
            self.line = line
            self.lines.append(f"// line {line}")

    def registers(self, value: Value) -> list[str]:
        """What this thread holds of a value."""
        return self._held[value]

    def scalar(self, value: Value) -> str:
        """The one name of a scalar."""
        (name,) = self._held[value]
        return name

    def assign(self, value: Value, registers: list[str]) -> None:
        """Set what this thread holds of a value."""
        self._held[value] = registers

    def pointer(self, tensor: Value) -> str:
        """Base of a tensor or shared buffer."""
        return self._held[tensor][0]

    def thread(self) -> str:
        """Index of this thread in its block, i32."""
        return self._thread

    def shared_base(self) -> str:
        """Start of the dynamic shared memory."""
        return self._base

    def host(self, expr: Expr) -> str:
        """A launch expression as i64."""
        return launch_term(self, expr, self.leaves)

    def extent(self, tensor: Value, axis: int) -> str:
        """Extent of an axis as i32, which holds it: the launch contract has every extent at most `MAX_DIM`."""
        expr = tensor.tensor.dims[axis]
        if expr.op == "const":
            return number(self, expr.value)
        if expr.op == "sym" and self.leaves[expr.name].dtype.bits == 32:
            return self.leaves[expr.name].name
        return self.value(f"llvm.trunc {self.host(expr)} : i64 to i32")

    def stride(self, tensor: Value, axis: int) -> str:
        """Stride of an axis in elements as i64."""
        type_ = tensor.tensor
        if type_.strides is not None:
            return self.host(type_.strides[axis])
        product = number(self, 1, "i64")
        for expr in type_.dims[axis + 1 :]:
            product = arith(self, "mul", product, self.host(expr), "i64")
        return product

    def stride_constant(self, tensor: Value, axis: int) -> int | None:
        """The stride where it is known at compile time."""
        type_ = tensor.tensor
        if type_.strides is not None:
            return type_.strides[axis].constant
        product = 1
        for expr in type_.dims[axis + 1 :]:
            if expr.constant is None:
                return None
            product *= expr.constant
        return product

    def thread_coordinates(self, layout: Layout) -> list[str]:
        """Coordinates of this thread's register 0 on each axis, i32."""
        lane, warp = arith(self, "and", self._thread, 31), arith(self, "lshr", self._thread, 5)
        out = [""] * layout.rank
        for index, digits in ((lane, layout.lanes), (warp, layout.warps)):
            for position, digit in enumerate(digits):
                step = index if position == len(digits) - 1 else arith(self, "urem", index, digit.extent)
                if position < len(digits) - 1:
                    index = arith(self, "udiv", index, digit.extent)
                if digit.axis is not None:
                    part = arith(self, "mul", step, digit.stride)
                    out[digit.axis] = arith(self, "add", out[digit.axis], part) if out[digit.axis] else part
        return [coordinate or number(self, 0) for coordinate in out]

    def scratch(self, size: int) -> str:
        """Shared memory for the current operation's exchange, past what live buffers take; `size` in bytes, of what
        `exchange_bytes` declared. All threads are done with what was there before."""
        assert self.current is not None
        declared = exchange_bytes(self.current, self.threads)
        assert size <= declared, f"{self.current.opcode} takes {size} bytes of scratch and declares {declared}"
        offset = scratch_offset(self._taken, self.current)
        return offset_pointer(self, self._base, offset, "!llvm.ptr<3>")

    def barrier(self) -> None:
        """Wait for all threads of the block."""
        self.effect("nvvm.barrier")
