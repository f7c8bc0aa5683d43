"""Registers the instruction families."""

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
    "printing",
    "warp",
    "barriers",
    "warp_matrices",
    "matrix_memory",
    "mbarriers",
    "copies",
    "warpgroup",
    "clusters",
    "async_stores",
    "launch_control",
    "proxy_fences",
    "setmaxnreg",
    "tensor",
)


def register() -> None:
    """Imports every family, which registers its decoders."""
    for family in FAMILIES:
        importlib.import_module(f"{__package__}.{family}")
