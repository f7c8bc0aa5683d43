"""Products whose operands come by `tma`: PTX in which the emulator finds nothing, machine code of the right instructions."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from tests import shipped
from tests.programs.machines import manifest
from tilec.artifact import Manifest, TensorMapSpec
from tilec.assemble import assemble
from tilec.assemble.sass import disassemble, instructions
from tilec.codegen import to_ptx
from tilec.emulator import Report, emulate
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Function
from tilec.lowering import Lowered, lower
from tilec.passes.prover import positive_divisions
from tilec.passes.schedule import choose, prepare
from tilec.schedule import Overrides, Schedule
from tilec.target import SM_90A

DTYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}


class Made(NamedTuple):
    function: Function
    schedule: Schedule
    lowered: Lowered
    ptx: str
    manifest: Manifest


def source(element: str, rows: int, columns: int) -> Function:
    constants = {"E": element, "BM": rows, "BN": columns, "BK": 64, "GROUP": 8}
    return load_kernel(shipped.ROOT / "kernels_src" / "matmul.py", constants, root=shipped.ROOT)


@cache
def made(element: str, rows: int, columns: int, **wanted: Any) -> Made:
    function = source(element, rows, columns)
    schedule = choose(function, SM_90A, Overrides(copy="tma", **wanted))
    positive = frozenset(op.operands[1] for op in positive_divisions(function))
    lowered = lower(prepare(function, SM_90A, schedule, positive=positive), SM_90A, min_blocks=schedule.blocks)
    described = manifest(source(element, rows, columns), lowered, SM_90A)
    return Made(function, schedule, lowered, to_ptx(lowered.mlir, SM_90A), described)


def emulated(kernel: Made, extents: tuple[int, int, int], seed: int, **more: Any) -> tuple[Report, Any, Any]:
    """A launch; what it left, and what the interpreter does. Small integers, so that every sum is exact."""
    m, n, k = extents
    element = kernel.manifest.tensors[0].dtype
    random = np.random.default_rng(seed)
    dtype = DTYPES[element]
    a, b = (random.integers(-3, 4, shape).astype(dtype) for shape in ((m, k), (n, k)))
    held: dict[str, Any] = {"a": a, "b": b, "out": np.zeros((m, n), dtype)}
    flat = {name: array.reshape(-1).view(np.uint16) for name, array in held.items()}
    report = emulate(kernel.ptx, kernel.manifest, flat, {"M": m, "N": n, "K": k}, seed=seed, **more)
    run(source(element, 64, 64), held, {})
    return report, report.tensors["out"].view(dtype).reshape(m, n), held["out"]


CASES: list[Any] = [
    (("bf16", 64, 64), {"stages": 2}, (72, 72, 200), (0, 1)),
    (("f16", 128, 64), {"consumers": 2, "stages": 3}, (136, 72, 264), (0,)),
    (("bf16", 128, 256), {}, (8, 264, 72), (0,)),
]  # fmt: skip


@pytest.mark.parametrize(("sizes", "wanted", "extents", "seeds"), CASES, ids=str)
def test_the_emulator_finds_nothing_and_agrees(sizes: Any, wanted: Any, extents: Any, seeds: tuple[int, ...]) -> None:
    kernel = made(*sizes, **wanted)
    for seed in seeds:
        report, found, right = emulated(kernel, extents, seed)
        assert report.clean, str(report.faults[0])
        assert (found == right).all()


def test_the_schedule_is_told() -> None:
    schedule = made("bf16", 128, 256).schedule
    assert str(schedule) == "8 warps consumer; 4 warps producer; wgmma by tma, 4 stages"
    assert Schedule.from_json(schedule.to_json()) == schedule


def test_maps_are_of_whole_tensors_in_the_order_of_the_arguments() -> None:
    kernel = made("bf16", 128, 256)
    assert kernel.lowered.tensor_maps == (TensorMapSpec("a", (128, 64), 128), TensorMapSpec("b", (256, 64), 128))
    assert [(slot.kind, slot.name) for slot in kernel.lowered.abi[-2:]] == [("tensor_map", "a"), ("tensor_map", "b")]
    assert kernel.ptx.count(".param .align 64 .b8 ") == 2 and "[128]" in kernel.ptx


def test_machine_code_copies_boxes_and_multiplies_from_shared_memory() -> None:
    assembled = assemble(made("bf16", 128, 256).ptx, SM_90A)
    used = instructions(disassemble(assembled.cubin))
    assert assembled.resources.spill_bytes == assembled.resources.stack_bytes == 0
    assert sum(count for name, count in used.items() if name.startswith("UTMALDG.2D")) >= 2
    assert any(name.startswith("HGMMA") for name in used) and any(name.startswith("SYNCS") for name in used)
    assert not any(name.startswith("LDGSTS") for name in used)
