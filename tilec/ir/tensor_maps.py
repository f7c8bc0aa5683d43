"""What a map of a tensor can be of and bring: the limits that lowering, manifests and the launcher share (PTX ISA, "Tensors";
CUDA driver API, `cuTensorMapEncodeTiled`)."""

from __future__ import annotations

from typing import Final

MAP_BYTES: Final = 128
MAP_ALIGNMENT: Final = 64
"""Of a map among the arguments of a kernel."""
MAX_MAP_RANK: Final = 5
MAX_BOX: Final = 256
"""Elements of a box on one axis."""
MAP_SWIZZLES: Final = (32, 64, 128)
"""Bytes that a row of a box may have, each the span of a swizzle."""
MAP_ELEMENTS: Final = ("f32", "f16", "bf16", "f8e4m3", "f8e5m2", "i8", "i32", "i64", "u8", "u16", "u32")
"""Dtypes that a map can be of; f8 and i8 are bytes to it."""
