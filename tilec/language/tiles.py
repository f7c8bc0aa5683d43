"""Tiles, dtypes and their operators.

A tile is an immutable value of one block with a static shape; a scalar is a tile of shape `()`. Operators are element-wise
and broadcast as in numpy. A Python literal adopts the other operand's dtype; two different dtypes never mix silently.
"""

from __future__ import annotations

from typing import Any, NoReturn

from tilec.language.parameters import Const, Dim, Element


class NotCompiled(RuntimeError):
    """A function of the kernel language was called from plain Python."""


def not_compiled() -> NoReturn:
    """Raise NotCompiled: kernels are compiled by `tilec build`, not run by Python."""
    raise NotCompiled("kernels are parsed and compiled by tilec, not executed by Python")


class Tile:
    """A value of one block, with a static shape and one dtype."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Static extents; `()` for a scalar."""
        not_compiled()

    @property
    def ndim(self) -> int:
        """Number of axes."""
        not_compiled()

    @property
    def dtype(self) -> type[DTypeBase]:
        """Element type."""
        not_compiled()

    @property
    def T(self) -> Tile:
        """The tile with its axes reversed."""
        not_compiled()

    def astype(self, dtype: DTypeLike) -> Tile:
        """Convert each element. Narrower floats round to nearest even, those of 8 bits saturate at the largest finite
        number; float to integer truncates toward zero."""
        not_compiled()

    def reshape(self, *shape: int | tuple[int, ...]) -> Tile:
        """Same elements in row-major order under another shape; one extent may be -1."""
        not_compiled()

    def permute(self, *axes: int | tuple[int, ...]) -> Tile:
        """Axis k of the result is axis `axes[k]` of this tile."""
        not_compiled()

    def broadcast_to(self, *shape: int | tuple[int, ...]) -> Tile:
        """Repeat along axes of extent 1, as numpy does."""
        not_compiled()

    def __getitem__(self, index: Any, /) -> Tile:
        """`tile[:, None]` inserts an axis of extent 1; elements cannot be picked out of a tile."""
        not_compiled()

    def __add__(self, other: Operand, /) -> Tile:
        not_compiled()

    def __eq__(self, other: object, /) -> Tile:  # pyright: ignore[reportIncompatibleMethodOverride]
        not_compiled()

    def __lt__(self, other: Operand, /) -> Tile:
        not_compiled()

    def __neg__(self) -> Tile:
        not_compiled()

    def __bool__(self) -> bool:
        not_compiled()

    def __index__(self) -> int:
        not_compiled()

    __ne__ = __eq__  # pyright: ignore[reportAssignmentType]
    __le__ = __gt__ = __ge__ = __lt__
    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __add__
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = __add__
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __add__
    __pos__ = __invert__ = __abs__ = __neg__
    __hash__ = object.__hash__


class DTypeBase(Tile):
    """Base of the dtypes. As an annotation a dtype is a scalar parameter (`eps: f32`); called, it converts a scalar."""

    def __init__(self, value: Operand = 0, /) -> None:
        not_compiled()


class f32(DTypeBase):
    """32-bit float."""


class f16(DTypeBase):
    """16-bit float (5 exponent bits)."""


class bf16(DTypeBase):
    """16-bit brain float (8 exponent bits)."""


class f8e4m3(DTypeBase):
    """8-bit float, 4 exponent bits, no infinity."""


class f8e5m2(DTypeBase):
    """8-bit float, 5 exponent bits."""


class i8(DTypeBase):
    """8-bit signed integer."""


class i16(DTypeBase):
    """16-bit signed integer."""


class i32(DTypeBase):
    """32-bit signed integer; the type of block ids, loop variables and dims."""


class i64(DTypeBase):
    """64-bit signed integer; `i64(x)` widens an index."""


class u8(DTypeBase):
    """8-bit unsigned integer."""


class u16(DTypeBase):
    """16-bit unsigned integer."""


class u32(DTypeBase):
    """32-bit unsigned integer."""


class u64(DTypeBase):
    """64-bit unsigned integer; as an index, a value of 2^63 and more lies outside of every tensor."""


class u4(DTypeBase):
    """4-bit unsigned integer, two in a byte; of tensors, converted by `.astype`."""


class i4(DTypeBase):
    """4-bit signed integer, two in a byte; of tensors, converted by `.astype`."""


class f4e2m1(DTypeBase):
    """4-bit float (OCP MX v1.0: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives), two in a byte; of tensors, converted by
    `.astype`."""


class boolean(DTypeBase):
    """Truth value, one byte in memory; also written `bool`."""


DTypeLike = type[DTypeBase] | type[Element] | type[bool] | Const
"""A dtype in a kernel: `f32`, an `Element` class, or its `Const`."""

Scalar = Tile | int | type[Dim]
"""An integer: a literal, a constant, a dim, or a scalar tile."""

Operand = Tile | float | type[Dim]
"""An operand of arithmetic."""

Index = Scalar | tuple[Scalar, ...]
"""One scalar per tensor axis; a lone scalar for a tensor of one axis."""

Shape = Scalar | tuple[Scalar, ...]
"""Static extents."""
