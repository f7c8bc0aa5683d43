"""Which accesses race: barriers, equal values, atomics, scopes, messages between blocks."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.tiny import AT, go, kinds, launch, program
from tilec.emulator import Limits

SHARED = "mov.u32 %r3, smem; mad.lo.u32 %r2, %t, 4, %r3; xor.b32 %r4, %t, {flip}; mad.lo.u32 %r4, %r4, 4, %r3;"
EXCHANGE = AT + SHARED + "st.shared.u32 [%r2], %t; {sync} ld.shared.u32 %r5, [%r4]; st.global.u32 [%d1], %r5;"
WIDE = {"source": np.zeros(64, np.uint32), "out": np.zeros(64, np.uint32)}


@pytest.mark.parametrize(
    ("flip", "sync", "faults"),
    [
        (33, "bar.sync 0;", set()),
        (33, "", {"race"}),
        (33, "bar.warp.sync -1;", {"race"}),
        (1, "bar.warp.sync -1;", set()),
        (1, "bar.warp.sync 0xffffffff;", set()),
        (1, "", {"race"}),
        (1, "shfl.sync.bfly.b32 %r6, %t, 1, 31, -1;", {"race"}),
        (33, "bar.sync 1, 64;", set()),
        (33, "barrier.sync 2;", set()),
    ],
)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_data_exchanged_through_shared_memory(flip: int, sync: str, faults: set[str], seed: int) -> None:
    body = EXCHANGE.replace("{flip}", str(flip)).replace("{sync}", sync)
    report = go(body, tensors=WIDE, threads=64, shared=256, seed=seed)
    assert kinds(report) - {"uninitialised"} == faults
    if not faults:
        assert (report.tensors["out"] == np.arange(64) ^ flip).all()


def test_a_missing_barrier_changes_results_under_other_seeds() -> None:
    body = EXCHANGE.replace("{flip}", "33").replace("{sync}", "")
    wrong = 0
    for seed in range(1, 9):
        report = go(body, tensors=WIDE, threads=64, shared=256, seed=seed)
        wrong += int((report.tensors["out"] != np.arange(64) ^ 33).any())
    assert wrong, "no schedule of eight shows it"


def test_writing_what_others_still_read() -> None:
    body = EXCHANGE.replace("{flip}", "33").replace("{sync}", "bar.sync 0;") + "st.shared.u32 [%r2], %r5;"
    assert kinds(go(body, tensors=WIDE, threads=64, shared=256)) == {"race"}


def test_threads_that_write_the_same_value() -> None:
    body = (
        "mov.u32 %r3, smem; st.shared.u32 [%r3], {value}; bar.sync 0; ld.shared.u32 %r5, [%r3];"
        + AT
        + "st.global.u32 [%d1], %r5;"
    )
    same = go(body.replace("{value}", "7"), shared=16)
    assert kinds(same) == {"race-same-value"} and not same.clean
    assert kinds(go(body.replace("{value}", "%t"), shared=16)) == {"race"}


def test_blocks_are_not_ordered() -> None:
    body = "mov.u32 %r1, %ctaid.x; st.global.u32 [%a1], %r1;"
    assert "race" in kinds(go(body, grid=(2,), threads=1, checked=False))
    for limit in (1, 64):
        report = go(body, grid=(2,), threads=1, checked=False, limits=Limits(resident_lanes=limit))
        assert "race" in kinds(report), "also where the blocks do not stand side by side"


def test_atomics_do_not_race_with_each_other() -> None:
    tensors = {"count": np.zeros(1, np.uint32)}
    text = program("atom.global.add.u32 %r1, [%a0], 1;", ["count"])
    report = launch(text, tensors, threads=64, grid=(3,))
    assert report.faults == [] and report.tensors["count"][0] == 192
    text = program("red.global.add.u32 [%a0], 1; st.global.u32 [%a0], %t;", ["count"])
    assert "race" in kinds(launch(text, tensors, threads=2))


def test_a_plain_write_is_checked_against_every_strong_access_before_it() -> None:
    """Thread 1 reads (strongly) after thread 0 read plainly; thread 0's write is ordered only after its own read."""
    for strong in (
        "ld.relaxed.gpu.global.u32 %r1, [%a0];",
        "red.global.add.u32 [%a0], 1;",
        "ld.volatile.global.u32 %r1, [%a0];",
    ):
        body = f"setp.eq.u32 %p0, %t, 0; @%p0 ld.global.u32 %r2, [%a0]; @!%p0 {strong} @%p0 st.global.u32 [%a0], %t;"
        report = launch(program(body, ["data"]), {"data": np.zeros(1, np.uint32)}, threads=2)
        assert "race" in kinds(report), strong


def test_the_first_of_several_atomics_is_not_forgotten() -> None:
    """Warp 0 adds, then warp 1; thread 32 reads plainly, ordered only after its own warp."""
    body = "red.shared.add.u32 [smem], 1; bar.warp.sync -1; setp.eq.u32 %p0, %t, 32; @%p0 ld.shared.u32 %r1, [smem];"
    text = program(f"setp.eq.u32 %p1, %t, 0; @%p1 st.shared.u32 [smem], 0; bar.sync 0; {body}", ["data"], shared=16)
    tensors = {"data": np.zeros(1, np.uint32)}
    assert kinds(launch(text, tensors, threads=64, shared=16)) == {"race"}
    ordered = text.replace("bar.warp.sync -1;", "bar.sync 0;")
    assert launch(ordered, tensors, threads=64, shared=16).faults == []


@pytest.mark.parametrize(
    ("scope", "grid", "races"), [("cta", 1, False), ("cta", 2, True), ("gpu", 2, False), ("sys", 2, False)]
)
def test_atomics_of_the_block_s_scope_race_between_blocks(scope: str, grid: int, races: bool) -> None:
    text = program(f"atom.relaxed.{scope}.global.add.u32 %r1, [%a0], 1;", ["count"])
    report = launch(text, {"count": np.zeros(1, np.uint32)}, threads=32, grid=(grid,))
    assert kinds(report) == ({"race"} if races else set())


@pytest.mark.parametrize("barrier", ["bar.warp.sync -1;", ""])
def test_a_read_ordered_after_one_of_two_equal_writes_is_a_race(barrier: str) -> None:
    """Threads 0 and 32 write 7; thread 33 reads, after thread 32 or after none."""
    body = f"""mov.u32 %r3, smem; and.b32 %r1, %t, 31; setp.eq.u32 %p0, %r1, 0; @%p0 st.shared.u32 [%r3], 7; {barrier}
    setp.eq.u32 %p1, %t, 33; @%p1 ld.shared.u32 %r4, [%r3];"""
    report = launch(program(body, ["data"], shared=16), {"data": np.zeros(1, np.uint32)}, threads=64, shared=16)
    assert kinds(report) == {"race-same-value", "race"}


def test_equal_writes_after_different_ones_are_no_equal_writes() -> None:
    """Threads 0 and 1 write 7 together, over a 5 that thread 32 wrote unordered with them."""
    body = """mov.u32 %r3, smem; setp.eq.u32 %p0, %t, 32; @%p0 st.shared.u32 [%r3], 5; setp.lt.u32 %p1, %t, 2;
    @%p1 st.shared.u32 [%r3], 7;"""
    report = launch(program(body, ["data"], shared=16), {"data": np.zeros(1, np.uint32)}, threads=64, shared=16)
    assert kinds(report) == {"race"}


MESSAGE = """
mov.u32 %r0, %ctaid.x; setp.ne.u32 %p0, %r0, 0; @%p0 bra READ;
st.global.u32 [%a0], 42; {before} st.{release}.gpu.global.u32 [%a0+4], 1; ret;
READ: ld.{acquire}.gpu.global.u32 %r1, [%a0+4]; setp.eq.u32 %p1, %r1, 0; @%p1 ret; {after} ld.global.u32 %r2, [%a0];
st.global.u32 [%a0+8], %r2;
"""


@pytest.mark.parametrize(
    ("release", "acquire", "before", "after", "races"),
    [
        ("release", "acquire", "", "", False),
        ("relaxed", "relaxed", "fence.acq_rel.gpu;", "fence.acq_rel.gpu;", False),
        ("relaxed", "relaxed", "membar.gl;", "membar.gl;", False),
        ("relaxed", "relaxed", "", "", True),
        ("release", "relaxed", "", "", True),
        ("relaxed", "acquire", "", "", True),
    ],
)
def test_messages_between_blocks(release: str, acquire: str, before: str, after: str, races: bool) -> None:
    body = MESSAGE.format(release=release, acquire=acquire, before=before, after=after)
    text = program(body, ["data"])
    found, seen = set(), set()
    for seed in range(6):
        report = launch(text, {"data": np.zeros(3, np.uint32)}, threads=1, grid=(2,), seed=seed)
        found |= kinds(report)
        seen.add(int(report.tensors["data"][2]))
    assert 42 in seen, "no schedule delivers the message"
    assert ("race" in found) == races


@pytest.mark.parametrize("narrow", ["st.release.cta", "ld.acquire.cta", "both fences", "first fence"])
def test_messages_in_the_block_s_scope_do_not_reach_other_blocks(narrow: str) -> None:
    body = MESSAGE.format(release="release", acquire="acquire", before="", after="")
    if "fence" in narrow:
        fences = ("fence.acq_rel.cta;", "fence.acq_rel.cta;" if narrow == "both fences" else "fence.acq_rel.gpu;")
        body = MESSAGE.format(release="relaxed", acquire="relaxed", before=fences[0], after=fences[1])
    else:
        body = body.replace(narrow.replace("cta", "gpu"), narrow)
    found = set()
    for seed in range(6):
        found |= kinds(launch(program(body, ["data"]), {"data": np.zeros(3, np.uint32)}, threads=1, grid=(2,), seed=seed))
    assert "race" in found


def test_the_same_seed_gives_the_same_launch() -> None:
    body = EXCHANGE.replace("{flip}", "33").replace("{sync}", "")
    for seed in (0, 5):
        first, second = (go(body, tensors=WIDE, threads=64, shared=256, seed=seed) for _ in range(2))
        assert (first.tensors["out"] == second.tensors["out"]).all()
        assert [str(fault) for fault in first.faults] == [str(fault) for fault in second.faults]
        assert first.statistics["steps"] == second.statistics["steps"]
