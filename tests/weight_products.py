"""Products with small M and TMA operands, for tests and campaigns: `matmul_few.py` and its variants, compiled with `copy =
"tma"`, and launches of them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from tests import shipped
from tests.programs.machines import manifest
from tests.tensor_products import DTYPES, Made
from tests.tensor_products import differs as differs
from tilec.codegen import to_ptx
from tilec.emulator import Report, emulate
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Function
from tilec.lowering import lower
from tilec.passes.prover import positive_divisions
from tilec.passes.schedule import choose, prepare
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A, Target

SPLITS = 3
"""Splits of K, of `matmul_split`."""
SHAPES = {
    "matmul_few": {"a": "mk", "b": "nk", "out": "mn"},
    "matmul_split": {"a": "mk", "b": "nk", "parts": "smn"},
    "matmul_silu_mul_few": {"a": "mk", "b": "2nk", "out": "mn"},
}
DIMS = {"matmul_few": ("M", "N", "K"), "matmul_split": ("M", "N", "K"), "matmul_silu_mul_few": ("M", "I", "K")}


def source(name: str, element: str, tokens: int, outputs: int) -> Function:
    """The kernel as written, of tiles of tokens x outputs x 64."""
    constants: dict[str, Any] = {"E": element, "BM": tokens, "BN": outputs, "BK": 64}
    constants |= {"S": SPLITS} if name == "matmul_split" else {}
    return load_kernel(shipped.ROOT / "kernels_src" / f"{name}.py", constants, root=shipped.ROOT)


@cache
def made(name: str, element: str, tokens: int, outputs: int, target: Target = SM_90A, **wanted: Any) -> Made:
    """The kernel with TMA copies, one consumer, and other schedule overrides."""
    function = source(name, element, tokens, outputs)
    schedule = choose(function, target, Overrides(copy="tma", consumers=1, **wanted))
    positive = frozenset(op.operands[1] for op in positive_divisions(function))
    prepared = prepare(function, target, schedule, positive=positive)
    lowered = lower(prepared, target, min_blocks=schedule.blocks)
    kernel_manifest = replace(manifest(source(name, element, tokens, outputs), lowered, target), schedule=schedule.to_json())
    return Made(prepared, schedule, lowered, to_ptx(lowered.mlir, target), kernel_manifest)


def emulated(kernel: Made, extents: tuple[int, int, int], seed: int, ptx: str | None = None) -> tuple[Report, Any, Any]:
    """A launch, with other PTX if given; its results, and the interpreter's. Small integers: every sum is exact."""
    name, constants = kernel.prepared.name, dict(kernel.prepared.constants)
    element, random = str(constants["E"]), np.random.default_rng(seed)
    sizes = dict(zip("mnk", extents, strict=True)) | {"s": SPLITS, "2": 2}
    arrays: dict[str, Any] = {}
    for tensor, axes in SHAPES[name].items():
        dtype = np.dtype(np.float32) if tensor == "parts" else np.dtype(DTYPES[element])
        arrays[tensor] = random.integers(-3, 4, tuple(sizes[axis] for axis in axes)).astype(dtype)
    (output,) = arrays.keys() - {"a", "b"}
    bits = {tensor: np.float32 if tensor == "parts" else np.uint16 for tensor in arrays}
    flat = {tensor: array.reshape(-1).view(bits[tensor]).copy() for tensor, array in arrays.items()}
    report = emulate(ptx or kernel.ptx, kernel.manifest, flat, dict(zip(DIMS[name], extents, strict=True)), seed=seed)
    run(source(name, element, int(constants["BM"]), int(constants["BN"])), arrays, {})
    expected = arrays[output]
    return report, report.tensors[output].view(expected.dtype).reshape(expected.shape), expected
