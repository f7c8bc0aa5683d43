"""What options of the commands may be. Imports nothing that takes time, so that a command line is read, and refused, first."""

from __future__ import annotations

from typing import Final, Literal

from engine.errors import UsageError

DEFAULT_SEQUENCE: Final = 4096
"""Default capacity of the KV cache, in tokens."""

BackendName = Literal["cuda", "interpreter"]
"""`cuda`: a GPU and the CUBINs of a bundle. `interpreter`: the kernels' sources in NumPy, slow and only for tiny models."""

WEIGHT_FORMATS: Final = ("16bit", "fp8", "w8a8", "int4", "fp8_head", "int4_head")
"""Formats of linear weights that steps have; a step may lack one. The weights of `w8a8` are those of `fp8`."""

CACHE_FORMATS: Final = ("16bit", "fp8")
"""The formats of caches that the families' steps declare, and 16 bits."""


def check_backend(backend: BackendName, *of_gpu: object) -> None:
    """UsageError if the interpreter is to take an option that only a GPU has: all but None are such."""
    if backend == "interpreter" and any(option is not None for option in of_gpu):
        raise UsageError("the interpreter takes neither a bundle nor a device", fix="leave them out")
