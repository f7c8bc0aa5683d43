"""Limits of tensor maps that lowering, manifests and the launcher share (PTX ISA, "Tensors"; CUDA driver API,
`cuTensorMapEncodeTiled`)."""

from __future__ import annotations

from typing import Final

MAP_BYTES: Final = 128
MAP_ALIGNMENT: Final = 64
"""Bytes, of a map among the arguments of a kernel."""
MAX_MAP_RANK: Final = 5
MAX_BOX: Final = 256
"""Elements of a box on one axis."""
MAP_SWIZZLES: Final = (32, 64, 128)
"""Bytes of a row of a box: the spans of the swizzle modes."""
MAP_ELEMENTS: Final = ("f32", "f16", "bf16", "f8e4m3", "f8e5m2", "i8", "i32", "i64", "u8", "u16", "u32")
"""Dtypes of tensors that a map can describe; f8 and i8 are encoded as bytes."""
