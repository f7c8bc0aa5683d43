"""Products whose operands come by `tma`: PTX in which the emulator finds nothing, machine code of the right instructions."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tensor_products import emulated, made
from tilec.artifact import TensorMapSpec
from tilec.assemble import assemble
from tilec.assemble.sass import disassemble, instructions
from tilec.schedule import Schedule
from tilec.target import SM_90A

CASES: list[Any] = [
    (("bf16", 64, 64), {"stages": 2}, (72, 40, 200), (0, 1)),
    (("bf16", 64, 64), {"stages": 2}, (1, 8, 8), (0,)),
    (("f16", 128, 64), {"consumers": 2, "stages": 3}, (72, 40, 264), (1,)),
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
