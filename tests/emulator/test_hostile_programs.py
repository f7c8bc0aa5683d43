"""Small adversarial programs: wrong ones that look right, and right ones that look wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.emulator.tiny import launch, program
from tilec.emulator import Report

AT = "mad.wide.u32 %d0, %t, 4, %a0; mad.wide.u32 %d1, %t, 4, %a1; mov.u32 %r30, smem; mad.lo.u32 %r31, %t, 4, %r30;"


def go(body: str, *, threads: int = 32, size: int = 0, out: bool = True, seed: int = 0, **more: Any) -> Report:
    """`x` counts from 0 and is read-only; `out` has one element per thread (or `size` elements)."""
    size = size or threads
    tensors = {"x": np.arange(size, dtype=np.uint32), "out": np.zeros(size, np.uint32)}
    text = program(AT + body, list(tensors), shared=8192)
    options: dict[str, Any] = {"out": ("out",) if out else (), "read_only": ("x",)} | more
    return launch(text, tensors, threads=threads, shared=8192, seed=seed, **options)


def kinds(report: Report) -> set[str]:
    return {fault.kind for fault in report.faults}


END = "st.global.u32 [%d1], %r5;"

WRONG: dict[str, tuple[str, set[str], dict[str, Any]]] = {
    # poison survives arithmetic
    "xor itself": ("xor.b32 %r5, %r9, %r9;" + END, {"poison"}, {}),
    "and zero": ("and.b32 %r5, %r9, 0;" + END, {"poison"}, {}),
    "times zero": ("mul.lo.u32 %r5, %r9, 0;" + END, {"poison"}, {}),
    "selp of one": ("setp.eq.u32 %p1, %r9, %r9; selp.b32 %r5, 1, 1, %p1;" + END, {"poison"}, {}),
    "through shfl": ("shfl.sync.idx.b32 %r5, %r9, 0, 31, -1;" + END, {"poison"}, {}),
    "through vote": ("setp.eq.u32 %p1, %r9, 0; vote.sync.ballot.b32 %r5, %p1, -1;" + END, {"poison"}, {}),
    "through redux": ("redux.sync.add.u32 %r5, %r9, -1;" + END, {"poison"}, {}),
    "a byte through prmt": ("mov.u32 %r8, 7; prmt.b32 %r5, %r8, %r9, 0x3214;" + END, {"poison"}, {}),
    "a byte through two of them": (
        "mov.u32 %r8, 7; prmt.b32 %r6, %r8, %r9, 0x3214; prmt.b32 %r5, %r8, %r6, 0x4321;" + END, {"poison"}, {}),
    "a byte, by truncation and mov": (
        "mov.u32 %r8, 7; prmt.b32 %r6, %r8, %r9, 0x3241; cvt.u16.u32 %h0, %r6; mov.u16 %h1, 0; mov.b32 %r5, {%h1, %h0};" + END,
        {"poison"}, {}),
    "a poisoned selector of prmt": ("mov.u32 %r8, 7; prmt.b32 %r5, %r8, %r8, %r9;" + END, {"poison"}, {}),
    "a byte that bfi keeps": ("bfi.b32 %r5, %t, %r9, 8, 24;" + END, {"poison"}, {}),
    "a byte that bfi inserts": ("bfi.b32 %r5, %r9, %t, 16, 8;" + END, {"poison"}, {}),
    "the byte next to those that bfi inserts": (
        "bfi.b32 %r6, %t, %r9, 8, 16; prmt.b32 %r5, %r6, 0, 0x7773;" + END, {"poison"}, {}),
    "a byte of which bfi inserts a part": (
        "bfi.b32 %r6, %t, %r9, 8, 12; prmt.b32 %r5, %r6, 0, 0x7772;" + END, {"poison"}, {}),
    "bfi of no bits": ("bfi.b32 %r6, %t, %r9, 0, 0; prmt.b32 %r5, %r6, 0, 0x7770;" + END, {"poison"}, {}),
    "bfi at a poisoned position": ("mov.u32 %r8, 7; bfi.b32 %r5, %r8, %r8, %r9, 8;" + END, {"poison"}, {}),
    "one lane defined": ("setp.eq.u32 %p1, %t, 0; @%p1 mov.u32 %r5, 1;" + END, {"poison"}, {}),
    "a poisoned guard": ("mov.u32 %r5, 1; @%p9 mov.u32 %r5, 1;" + END, {"poison"}, {}),
    "through cvt and pack": (
        "cvt.u16.u32 %h0, %r9; mov.u16 %h1, 0; mov.b32 %r5, {%h1, %h0};" + END, {"poison"}, {}),
    "through local memory": (
        ".local .align 8 .b8 frame[8]; mov.u64 %d5, frame; mov.u32 %r6, 3; st.local.u32 [%d5], %r6;"
        "ld.local.u32 %r5, [%d5+4];" + END, {"uninitialised"}, {}),
    "local of another width": (
        ".local .align 8 .b8 frame[8]; mov.u64 %d5, frame; st.local.u8 [%d5], %t; ld.local.u32 %r5, [%d5];" + END,
        {"uninitialised"}, {}),
    "atomic of poison": ("red.shared.add.u32 [%r30], 1; bar.sync 0; ld.shared.u32 %r5, [%r30];" + END, {"uninitialised"}, {}),
    "shared read partly written": (
        "st.shared.u8 [%r31], %t; ld.shared.u32 %r5, [%r31];" + END, {"uninitialised"}, {}),
    "a store of half poison": (
        "mov.u32 %r5, 1; mad.wide.u32 %d5, %t, 8, %a1; st.global.v2.u32 [%d5], {%r5, %r9};", {"poison"}, {"size": 64}),
    "rem by zero as mask": ("mov.u32 %r1, 0; rem.u32 %r5, %t, %r1; and.b32 %r5, %r5, 0;" + END, {"undefined"}, {}),
    # memory
    "vector past the end": (
        "mad.wide.u32 %d5, %t, 4, %a1; mov.u32 %r5, 0; setp.eq.u32 %p1, %t, 7; mad.wide.u32 %d6, %t, 16, %a1;"
        "@%p1 st.global.v4.u32 [%d6], {%r5,%r5,%r5,%r5};", {"bounds"}, {"size": 30, "checked": False}),
    "one byte past the end": ("st.global.u8 [%a1+128], %t;", {"bounds"}, {"checked": False, "threads": 1, "size": 32}),
    "between tensors": ("ld.global.u32 %r5, [%a0+132];" + END, {"bounds", "poison"}, {}),
    "before the tensor": ("ld.global.u32 %r5, [%a0+-4];" + END, {"bounds", "poison"}, {}),
    "misaligned vector": ("ld.global.v2.u32 {%r5, %r6}, [%a0+4];" + END, {"alignment", "poison"}, {}),
    "shared as global": ("ld.global.u32 %r5, [%d9+0];" + END, {"poison"}, {}),
    "generic of a window never opened": (
        "mov.u64 %d5, smem; ld.u32 %r5, [%d5];" + END, {"bounds", "poison"}, {}),
    "out is read first": ("ld.global.u32 %r5, [%d1]; add.u32 %r5, %r5, 1;" + END, {"uninitialised"}, {}),
    "nc of what is written": (
        "st.global.u32 [%d1], %t; ld.global.nc.u32 %r5, [%d1];" + END, {"non-coherent"}, {}),
    "nc of what another thread writes": (
        "setp.eq.u32 %p1, %t, 0; @%p1 ld.global.nc.u32 %r5, [%a1+124]; st.global.u32 [%d1], %t;",
        {"non-coherent", "race"}, {"out": False}),
    "a write by st.v4 over the neighbour": (
        "st.global.u32 [%d1], %t; mov.u32 %r5, 0; setp.eq.u32 %p1, %t, 0;"
        "@%p1 st.global.v4.u32 [%a1], {%r5,%r5,%r5,%r5};", {"race"}, {}),
    "negative shared address": ("sub.u32 %r6, %r30, 4; st.shared.u32 [%r6], %t; mov.u32 %r5, 1;" + END, {"bounds"}, {}),
    "shared past the end": ("st.shared.u32 [%r31+8192], %t; mov.u32 %r5, 1;" + END, {"bounds"}, {}),
    # warps
    "shfl where some are away": (
        "setp.lt.u32 %p1, %t, 16; @%p1 shfl.sync.idx.b32 %r5, %t, 0, 31, -1;" + END, {"divergent"}, {}),
    "shfl from outside the mask": (
        "setp.lt.u32 %p1, %t, 16; @!%p1 bra L; shfl.sync.idx.b32 %r5, %t, 20, 31, 0xffff;" + END + "L:", {"poison"},
        {"checked": False}),
    "a mask without oneself": ("shfl.sync.idx.b32 %r5, %t, 0, 31, 0x7fffffff;" + END, {"divergent"}, {}),
    "vote under divergence": (
        "setp.lt.u32 %p1, %t, 16; @!%p1 bra L; vote.sync.any.pred %p2, %p1, -1; L: mov.u32 %r5, 1;" + END, {"divergent"}, {}),
    "bar.warp.sync of half": (
        "st.shared.u32 [%r31], %t; setp.lt.u32 %p1, %t, 16; @!%p1 bra L; bar.warp.sync 0xffff; L:"
        "xor.b32 %r6, %r31, 64; ld.shared.u32 %r5, [%r6];" + END, {"race", "uninitialised"}, {}),
    "shfl is no barrier": (
        "st.shared.u32 [%r31], %t; shfl.sync.idx.b32 %r7, %t, 0, 31, -1; xor.b32 %r6, %r31, 4;"
        "ld.shared.u32 %r5, [%r6];" + END, {"race"}, {}),
    # barriers
    "some leave before the barrier": (
        "mov.u32 %r5, 1;" + END + "setp.lt.u32 %p1, %t, 32; @%p1 ret; bar.sync 0;", {"barrier"}, {"threads": 64}),
    "half of a warp waits": (
        "mov.u32 %r5, 1;" + END + "setp.lt.u32 %p1, %t, 16; @%p1 bra L; bar.sync 0; L:", {"deadlock"}, {}),
    "count too large": ("mov.u32 %r5, 1;" + END + "bar.sync 1, 96;", {"deadlock"}, {"threads": 64}),
    "count too small": (  # two phases of one barrier, so no order between the warps
        "mov.u32 %r5, 1;" + END + "bar.sync 1, 32; bar.sync 0;"
        "st.shared.u32 [%r31], %t; bar.sync 1, 32; xor.b32 %r6, %r31, 128; ld.shared.u32 %r7, [%r6];",
        {"race", "barrier"}, {"threads": 64}),
    "one barrier for two unordered warps": (
        "st.shared.u32 [%r31], %t; bar.sync 1, 32; xor.b32 %r6, %r31, 64; ld.shared.u32 %r5, [%r6];" + END, {"barrier"},
        {"threads": 96}),
    "one barrier for two unordered pairs of warps": (
        "st.shared.u32 [%r31], %t; bar.sync 1, 64; mov.u32 %r5, 3;" + END, {"barrier"}, {"threads": 128}),
    "one barrier for a warp that arrives twice": (
        "mov.u32 %r5, 1;" + END + "setp.lt.u32 %p1, %t, 32; @%p1 bra A; bar.sync 1, 64; bar.sync 1, 64; bra E;"
        "A: bar.arrive 1, 64; bar.arrive 1, 64; E:", {"barrier"}, {"threads": 64}),
    "bar.red past the last barrier": (
        "setp.lt.u32 %p1, %t, 40; bar.red.popc.u32 %r5, 17, %p1;" + END, {"barrier"}, {"threads": 64}),
    "bar.red on different barriers": (
        "mov.u32 %r5, 1;" + END + "shr.u32 %r7, %t, 5; setp.lt.u32 %p1, %t, 40; bar.red.popc.u32 %r5, %r7, %p1;", {"deadlock"},
        {"threads": 64}),
    "bar.red and bar.sync on one barrier": (
        "mov.u32 %r5, 1;" + END + "setp.lt.u32 %p1, %t, 32; @%p1 bra A; bar.red.popc.u32 %r5, 1, %p1; bra E;"
        "A: bar.sync 1; E:", {"barrier"}, {"threads": 64}),
    "bar.red of an undefined predicate": (
        "bar.red.popc.u32 %r5, 0, %p9;" + END, {"poison"}, {"threads": 64}),
    "counts that differ": (
        "mov.u32 %r5, 1;" + END + "setp.lt.u32 %p1, %t, 32; @%p1 bra A; bar.sync 1, 64; bra E;"
        "A: bar.sync 1, 96; E:", {"barrier", "deadlock"}, {"threads": 64}),
    "counts that differ in one step": (
        "mov.u32 %r5, 1;" + END + "setp.lt.u32 %p1, %t, 32; selp.u32 %r6, 32, 64, %p1; bar.sync 1, %r6;",
        {"barrier", "deadlock"}, {"threads": 64}),
    "different barriers": (
        "mov.u32 %r5, 1;" + END + "setp.lt.u32 %p1, %t, 32; @%p1 bra A; bar.sync 1; bra E; A: bar.sync 2; E:",
        {"deadlock"}, {"threads": 64}),
    "arrive orders nothing for itself": (
        "mov.u32 %r5, 1;" + END + "st.shared.u32 [%r31], %t; setp.lt.u32 %p1, %t, 32; @%p1 bra A;"
        "bar.sync 1, 64; bra E; A: bar.arrive 1, 64; xor.b32 %r6, %r31, 128; ld.shared.u32 %r7, [%r6]; E:", {"race"},
        {"threads": 64}),
    "a barrier in one arm only": (
        "mov.u32 %r5, 1;" + END + "setp.lt.u32 %p1, %t, 32; @%p1 bra E; bar.sync 0; E:", {"barrier"}, {"threads": 64}),
    "two trips against one": (
        "mov.u32 %r5, 1;" + END + "setp.lt.u32 %p1, %t, 32; bar.sync 0; @%p1 bra E; bar.sync 0; E:", {"barrier"},
        {"threads": 64}),
    # asynchronous copies
    "wait_group counts from the youngest": (
        "mad.lo.u32 %r1, %t, 16, %r30; mov.u64 %d5, %a0; cp.async.cg.shared.global [%r1], [%d5], 16;"
        "cp.async.commit_group; cp.async.cg.shared.global [%r1+512], [%d5], 16; cp.async.commit_group;"
        "cp.async.wait_group 1; ld.shared.u32 %r5, [%r1+512];" + END, {"async", "uninitialised"}, {}),
    "wait before commit": (
        "mad.lo.u32 %r1, %t, 16, %r30; cp.async.cg.shared.global [%r1], [%a0], 16; cp.async.wait_group 0;"
        "ld.shared.u32 %r5, [%r1];" + END, {"async", "uninitialised"}, {}),
    "overwritten in flight": (
        "mad.lo.u32 %r1, %t, 16, %r30; cp.async.cg.shared.global [%r1], [%a0], 16; cp.async.commit_group;"
        "st.shared.u32 [%r1], %t; cp.async.wait_group 0; mov.u32 %r5, 1;" + END, {"async"}, {}),
    "a thread leaves under its copy, another looks": (
        "mov.u32 %r5, 1;" + END + "st.shared.u32 [%r31], %t; setp.ge.u32 %p1, %t, 32; @%p1 bra L;"
        "cp.async.ca.shared.global [%r31], [%d0], 4; ret; L: nanosleep.u32 9; sub.u32 %r6, %r31, 128;"
        "ld.shared.u32 %r7, [%r6];",
        {"async"}, {"threads": 64}),
    "two copies to one place": (
        "cp.async.ca.shared.global [%r30], [%d0], 4; cp.async.wait_all; mov.u32 %r5, 1;" + END, {"race"}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong(name: str) -> None:
    body, expected, options = WRONG[name]
    found = kinds(go(body, **options))
    assert found & expected, found
    assert found <= expected | {"race", "unwritten", "poison", "uninitialised"}, found


RIGHT: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "bytes packed with undefined ones, of which none is stored": (
        "prmt.b32 %r6, %r9, %t, 0x4340; prmt.b32 %r7, %t, %r6, 0x7410; prmt.b32 %r5, %r7, %t, 0x3744; prmt.b32 %r5, %r5, %t,"
        "0x5563;" + END, list(range(32)), {}),
    "prmt that selects no byte of an undefined operand": (
        "prmt.b32 %r5, %t, %r9, 0x0123; prmt.b32 %r5, %r9, %r5, 0x4567;" + END, list(range(32)), {}),
    "bytes that bfi inserts into an undefined register": (
        "bfi.b32 %r6, %t, %r9, 16, 8; bfi.b32 %r6, 5, %r6, 8, 8; prmt.b32 %r5, %r6, 0, 0x7712;" + END,
        [5 << 8 | t for t in range(32)], {}),
    "bfi of the defined bytes of a register": (
        "prmt.b32 %r6, %t, %r9, 0x4440; bfi.b32 %r5, %r6, 0, 24, 8; prmt.b32 %r5, %r5, 0, 0x7773;" + END, list(range(32)), {}),
    "halves of 64 bits by bfi": (
        "cvt.u64.u32 %d2, %t; bfi.b64 %d3, %d2, %d9, 32, 32; mov.b64 {%r6, %r5}, %d3;" + END, list(range(32)), {}),
    "shfl up in segments": (
        "shfl.sync.up.b32 %r5|%p1, %t, 1, 0x1800, -1; selp.b32 %r5, %r5, 99, %p1;" + END,
        [99 if t % 8 == 0 else t - 1 for t in range(32)], {}),
    "shfl down past the clamp": (
        "shfl.sync.down.b32 %r5|%p1, %t, 3, 0x1c03, -1;" + END, [t + 3 if t % 4 + 3 <= 3 else t for t in range(32)], {}),
    "shfl bfly in halves": (
        "shfl.sync.bfly.b32 %r5|%p1, %t, 24, 0x100f, -1;" + END,
        [t ^ 24 if t ^ 24 <= (t & 16 | 15) else t for t in range(32)], {}),
    "shfl idx in segments": (
        "shfl.sync.idx.b32 %r5, %t, 9, 0x181f, -1;" + END, [t // 8 * 8 + 1 for t in range(32)], {}),
    "shfl of the lower half": (
        "mov.u32 %r5, 7; setp.lt.u32 %p1, %t, 16; @%p1 shfl.sync.bfly.b32 %r5, %t, 1, 31, 0xffff;" + END,
        [t ^ 1 if t < 16 else 7 for t in range(32)], {}),
    "match": (
        "shr.u32 %r6, %t, 2; match.any.sync.b32 %r5, %r6, -1;" + END, [15 << t // 4 * 4 for t in range(32)], {}),
    "ballot of the negation": (
        "setp.lt.u32 %p1, %t, 8; vote.sync.ballot.b32 %r5, !%p1, -1;" + END, [0xFFFFFF00] * 32, {}),
    "trip counts differ": (
        "mov.u32 %r5, 0; mov.u32 %r6, 0; L: setp.ge.u32 %p1, %r6, %t; @%p1 bra E; add.u32 %r5, %r5, %r6; add.u32 %r6, %r6, 1;"
        "bra L; E:" + END, [t * (t - 1) // 2 for t in range(32)], {}),
    "nested branches that meet": (
        "mov.u32 %r5, 0; and.b32 %r6, %t, 1; setp.eq.u32 %p1, %r6, 0; @%p1 bra A; and.b32 %r6, %t, 2; setp.eq.u32 %p2, %r6, 0;"
        "@%p2 bra B; mov.u32 %r5, 3; bra E; B: mov.u32 %r5, 2; bra E; A: mov.u32 %r5, 1; E: bar.warp.sync -1;"
        "shfl.sync.bfly.b32 %r5, %r5, 1, 31, -1;" + END, [[2, 1, 3, 1][t % 4] for t in range(32)], {}),
    "early exit and the others go on": (
        "mov.u32 %r5, 1;" + END + "setp.lt.u32 %p1, %t, 8; @%p1 ret; vote.sync.ballot.b32 %r5, 1, 0xffffff00;" + END,
        [1] * 8 + [0xFFFFFF00] * 24, {}),
    "a warp that leaves, a barrier of the rest": (
        "mov.u32 %r5, %t;" + END + "setp.ge.u32 %p1, %t, 64; @%p1 ret; st.shared.u32 [%r31], %t; bar.sync 1, 64;"
        "xor.b32 %r6, %r31, 128; ld.shared.u32 %r5, [%r6];" + END, [t ^ 32 if t < 64 else t for t in range(96)],
        {"threads": 96}),
    "producers arrive, consumers wait": (
        "mov.u32 %r5, 5; setp.lt.u32 %p1, %t, 32; @!%p1 bra C; st.shared.u32 [%r31], %t; bar.arrive 1, 64; bra E;"
        "C: bar.sync 1, 64; sub.u32 %r6, %r31, 128; ld.shared.u32 %r5, [%r6]; E:" + END,
        [5] * 32 + list(range(32)), {"threads": 64}),
    "a barrier for each warp": (
        "st.shared.u32 [%r31], %t; shr.u32 %r7, %t, 5; bar.sync %r7, 32; xor.b32 %r6, %r31, 64; ld.shared.u32 %r5, [%r6];"
        "bar.sync %r7, 32;" + END, [t ^ 16 for t in range(96)], {"threads": 96}),
    "one barrier for each warp in turn": (
        "mov.u32 %r5, 3; setp.lt.u32 %p1, %t, 32; @!%p1 bra B; bar.sync 1, 32; B: bar.sync 0; @%p1 bra E; bar.sync 1, 32; E:"
        + END, [3] * 64, {"threads": 64}),
    "two warps that arrive in turn": (
        "mov.u32 %r5, 3; setp.lt.u32 %p1, %t, 32; @%p1 bra A; bar.sync 1, 64; bar.arrive 2, 64; bar.sync 1, 64; bra E;"
        "A: bar.arrive 1, 64; bar.sync 2, 64; bar.arrive 1, 64; E:" + END, [3] * 64, {"threads": 64}),
    "bar.red": (
        "setp.lt.u32 %p1, %t, 40; bar.red.popc.u32 %r5, 0, !%p1;" + END, [24] * 64, {"threads": 64}),
    "bar.red again and again": (
        "mov.u32 %r5, 0; mov.u32 %r6, 0; L: setp.lt.u32 %p1, %t, %r6; bar.red.popc.u32 %r7, 15, %p1; add.u32 %r5, %r5, %r7;"
        "add.u32 %r6, %r6, 1; setp.lt.u32 %p2, %r6, 5; @%p2 bra L;" + END, [10] * 64, {"threads": 64}),
    "bar.red of half the block": (
        "shr.u32 %r7, %t, 6; add.u32 %r7, %r7, 1; setp.lt.u32 %p1, %t, 72; bar.red.popc.u32 %r5, %r7, 64, %p1;" + END,
        [64] * 64 + [8] * 64, {"threads": 128}),
    "bar.red and, or": (
        "setp.lt.u32 %p1, %t, 63; bar.red.and.pred %p2, 1, %p1; bar.red.or.pred %p3, 1, !%p1; selp.u32 %r5, 1, 0, %p2;"
        "selp.u32 %r6, 2, 0, %p3; add.u32 %r5, %r5, %r6;" + END, [2] * 64, {"threads": 64}),
    "bar.red in two places": (
        "setp.lt.u32 %p1, %t, 32; setp.lt.u32 %p2, %t, 40; @%p1 bra A; bar.red.popc.u32 %r5, 3, %p2; bra E;"
        "A: bar.red.popc.u32 %r5, 3, %p2; add.u32 %r5, %r5, 100; E:" + END, [140] * 32 + [40] * 32, {"threads": 64}),
    "bar.red orders memory": (
        "st.shared.u32 [%r31], %t; setp.lt.u32 %p1, %t, 40; bar.red.popc.u32 %r5, 2, %p1; xor.b32 %r6, %r31, 128;"
        "ld.shared.u32 %r5, [%r6];" + END, [t ^ 32 for t in range(64)], {"threads": 64}),
    "a guard that all share": (
        "st.shared.u32 [%r31], %t; setp.eq.u32 %p1, %r30, %r30; @%p1 bar.sync 0; xor.b32 %r6, %r31, 128;"
        "ld.shared.u32 %r5, [%r6];" + END, [t ^ 32 for t in range(64)], {"threads": 64}),
    "bytes of one word by four threads": (
        "mov.u32 %r5, %t; cvt.u64.u32 %d5, %t; add.u64 %d5, %d5, %a1; st.global.u8 [%d5], %t;",
        [0x03020100 + 0x04040404 * k for k in range(8)], {"threads": 32, "size": 8}),
    "generic addresses of shared and local": (
        ".local .align 4 .b8 frame[4]; mov.u64 %d5, frame; cvta.local.u64 %d6, %d5; st.u32 [%d6], %t; ld.local.u32 %r6, [%d5];"
        "cvt.u64.u32 %d7, %r31; cvta.shared.u64 %d8, %d7; st.u32 [%d8], %r6; ld.shared.u32 %r5, [%r31];" + END,
        list(range(32)), {}),
    "poison in a lane that does not store": (
        "setp.lt.u32 %p1, %t, 16; mov.u32 %r5, %t; @%p1 st.global.u32 [%d1], %r5; @!%p1 st.global.u32 [%d1], %t;",
        list(range(32)), {}),
    "a dead poisoned half": (
        "ld.global.u32 %r5, [%d0]; mov.b32 {%h0, %h1}, %r5; mov.b32 %r6, {%h0, %h9}; mov.b32 {%h2, %h3}, %r6;"
        "mov.u32 %r5, 4;" + END, [4] * 32, {}),
    "copy, wait, barrier": (
        "cp.async.ca.shared.global [%r31], [%d0], 4; cp.async.commit_group; cp.async.wait_group 0; bar.sync 0;"
        "xor.b32 %r6, %r31, 4; ld.shared.u32 %r5, [%r6];" + END, [t ^ 1 for t in range(32)], {}),
    "a copy of three bytes": (
        "cp.async.ca.shared.global [%r31], [%d0], 4, 0; cp.async.wait_all; ld.shared.u32 %r5, [%r31];" + END, [0] * 32, {}),
    "atomics give each old value once": (
        "setp.eq.u32 %p1, %t, 0; @%p1 st.shared.u32 [%r30], 0; bar.sync 0; atom.shared.inc.u32 %r5, [%r30], 7;" + END,
        [t % 8 for t in range(32)], {}),
    "dec wraps": (
        "setp.eq.u32 %p1, %t, 0; @%p1 st.shared.u32 [%r30], 2; bar.sync 0; atom.shared.dec.u32 %r5, [%r30], 4;" + END,
        [[2, 1, 0, 4, 3][t % 5] for t in range(32)], {}),
    "cas by the first only": (
        "setp.eq.u32 %p1, %t, 0; @%p1 st.shared.u32 [%r30], 50; bar.sync 0; atom.shared.cas.b32 %r5, [%r30], 50, 60;" + END,
        [50] + [60] * 31, {}),
    "exch": (
        "setp.eq.u32 %p1, %t, 0; @%p1 st.shared.u32 [%r30], 50; bar.sync 0; atom.shared.exch.b32 %r5, [%r30], %t;" + END,
        [50, *range(31)], {}),
    "signed minimum": (
        "setp.eq.u32 %p1, %t, 0; @%p1 st.shared.u32 [%r30], 0; bar.sync 0; neg.s32 %r6, %t;"
        "atom.shared.min.s32 %r5, [%r30], %r6;" + END, [0, *[(-t) & 0xFFFFFFFF for t in range(31)]], {}),
    "unsigned maximum": (
        "setp.eq.u32 %p1, %t, 0; @%p1 st.shared.u32 [%r30], 5; bar.sync 0; neg.s32 %r6, %t;"
        "atom.shared.max.u32 %r5, [%r30], %r6;" + END, [5, 5, *[0xFFFFFFFF] * 30], {}),
}  # fmt: skip


IN_LANE_ORDER = (
    "atomics give each old value once", "dec wraps", "exch", "signed minimum", "unsigned maximum", "cas by the first only",
)  # fmt: skip
"""The result depends on the order of lanes, and so on the seed."""


@pytest.mark.parametrize("name", RIGHT)
def test_right(name: str) -> None:
    body, expected, options = RIGHT[name]
    for seed in (0,) if name in IN_LANE_ORDER else (0, 1, 2):
        report = go(body, seed=seed, **options)
        assert report.faults == [], report.faults
        assert report.tensors["out"].tolist() == expected


def test_sums_in_global_memory_know_no_subnormals() -> None:
    """PTX ISA, atom: .add.f32 flushes in global memory and not in shared memory."""
    body = "mov.b32 %r1, 0x00000001; {0} st.global.b32 [%a0+4], %r2;"
    for text, expected in (
        ("red.global.add.f32 [%a0], %r1; ld.global.b32 %r2, [%a0];", 0),
        ("mov.u32 %r3, smem; st.shared.b32 [%r3], %r1; red.shared.add.f32 [%r3], %r1; ld.shared.b32 %r2, [%r3];", 2),
    ):
        report = launch(program(body.format(text), ["d"], shared=16), {"d": np.ones(2, np.uint32)}, threads=1, shared=16)
        assert report.faults == []
        assert report.tensors["d"][1] == expected
