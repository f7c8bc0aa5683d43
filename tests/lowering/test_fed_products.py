"""The machine code of every shipped specialisation in which a producer feeds `mma.sync`: boxes are copied by one instruction
each, operands are read from shared memory as matrices, nothing spills, and nothing is called but a slow path of its own.

The default run has one specialisation of each kernel, on each architecture without matrix instructions of its own that read
shared memory.
"""

from __future__ import annotations

import re

import pytest

from tests import campaign, shipped
from tilec.assemble import assemble
from tilec.assemble.sass import disassemble, instructions
from tilec.codegen import to_ptx
from tilec.lowering import lower
from tilec.project.read.kernel_entry import KernelEntry
from tilec.project.read.models import Constant
from tilec.target.families import MMA_SYNC, TMA
from tilec.target.schedule import Overrides, fed_family, merged
from tilec.target.targets import TARGETS, Target

Case = tuple[str, str, dict[str, Constant], Target]


def overrides(entry: KernelEntry, constants: dict[str, Constant], target: Target) -> Overrides:
    """What the build file says of a specialisation's schedule."""
    return merged(entry.overrides(constants), target)


FED: list[Case] = [
    (f"{entry.name}-{target}-{'-'.join(map(str, constants.values()))}", entry.name, constants, target)
    for entry in shipped.all_entries()
    for target in entry.targets
    if fed_family(TMA, target) is MMA_SYNC
    for constants in entry.specialisations()
    if overrides(entry, constants, target).copy == TMA
]
CALLED = re.compile(r"CALL\S* .*")
OWN = re.compile(r"\(\$__internal_\d+_\$__cuda_sm20_\w+_slowpath\)")
"""The slow path of a reciprocal or a division, which ptxas puts into the kernel's own code."""


def kind(case: Case) -> tuple[str, str]:
    return case[1], case[3].name


def test_products_and_attention_are_fed_on_every_target_without_asynchronous_products() -> None:
    kernels = {"matmul", "matmul_silu_mul", "matmul_few", "matmul_silu_mul_few", "matmul_split", "flash_attention"}
    kernels |= {"packed_flash_attention"}
    fed = {target.name: {name for _, name, _, other in FED if other is target} for target in TARGETS}
    experts = {f"experts_{name}{few}" for name in ("matmul", "matmul_silu_mul") for few in ("", "_few")}
    of_codes = {f"{name}_fp8" for name in ("matmul", "matmul_silu_mul", "experts_matmul", "experts_matmul_silu_mul")}
    assert fed["sm_120a"] == kernels | experts | of_codes


@pytest.mark.parametrize(("_name", "kernel", "constants", "target"), campaign.one_of_each(FED, kind))
def test_machine_code_of_products_that_a_producer_feeds(
    _name: str, kernel: str, constants: dict[str, Constant], target: Target
) -> None:
    entry, _ = shipped.specialisation(kernel, constants, target)
    wanted = overrides(entry, constants, target)
    lowered = lower(shipped.prepared(kernel, target, constants), target, min_blocks=wanted.blocks)
    ptx = to_ptx(lowered.mlir, target)
    assembled = assemble(ptx, target)
    text = disassemble(assembled.cubin)
    used = {opcode.split(".")[0] for opcode in instructions(text)}
    assert {"UTMALDG", "LDSM", "QMMA" if kernel.endswith("_fp8") else "HMMA", "SYNCS"} <= used
    assert used.isdisjoint({"LDGSTS", "LDL", "STL"})
    assert ({"UTMASTG", "STSM"} <= used) == (wanted.store == TMA)
    assert all(OWN.search(call) for call in CALLED.findall(text))
    assert assembled.resources.spill_bytes == assembled.resources.stack_bytes == 0
    assert lowered.dynamic_shared_bytes <= target.max_shared_bytes
    assert ".shared::cta.global.tile" in ptx or not target.copies_into_own_block
