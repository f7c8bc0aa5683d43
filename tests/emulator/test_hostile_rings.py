"""A producer warp fills shared memory for two consumer warps, which read the same words and release it, phase by phase: with
mbarriers or named barriers, filled by stores or by bulk copies. The correct program gives no report; each wait or arrival that
is removed, moved or misnamed is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.emulator.tiny import kinds, launch, program
from tilec.emulator import Report

TURNS = 5
BEGIN = """
mov.u32 %r0, smem; and.b32 %r1, %t, 31; mad.lo.u32 %r2, %r1, 4, %r0; add.u32 %r3, %r0, 512; add.u32 %r4, %r0, 520;
setp.eq.u32 %p0, %t, 0; setp.eq.u32 %p1, %r1, 0; mov.u32 %r6, 0; mov.u32 %r9, 0;
@%p0 mbarrier.init.shared::cta.b64 [%r3], {full}; @%p0 mbarrier.init.shared::cta.b64 [%r4], {empty};
@%p0 fence.mbarrier_init.release.cluster; bar.sync 0; setp.ge.u32 %p2, %t, 32; @%p2 bra C;
"""
LOOP = BEGIN + """
P: and.b32 %r7, %r6, 1; xor.b32 %r8, %r7, 1; {wait_empty} {fill} {ready}
add.u32 %r6, %r6, 1; setp.lt.u32 %p4, %r6, 5; @%p4 bra P; bra E;
C: {early} L: and.b32 %r7, %r6, 1; {wait_full} ld.shared.u32 %r5, [%r2]; {work} {done}
add.u32 %r9, %r9, %r5; add.u32 %r6, %r6, 1; setp.lt.u32 %p4, %r6, 5; @%p4 bra L;
cvt.u64.u32 %d0, %t; mad.wide.u32 %d1, %t, 4, %a1; st.global.u32 [%d1+-128], %r9; E:
"""  # fmt: skip
WAIT = "{0}: mbarrier.try_wait.parity.shared::cta.b64 %p3, [{1}], {2}; @!%p3 bra {0};"
EMPTY, FULL = WAIT.format("WE", "%r4", "%r8"), WAIT.format("WF", "%r3", "%r7")
ARRIVE_FULL, ARRIVE_EMPTY = "mbarrier.arrive.shared::cta.b64 _, [%r3];", "mbarrier.arrive.shared::cta.b64 _, [%r4];"
LOAD = "mad.lo.u32 %r10, %r6, 32, %r1; mad.wide.u32 %d2, %r10, 4, %a0; ld.global.u32 %r11, [%d2];"
STORES: dict[str, Any] = {
    "full": 32, "empty": 64, "wait_empty": EMPTY, "fill": LOAD + "st.shared.u32 [%r2], %r11;", "ready": ARRIVE_FULL,
    "wait_full": FULL, "work": "", "done": ARRIVE_EMPTY, "early": "",
}  # fmt: skip
COPIES = STORES | {
    "full": 1, "ready": "",
    "fill": "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 128; mad.wide.u32 %d2, %r6, 128, %a0;"
    "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d2], 128, [%r3];",
}  # fmt: skip
NAMED = STORES | {
    "wait_empty": "bar.sync 2, 96;", "ready": "bar.arrive 1, 96;", "wait_full": "bar.sync 1, 96;",
    "done": "setp.lt.u32 %p5, %r6, 4; @%p5 bar.arrive 2, 96;", "early": "bar.arrive 2, 96;",
}  # fmt: skip
FLIPPED = WAIT.format("WE", "%r4", "%r7")
ELECTED = "@%p1 " + ARRIVE_EMPTY
RIGHT: dict[str, dict[str, Any]] = {
    "stores": STORES,
    "copies": COPIES,
    "named barriers": NAMED,
    "one lane arrives for its warp": STORES | {"empty": 2, "done": "bar.warp.sync -1;" + ELECTED},
    "one lane arrives for its warp, copies": COPIES | {"empty": 2, "done": "bar.warp.sync -1;" + ELECTED},
    "all read one word": COPIES | {"work": "ld.shared.u32 %r5, [%r0];"},
    "one lane of each warp reads": STORES | {"empty": 2, "work": "@%p1 ld.shared.u32 %r12, [%r0+64]; bar.warp.sync -1;",
                                             "done": ELECTED},
}  # fmt: skip
WRONG: dict[str, tuple[dict[str, Any], set[str]]] = {
    "the producer does not wait": (STORES | {"wait_empty": ""}, {"race", "deadlock"}),
    "the producer waits for the phase before": (STORES | {"wait_empty": FLIPPED}, {"deadlock"}),
    "the producer is one phase ahead": (STORES | {
        "wait_empty": "sub.u32 %r8, %r6, 1; and.b32 %r8, %r8, 1; setp.eq.u32 %p5, %r6, 0;"
        "@%p5 bra S; xor.b32 %r8, %r8, 1;" + EMPTY + "S:"}, {"race", "deadlock"}),
    "one warp of two hands back": (STORES | {"empty": 32, "done": "setp.lt.u32 %p5, %t, 64; @%p5 " + ARRIVE_EMPTY}, {"race"}),
    "they hand back before they read": (STORES | {"wait_full": FULL + ARRIVE_EMPTY, "done": ""}, {"race"}),
    "one lane arrives, the warp is not asked": (STORES | {"empty": 2, "done": ELECTED}, {"race"}),
    "nobody hands back": (STORES | {"done": ""}, {"deadlock"}),
    "too many hand back": (STORES | {"empty": 32}, {"race", "mbarrier", "deadlock"}),
    "a read after handing back": (STORES | {"done": ARRIVE_EMPTY + "ld.shared.u32 %r12, [%r2];"}, {"race"}),
    "consumers do not wait": (STORES | {"wait_full": ""}, {"race"}),
    "copies over what is read": (COPIES | {"wait_empty": ""}, {"race", "async"}),
    "copies, one warp of two hands back": (
        COPIES | {"empty": 32, "done": "setp.lt.u32 %p5, %t, 64; @%p5 " + ARRIVE_EMPTY}, {"race", "async"}),
    "copies, a read after handing back": (COPIES | {"done": ARRIVE_EMPTY + "ld.shared.u32 %r12, [%r2];"}, {"race", "async"}),
    "named: handed back before the read": (
        NAMED | {"wait_full": "bar.sync 1, 96; setp.lt.u32 %p5, %r6, 4; @%p5 bar.arrive 2, 96;", "done": ""}, {"race"}),
    "named: a read after handing back": (NAMED | {"done": NAMED["done"] + "ld.shared.u32 %r12, [%r2];"}, {"race"}),
    "named: the producer does not wait": (NAMED | {"wait_empty": "", "early": "", "done": ""}, {"race", "barrier"}),
}  # fmt: skip


def go(parts: dict[str, Any], seed: int) -> Report:
    """32 words a phase; each consumer sums its column."""
    source = np.arange(32 * TURNS, dtype=np.uint32) + 3
    text = program(LOOP.format(**parts), ["x", "out"], shared=1024)
    arrays = {"x": source, "out": np.zeros(64, np.uint32)}
    return launch(text, arrays, threads=96, out=("out",), read_only=("x",), shared=1024, seed=seed)


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_ring_is_silent(name: str) -> None:
    column = (np.arange(32 * TURNS, dtype=np.uint32) + 3).reshape(TURNS, 32).sum(axis=0)
    for seed in range(4):
        report = go(RIGHT[name], seed)
        assert not report.faults, report.faults
        expected = np.full(32, column[0]) if "one word" in name else column
        assert report.tensors["out"].tolist() == [*expected, *expected]


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_ring_is_found(name: str) -> None:
    parts, expected = WRONG[name]
    for seed in range(3):
        assert kinds(go(parts, seed)) & expected, seed


@pytest.mark.parametrize("order", ["setp.lt.u32 %p5, %t, 32;", "setp.ge.u32 %p5, %t, 32;"])
def test_accesses_of_a_thread_after_its_arrival_are_ordered_before_nobody(order: str) -> None:
    """The other warp reaches the named barrier before the arriving one, or after it."""
    body = (
        f"mov.u32 %r0, smem; and.b32 %r1, %t, 31; mad.lo.u32 %r2, %r1, 4, %r0; {order} @%p5 bra C;"
        "{before} bar.arrive 1, 64; {after} bra E; C: bar.sync 1, 64; ld.shared.u32 %r5, [%r2]; E:"
    )
    store = "st.shared.u32 [%r2], %t;"
    for seed in range(4):
        for before_arrival, after_arrival, expected in ((store, "", set[str]()), ("", store, {"race"})):
            text = program(body.format(before=before_arrival, after=after_arrival), ["x"], shared=1024)
            report = launch(text, {"x": np.zeros(1, np.uint32)}, threads=64, shared=1024, seed=seed)
            assert kinds(report) == expected, (seed, after_arrival)


@pytest.mark.parametrize("writers", ["setp.eq.u32 %p5, %t, 0;", "setp.lt.u32 %p5, %t, 32;"])
def test_those_who_wait_for_a_copy_learn_nothing_of_one_another(writers: str) -> None:
    """Threads write before their wait; the other warp reads after its own."""
    copy = str(COPIES["fill"]).replace("@%p1 ", "")
    body = BEGIN.format(full=1, empty=1).replace("setp.ge.u32 %p2, %t, 32; @%p2 bra C;", "") + (
        f"setp.gt.u32 %p6, %t, 64; @%p6 bra E; setp.eq.u32 %p6, %t, 64; @%p6 bra P; mov.u32 %r7, 0; {writers}"
        f"@%p5 st.shared.u32 [%r2+640], %t; {FULL} setp.lt.u32 %p6, %t, 32; @%p6 bra E; ld.shared.u32 %r5, [%r2+640]; bra E;"
        f"P: {copy} E:"
    )
    text = program(body, ["x"], shared=1024)
    for seed in range(4):
        report = launch(text, {"x": np.zeros(32, np.uint32)}, threads=96, read_only=("x",), shared=1024, seed=seed)
        racing = [fault for fault in report.faults if fault.kind == "race"]
        assert sum(fault.count for fault in racing) == (1 if "eq" in writers else 32), report.faults
