"""Instruction families, one module each; importing this package registers them all."""

import importlib
from typing import Final

FAMILIES: Final = (
    "moves",
    "integers",
    "bits",
    "floats",
    "half",
    "compare",
    "conversions",
    "memory",
    "atomics",
    "control",
    "warp",
    "barriers",
    "warp_matrices",
    "matrix_memory",
    "mbarriers",
    "copies",
    "warpgroup",
    "clusters",
    "proxy_fences",
)

for _family in FAMILIES:
    importlib.import_module(f"{__name__}.{_family}")
