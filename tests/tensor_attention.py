"""Attention with TMA operands, for tests and campaigns: `kernels_src/flash_attention.py` compiled with `copy = "tma"`, and
launches."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from tests import shipped
from tests.programs.machines import manifest
from tests.tensor_products import DTYPES, Made
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

STEP = {"bfloat16": 2.0**-7, "float16": 2.0**-10}
"""From 1 to the next value."""


def source(element: str, rows: int, columns: int, width: int = 128) -> Function:
    """The kernel as written, with `rows` queries and `columns` keys per tile."""
    constants = {"E": element, "D": width, "BM": rows, "BN": columns}
    return load_kernel(shipped.ROOT / "kernels_src" / "flash_attention.py", constants, root=shipped.ROOT)


@cache
def made(element: str, rows: int, columns: int, width: int = 128, target: Target = SM_90A, **wanted: Any) -> Made:
    """The kernel with TMA copies and other schedule overrides."""
    function = source(element, rows, columns, width)
    schedule = choose(function, target, Overrides(copy="tma", **wanted))
    positive = frozenset(op.operands[1] for op in positive_divisions(function))
    prepared = prepare(function, target, schedule, positive=positive)
    lowered = lower(prepared, target, min_blocks=schedule.blocks)
    kernel_manifest = manifest(source(element, rows, columns, width), lowered, target)
    return Made(prepared, schedule, lowered, to_ptx(lowered.mlir, target), kernel_manifest)


def emulated(
    kernel: Made,
    lengths: tuple[int, int, int, int],
    seed: int,
    ptx: str | None = None,
    scale: float = 1.0,
    scores: Any = None,
) -> tuple[Report, Any, Any]:
    """A launch with tokens, tokens before them, slots of the cache and heads of a group; its results, and the interpreter's.
    `scale`: of scores, in addition to the usual one. `scores`: of each slot, for all queries, in place of random ones."""
    tokens, past, slots, group = lengths
    constants = kernel.prepared.constants
    element, (rows, columns, width) = str(constants["E"]), (int(constants[name]) for name in ("BM", "BN", "D"))
    random = np.random.default_rng(seed)
    dtype = DTYPES[element]
    arrays: dict[str, Any] = {
        "q": random.standard_normal((tokens, 1, group, width)).astype(dtype),
        "k_cache": random.standard_normal((slots, 1, width)).astype(dtype),
        "v_cache": random.standard_normal((slots, 1, width)).astype(dtype),
        "out": np.zeros((tokens, 1, group, width), dtype),
    }
    if scores is not None:
        arrays["q"][:], arrays["k_cache"][:] = 0, 0
        arrays["q"][..., 0], arrays["k_cache"][:, 0, 0] = 1, scores
    flat = {name: array.reshape(-1).view(np.uint16) for name, array in arrays.items()}
    env = {"T": tokens, "S": slots, "HKV": 1, "G": group, "past": past, "scale": scale * float(width) ** -0.5}
    report = emulate(ptx or kernel.ptx, kernel.manifest, flat, env, seed=seed)
    run(source(element, rows, columns, width), arrays, {"past": past, "scale": env["scale"]})
    return report, report.tensors["out"].view(dtype).reshape(arrays["out"].shape), arrays["out"]


def differs(found: Any, expected: Any) -> bool:
    """Whether the results of a launch differ from the interpreter's, which adds in another order, by more than the distance of
    neighbouring values at the largest element: two sums on either side of a midpoint round that far apart."""
    wide, exact = found.astype(np.float64), expected.astype(np.float64)
    neighbours = STEP[found.dtype.name] * 2.0 ** np.floor(np.log2(np.abs(exact).max()))
    return not bool((np.abs(wide - exact) <= neighbours).all())
