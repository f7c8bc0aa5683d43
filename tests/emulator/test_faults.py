"""What a program may do wrong, each planted in a small one, and its right twin, which is silent."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.tiny import launch, program
from tilec.emulator import Limits, Memory, Report, UnsupportedPtx, parse, run

OUT = np.zeros(32, np.uint32)
IN = np.arange(32, dtype=np.uint32) + 1
AT = "mad.wide.u32 %d0, %t, 4, %a0; mad.wide.u32 %d1, %t, 4, %a1;"
TENSORS = {"source": IN, "out": OUT}


def kinds(report: Report) -> set[str]:
    return {fault.kind for fault in report.faults}


def go(body: str, **more: object) -> Report:
    options = {"out": ("out",), "read_only": ("source",)} | more
    tensors = options.pop("tensors", TENSORS)
    shared = int(options.get("shared", 0))  # pyright: ignore
    return launch(program(body, list(tensors), shared=shared), tensors, **options)  # pyright: ignore


def test_a_right_program_is_silent() -> None:
    report = go(f"{AT} ld.global.nc.u32 %r0, [%d0]; add.u32 %r0, %r0, 1; st.global.u32 [%d1], %r0;")
    assert report.faults == [] and report.clean
    assert (report.tensors["out"] == IN + 1).all()
    assert report.statistics["coverage"] == 1.0


def test_one_element_past_the_end() -> None:
    report = go(f"{AT} ld.global.u32 %r0, [%d0+4]; st.global.u32 [%d1], %r0;")
    fault = next(fault for fault in report.faults if fault.kind == "bounds")
    assert (fault.thread, fault.tensor, fault.count) == (31, "source", 1)
    assert fault.ptx_line and "ld.global.u32" in fault.instruction
    assert "poison" in kinds(report), "what an access outside gives is not a value"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("ld.global.v2.u32 {%r0, %r1}, [%a0+4]; st.global.u32 [%a1], %r0;", "alignment"),
        ("ld.global.u32 %r0, [%a0+2]; st.global.u32 [%a1], %r0;", "alignment"),
        ("mov.u64 %d5, 64; ld.global.u32 %r0, [%d5];", "bounds"),
        ("ld.shared.u32 %r0, [%a0];", "bounds"),
        ("st.global.u32 [%a0], %t;", "read-only"),
        (".local .align 4 .b8 frame[16]; mov.u64 %d5, frame; ld.local.u32 %r0, [%d5+16];", "bounds"),
        ("ld.const.u32 %r0, [%a0];", "space"),
    ],
)
def test_bad_addresses(body: str, kind: str) -> None:
    assert kind in kinds(go(body, checked=False, threads=1))


def test_every_other_byte_of_an_output_must_be_written() -> None:
    report = go(f"{AT} setp.lt.u32 %p0, %t, 31; @%p0 st.global.u32 [%d1], %t;")
    assert kinds(report) == {"unwritten"}
    assert report.faults[0].element == (31, 0)


@pytest.mark.parametrize(
    ("step", "count", "kinds_found"), [(8, 16, set()), (8, 15, {"unwritten"}), (4, 17, {"bounds", "unwritten"})]
)
def test_a_strided_output_is_checked_element_by_element(step: int, count: int, kinds_found: set[str]) -> None:
    """16 elements, every other word of 31: all written, one missing, or one word between two of them written."""
    text = program(f"mad.wide.u32 %d1, %t, {step}, %a0; setp.lt.u32 %p0, %t, {count}; @%p0 st.global.u32 [%d1], %t;", ["out"])
    memory = Memory()
    required = np.repeat(np.arange(31) % 2 == 0, 4)
    place = memory.allocate("out", np.zeros(31, np.uint32), initialised=False, checked=True, required=required)
    report = run(parse(text), "k", (1,), (32,), [place], memory)
    assert kinds(report) == kinds_found


# --- poison
def test_poison_that_is_dropped_is_silent() -> None:
    body = f"{AT} add.u32 %r1, %r9, 1; setp.ge.u32 %p0, %t, 0; selp.b32 %r2, %t, %r1, %p0; st.global.u32 [%d1], %r2;"
    assert go(body).faults == []


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("st.global.u32 [%d1], %r9;", "poison"),
        ("add.u64 %d1, %d1, %d9; st.global.u32 [%d1], %t;", "poison"),
        ("@%p9 bra L; L: st.global.u32 [%d1], %t;", "poison"),
        ("@%p9 st.global.u32 [%d1], %t;", "poison"),
        ("setp.lt.u32 %p1, %t, %r9; selp.b32 %r2, 1, 1, %p1; st.global.u32 [%d1], %r2;", "poison"),
        ("ld.global.u32 %r1, [%d1]; st.global.u32 [%d1], %r1;", "uninitialised"),
        ("ld.shared.u32 %r1, [smem]; st.global.u32 [%d1], %r1;", "uninitialised"),
        ("mov.u32 %r1, 0; div.u32 %r2, %t, %r1; st.global.u32 [%d1], %r2;", "undefined"),
        ("mov.u32 %r1, 0; rem.s32 %r2, %t, %r1; setp.eq.u32 %p1, %r2, 0; @%p1 bra L; L: st.global.u32 [%d1], %t;", "undefined"),
    ],
)
def test_poison_that_matters(body: str, kind: str) -> None:
    assert kind in kinds(go(f"{AT} {body}", shared=16, checked=False))


def test_a_division_by_zero_that_is_selected_away() -> None:
    body = f"""{AT} mov.u32 %r1, 0; div.u32 %r2, %t, %r1; setp.eq.u32 %p1, %r1, 0;
    selp.b32 %r3, 7, %r2, %p1; st.global.u32 [%d1], %r3;"""
    assert go(body).faults == []


def test_poison_travels_through_memory() -> None:
    body = f"""{AT} mad.lo.u32 %r2, %t, 4, 0; mov.u32 %r3, smem; add.u32 %r2, %r2, %r3; st.shared.u32 [%r2], %r9;
    ld.shared.u32 %r4, [%r2]; st.global.u32 [%d1], %r4;"""
    report = go(body, shared=128)
    assert kinds(report) == {"poison"}
    assert "st.global" in report.faults[0].instruction


# --- races
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
def test_exchange_through_shared_memory(flip: int, sync: str, faults: set[str], seed: int) -> None:
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
    assert kinds(same) == {"race-same-value"} and same.clean
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


def test_a_plain_write_is_held_against_every_strong_access_before_it() -> None:
    """Thread 1 reads (strongly) after thread 0 read plainly; thread 0's write is ordered after its own read only."""
    for strong in (
        "ld.relaxed.gpu.global.u32 %r1, [%a0];",
        "red.global.add.u32 [%a0], 1;",
        "ld.volatile.global.u32 %r1, [%a0];",
    ):
        body = f"setp.eq.u32 %p0, %t, 0; @%p0 ld.global.u32 %r2, [%a0]; @!%p0 {strong} @%p0 st.global.u32 [%a0], %t;"
        report = launch(program(body, ["data"]), {"data": np.zeros(1, np.uint32)}, threads=2)
        assert "race" in kinds(report), strong


def test_the_first_of_several_atomics_is_not_forgotten() -> None:
    """Warp 0 adds, then warp 1; thread 32 reads plainly, ordered after its own warp only."""
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


def test_noncoherent_reads_of_what_the_launch_writes() -> None:
    tensors = {"data": np.zeros(64, np.uint32)}
    body = "mad.wide.u32 %d0, %t, 4, %a0; ld.global.nc.u32 %r0, [%d0{}]; st.global.u32 [%d0], %r0;"
    assert "non-coherent" in kinds(launch(program(body.format(""), ["data"]), tensors))
    assert kinds(launch(program(body.format("+128"), ["data"]), tensors)) == set()


# --- waiting
def test_a_barrier_that_some_threads_skip() -> None:
    body = "setp.lt.u32 %p0, %t, 32; @%p0 bra L; bar.sync 0; L: bar.sync 1;"
    report = go(body, threads=64, checked=False)
    fault = report.faults[0]
    assert fault.kind == "deadlock"
    assert "0-31" in fault.message and "32-63" in fault.message


def test_a_barrier_that_threads_leave_behind() -> None:
    report = go("setp.lt.u32 %p0, %t, 32; @%p0 ret; bar.sync 0;", threads=64, checked=False)
    assert kinds(report) == {"barrier"}


@pytest.mark.parametrize("seed", [0, 3])
def test_named_barriers_with_counts(seed: int) -> None:
    body = (
        AT
        + """mov.u32 %r3, smem; setp.lt.u32 %p0, %t, 32; @%p0 bra CONSUME;
    mad.lo.u32 %r2, %t, 4, %r3; st.shared.u32 [%r2+-128], %t; bar.arrive 3, 64; bra END;
    CONSUME: bar.sync 3, 64; mad.lo.u32 %r2, %t, 4, %r3; ld.shared.u32 %r5, [%r2]; st.global.u32 [%d1], %r5;
    END:"""
    )
    report = go(body, threads=64, shared=128, seed=seed)
    assert report.faults == []
    assert (report.tensors["out"] == np.arange(32, 64)).all()


def test_diverged_lanes_meet_at_a_shuffle() -> None:
    body = (
        AT
        + """and.b32 %r1, %t, 1; setp.eq.u32 %p0, %r1, 0; @%p0 bra EVEN; add.u32 %r2, %t, 100; bra MEET;
    EVEN: add.u32 %r2, %t, 200; MEET: shfl.sync.bfly.b32 %r3, %r2, 1, 31, -1; st.global.u32 [%d1], %r3;"""
    )
    for seed in range(4):
        report = go(body, seed=seed)
        lanes = np.arange(32) ^ 1
        assert report.faults == []
        assert (report.tensors["out"] == np.where(lanes % 2 == 0, lanes + 200, lanes + 100)).all()


def test_a_shuffle_that_half_the_warp_never_reaches() -> None:
    body = "setp.lt.u32 %p0, %t, 16; @%p0 bra L; shfl.sync.bfly.b32 %r3, %t, 1, 31, -1; L: bar.sync 0;"
    report = go(body, checked=False)
    assert kinds(report) == {"divergent"}


def test_a_shuffle_among_half_a_warp() -> None:
    body = (
        AT
        + "mov.u32 %r3, %t; setp.ge.u32 %p0, %t, 16; @%p0 bra L; shfl.sync.down.b32 %r3, %t, 1, 31, 0xffff;"
        + "L: st.global.u32 [%d1], %r3;"
    )
    report = go(body, checked=False)
    assert kinds(report) == {"poison"}, "lane 15 reads lane 16, which its mask does not name"
    report = go(body.replace("shfl.sync.down.b32 %r3, %t, 1, 31", "shfl.sync.bfly.b32 %r3, %t, 1, 31"), checked=False)
    assert report.faults == []


def test_a_thread_that_its_mask_does_not_name() -> None:
    assert "divergent" in kinds(go("shfl.sync.bfly.b32 %r3, %t, 1, 31, 0xff;", checked=False))


def test_endless_loops_end() -> None:
    report = go("L: bra L;", checked=False, limits=Limits(instructions=1000))
    assert kinds(report) == {"limit"}


def test_spinning_on_a_flag_of_another_warp() -> None:
    body = """setp.ge.u32 %p0, %t, 32; @%p0 bra SET; WAIT: ld.relaxed.gpu.global.u32 %r1, [%a1];
    setp.eq.u32 %p1, %r1, 0; @%p1 bra WAIT; ret; SET: st.relaxed.gpu.global.u32 [%a1], 1;"""
    tensors = {"source": IN, "out": np.zeros(1, np.uint32)}
    for seed in (0, 1):
        assert go(body, tensors=tensors, out=(), threads=64, seed=seed).faults == []


def test_the_same_seed_gives_the_same_launch() -> None:
    body = EXCHANGE.replace("{flip}", "33").replace("{sync}", "")
    for seed in (0, 5):
        first, second = (go(body, tensors=WIDE, threads=64, shared=256, seed=seed) for _ in range(2))
        assert (first.tensors["out"] == second.tensors["out"]).all()
        assert [str(fault) for fault in first.faults] == [str(fault) for fault in second.faults]
        assert first.statistics["steps"] == second.statistics["steps"]


# --- what is not known
@pytest.mark.parametrize(
    "body",
    [
        "frobnicate.u32 %r0, %r1;",
        "add.u32.banana %r0, %r1, %r2;",
        "add.rn.u32 %r0, %r1, %r2;",
        "ld.global.L1::sometimes.u32 %r0, [%a0];",
        "mov.u32 %r0, %envreg3;",
        "add.u32 %r0, %r1;",
        "setp.approx.u32 %p0, %r0, %r1;",
        "mov.u64 %d0, nothing;",
        "add.u64 %d0, %r0, %d1;",
        "shfl.up.b32 %r0, %r1, 1, 31;",
        ".frame %r0;",
        "cvt.f16.f32 %h0, %r0;",
    ],
)
def test_what_is_unknown_is_refused_with_its_line(body: str) -> None:
    text = program(body, ["source"])
    with pytest.raises(UnsupportedPtx) as caught:
        launch(text, {"source": IN})
    assert text.splitlines()[caught.value.line - 1].strip() == body


def test_locations_reach_faults() -> None:
    body = f"{AT}\n.loc 1 17 0\nld.global.u32 %r0, [%d0+4];\n.loc 1 18 0\nst.global.u32 [%d1], %t;"
    fault = go(body).faults[0]
    assert (fault.kind, fault.tir_line) == ("bounds", 17)


def test_scopes_rename_registers_and_labels() -> None:
    body = f"""{AT} mov.u32 %r0, 1;
    {{ .reg .b32 x; mov.u32 x, 5; setp.ge.u32 %p0, %t, 16; @%p0 bra DONE; mov.u32 x, 6; DONE: add.u32 %r0, %r0, x; }}
    {{ .reg .b32 x; mov.u32 x, 10; setp.ge.u32 %p0, %t, 8; @%p0 bra DONE; mov.u32 x, 20; DONE: add.u32 %r0, %r0, x; }}
    st.global.u32 [%d1], %r0;"""
    lane = np.arange(32)
    report = go(body)
    assert (report.tensors["out"] == 1 + np.where(lane < 16, 6, 5) + np.where(lane < 8, 20, 10)).all()


def test_initialised_variables_and_indexed_branches() -> None:
    text = program(
        """mad.wide.u32 %d1, %t, 4, %a0; and.b32 %r0, %t, 3;
    TABLE: .branchtargets A, B, C, D;
    brx.idx %r0, TABLE;
    A: mov.u32 %r1, 100; bra END; B: mov.u32 %r1, 200; bra END; C: mov.u32 %r1, 300; bra END; D: mov.u32 %r1, 400;
    END: mad.wide.u32 %d2, %r0, 4, 0; mov.u64 %d3, numbers; add.u64 %d3, %d3, %d2; ld.const.u32 %r2, [%d3];
    add.u32 %r1, %r1, %r2; st.global.u32 [%d1], %r1;""",
        ["out"],
        globals_=".const .align 4 .u32 numbers[4] = {1, 2, 0x30, 4};",
    )
    report = launch(text, {"out": OUT}, out=("out",))
    assert report.faults == []
    assert report.tensors["out"].tolist() == [101, 202, 348, 404] * 8


def test_parameters_in_order_and_alignment() -> None:
    text = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .u32 a, .param .u64 b, .param .align 8 .b8 c[12], .param .f32 e) { ret; }"""
    function = parse(text).functions["k"]
    assert [(p.offset, p.size) for p in function.parameters] == [(0, 4), (8, 8), (16, 12), (28, 4)]
