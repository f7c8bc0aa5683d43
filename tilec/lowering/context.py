"""State of lowering one kernel: the MLIR text so far, and the registers in which each thread keeps each value.

A tile is a list of per-thread SSA values in the register order of its layout; a scalar is one value. Each SSA value has the
MLIR type of its dtype (`storage`); bool is i1.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from enum import Enum
from functools import cache
from typing import Final

from tilec.atoms.tma import Box
from tilec.ir.core import Access, Function, Op, Parameter, Value
from tilec.ir.expr import Expr
from tilec.ir.layouts.layout import Layout
from tilec.ir.ops import For, Yield
from tilec.ir.ops.launch_ops import DependencyWait
from tilec.ir.ops.staging_ops import GroupProduct, SharedAlloc
from tilec.ir.types import DType
from tilec.lowering.block_dependence import block_dependent_values
from tilec.lowering.launch_terms import launch_term, leaves_of, named
from tilec.lowering.narrow_floats import narrowed
from tilec.mlir.builder import Builder
from tilec.mlir.types import GLOBAL, PARAMETER, SsaValue, Type, floating, i1, i32, i64, integer


@cache
def storage(dtype: DType) -> Type:
    """The MLIR type of a dtype. Signedness is a property of the operations; f8 is stored as i8."""
    if dtype.is_float and dtype.bits > 8:
        return floating(dtype.name)
    return i1 if dtype.kind == "b" else integer(dtype.bits)


QUIET_NAN: Final = 0x7FC00000
"""Bits of the f32 that stands for every NaN of a text."""


def literal(out: Builder, value: float, dtype: DType) -> SsaValue:
    """A constant of a dtype."""
    if dtype.kind == "b":
        return out.truth(bool(value))
    if not dtype.is_float:
        return out.constant(int(value), storage(dtype))
    bits = struct.unpack("<I", struct.pack("<f", value))[0] if value == value else QUIET_NAN
    return narrowed(out, out.float_constant(bits), dtype)


class Path(Enum):
    """How a load may read a tensor.

    The read-only path (PTX ISA, `ld.global.nc`) requires that nothing writes the data while the kernel runs. With programmatic
    dependent launch, a kernel must not use it for data that the previous kernel writes, not even after `griddepcontrol.wait`:
    ptxas treats `.nc` as a promise and hoists such loads above the wait.
    """

    PROLOGUE = "resident, before the grid dependency wait: a load that must not move"
    CONSTANT = "not written while the kernel runs"
    AFTER_WAIT = "written by earlier kernels at most, which the grid dependency wait has completed"
    WRITTEN = "written by this kernel too"


class Context(Builder):
    """The builder that lowering rules append to."""

    def __init__(
        self, function: Function, *, own_block: bool = False, converts_f8: bool = True, multiplies_f8: bool = False
    ) -> None:
        super().__init__()
        self.function = function
        self.own_block = own_block
        """Whether copies of boxes name the block's own shared memory (`Target.copies_into_own_block`)."""
        self.converts_f8 = converts_f8
        self.multiplies_f8 = multiplies_f8
        self.leaves = leaves_of(function)
        self.threads: int = function.num_warps * 32
        self._register_table: dict[Value, list[SsaValue]] = {p.value: [argument_of(p)] for p in function.parameters}
        self._thread = self.special_register("tid.x")
        self._base = self.dynamic_shared()
        self.role_number: int = 0
        """Number of the role whose region is being lowered, from 1; 0 while all threads of the block execute the code."""
        self.overlaps = any(isinstance(op, DependencyWait) for op in function.body.walk())
        """Whether the kernel may start while earlier kernels still run (programmatic dependent launch)."""
        self.precedes_wait = self.overlaps
        """Whether the code being lowered precedes the grid dependency wait."""
        self._block_dependent: set[Value] | None = None
        self._repeated: frozenset[Op] | None = None
        self._computed_on_later: frozenset[Value] | None = None
        self.maps: dict[tuple[Value, Box], SsaValue] = {}
        """Tensor map arguments, in order."""

    def is_read_once(self, tensor: Value, offsets: Iterable[Value]) -> bool:
        """Whether a load reads a resident tensor at an offset that depends on the block index: weights that no other block
        reads."""
        if self._block_dependent is None:
            self._block_dependent = block_dependent_values(self.function)
        return self.function.is_resident(tensor) and not self._block_dependent.isdisjoint(offsets)

    def is_repeated(self, op: Op) -> bool:
        """Whether an operation is in a loop."""
        if self._repeated is None:
            loops = [one for one in self.function.body.walk() if isinstance(one, For)]
            self._repeated = frozenset(inner for loop in loops for inner in loop.regions[0].walk())
        return op in self._repeated

    def is_computed_on_later(self, value: Value) -> bool:
        """Whether a loop carries a value on which its next iteration computes, other than by a product that goes on with it."""
        if self._computed_on_later is None:
            loops = [one.regions[0] for one in self.function.body.walk() if isinstance(one, For)]
            self._computed_on_later = frozenset(
                carried
                for body in loops
                for argument, carried in zip(body.arguments[1:], body.ops[-1].operands, strict=True)
                if any(argument in op.operands for op in body.walk() if not isinstance(op, GroupProduct | Yield))
            )
        return value in self._computed_on_later

    def path(self, tensor: Value) -> Path:
        """How a load at the current point of the text may read a tensor."""
        if self.precedes_wait:
            return Path.PROLOGUE
        if self.function.parameter_of(tensor).access is not Access.IN:
            return Path.WRITTEN
        return Path.AFTER_WAIT if self.overlaps and not self.function.is_resident(tensor) else Path.CONSTANT

    @contextmanager
    def role(self, number: int, first: int, warps: int) -> Generator[None]:
        """Code written inside belongs to role `number`, which has the warps from `first` on; its thread index starts at 0. If
        the roles wait for earlier kernels, each executes its own grid dependency wait, so that state is restored after the
        role."""
        saved = self._thread, self.threads, self.role_number, self.precedes_wait
        tensors = {parameter.value: self._register_table[parameter.value] for parameter in self.function.parameters}
        self.threads, self.role_number = 32 * warps, number
        self._thread = self.sub(self._thread, 32 * first) if first else self._thread
        yield
        self._thread, self.threads, self.role_number, self.precedes_wait = saved
        self._register_table |= tensors

    def tensor_map(self, tensor: Value, box: Box) -> SsaValue:
        """Address (i64) of the tensor map for boxes of this shape and swizzle; adds a kernel argument on first use."""
        name = self.function.parameter_of(tensor).name
        argument = self.maps.setdefault((tensor, box), named(f"{name}$map{len(self.maps)}", PARAMETER))
        return self.address(argument, i64)

    def registers(self, value: Value) -> list[SsaValue]:
        """This thread's registers of a value."""
        return self._register_table[value]

    def scalar(self, value: Value) -> SsaValue:
        """The SSA value of a scalar."""
        (register,) = self._register_table[value]
        return register

    def assign(self, value: Value, registers: list[SsaValue]) -> None:
        """Sets this thread's registers of a value."""
        self._register_table[value] = registers

    def pointer(self, tensor: Value) -> SsaValue:
        """Base pointer of a tensor or shared buffer."""
        return self._register_table[tensor][0]

    def thread(self) -> SsaValue:
        """Index of this thread in its block or, within a role, in its role; i32."""
        return self._thread

    def shared_base(self) -> SsaValue:
        """Start of dynamic shared memory."""
        return self._base

    def launch_value(self, expr: Expr) -> SsaValue:
        """A launch expression as i64."""
        return launch_term(self, expr, self.leaves)

    def extent(self, tensor: Value, axis: int) -> SsaValue:
        """Extent of an axis as i32; the launch contract limits every extent to `MAX_DIM`."""
        expr = tensor.tensor.dims[axis]
        if expr.op == "const":
            return self.constant(expr.value)
        if expr.op == "sym" and self.leaves[expr.name].dtype.bits == 32:
            return self.leaves[expr.name].value
        return self.trunc(self.launch_value(expr), i32)

    def stride(self, tensor: Value, axis: int) -> SsaValue:
        """Stride of an axis in elements as i64."""
        type_ = tensor.tensor
        if type_.strides is not None:
            return self.launch_value(type_.strides[axis])
        product = self.constant(1, i64)
        for expr in type_.dims[axis + 1 :]:
            product = self.mul(product, self.launch_value(expr))
        return product

    def stride_constant(self, tensor: Value, axis: int) -> int | None:
        """The stride in elements if it is a compile-time constant, else None."""
        type_ = tensor.tensor
        if type_.strides is not None:
            return type_.strides[axis].constant
        product = 1
        for expr in type_.dims[axis + 1 :]:
            if expr.constant is None:
                return None
            product *= expr.constant
        return product

    def thread_coordinates(self, layout: Layout) -> list[SsaValue]:
        """Coordinates of this thread's register 0 on each axis, i32."""
        lane, warp = self.bit_and(self._thread, 31), self.lshr(self._thread, 5)
        out: list[SsaValue | None] = [None] * layout.rank
        for index, digits in ((lane, layout.lanes), (warp, layout.warps)):
            for position, digit in enumerate(digits):
                step = index if position == len(digits) - 1 else self.urem(index, digit.extent)
                if position < len(digits) - 1:
                    index = self.udiv(index, digit.extent)
                if digit.axis is not None:
                    part, partial = self.mul(step, digit.stride), out[digit.axis]
                    out[digit.axis] = self.add(partial, part) if partial else part
        return [coordinate or self.constant(0) for coordinate in out]

    def scratch(self, value: Value, size: int) -> SsaValue:
        """Start of a scratch allocation; asserts that it has at least `size` bytes."""
        allocation = value.owner
        assert isinstance(allocation, SharedAlloc) and size <= allocation.bytes, f"{size} bytes of {value.type}"
        return self.offset(self._base, allocation.offset)


def argument_of(parameter: Parameter) -> SsaValue:
    """The kernel's argument: a pointer to global memory for a tensor, the value for a scalar."""
    is_tensor = parameter.access is not None
    return named(parameter.name, GLOBAL if is_tensor else storage(parameter.value.tile.dtype))
