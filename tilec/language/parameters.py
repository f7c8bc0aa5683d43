"""Annotations of a kernel's signature: dims, element types, constants and tensor access.

`In[E, T, H]` is a tensor that every block may read, of dtype `E`, with axes `T` and `H`. If a type checker reads the file,
an extent that is a number or an arithmetic expression is written `In[i32, Literal[4]]` or `In[i32, Literal["2 * N"]]`; to
the compiler they are the same as `In[i32, 4]` and `In[i32, 2 * N]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, TypeVarTuple

D = TypeVar("D")
A = TypeVar("A")
R = TypeVar("R")
B = TypeVar("B")
Dims = TypeVarTuple("Dims")


class DimType(type):
    """Makes a `Dim` class usable in integer arithmetic, so that `cdiv(T, 2)` and `T // 2` type-check."""

    def __add__(cls, other: Any) -> int:
        return 0

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __add__

    def __neg__(cls) -> int:
        return 0

    def __index__(cls) -> int:
        return 0

    def __lt__(cls, other: Any) -> bool:
        return False

    __le__ = __gt__ = __ge__ = __lt__

    if TYPE_CHECKING:

        def __truediv__(cls, other: Any) -> float: ...
        def __rtruediv__(cls, other: Any) -> float: ...


class Dim(metaclass=DimType):
    """Base of named extents: `class T(Dim)`. Symbolic until launch, or fixed by a `Const` parameter of the same name."""


class Element:
    """Base of named dtypes: `class E(Element)`. Fixed per specialisation by the `Const` parameter of the same name."""


class Const(int):
    """Annotation of a specialisation constant: an int, float, bool, or (for an `Element`) a dtype.

    Constants are keyword-only parameters; `build.toml` gives their values.
    """


class Tensor:
    """A tensor in global memory; kernels access its elements only through `load`, `store` and the other access functions."""

    if TYPE_CHECKING:

        @property
        def shape(self) -> tuple[int, ...]:
            """Extents in elements; symbolic ones are i32 scalars."""
            ...

        @property
        def ndim(self) -> int:
            """Number of axes."""
            ...

    else:

        def __class_getitem__(cls, items: Any) -> type:
            return cls


class In(Tensor, Generic[D, *Dims]):
    """`In[dtype, *dims]`: read only; any block may read any element."""


class Out(Tensor, Generic[D, *Dims]):
    """`Out[dtype, *dims]`: never read; the blocks together write every element exactly once."""


class InOut(Tensor, Generic[D, *Dims]):
    """`InOut[dtype, *dims]`: no block accesses an element that another block writes."""


class Scratch(Tensor, Generic[D, *Dims]):
    """`Scratch[dtype, *dims]`: workspace; a block reads only elements that it has written itself."""


class Atomic(Tensor, Generic[D, *Dims]):
    """`Atomic[dtype, *dims]`: any block may update any element with `atomic_add` and the other words that begin with `atomic_`.

    i32, u32, i64 and u64 have all of them; f32 has `add`, `max`, `min`, `exchange`; f16 and bf16 have `add`; others are E0201.
    Floats: a number wins over a NaN, -0 is below +0, and sums of f32 may flush subnormal numbers to zero."""


class Peer(tuple[Tensor, ...], Generic[D, R, *Dims]):
    """`Peer[dtype, ranks, *dims]`: a tensor of each of several ranks, GPUs that read each other's memory; a tuple of `ranks`
    tensors in the order of ranks. Read only, after `meet`: what launches before this one wrote."""

    if not TYPE_CHECKING:

        def __class_getitem__(cls, items: Any) -> type:
            return cls


class Signal(Generic[R, B]):
    """`Signal[ranks, blocks]`: by what ranks tell each other that they have come, for `meet`; u32 `[blocks, 2, ranks]` in each
    rank, zero before the first launch and shared by all kernels that meet."""

    if not TYPE_CHECKING:

        def __class_getitem__(cls, items: Any) -> type:
            return cls


class Align(Generic[A]):
    """`Align[64]` after the dims: the base address is a multiple of 64 bytes (default 16)."""

    if not TYPE_CHECKING:

        def __class_getitem__(cls, items: Any) -> type:
            return cls


class Strides(Generic[*Dims]):
    """`Strides[S0, 1]` after the dims: strides in elements, one per axis (default: row-major contiguous)."""

    if not TYPE_CHECKING:

        def __class_getitem__(cls, items: Any) -> type:
            return cls
