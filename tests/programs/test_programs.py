"""Random tile programs: the interpreter, the MLIR block machine and the PTX emulator agree; nothing races.

Each program runs on one architecture, and the default run includes one in eight. `ci/bench/judges.py programs` runs thousands
on all three.
"""

from __future__ import annotations

import re

import pytest

from tests import campaign
from tests.programs.chosen import CHOSEN, COUNT, parts
from tests.programs.generate import odd_program, program
from tests.programs.machines import load, lowered
from tests.programs.traffic import odd_traffic, traffic
from tests.programs.workers import Job, examine_all
from tilec.ir.ops import Reduce
from tilec.passes.schedule import prepare
from tilec.target.families import MMA_SYNC, TMA
from tilec.target.schedule import Overrides, fed_family
from tilec.target.targets import MAIN_TARGETS, Target

PARTS = 8
"""Number of parts into which the programs of a kind are divided."""


def all_equal(jobs: list[Job]) -> None:
    """All machines agree on each of the programs."""
    completed = 0
    for job, outcome in examine_all(jobs):
        assert outcome.kind == "equal", f"{outcome.kind}: {outcome.detail}\n{job.make().text}"
        completed += 1
    assert completed == len(jobs)


@pytest.mark.parametrize(
    ("kind", "part"), campaign.chosen([(kind, part) for kind in CHOSEN for part in range(PARTS)], lambda case: case[1] == 0)
)
def test_all_machines_agree(kind: str, part: int) -> None:
    """Architectures alternate; in each part every fifth program is also proven, and every fourth runs on the block machine."""
    jobs = [
        Job(
            kind,
            n,
            (MAIN_TARGETS[index % len(MAIN_TARGETS)].name,),
            (n,) if "traffic" in kind else (0,),
            index % 5 == 0,
            index % 4 == 0,
        )
        for index, n in enumerate(CHOSEN[kind][part::PARTS])
    ]
    all_equal(jobs)


@pytest.mark.parametrize("part", campaign.first(2, range(8)))
def test_all_machines_agree_on_u64(part: int) -> None:
    """Architectures alternate; every second program runs on the block machine too."""
    numbers = range(part * 12, part * 12 + 12)
    all_equal([Job("u64 program", n, (MAIN_TARGETS[n % len(MAIN_TARGETS)].name,), block_machine=n % 2 == 0) for n in numbers])


MULTIPLYING = [
    6, 19, 21, 24, 25, 42, 71, 86, 96, 97, 107, 112, 127, 133, 145, 149, 166, 198, 202, 223, 235, 239, 262, 269, 277, 286,
    298, 308, 314, 321, 336, 342, 358, 369, 373, 381, 388, 391, 408, 426, 435, 439, 448, 451, 472, 475, 480, 488, 489, 508,
    509, 511,
]  # fmt: skip
"""Numbers of programs with a product that a producer can feed."""
FED_BY_WARPS = [target.name for target in MAIN_TARGETS if fed_family(TMA, target) is MMA_SYNC]
"""Targets on which a producer feeds `mma.sync`."""


@pytest.mark.parametrize("part", campaign.first(1, range(PARTS)))
def test_all_machines_agree_on_products_that_a_producer_feeds(part: int) -> None:
    """On the interpreter and the emulator; the block machine has no roles. Architectures alternate, and so do orders of
    threads."""
    chosen = MULTIPLYING[part::PARTS]
    jobs = [
        Job("program", n, (FED_BY_WARPS[(index + part) % len(FED_BY_WARPS)],), (n % 4,), fed=True)
        for index, n in enumerate(chosen)
    ]
    all_equal(jobs)
    code = lowered(program(chosen[0]), Target.parse(FED_BY_WARPS[0]), fed=True)
    assert "cp.async.bulk.tensor" in code.mlir and re.search(r"mma\.(?:sync\.aligned\.)?m16n8k", code.mlir)


@pytest.mark.campaign
def test_the_chosen_programs_have_all_that_the_first_hundreds_have() -> None:
    covered = set[str]().union(*(parts(kind, number) for kind, numbers in CHOSEN.items() for number in numbers))
    assert len(covered) >= COUNT, "the generator makes others than it did: choose anew with `python -m tests.programs.chosen`"


@pytest.mark.campaign
def test_odd_programs_have_layouts_that_wrap() -> None:
    """Covers everything that treats replicas separately: loads, stores, sums, scatters, atomics, and layout conversions through
    shared memory."""
    wrapping: set[str] = set()
    for number in range(20):
        for generated in (odd_program(number), odd_traffic(number)):
            for op in prepare(load(generated), MAIN_TARGETS[0], Overrides(warps=generated.warps)).body.walk():
                for value in (*op.operands, *op.results):
                    if value.layout is not None and value.layout.wraps(value.tile.shape):
                        wrapping.add(f"{op.opcode} {op.kind}" if isinstance(op, Reduce) else op.opcode)
    assert {
        "load",
        "store",
        "gather",
        "scatter",
        "atomic",
        "relayout",
        "iota",
        "for",
        "reduce sum",
        "reduce max",
    } <= wrapping, wrapping


def test_past_disagreements_stay_settled() -> None:
    """1183: `shl` of i64 by amounts from 2^32 on, of which LLVM keeps the low bits. The others were bugs of the oracles: bits
    of a NaN on the block machine (390), `min.relu` in the emulator (3276), the bound of an atomic minimum (4621)."""
    all_equal([Job("program", n, (MAIN_TARGETS[0].name,), block_machine=True) for n in (390, 1183, 3276, 4621)])


@pytest.mark.campaign
def test_halves_that_nobody_defined_are_dropped() -> None:
    """LLVM packs a value next to an undefined one and unpacks it again, which the emulator reported as a use of the latter."""
    all_equal([Job("traffic", n, (MAIN_TARGETS[n % 3].name,), (0, n + 1)) for n in (203, 1936, 2411, 2847)])


def test_programs_cover_the_language() -> None:
    text = "\n".join(make(n).text for n in range(200) for make in (program, traffic))
    names = "argmax argmin sum max min where maximum minimum abs floor ceil sqrt exp exp2 log log2 sin cos tanh"
    names += " sigmoid rsqrt gather scatter atomic_add atomic_max atomic_min mma astype reshape permute"
    names += " broadcast_to zeros full arange i8 i16 i32 i64 u8 u16 u32 boolean f32 f16 bf16 f8e4m3 f8e5m2"
    names += " InOut Scratch Atomic pad mask if for"
    missing = [name for name in names.split() if name not in text]
    assert not missing


def test_a_number_gives_one_program() -> None:
    assert program(7) == program(7)
    assert traffic(7).text != traffic(8).text
