"""Products with TMA operands, for tests and campaigns: `kernels_src/matmul.py` compiled with `copy = "tma"`, and launches of
it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from tests import shipped
from tests.programs.machines import manifest
from tilec.artifact.records import Manifest
from tilec.codegen import to_ptx
from tilec.emulator import Report, emulate
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Function
from tilec.lowering import Lowered, lower
from tilec.passes.prover import positive_divisions
from tilec.passes.schedule import choose, prepare
from tilec.target.schedule import Overrides, Schedule
from tilec.target.targets import SM_90A, Target

DTYPES: Mapping[str, Any] = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}


class Made(NamedTuple):
    """A kernel: as written, scheduled, lowered, and its launch information."""

    prepared: Function
    schedule: Schedule
    lowered: Lowered
    ptx: str
    manifest: Manifest
    target: Target = SM_90A


def source(element: str, rows: int, columns: int) -> Function:
    """The kernel as written, of tiles of rows x columns x 64."""
    constants = {"E": element, "BM": rows, "BN": columns, "BK": 64, "GROUP": 8}
    return load_kernel(shipped.ROOT / "kernels_src" / "matmul.py", constants, root=shipped.ROOT)


@cache
def made(element: str, rows: int, columns: int, target: Target = SM_90A, **wanted: Any) -> Made:
    """The kernel with TMA copies and other schedule overrides."""
    function = source(element, rows, columns)
    schedule = choose(function, target, Overrides(copy="tma", **wanted))
    positive = frozenset(op.operands[1] for op in positive_divisions(function))
    prepared = prepare(function, target, schedule, positive=positive)
    lowered = lower(prepared, target, min_blocks=schedule.blocks)
    kernel_manifest = replace(
        manifest(source(element, rows, columns), lowered, target), schedule=schedule.to_json(), cluster=schedule.cluster
    )
    return Made(prepared, schedule, lowered, to_ptx(lowered.mlir, target), kernel_manifest, target)


def emulated(kernel: Made, extents: tuple[int, int, int], seed: int, ptx: str | None = None) -> tuple[Report, Any, Any]:
    """A launch, with other PTX if given; its results, and the interpreter's. Small integers: every sum is exact."""
    m, n, k = extents
    element = kernel.manifest.tensors[0].dtype
    random = np.random.default_rng(seed)
    dtype = DTYPES[element]
    a, b = (random.integers(-3, 4, shape).astype(dtype) for shape in ((m, k), (n, k)))
    arrays: dict[str, Any] = {"a": a, "b": b, "out": np.zeros((m, n), dtype)}
    flat = {name: array.reshape(-1).view(np.uint16) for name, array in arrays.items()}
    report = emulate(ptx or kernel.ptx, kernel.manifest, flat, {"M": m, "N": n, "K": k}, seed=seed)
    run(source(element, 64, 64), arrays, {})
    return report, report.tensors["out"].view(dtype).reshape(m, n), arrays["out"]


def differs(found: Any, expected: Any) -> bool:
    """Whether the results of a launch differ from the interpreter's."""
    return bool((found != expected).any())
