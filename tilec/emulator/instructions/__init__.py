"""Instruction families, one module per family; importing this package registers all of them."""

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
    "register_pool",
)

for _family in FAMILIES:
    importlib.import_module(f"{__name__}.{_family}")
