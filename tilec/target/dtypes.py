"""The dtypes of tiles and tensors, a row each: what it can hold, and its name in every system that tilec exchanges data with.

The frontend's class of a dtype is in `tilec/language/tiles.py`. What one backend alone knows of a dtype, such as the PTX of a
conversion, is in that backend.
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass, field
from typing import Any, Final, Literal


@dataclass(frozen=True, slots=True)
class DType:
    """An element type. Two are equal if name, kind and bits are; one that stands for several dtypes has nothing else."""

    name: str
    kind: Literal["f", "i", "u", "b"]
    """Float, signed, unsigned or bool."""
    bits: int
    """Width; elements of less than a byte are packed, except a bool, which occupies one."""
    numpy: str = field(default="", compare=False)
    """The name in NumPy or, for an `extension`, in ml_dtypes. PyTorch has the same names."""
    safetensors: str = field(default="", compare=False)
    """The name in a safetensors header."""
    dlpack: int = field(default=-1, compare=False)
    """DLPack's type code (dlpack.h, version 1.1)."""
    tensor_map: str | None = field(default=None, compare=False)
    """Element type of a tensor map (CUDA driver API, `CUtensorMapDataType`); None if maps have none. 8-bit floats and i8 are
    moved as bytes."""
    c: str | None = field(default=None, compare=False)
    """C type of a scalar parameter; None if a kernel can have no such parameter. 16-bit floats are passed as their bits."""
    extension: bool = field(default=False, compare=False)
    """Whether NumPy itself lacks it."""
    largest: float = field(default=0.0, compare=False)
    """The largest finite value of a float."""
    significand: int = field(default=0, compare=False)
    """Bits of a float's significand, the leading one included: rounding to nearest has a relative error of at most
    2^-significand, and numbers next to each other differ by a fraction of at most 2^(1 - significand)."""
    tolerance: float = field(default=0.0, compare=False)
    """Default tolerance of a result: this fraction of the element plus this fraction of the tensor's root mean square, since a
    sum with cancellation has the error of its terms. For f16 and bf16 it is the relative tolerance of
    `torch.testing.assert_close`. Integers must be equal."""

    matrix: str | None = field(default=None, compare=False)
    """What matrix instructions call it as an operand (PTX ISA, `mma`, `wgmma.mma_async`); None if none has such operands."""

    @property
    def bytes(self) -> int:
        """Storage size of one element in bytes; a bool occupies one. Elements of a packed dtype have no such size."""
        assert self.kind == "b" or self.bits % 8 == 0, f"elements of {self.name} are packed: ask bytes_of"
        return self.bytes_of(1)

    def bytes_of(self, count: int) -> int:
        """Storage size of `count` adjacent elements in bytes; the last byte of a packed dtype may be partly used."""
        return -(-count * (8 if self.kind == "b" else self.bits) // 8)

    def register_bytes(self, count: int) -> int:
        """Whole bytes that `count` elements fill in the registers of a thread, where a bool is a predicate of one bit."""
        return count * self.bits // 8

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_integer(self) -> bool:
        return self.kind in "iu"

    @property
    def storage(self) -> str:
        """NumPy's name of a dtype that holds its bits without ml_dtypes: its own, or an unsigned integer's."""
        return f"uint{self.bits}" if self.extension else self.numpy

    def integer_range(self) -> tuple[int, int]:
        """Smallest and largest value, both inclusive; integers and bool only."""
        if self.kind == "b":
            return 0, 1
        if self.kind == "u":
            return 0, (1 << self.bits) - 1
        assert self.kind == "i", self.name
        return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1

    def __str__(self) -> str:
        return self.name


f32: Final = DType(
    "f32", "f", 32, "float32", "F32", 2, "FLOAT32", "float", largest=3.4028234663852886e38, significand=24, tolerance=1e-5,
    matrix="tf32",
)  # fmt: skip
f16: Final = DType(
    "f16", "f", 16, "float16", "F16", 2, "FLOAT16", "uint16_t", largest=65504.0, significand=11, tolerance=1e-3, matrix="f16"
)
bf16: Final = DType(
    "bf16", "f", 16, "bfloat16", "BF16", 4, "BFLOAT16", "uint16_t", True, 3.3895313892515355e38, 8, 1.6e-2, matrix="bf16"
)
f8e4m3: Final = DType("f8e4m3", "f", 8, "float8_e4m3fn", "F8_E4M3", 10, "UINT8", None, True, 448.0, 4, 0.13, matrix="e4m3")
f8e5m2: Final = DType("f8e5m2", "f", 8, "float8_e5m2", "F8_E5M2", 12, "UINT8", None, True, 57344.0, 3, 0.26, matrix="e5m2")
i8: Final = DType("i8", "i", 8, "int8", "I8", 0, "UINT8", "int8_t", matrix="s8")
i16: Final = DType("i16", "i", 16, "int16", "I16", 0, None, "int16_t")
i32: Final = DType("i32", "i", 32, "int32", "I32", 0, "INT32", "int32_t")
i64: Final = DType("i64", "i", 64, "int64", "I64", 0, "INT64", "int64_t")
u8: Final = DType("u8", "u", 8, "uint8", "U8", 1, "UINT8", "uint8_t", matrix="u8")
u16: Final = DType("u16", "u", 16, "uint16", "U16", 1, "UINT16", "uint16_t")
u32: Final = DType("u32", "u", 32, "uint32", "U32", 1, "UINT32", "uint32_t")
u64: Final = DType("u64", "u", 64, "uint64", "U64", 1, "UINT64", "uint64_t")
boolean: Final = DType("bool", "b", 1, "bool", "BOOL", 6, None, "uint8_t")

DTYPES: Final[dict[str, DType]] = {
    d.name: d for d in (f32, f16, bf16, f8e4m3, f8e5m2, i8, i16, i32, i64, u8, u16, u32, u64, boolean)
}

u4: Final = DType("u4", "u", 4, "uint4", extension=True)
i4: Final = DType("i4", "i", 4, "int4", extension=True)
f4e2m1: Final = DType("f4e2m1", "f", 4, "float4_e2m1fn", extension=True, largest=6.0, significand=2)
PACKED: Final[dict[str, DType]] = {d.name: d for d in (u4, i4, f4e2m1)}
"""Dtypes of which tensors alone have elements, two in a byte: element 2j along the last axis is bits 0 to 3 of byte j, element
2j + 1 bits 4 to 7. To everything but the language they are tensors of u8 (`tilec.ir.types.TensorType.packed`). f4e2m1 is FP4 of
the OCP Microscaling Formats specification v1.0, section 5.3.3."""


@functools.cache
def numpy_dtype(dtype: DType) -> Any:
    """The NumPy dtype. Imports NumPy, and ml_dtypes for those that NumPy lacks, when it is first asked for one."""
    numpy = importlib.import_module("numpy")
    return numpy.dtype(getattr(importlib.import_module("ml_dtypes"), dtype.numpy) if dtype.extension else dtype.numpy)
