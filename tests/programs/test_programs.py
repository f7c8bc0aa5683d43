"""Random tile programs: the interpreter, the MLIR block machine and the PTX emulator give the same; nothing races.

Each program runs on one architecture, which goes around with its number. `ci/bench/programs.py` runs thousands on all three.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.programs.generate import odd_program, program
from tests.programs.machines import load
from tests.programs.traffic import odd_traffic, traffic
from tests.programs.workers import Job, examine_all
from tilec.ir.ops import Reduce
from tilec.passes.schedule import prepare
from tilec.schedule import Overrides
from tilec.target import TARGETS

BATCH = 50


def jobs(kind: str, first: int, count: int) -> list[Job]:
    """Programs in a row, the architecture by number; each tenth is proven too, each fifth runs on the block machine."""
    return [
        Job(kind, n, (TARGETS[n % len(TARGETS)].name,), (n,) if "traffic" in kind else (0,), n % 10 == 0, n % 5 == 0)
        for n in range(first, first + count)
    ]


@pytest.mark.parametrize("first", range(0, 200, BATCH))
@pytest.mark.parametrize("kind", ["program", "traffic"])
def test_all_machines_agree(kind: str, first: int) -> None:
    kinds: Counter[str] = Counter()
    for job, outcome in examine_all(jobs(kind, first, BATCH)):
        kinds[outcome.kind] += 1
        assert outcome.kind == "equal", f"{outcome.kind}: {outcome.detail}\n{job.make().text}"
    assert kinds["equal"] == BATCH


@pytest.mark.parametrize("first", range(0, 150, BATCH))
@pytest.mark.parametrize("kind", ["odd program", "odd traffic"])
def test_all_machines_agree_where_extents_are_no_powers_of_two(kind: str, first: int) -> None:
    test_all_machines_agree(kind, first)


def test_odd_programs_have_layouts_that_wrap() -> None:
    """On all that must be told apart there: loads, stores, sums, scatters, atomics, and exchanges through shared memory."""
    met: set[str] = set()
    for number in range(60):
        for made in (odd_program(number), odd_traffic(number)):
            for op in prepare(load(made), TARGETS[0], Overrides(warps=made.warps)).body.walk():
                for value in (*op.operands, *op.results):
                    if value.layout is not None and value.layout.wraps(value.tile.shape):
                        met.add(f"{op.opcode} {op.kind}" if isinstance(op, Reduce) else op.opcode)
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
    } <= met, met


@pytest.mark.parametrize("number", [390, 1183, 3276, 4621])
def test_past_disagreements_stay_settled(number: int) -> None:
    """1183: `shl` of i64 by amounts from 2^32 on, of which LLVM keeps the low bits. The others were faults of the judges: bits
    of a NaN on the block machine (390), `min.relu` in the emulator (3276), the bound of an atomic minimum (4621)."""
    ((job, outcome),) = examine_all([Job("program", number, (TARGETS[0].name,), block_machine=True)])
    assert outcome.kind == "equal", f"{outcome.kind}: {outcome.detail}\n{job.make().text}"


@pytest.mark.parametrize("number", [203, 1936, 2411, 2847])
def test_halves_that_nobody_defined_are_dropped(number: int) -> None:
    """LLVM packs a value beside an undefined one and takes it out again, which the emulator took for a use of the latter."""
    ((job, outcome),) = examine_all([Job("traffic", number, (TARGETS[number % 3].name,), (0, number + 1))])
    assert outcome.kind == "equal", f"{outcome.kind}: {outcome.detail}\n{job.make().text}"


def test_programs_cover_the_language() -> None:
    text = "\n".join(make(n).text for n in range(200) for make in (program, traffic))
    words = "argmax argmin sum max min where maximum minimum abs floor ceil sqrt exp exp2 log log2 sin cos tanh"
    words += " sigmoid rsqrt gather scatter atomic_add atomic_max atomic_min mma astype reshape permute"
    words += " broadcast_to zeros full arange i8 i16 i32 i64 u8 u16 u32 boolean f32 f16 bf16 f8e4m3 f8e5m2"
    words += " InOut Scratch Atomic pad mask if for"
    missing = [word for word in words.split() if word not in text]
    assert not missing


def test_a_number_gives_one_program() -> None:
    assert program(7) == program(7)
    assert traffic(7).text != traffic(8).text
