"""`clusterlaunchcontrol`: every block is done once whatever is answered, and each violated rule is named."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.cluster_programs import SHARED, THREADS, messages
from tests.emulator.tiny import kinds, launch, program
from tilec.emulator import Report

SEEDS = range(4)
REGISTERS = ".reg .b128 %q<4>;"
START = """
mov.u32 %r0, smem;
add.u32 %r1, %r0, 1024;
mov.u32 %r9, %ctaid.x;
mov.u32 %r11, 0;
setp.eq.u32 %p0, %t, 0;
mov.u32 %r2, %cluster_ctarank;
setp.eq.u32 %p1, %r2, 0;
and.pred %p2, %p0, %p1;
@%p0 mbarrier.init.shared::cta.b64 [%r1], 1;
@%p0 fence.mbarrier_init.release.cluster;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
"""
WORK = f"""
mad.lo.u32 %r10, %r9, {THREADS}, %t;
mad.wide.u32 %d0, %r10, 4, %a0;
red.relaxed.gpu.global.add.u32 [%d0], 1;
"""
ASK = """
@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 16;
@%p0 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r0], [%r1];
"""
WAIT = """
WAIT{n}: mbarrier.try_wait.parity.shared::cta.b64 %p5, [%r1], %r11;
@!%p5 bra WAIT{n};
xor.b32 %r11, %r11, 1;
"""
READ = """
ld.shared.b128 %q0, [%r0];
clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p6, %q0;
"""
REUSE = "fence.proxy.async.shared::cta; bar.sync 0;"
LOOP = """
LOOP:
{ask}
{work}
{wait}
{read}
@!%p6 bra DONE;
clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r9, %q0;
{add}
{reuse}
bra LOOP;
DONE:
{end}
"""


def asked(*, blocks: int = 9, seed: int = 0, cluster: int = 1, **parts: str) -> Report:
    pieces = {"ask": ASK, "work": WORK, "wait": WAIT.format(n=0), "read": READ, "add": "", "reuse": REUSE, "end": ""} | parts
    body = START + LOOP.format(**pieces)
    out = {"out": np.zeros(blocks * THREADS, np.uint32)}
    text = program(body, ["out"], shared=SHARED, target="sm_100a", registers=REGISTERS)
    return launch(text, out, grid=(blocks,), shared=SHARED, seed=seed, cluster=(cluster,))


@pytest.mark.parametrize("seed", range(12))
def test_every_block_is_done_once(seed: int) -> None:
    report = asked(seed=seed)
    assert report.clean, messages(report)
    assert (report.tensors["out"] == 1).all()


def test_seed_0_cancels_and_other_seeds_also_start_blocks_that_are_left() -> None:
    starts = {seed: asked(seed=seed).statistics["opcodes"]["mbarrier.init.shared::cta.b64"] // THREADS for seed in range(12)}
    assert starts[0] == 2
    assert min(starts.values()) < max(starts.values()) <= 9


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "read",
    [
        "ld.shared.v2.b64 {%d1, %d2}, [%r0]; mov.b128 %q0, {%d1, %d2};"
        "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p6, %q0;",
        "ld.shared.b128 %q1, [%r0]; mov.b128 {%d1, %d2}, %q1; mov.b128 %q2, {%d1, %d2}; mov.b128 %q0, %q2;"
        "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p6, %q0;",
        READ + "@%p6 clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r20, %r21, %r22, _}, %q0;"
        "add.u32 %r21, %r21, 1;",
    ],
)
def test_the_answer_may_be_read_in_parts(read: str, seed: int) -> None:
    report = asked(seed=seed, read=read)
    assert report.clean, messages(report)
    assert (report.tensors["out"] == 1).all()


def test_the_first_block_has_three_coordinates() -> None:
    body = (
        START
        + ASK
        + WAIT.format(n=0)
        + READ
        + """
    @!%p6 bra DONE;
    clusterlaunchcontrol.query_cancel.get_first_ctaid::y.b32.b128 %r21, %q0;
    clusterlaunchcontrol.query_cancel.get_first_ctaid::z.b32.b128 %r22, %q0;
    clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r23, %r24, %r25, _}, %q0;
    setp.eq.u32 %p7, %r21, %r24; setp.eq.u32 %p8, %r22, %r25; and.pred %p9, %p7, %p8; and.pred %p9, %p9, %p0;
    mad.lo.u32 %r26, %r25, 3, %r24; mad.lo.u32 %r26, %r26, 2, %r23; mad.wide.u32 %d0, %r26, 4, %a0;
    @%p9 st.global.b32 [%d0], 1;
    DONE:
    """
    )
    text = program(body, ["out"], shared=SHARED, target="sm_100a", registers=REGISTERS)
    out = {"out": np.zeros((2, 3, 2), np.uint32)}
    report = launch(text, out, grid=(2, 3, 2), shared=SHARED)
    assert report.clean, messages(report)
    assert report.tensors["out"].reshape(-1).tolist() == [0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1]  # waves of two, each asks once


MULTICAST = """
@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 16;
@%p2 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.multicast::cluster::all.b128 [%r0], [%r1];
"""
MEET = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"


@pytest.mark.parametrize("seed", range(8))
def test_an_answer_to_the_whole_cluster(seed: int) -> None:
    report = asked(
        blocks=12, seed=seed, cluster=2, ask=MULTICAST, add="add.u32 %r9, %r9, %r2;", end=MEET,
        reuse="fence.proxy.async.shared::cta;" + MEET,
    )  # fmt: skip
    assert report.clean, messages(report)
    assert (report.tensors["out"] == 1).all()


def reused(report: Report) -> bool:
    """Whether some block asked twice; one whose first answer is false does not."""
    counts = report.statistics["opcodes"]
    asks = sum(count for name, count in counts.items() if "try_cancel" in name)
    return asks > counts["mbarrier.init.shared::cta.b64"]


def test_the_next_request_waits_for_readers_in_every_block() -> None:
    for seed in SEEDS:
        report = asked(
            blocks=12, seed=seed, cluster=2, ask=MULTICAST, add="add.u32 %r9, %r9, %r2;", end=MEET, reuse=REUSE,
        )  # fmt: skip
        if reused(report):
            assert kinds(report) & {"race", "async", "proxy"}, messages(report)


def test_reading_before_the_wait_is_found() -> None:
    for seed in SEEDS:
        late = READ + WAIT.format(n=0) + READ
        assert "async" in kinds(asked(seed=seed, wait="", read=late, blocks=3))


def test_the_answer_may_not_be_overwritten_without_a_proxy_fence() -> None:
    for seed in SEEDS:
        for reuse in ("bar.sync 0;", "fence.proxy.async.global; bar.sync 0;"):
            report = asked(seed=seed, reuse=reuse)
            assert kinds(report) == ({"proxy"} if reused(report) else set()), messages(report)
        assert asked(seed=seed, reuse="bar.sync 0; @%p0 fence.proxy.async.shared::cta;").clean


def test_nor_before_all_threads_have_read_it() -> None:
    assert "race" in kinds(asked(reuse="fence.proxy.async.shared::cta;", blocks=9))


AGAIN = """
bar.sync 0;
fence.proxy.async.shared::cta;
bar.sync 0;
""" + ASK + WAIT.format(n=1)  # fmt: skip


def test_asking_again_after_a_false_answer_is_a_fault() -> None:
    for seed in SEEDS:
        report = asked(seed=seed, end=AGAIN)
        assert kinds(report) == {"cluster"} and "false answer" in messages(report), messages(report)


def test_requests_may_be_under_way_together_until_a_false_answer_is_known() -> None:
    second = ASK.replace("[%r0]", "[%r0+16]").replace("[%r1]", "[%r1+8]")
    made = "@%p0 mbarrier.init.shared::cta.b64 [%r1+8], 1; @%p0 fence.mbarrier_init.release.cluster; bar.sync 0;"
    both = f"{made} {ASK} {second}"
    end = "WAIT2: mbarrier.try_wait.parity.shared::cta.b64 %p5, [%r1+8], 0; @!%p5 bra WAIT2;"
    for seed in SEEDS:
        report = asked(blocks=1, seed=seed, ask=both, end=end)
        assert report.clean, messages(report)


def test_a_block_may_not_exit_before_its_answer() -> None:
    for seed in SEEDS:
        report = asked(blocks=2, seed=seed, wait="", read="setp.eq.u32 %p6, %t, 99;")
        assert kinds(report) == {"async"}, messages(report)


def test_the_coordinates_of_a_false_answer_are_undefined() -> None:
    end = """
    clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r9, %q0;
    mad.wide.u32 %d0, %t, 4, %a0;
    bar.sync 0;
    add.u32 %r9, %r9, 1;
    @%p0 st.global.b32 [%d0], %r9;
    """
    report = asked(blocks=1, work="", end=end)
    assert kinds(report) == {"undefined"}, messages(report)


def test_bytes_that_are_no_answer_are_named() -> None:
    end = "mov.u64 %d1, 5; mov.b128 %q1, {%d1, %d1}; clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p7, %q1;"
    assert kinds(asked(blocks=1, end=end)) == {"descriptor"}


@pytest.mark.parametrize("seed", SEEDS)
def test_registers_of_128_bits_move_through_memory(seed: int) -> None:
    body = """
    mad.wide.u32 %d0, %t, 16, %a0; mad.wide.u32 %d1, %t, 16, %a1;
    ld.global.b128 %q0, [%d0];
    mov.b128 {%d2, %d3}, %q0;
    mov.b128 %q1, {%d3, %d2};
    st.global.b128 [%d1], %q1;
    """
    x = np.arange(128, dtype=np.uint32)
    text = program(body, ["x", "out"], registers=REGISTERS, target="sm_100a")
    report = launch(text, {"x": x, "out": np.zeros(128, np.uint32)}, out=("out",), read_only=("x",), seed=seed)
    assert report.clean, messages(report)
    assert (report.tensors["out"].reshape(-1, 2, 2) == x.reshape(-1, 2, 2)[:, ::-1]).all()
