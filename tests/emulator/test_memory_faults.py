"""Each fault that the emulator knows, in a small program, and a correct twin that gives no report."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.tiny import AT, IN, OUT, go, kinds, launch, program
from tilec.emulator import Limits, Memory, UnsupportedPtx, parse, run


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
    """16 elements, every other word of 31: all written, one missing, or one of the gaps written."""
    text = program(f"mad.wide.u32 %d1, %t, {step}, %a0; setp.lt.u32 %p0, %t, {count}; @%p0 st.global.u32 [%d1], %t;", ["out"])
    memory = Memory()
    required = np.repeat(np.arange(31) % 2 == 0, 4)
    allocation = memory.allocate("out", np.zeros(31, np.uint32), initialised=False, checked=True, required=required)
    report = run(parse(text), "k", (1,), (32,), [allocation], memory)
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


HALVES = {
    "the low half": ("mov.b64 %d5, {%t, %r9}; mov.b64 {%r2, _}, %d5;", True),
    "the high half": ("mov.b64 %d5, {%r9, %t}; mov.b64 {_, %r2}, %d5;", True),
    "the low half, cut off": ("mov.b64 %d5, {%t, %r9}; cvt.u32.u64 %r2, %d5;", True),
    "through another register": ("mov.b64 %d5, {%t, %r9}; mov.b64 %d6, %d5; mov.b64 {%r2, %r3}, %d6;", True),
    "two bytes of four": ("cvt.u16.u32 %h0, %t; mov.b32 %r5, {%h0, %h9}; mov.b32 {%h1, %h2}, %r5; cvt.u32.u16 %r2, %h1;", True),
    "in some lanes": ("setp.lt.u32 %p1, %t, 9; @%p1 mov.u32 %r9, 0; mov.b64 %d5, {%t, %r9}; mov.b64 {%r2, _}, %d5;", True),
    "the other half": ("mov.b64 %d5, {%t, %r9}; mov.b64 {_, %r2}, %d5;", False),
    "the other half, low": ("mov.b64 %d5, {%r9, %t}; mov.b64 {%r2, _}, %d5;", False),
    "the other half, cut off": ("mov.b64 %d5, {%r9, %t}; cvt.u32.u64 %r2, %d5;", False),
    "both": ("mov.b64 %d5, {%r9, %r9}; mov.b64 {%r2, _}, %d5;", False),
    "after arithmetic": ("mov.b64 %d5, {%r9, %t}; add.u64 %d6, %d5, 1; mov.b64 {_, %r2}, %d6;", False),
    "after a choice": ("mov.b64 %d5, {%t, %r9}; mov.b64 %d6, %d5; setp.lt.u32 %p1, %r9, 3; selp.b64 %d7, %d5, %d6, %p1;"
                       "mov.b64 {%r2, _}, %d7;", False),
    "under a guard": ("mov.b64 %d5, {%t, %r9}; mov.b64 %d6, 0; @%p9 mov.b64 %d6, %d5; mov.b64 {%r2, _}, %d6;", False),
    "written next to it": ("mov.b64 %d5, {%t, %r9}; mov.b64 {%r2, %r3}, %d5; add.u32 %r2, %r2, %r3;", False),
    "a pack of packs": ("cvt.u16.u32 %h0, %t; mov.b64 %d5, {%h0, %h9, %h0, %h0}; mov.b64 {%r2, _}, %d5;", False),
}  # fmt: skip


@pytest.mark.parametrize("name", HALVES)
def test_half_a_register_is_defined(name: str) -> None:
    """LLVM packs a value next to an undefined one and unpacks it again: only a use of the undefined half is wrong."""
    body, fine = HALVES[name]
    report = go(f"{AT} {body} st.global.u32 [%d1], %r2;")
    assert kinds(report) == (set() if fine else {"poison"})


def test_half_a_register_is_stored_as_whole_poison() -> None:
    body = f"""{AT} mov.b64 %d5, {{%t, %r9}}; mad.lo.u32 %r2, %t, 8, 0; mov.u32 %r3, smem; add.u32 %r2, %r2, %r3;
    st.shared.b64 [%r2], %d5; ld.shared.u32 %r4, [%r2+4]; st.global.u32 [%d1], %r4;"""
    assert kinds(go(body, shared=512)) == {"poison"}


def test_poison_travels_through_memory() -> None:
    body = f"""{AT} mad.lo.u32 %r2, %t, 4, 0; mov.u32 %r3, smem; add.u32 %r2, %r2, %r3; st.shared.u32 [%r2], %r9;
    ld.shared.u32 %r4, [%r2]; st.global.u32 [%d1], %r4;"""
    report = go(body, shared=128)
    assert kinds(report) == {"poison"}
    assert "st.global" in report.faults[0].instruction


def test_noncoherent_reads_of_what_the_launch_writes() -> None:
    tensors = {"data": np.zeros(64, np.uint32)}
    body = "mad.wide.u32 %d0, %t, 4, %a0; ld.global.nc.u32 %r0, [%d0{}]; st.global.u32 [%d0], %r0;"
    assert "non-coherent" in kinds(launch(program(body.format(""), ["data"]), tensors))
    assert kinds(launch(program(body.format("+128"), ["data"]), tensors)) == set()


@pytest.mark.parametrize(
    ("load", "resident", "found"),
    [
        ("ld.global.nc.u32", (), {"non-coherent"}),
        ("ldu.global.u32", (), {"non-coherent"}),
        ("ld.global.u32", (), set()),
        ("ld.global.nc.u32", ("source",), set()),
    ],
)
def test_noncoherent_reads_of_what_only_the_launch_before_writes(load: str, resident: tuple[str, ...], found: set[str]) -> None:
    """This launch only reads the tensor; the previous one, which may still be running, may write it."""
    body = f"griddepcontrol.wait; {AT} {load} %r0, [%d0]; st.global.u32 [%d1], %r0;"
    assert kinds(go(body, overlaps=True, resident=resident)) == found
    assert kinds(go(body, resident=resident)) == set()


# --- grid dependency wait
def test_a_barrier_that_some_threads_skip() -> None:
    body = "setp.lt.u32 %p0, %t, 32; @%p0 bra L; bar.sync 0; L: bar.sync 1;"
    report = go(body, threads=64, checked=False)
    fault = report.faults[0]
    assert fault.kind == "deadlock"
    assert "0-31" in fault.message and "32-63" in fault.message


def test_a_barrier_whose_threads_exit_before_it() -> None:
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


def test_diverged_lanes_synchronize_at_a_shuffle() -> None:
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


# --- unknown
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


def test_bytes_that_a_load_declares_unused() -> None:
    """The upper half of the word is uninitialized: only a program that uses it is wrong."""
    body = f"""{AT} setp.eq.u32 %p0, %t, 0; @%p0 st.shared.u16 [smem], 7; bar.sync 0;
    .pragma "used_bytes_mask 0x3";
    ld.shared.u32 %r0, [smem]; """
    right = go(body + "and.b32 %r0, %r0, 0xffff; st.global.u32 [%d1], %r0;", shared=16)
    assert right.faults == [] and (right.tensors["out"] == 7).all()
    wrong = go(body + "st.global.u32 [%d1], %r0;", shared=16)
    assert (wrong.tensors["out"] == 0xA5A50007).all()
    without = go(body.replace(".pragma", "//") + "st.global.u32 [%d1], %r0;", shared=16)
    assert "uninitialised" in kinds(without)
    several = body.replace("0x3", "0x13").replace("u32 %r0, [smem]", "v2.b32 {%r0, %r1}, [smem]")
    report = go(several + "and.b32 %r0, %r0, 0xffff; st.global.u32 [%d1], %r0;", shared=16)
    assert report.faults == [], "a word that is dropped"
