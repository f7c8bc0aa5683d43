"""Random tile programs: the interpreter, the MLIR block machine and the PTX emulator agree; nothing races.

Each program runs on one architecture, and the default run includes one in eight. `ci/bench/judges.py programs` runs thousands
on all three.
"""

from __future__ import annotations

import pytest

from tests import campaign
from tests.programs.chosen import CHOSEN, COUNT, parts
from tests.programs.generate import odd_program, program
from tests.programs.machines import load
from tests.programs.traffic import odd_traffic, traffic
from tests.programs.workers import Job, examine_all
from tilec.ir.ops import Reduce
from tilec.passes.schedule import prepare
from tilec.target.schedule import Overrides
from tilec.target.targets import TARGETS

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
        Job(kind, n, (TARGETS[index % len(TARGETS)].name,), (n,) if "traffic" in kind else (0,), index % 5 == 0, index % 4 == 0)
        for index, n in enumerate(CHOSEN[kind][part::PARTS])
    ]
    all_equal(jobs)


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
            for op in prepare(load(generated), TARGETS[0], Overrides(warps=generated.warps)).body.walk():
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
    all_equal([Job("program", n, (TARGETS[0].name,), block_machine=True) for n in (390, 1183, 3276, 4621)])


@pytest.mark.campaign
def test_halves_that_nobody_defined_are_dropped() -> None:
    """LLVM packs a value next to an undefined one and unpacks it again, which the emulator reported as a use of the latter."""
    all_equal([Job("traffic", n, (TARGETS[n % 3].name,), (0, n + 1)) for n in (203, 1936, 2411, 2847)])


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
