"""Limits of tensor maps that lowering, manifests and the launcher share (PTX ISA, "Tensors"; CUDA driver API,
`cuTensorMapEncodeTiled`)."""

from __future__ import annotations

from typing import Final

from tilec.ir.types import DTYPES

MAP_BYTES: Final = 128
MAP_ALIGNMENT: Final = 64
"""Bytes, of a map among the arguments of a kernel."""
MAX_MAP_RANK: Final = 5
MAX_BOX: Final = 256
"""Elements of a box on one axis."""
MAP_SWIZZLES: Final = (32, 64, 128)
"""Bytes of a row of a box: the spans of the swizzle modes."""
MAP_ELEMENTS: Final = tuple(name for name, dtype in DTYPES.items() if dtype.tensor_map)
"""Dtypes of tensors that a map can describe."""
