"""The part of PyTorch that the definitions of kernels with a split norm use, on NumPy: for machines without PyTorch.

A product of 16-bit matrices is summed in f32 and rounded once, as cuBLAS does; element-wise arithmetic in 16 bits is rounded
once per operation.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

NAMES = {
    "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16), "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64), "int32": np.dtype(np.int32), "int64": np.dtype(np.int64),
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
        return Tensor(self.array[index.array if isinstance(index, Tensor) else index])

    def __add__(self, other: Tensor) -> Tensor:
        return Tensor(self.array + other.array)

    def __sub__(self, other: Tensor) -> Tensor:
        return Tensor(self.array - other.array)

    def __mul__(self, other: Tensor) -> Tensor:
        return Tensor(self.array * other.array)

    def __eq__(self, other: object) -> Any:
        assert isinstance(other, Tensor)
        return Tensor(self.array == other.array)

    __hash__ = None  # type: ignore[assignment]  # as `==` compares elements

    def __matmul__(self, other: Tensor) -> Tensor:
        if self.array.dtype.itemsize == 8:
            return Tensor(self.array @ other.array)
        return Tensor((self.array.astype(np.float32) @ other.array.astype(np.float32)).astype(self.dtype))

    def __float__(self) -> float:
        return float(self.array)

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

    def sum(self, axis: int) -> Tensor:
        return Tensor(self.array.sum(axis))

    def abs(self) -> Tensor:
        return Tensor(np.abs(self.array))

    def max(self) -> Tensor:
        return Tensor(self.array.max())

    def norm(self) -> Tensor:
        return Tensor(np.linalg.norm(self.array))

    def isinf(self) -> Tensor:
        return Tensor(np.isinf(self.array))

    def masked_fill(self, mask: Tensor, value: float) -> Tensor:
        return Tensor(np.where(mask.array, value, self.array))


def modules() -> dict[str, ModuleType]:
    """The modules by name, for `sys.modules`."""
    torch, nn, functional = (ModuleType(name) for name in ("torch", "torch.nn", "torch.nn.functional"))
    for name, dtype in NAMES.items():
        setattr(torch, name, dtype)
    torch.__dict__.update(as_tensor=_as_tensor, where=_where, finfo=ml_dtypes.finfo)
    return {"torch": torch, "torch.nn": nn, "torch.nn.functional": functional}


def _as_tensor(array: Any, device: str) -> Tensor:
    assert device == Tensor.device
    return Tensor(array)


def _where(condition: Tensor, left: Any, right: Any) -> Tensor:
    left, right = (value.array if isinstance(value, Tensor) else value for value in (left, right))
    return Tensor(np.where(condition.array, left, right))
