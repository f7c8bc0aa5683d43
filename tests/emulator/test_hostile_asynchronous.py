"""wgmma and bulk copies with one rule violated at a time: each violation is named, and the correct program gives no report."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.emulator.tiny import kinds, launch, program
from tilec.emulator import Report

PRODUCT = """
mov.u32 %r0, smem; shl.b32 %r1, %t, 4; add.u32 %r2, %r0, %r1; mov.u32 %r3, 0x3c003c00;
st.shared.v4.b32 [%r2], {{%r3,%r3,%r3,%r3}}; st.shared.v4.b32 [%r2+2048], {{%r3,%r3,%r3,%r3}};
{proxy}
{barrier}
shr.u32 %r4, %r0, 4; cvt.u64.u32 %d0, %r4; mov.u64 %d1, 0x0000001000080000; or.b64 %d2, %d0, %d1;
add.u64 %d3, %d2, 128;
mov.b32 %f0, 0; mov.b32 %f1, 0; mov.b32 %f2, 0; mov.b32 %f3, 0;
{fence}
wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{%f0,%f1,%f2,%f3}}, %d2, %d3, 1, 1, 1, 0, 0;
{commit}
{under}
{wait}
{after}
shl.b32 %r6, %t, 2; cvt.u64.u32 %d5, %r6; add.u64 %d5, %d5, %a0; st.global.b32 [%d5], %f0;
"""
"""A product of ones over K = 16: every thread writes its 16 bytes of A and of B, and stores its first accumulator."""


def product(**changed: str) -> tuple[set[str], Report]:
    """Kinds of fault over three schedules, and the last report."""
    parts = {
        "proxy": "fence.proxy.async.shared::cta;", "barrier": "bar.sync 0;", "fence": "wgmma.fence.sync.aligned;",
        "commit": "wgmma.commit_group.sync.aligned;", "under": "", "wait": "wgmma.wait_group.sync.aligned 0;", "after": "",
    }  # fmt: skip
    text = program(PRODUCT.format(**parts | changed), ["out"], registers=".reg .b32 %f<4>;", shared=8192)
    return _over_seeds(
        lambda seed: launch(text, {"out": np.zeros(128, np.uint32)}, threads=128, shared=8192, out=("out",), seed=seed)
    )


def _over_seeds(run: Any) -> tuple[set[str], Report]:
    reports = [run(seed) for seed in range(3)]
    return {fault.kind for report in reports for fault in report.faults}, reports[-1]


def test_the_right_product() -> None:
    found, report = product()
    assert not found
    assert (report.tensors["out"].view(np.float32) == 16).all()


FENCE = "wgmma.fence.sync.aligned;"
PRODUCTS: dict[str, tuple[dict[str, str], str]] = {
    "no proxy fence": ({"proxy": ""}, "proxy"),
    "a proxy fence by one thread": ({"proxy": "setp.eq.u32 %p1, %t, 0; @%p1 fence.proxy.async.shared::cta;"}, "proxy"),
    "no barrier": ({"barrier": ""}, "race"),
    "no wgmma fence": ({"fence": ""}, "async"),
    "a register changed after the fence": ({"fence": FENCE + "mov.b32 %f0, 0x3f800000;"}, "async"),
    "no commit": ({"commit": ""}, "async"),
    "commit before the product": ({"fence": FENCE + "wgmma.commit_group.sync.aligned;", "commit": ""}, "async"),
    "no wait": ({"wait": ""}, "async"),
    "wait for all but one": ({"wait": "wgmma.wait_group.sync.aligned 1;"}, "async"),
    "A overwritten under it": ({"under": "st.shared.b32 [%r2], %r3;"}, "async"),
    "B overwritten under it": ({"under": "st.shared.b32 [%r2+2048], %r3;"}, "async"),
    "an accumulator written under it": ({"under": "mov.b32 %f1, 0;"}, "async"),
    "a warp overwrites what another's product may read": (
        {"after": "xor.b32 %r11, %r1, 1024; add.u32 %r12, %r0, %r11; st.shared.b32 [%r12], %r3;"}, "race"),
    "three warps of four": (
        {"fence": "setp.ge.u32 %p1, %t, 96; @%p1 bra L;" + FENCE, "wait": "wgmma.wait_group.sync.aligned 0; L:"}, "divergent"),
    "descriptors that differ": ({"fence": "setp.eq.u32 %p1, %t, 5; @%p1 add.u64 %d2, %d2, 8;" + FENCE}, "descriptor"),
    "B that nobody wrote": ({"fence": "add.u64 %d3, %d3, 256;" + FENCE}, "uninitialised"),
    "B past the end of shared memory": ({"fence": "add.u64 %d3, %d3, 400;" + FENCE}, "bounds"),
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_wrong_product(name: str) -> None:
    changed, expected = PRODUCTS[name]
    assert expected in product(**changed)[0]


@pytest.mark.parametrize("late", [None, *range(4)])
def test_each_warp_hands_back_what_its_product_read(late: int | None) -> None:
    """A fifth warp overwrites A after a barrier with the four; one of them comes before its wait."""
    early = f"shr.u32 %r11, %t, 5; setp.eq.u32 %p2, %r11, {late}; @%p2 bar.arrive 1, 160;"
    text = PRODUCT.format(
        proxy="setp.ge.u32 %p1, %t, 128; @%p1 bra P; fence.proxy.async.shared::cta; P:",
        barrier=f"bar.sync 0; @%p1 bra W; {early if late is not None else 'setp.ne.u32 %p2, %t, %t;'}",
        fence=FENCE, commit="wgmma.commit_group.sync.aligned;", under="", wait="wgmma.wait_group.sync.aligned 0;",
        after="@!%p2 bar.arrive 1, 160; bra E; W: bar.sync 1, 160; st.shared.b32 [%r2+-2048], %r3; ret; E:",
    )  # fmt: skip
    text = text.replace("st.shared.v4", "setp.ge.u32 %p1, %t, 128; @!%p1 st.shared.v4")
    arrays = {"out": np.zeros(128, np.uint32)}
    text = program(text, ["out"], registers=".reg .b32 %f<4>;", shared=8192)
    found, _ = _over_seeds(lambda seed: launch(text, arrays, threads=160, shared=8192, seed=seed))
    assert found == set() if late is None else found & {"race", "async"}


COPY = """
mov.u32 %r0, smem; add.u32 %r20, %r0, 1024;
setp.eq.u32 %p1, %t, 0; @%p1 mbarrier.init.shared::cta.b64 [%r20], 1; {fence} bar.sync 0;
{start}
W: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r20], {parity}; @!%p3 bra W;
ld.shared.b32 %r5, [%r0+{at}]; {then} mad.wide.u32 %d1, %t, 4, %a1; st.global.b32 [%d1], %r5;
"""
EXPECT = "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r20], {bytes};"
BULK = "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%a0{offset}], {size}, [%r20];"


def start(bytes: int = 128, size: int = 128, offset: str = "") -> str:
    """One copy of `size` bytes; the mbarrier expects `bytes`."""
    return EXPECT.format(bytes=bytes) + BULK.format(size=size, offset=offset)


RIGHT_COPY = {"start": start(), "parity": 0, "at": 0, "then": "", "fence": "@%p1 fence.proxy.async.shared::cta;"}


def copied(**changed: Any) -> tuple[set[str], Report]:
    """32 words copied; every thread stores the first."""
    text = program(COPY.format(**RIGHT_COPY | changed), ["x", "out"], shared=2048)
    arrays = {"x": np.arange(32, dtype=np.uint32) + 9, "out": np.zeros(32, np.uint32)}
    return _over_seeds(lambda seed: launch(text, arrays, out=("out",), read_only=("x",), shared=2048, seed=seed))


def test_the_right_copy() -> None:
    found, report = copied()
    assert not found
    assert (report.tensors["out"] == 9).all()


def test_a_copy_that_another_thread_waits_for_may_outlive_its_own() -> None:
    """The issuing thread exits; the others wait."""
    found, _ = copied(start=start() + "@%p1 ret;")
    assert found == {"unwritten"}, "thread 0 stores nothing"


AGAIN = "V: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r20], 1; @!%p3 bra V;"
COPIES: dict[str, tuple[dict[str, Any], str]] = {
    "fewer bytes than expected": ({"start": start(bytes=144)}, "deadlock"),
    "more bytes than expected": ({"start": start(bytes=112)}, "deadlock"),
    "one phase too early": ({"parity": 1}, "async"),
    "no proxy fence after the barrier": ({"fence": ""}, "proxy"),
    "past the end of the source": ({"start": start(offset="+16")}, "bounds"),
    "a size that is no multiple of 16": ({"start": start(bytes=120, size=120)}, "alignment"),
    "a source that is not aligned": ({"start": start(bytes=96, size=96, offset="+8")}, "alignment"),
    "bytes that were not copied": ({"at": 128}, "uninitialised"),
    "a barrier that is gone": ({"start": "@%p1 mbarrier.inval.shared::cta.b64 [%r20];" + start()}, "mbarrier"),
    "half of it": ({"start": EXPECT.format(bytes=128) + BULK.format(size=64, offset="")}, "deadlock"),
    "a second copy that nobody waits for": ({"then": "bar.sync 0;" + start() + "ld.shared.b32 %r5, [%r0];"}, "async"),
    "a block that ends under a copy": ({"then": "bar.sync 0;" + start()}, "async"),
    "a second copy over what others read": ({"then": start() + AGAIN}, "race"),
}  # fmt: skip


@pytest.mark.parametrize("name", COPIES)
def test_a_wrong_copy(name: str) -> None:
    changed, expected = COPIES[name]
    assert expected in copied(**changed)[0]


@pytest.mark.parametrize(
    ("fence", "found"),
    [
        ("", {"proxy"}),
        ("fence.proxy.async.shared::cta;", {"proxy"}),
        ("fence.proxy.async.global;", set[str]()),
        ("fence.proxy.async;", set[str]()),
    ],
)
def test_a_bulk_copy_of_global_memory_that_threads_wrote_needs_a_fence_of_it(fence: str, found: set[str]) -> None:
    body = f"""
mov.u32 %r0, smem; mad.lo.u32 %r2, %t, 4, %r0; mad.wide.u32 %d2, %t, 4, %a0; setp.eq.u32 %p0, %t, 0;
@%p0 mbarrier.init.shared::cta.b64 [%r0+512], 1; @%p0 fence.mbarrier_init.release.cluster;
st.global.u32 [%d2], %t; {fence} bar.sync 0; @!%p0 bra L;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r0+512], 128;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%a0], 128, [%r0+512];
L: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r0+512], 0; @!%p3 bra L;
ld.shared.u32 %r9, [%r2]; mad.wide.u32 %d1, %t, 4, %a1; st.global.u32 [%d1], %r9;
"""
    for seed in range(3):
        arrays = {"scratch": np.zeros(32, np.uint32), "out": np.zeros(32, np.uint32)}
        report = launch(program(body, ["scratch", "out"], shared=1024), arrays, out=("out",), shared=1024, seed=seed)
        assert kinds(report) == found, report.faults


@pytest.mark.parametrize("space", ["", ".shared::cta"])
def test_what_a_bulk_store_wrote_needs_no_fence_for_the_next_bulk_copy(space: str) -> None:
    body = f"""
mov.u32 %r0, smem; mad.lo.u32 %r2, %t, 4, %r0; setp.eq.u32 %p0, %t, 0; st.shared.u32 [%r2], %t;
@%p0 mbarrier.init.shared::cta.b64 [%r0+512], 1; fence.proxy.async{space}; bar.sync 0; @!%p0 bra L;
cp.async.bulk.global.shared::cta.bulk_group [%a0], [%r0], 128; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r0+512], 128;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0+128], [%a0], 128, [%r0+512];
L: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r0+512], 0; @!%p3 bra L;
"""
    report = launch(program(body, ["out"], shared=1024), {"out": np.zeros(32, np.uint32)}, shared=1024)
    assert not report.faults, report.faults


OVER_SHARED = """
mov.u32 %r0, smem; mad.lo.u32 %r2, %t, 4, %r0; setp.eq.u32 %p0, %t, 0;
@%p0 mbarrier.init.shared::cta.b64 [%r0+512], 1; @%p0 fence.mbarrier_init.release.cluster;
st.shared.u32 [%r2], %t; {fence} bar.sync 0; @!%p0 bra L;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r0+512], 128;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%a0], 128, [%r0+512];
L: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r0+512], 0; @!%p3 bra L;
"""
OVER_GLOBAL = """
mov.u32 %r0, smem; mad.lo.u32 %r2, %t, 4, %r0; mad.wide.u32 %d2, %t, 4, %a0; setp.eq.u32 %p0, %t, 0;
st.global.u32 [%d2], %t; st.shared.u32 [%r2], %t; fence.proxy.async.shared::cta; {fence} bar.sync 0; @!%p0 bra L;
cp.async.bulk.global.shared::cta.bulk_group [%a0], [%r0], 128; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
L: bar.sync 0;
"""
"""Every thread writes a word; a bulk copy overwrites them."""
NONE = set[str]()


@pytest.mark.parametrize(
    ("body", "fence", "found"),
    [
        (OVER_SHARED, "", {"proxy"}),
        (OVER_SHARED, "fence.proxy.async.global;", {"proxy"}),
        (OVER_SHARED, "fence.proxy.async.shared::cta;", NONE),
        (OVER_GLOBAL, "", {"proxy"}),
        (OVER_GLOBAL, "fence.proxy.async.shared::cta;", {"proxy"}),
        (OVER_GLOBAL, "fence.proxy.async.global;", NONE),
        (OVER_GLOBAL, "fence.proxy.async;", NONE),
    ],
)
def test_a_bulk_copy_over_what_threads_wrote_needs_a_fence(body: str, fence: str, found: set[str]) -> None:
    for seed in range(3):
        text = program(body.format(fence=fence), ["x"], shared=1024)
        report = launch(text, {"x": np.zeros(32, np.uint32)}, shared=1024, seed=seed)
        assert kinds(report) == found, report.faults
