"""The part of PyTorch that definitions and bounds of kernels use, on NumPy: for machines without PyTorch.

A product of 16-bit matrices is summed in f32 and rounded once, as cuBLAS does; element-wise arithmetic in 16 bits is rounded
once per operation.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, cast

import ml_dtypes
import numpy as np

NAMES = {
    "float16": np.dtype(np.float16), "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "bfloat16": np.dtype(ml_dtypes.bfloat16), "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64), "int32": np.dtype(np.int32), "int64": np.dtype(np.int64),
    "uint32": np.dtype(np.uint32),
}  # fmt: skip


class Tensor:
    """A tensor on the host."""

    device = "cpu"

    def __init__(self, array: Any) -> None:
        self.array = np.asarray(array)

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def T(self) -> Tensor:
        return Tensor(self.array.T)

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: Any) -> Tensor:
        return Tensor(self.array[_arrays(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        self.array[_arrays(index)] = np.asarray(_arrays(value)).astype(self.dtype)

    def __add__(self, other: Any) -> Tensor:
        return Tensor(self.array + _arrays(other))

    def __sub__(self, other: Any) -> Tensor:
        return Tensor(self.array - _arrays(other))

    def __mul__(self, other: Any) -> Tensor:
        return Tensor(self.array * _arrays(other))

    def __truediv__(self, other: Any) -> Tensor:
        return Tensor(self.array / _arrays(other))

    def __floordiv__(self, other: Any) -> Tensor:
        return Tensor(self.array // _arrays(other))

    def __mod__(self, other: Any) -> Tensor:
        return Tensor(self.array % _arrays(other))

    def __pow__(self, other: Any) -> Tensor:
        return Tensor(self.array**other)

    def __and__(self, other: Any) -> Tensor:
        return Tensor(self.array & _arrays(other))

    def __or__(self, other: Any) -> Tensor:
        return Tensor(self.array | _arrays(other))

    def __invert__(self) -> Tensor:
        return Tensor(~self.array)

    def __lt__(self, other: Any) -> Tensor:
        return Tensor(self.array < _arrays(other))

    def __le__(self, other: Any) -> Tensor:
        return Tensor(self.array <= _arrays(other))

    def __gt__(self, other: Any) -> Tensor:
        return Tensor(self.array > _arrays(other))

    def __ge__(self, other: Any) -> Tensor:
        return Tensor(self.array >= _arrays(other))

    def __ne__(self, other: object) -> Any:
        return Tensor(self.array != _arrays(other))

    def __eq__(self, other: object) -> Any:
        return Tensor(self.array == _arrays(other))

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: Any) -> Tensor:
        return Tensor(other - self.array)

    def __rtruediv__(self, other: Any) -> Tensor:
        return Tensor(other / self.array)

    __hash__ = None  # type: ignore[assignment]  # as `==` compares elements

    def __bool__(self) -> bool:
        return bool(self.array)

    def __matmul__(self, other: Tensor) -> Tensor:
        if self.array.dtype.itemsize == 8:
            return Tensor(self.array @ other.array)
        return Tensor((self.array.astype(np.float32) @ other.array.astype(np.float32)).astype(self.dtype))

    def __float__(self) -> float:
        return float(self.array)

    def __int__(self) -> int:
        return int(self.array)

    def is_floating_point(self) -> bool:
        return self.array.dtype.kind not in "iub"

    def double(self) -> Tensor:
        return Tensor(self.array.astype(np.float64))

    def long(self) -> Tensor:
        return Tensor(self.array.astype(np.int64))

    def to(self, dtype: Any) -> Tensor:
        return Tensor(self.array.astype(dtype))

    def cpu(self) -> Tensor:
        return self

    def numpy(self) -> Any:
        return self.array

    def reshape(self, *shape: int) -> Tensor:
        return Tensor(self.array.reshape(shape))

    def view(self, *shape: Any) -> Tensor:
        return Tensor(self.array.view(shape[0])) if isinstance(shape[0], np.dtype) else self.reshape(*shape)

    def sum(self, axis: int, keepdim: bool = False) -> Tensor:
        return Tensor(self.array.sum(axis, keepdims=keepdim))

    def abs(self) -> Tensor:
        return Tensor(np.abs(self.array))

    def max(self, axis: int | None = None, keepdim: bool = False) -> Any:
        found = Tensor(self.array.max(axis, keepdims=keepdim))
        return found if axis is None else (found, None)

    def amax(self, axis: int) -> Tensor:
        return Tensor(self.array.max(axis))

    def amin(self, axis: int) -> Tensor:
        return Tensor(self.array.min(axis))

    def all(self, axis: int | None = None) -> Tensor:
        return Tensor(self.array.all(axis))

    def norm(self) -> Tensor:
        return Tensor(np.linalg.norm(self.array))

    def isinf(self) -> Tensor:
        return Tensor(np.isinf(self.array))

    def masked_fill(self, mask: Tensor, value: float) -> Tensor:
        return Tensor(np.where(mask.array, value, self.array))

    def fill_(self, value: float) -> None:
        self.array[...] = value

    def clone(self) -> Tensor:
        return Tensor(self.array.copy())

    def transpose(self, first: int, second: int) -> Tensor:
        return Tensor(self.array.swapaxes(first, second))

    def repeat_interleave(self, count: int, axis: int | None = None) -> Tensor:
        assert axis is not None or self.array.ndim == 1
        return Tensor(self.array.repeat(count, axis))

    def tolist(self) -> Any:
        return self.array.tolist()

    def split(self, sizes: int | list[int], axis: int) -> list[Tensor]:
        extent = self.shape[axis]
        ends = range(sizes, extent, sizes) if isinstance(sizes, int) else np.cumsum(sizes)[:-1]
        return [Tensor(part) for part in np.split(self.array, list(ends), axis)]

    def chunk(self, count: int, dim: int) -> list[Tensor]:
        return [Tensor(part) for part in np.split(self.array, count, dim)]

    def any(self, axis: int) -> Tensor:
        return Tensor(self.array.any(axis))

    def exp(self) -> Tensor:
        return Tensor(np.exp(self.array))

    def cumsum(self, axis: int) -> Tensor:
        return Tensor(self.array.cumsum(axis))

    def tril(self, diagonal: int) -> Tensor:
        return Tensor(np.tril(self.array, diagonal))

    def minimum(self, other: Tensor) -> Tensor:
        return Tensor(np.minimum(self.array, other.array))

    def gather(self, axis: int, index: Tensor) -> Tensor:
        return Tensor(np.take_along_axis(self.array, index.array, axis))

    def sort(self, dim: int, *, descending: bool, stable: bool = True) -> tuple[Tensor, Tensor]:
        assert descending and stable
        order = np.argsort(-self.array, dim, kind="stable")
        return Tensor(np.take_along_axis(self.array, order, dim)), Tensor(order)

    def sigmoid(self) -> Tensor:
        return 1 / (1 + Tensor(np.exp(-self.array)))


def modules() -> dict[str, ModuleType]:
    """The modules by name, for `sys.modules`."""
    torch, nn, functional = (ModuleType(name) for name in ("torch", "torch.nn", "torch.nn.functional"))
    for name, dtype in NAMES.items():
        setattr(torch, name, dtype)
    torch.__dict__.update(
        as_tensor=_as_tensor, where=_where, finfo=ml_dtypes.finfo, einsum=_einsum, cat=_cat, arange=_arange, zeros=_zeros,
        full_like=_full_like,
        ones=_ones, bool=np.dtype(bool), exp2=_by_elements(np.exp2), expm1=_by_elements(np.expm1),
        maximum=_by_elements(np.maximum), minimum=_by_elements(np.minimum),
    )  # fmt: skip
    functional.__dict__.update(pad=_pad, rms_norm=_rms_norm, silu=_silu)
    return {"torch": torch, "torch.nn": nn, "torch.nn.functional": functional}


def _by_elements(function: Any) -> Any:
    def applied(*tensors: Tensor) -> Tensor:
        return Tensor(function(*(one.array for one in tensors)))

    return applied


def _silu(x: Tensor) -> Tensor:
    return x * x.sigmoid()


def _ones(*shape: int, dtype: Any, device: str) -> Tensor:
    assert device == Tensor.device
    return Tensor(np.ones(shape, dtype))


def _arrays(index: Any) -> Any:
    """Tensors of an operand or an index as arrays."""
    if isinstance(index, tuple):
        return tuple(map(_arrays, cast("tuple[Any, ...]", index)))
    return index.array if isinstance(index, Tensor) else index


def _as_tensor(array: Any, device: str) -> Tensor:
    assert device == Tensor.device
    return Tensor(array)


def _full_like(like: Tensor, value: float, dtype: Any = None) -> Tensor:
    return Tensor(np.full_like(like.array, value, dtype=dtype))


def _where(condition: Tensor, left: Any, right: Any) -> Tensor:
    return Tensor(np.where(condition.array, _arrays(left), _arrays(right)))


def _cat(parts: Any, axis: int = 0, *, dim: int | None = None) -> Tensor:
    return Tensor(np.concatenate([part.array for part in parts], axis if dim is None else dim))


def _arange(count: int, *, device: str) -> Tensor:
    assert device == Tensor.device
    return Tensor(np.arange(count))


def _pad(x: Tensor, ends: tuple[int, int], value: float = 0) -> Tensor:
    return Tensor(np.pad(x.array, [(0, 0)] * (len(x.shape) - 1) + [ends], constant_values=value))


def _zeros(shape: Any, *, dtype: Any = np.float32, device: str) -> Tensor:
    assert device == Tensor.device
    return Tensor(np.zeros(shape, dtype))


def _einsum(spec: str, left: Tensor, right: Tensor) -> Tensor:
    if left.dtype.itemsize == 8:
        return Tensor(np.einsum(spec, left.array, right.array, optimize=True))
    wide = (operand.array.astype(np.float32) for operand in (left, right))
    return Tensor(np.einsum(spec, *wide, optimize=True).astype(left.dtype))


def _rms_norm(x: Tensor, shape: tuple[int, ...], weight: Tensor, epsilon: float) -> Tensor:
    """In f32 at least, rounded once."""
    wide = x.array.astype(np.float32) if x.dtype.itemsize < 8 else x.array
    assert shape == wide.shape[-1:]
    scale = 1 / np.sqrt((wide * wide).mean(-1, keepdims=True) + epsilon)
    return Tensor((wide * scale * weight.array.astype(wide.dtype)).astype(x.dtype))
