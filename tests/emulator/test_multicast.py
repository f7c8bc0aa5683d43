"""Bulk copies in clusters: destinations and mbarriers in peers, multicast, pairs, and copies between shared memories."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.cluster_programs import START, STORE, SYNC, THREADS, found, messages, run
from tests.emulator.tiny import kinds, launch, program
from tilec.emulator import Memory, UnsupportedPtx, parse
from tilec.emulator import run as run_module
from tilec.emulator.matrices.tensor_maps import TensorMap

SEEDS = range(4)
X = np.arange(256, dtype=np.uint32) + 1000
MADE = """
@%p0 mbarrier.init.shared::cta.b64 [%r1], {count};
@%p0 fence.mbarrier_init.release.cluster;
barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;
"""
WAIT = "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p5, [%r1], 0; @!%p5 bra WAIT;"
LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
EXPECT = "@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], {bytes};"
END = f"ld.shared.b32 %r30, [%r7]; {STORE} {SYNC}"


def copied(copy: str, *, bytes_: int = 128, count: int = 1, wait: str = WAIT, end: str = END, seed: int = 0, **more: object):
    body = MADE.format(count=count) + EXPECT.format(bytes=bytes_) + copy + wait + end
    options = {"tensors": {"x": X}} | more
    return run(body, seed=seed, **options)  # pyright: ignore


@pytest.mark.parametrize("seed", SEEDS)
def test_a_copy_reaches_a_peer_and_counts_there(seed: int) -> None:
    report = copied(f"mul.wide.u32 %d1, %r2, 128; add.u64 %d1, %d1, %a1; @%p0 {LOAD} [%r4], [%d1], 128, [%r5];", seed=seed)
    assert report.clean, messages(report)
    assert (report.tensors["out"] == np.concatenate([X[32:64], X[:32]])).all()


MULTICAST = LOAD + ".multicast::cluster"


@pytest.mark.parametrize("seed", SEEDS)
def test_each_block_of_four_loads_a_quarter_for_all(seed: int) -> None:
    slices = f"""
    mul.wide.u32 %d1, %r2, 32; add.u64 %d1, %d1, %a1;
    mad.lo.u32 %r20, %r2, 32, %r0;
    mov.b16 %h0, 15;
    @%p0 {MULTICAST} [%r20], [%d1], 32, [%r1], %h0;
    """
    report = copied(slices, seed=seed, size=4, blocks=8)
    assert report.clean, messages(report)
    assert (report.tensors["out"] == np.tile(X[:32], 8)).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_multicast_leaves_other_blocks_alone(seed: int) -> None:
    mask = f"mov.b16 %h0, 10; @%p2 {MULTICAST} [%r0], [%a1], 128, [%r1], %h0;"
    body = f"""
    st.shared.b32 [%r7], 9;
    fence.proxy.async.shared::cta;
    {MADE.format(count=1)}
    {SYNC}
    and.b32 %r21, %r2, 1;
    setp.eq.u32 %p6, %r21, 1;
    and.pred %p7, %p6, %p0;
    @%p7 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 128;
    {mask}
    @!%p6 bra DONE;
    {WAIT}
    DONE: {END}
    """
    report = run(body, seed=seed, size=4, blocks=4, tensors={"x": X})
    assert report.clean, messages(report)
    assert (report.tensors["out"].reshape(4, THREADS) == np.stack([np.full(32, 9), X[:32]] * 2)).all()


@pytest.mark.parametrize(
    ("copy", "bytes_", "expected"),
    [
        (f"mov.b16 %h0, 5; @%p2 {MULTICAST} [%r0], [%a1], 128, [%r1], %h0;", 128, {"cluster", "deadlock"}),
        (f"@%p0 {LOAD} [%r4], [%a1], 128, [%r1];", 128, {"mbarrier", "deadlock"}),
        (f"@%p2 {LOAD} [%r4], [%a1], 128, [%r5];", 128, {"deadlock"}),
        (f"mov.b16 %h0, 3; @%p0 {MULTICAST} [%r0], [%a1], 128, [%r1], %h0;", 256, {"async", "race"}),
        (f"mov.b16 %h0, 3; @%p2 {MULTICAST} [%r0], [%a1], 128, [%r1], %h0;", 256, {"deadlock"}),
    ],
)
def test_wrong_destinations_and_counts_are_found(copy: str, bytes_: int, expected: set[str]) -> None:
    for seed in SEEDS:
        report = copied(copy, bytes_=bytes_, seed=seed, checked=False)
        assert kinds(report) == expected, messages(report)


def test_a_read_before_the_wait_is_in_flight_in_the_peer_too() -> None:
    for seed in SEEDS:
        report = copied(f"mov.b16 %h0, 3; {SYNC} @%p2 {MULTICAST} [%r0], [%a1], 128, [%r1], %h0; {SYNC}", wait="", seed=seed)
        assert ("async", "ld.shared.b32") in found(report)


def test_a_relaxed_wait_does_not_show_the_bytes() -> None:
    copy = f"mov.b16 %h0, 3; @%p2 {MULTICAST} [%r0], [%a1], 128, [%r1], %h0;"
    relaxed = WAIT.replace("parity", "parity.relaxed.cluster")
    for seed in SEEDS:
        assert "async" in kinds(copied(copy, wait=relaxed, seed=seed))
        report = copied(copy, wait=relaxed + "fence.acq_rel.cluster;", seed=seed)
        assert report.clean, messages(report)
        assert copied(copy, wait=relaxed, end=f"mov.u32 %r30, 1; {STORE} {SYNC}", seed=seed).clean


def test_a_copy_over_what_a_peer_still_reads_is_a_race() -> None:
    body = f"""
    st.shared.b32 [%r7], 9;
    fence.proxy.async.shared::cta;
    {MADE.format(count=1)}
    {SYNC}
    {EXPECT.format(bytes=128)}
    ld.shared.b32 %r20, [%r7];
    {{order}}
    mov.b16 %h0, 3;
    @%p2 {MULTICAST} [%r0], [%a1], 128, [%r1], %h0;
    {WAIT}
    {END}
    """
    for seed in SEEDS:
        assert kinds(run(body.format(order="bar.sync 0;"), seed=seed, tensors={"x": X})) & {"race", "async"}
        assert run(body.format(order=SYNC), seed=seed, tensors={"x": X}).clean


EARLY = f"""
{MADE.format(count=1)}
{EXPECT.format(bytes=128)}
mov.u32 %r30, 0;
{STORE}
@!%p1 ret;
mov.b16 %h0, 3;
@%p0 {{copy}}
{WAIT}
"""


@pytest.mark.parametrize(
    "copy",
    [
        f"{MULTICAST} [%r0], [%a1], 128, [%r1], %h0;",
        f"{LOAD} [%r4], [%a1], 128, [%r5]; @%p0 {LOAD} [%r0], [%a1], 128, [%r1];",
    ],
)
def test_a_block_may_not_exit_while_a_peers_copy_writes_its_memory(copy: str) -> None:
    for seed in SEEDS:
        report = run(EARLY.format(copy=copy), seed=seed, tensors={"x": X})
        assert kinds(report) <= {"async", "cluster"} and not report.clean, messages(report)


def test_a_peers_copy_is_open_until_the_block_has_waited() -> None:
    copy = f"mov.b16 %h0, 3; @%p2 {MULTICAST} [%r0], [%a1], 128, [%r1], %h0; mov.u32 %r30, 0; {STORE} {SYNC} @!%p1 ret;"
    for seed in SEEDS:
        assert kinds(copied(copy, end="", seed=seed)) == {"async"}


@pytest.mark.parametrize("seed", SEEDS)
def test_the_block_that_issued_a_copy_to_a_peer_may_exit(seed: int) -> None:
    copy = f"mov.u32 %r30, 1; {STORE} @%p2 {LOAD} [%r4], [%a1], 128, [%r5]; @%p1 ret;"
    report = copied(copy, end=f"ld.shared.b32 %r30, [%r7]; {STORE}", seed=seed)
    assert report.clean, messages(report)
    assert (report.tensors["out"] == np.concatenate([np.ones(32), X[:32]])).all()


def test_an_mbarrier_made_without_a_fence_is_reported_for_every_destination() -> None:
    unfenced = f"@%p0 mbarrier.init.shared::cta.b64 [%r1], 1; {SYNC}"
    copy = f"mov.b16 %h0, 3; @%p2 {MULTICAST} [%r0], [%a1], 128, [%r1], %h0;"
    for seed in SEEDS:
        assert kinds(run(unfenced + EXPECT.format(bytes=128) + copy + WAIT + END, seed=seed, tensors={"x": X})) == {"proxy"}


BETWEEN = f"""
st.shared.b32 [%r7+256], %r10;
{{fence}}
{MADE.format(count=1)}
{EXPECT.format(bytes=128)}
bar.sync 0;
add.u32 %r20, %r0, 256;
@%p0 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r4], [%r20], 128, [%r5];
{{early}}
{WAIT}
{{after}}
ld.shared.b32 %r30, [%r7];
{STORE}
{SYNC}
st.shared.b32 [%r7+256], 1;
{SYNC}
"""
PROXY = "fence.proxy.async.shared::cta;"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_copy_between_shared_memories(seed: int) -> None:
    report = run(BETWEEN.format(fence=PROXY, early="", after=""), seed=seed)
    assert report.clean, messages(report)
    thread = np.arange(THREADS)
    assert (report.tensors["out"] == np.concatenate([thread + THREADS, thread])).all()


def test_its_source_is_in_flight_until_the_peer_has_waited() -> None:
    for seed in SEEDS:
        assert kinds(run(BETWEEN.format(fence="", early="", after=""), seed=seed)) == {"proxy"}
        early = run(BETWEEN.format(fence=PROXY, early="st.shared.b32 [%r7+256], 1;", after=""), seed=seed)
        assert "async" in kinds(early), messages(early)


TENSOR = """
.version 8.6
.target sm_100a
.address_size 64
.extern .shared .align 128 .b8 smem[];
.visible .entry k(.param .align 64 .b8 map[128], .param .u64 out)
.explicitcluster
.reqnctapercluster 2
{
.reg .pred %p<20>; .reg .b16 %h<20>; .reg .b32 %r<40>; .reg .b64 %d<40>; .reg .b64 %a<10>; .reg .b32 %t;
mov.u32 %t, %tid.x;
ld.param.u64 %a0, [out];
mov.b64 %d9, map;
cvta.param.u64 %d10, %d9;
"""


def tensor_copy(body: str, seed: int = 0):
    memory = Memory()
    x = memory.allocate("x", np.arange(16 * 32, dtype=np.uint32).reshape(16, 32), writable=False)
    out = memory.allocate("out", np.zeros(2 * THREADS, np.uint32), initialised=False, checked=True)
    tensor = TensorMap(x.address, 4, (32, 16), (128,), (32, 2), 0).encode()
    text = TENSOR + START + body + "ret; }"
    return run_module(parse(text), "k", (2,), (THREADS,), [tensor, out], memory, dynamic_shared_bytes=2048, seed=seed)


PAIR = f"""
{MADE.format(count=2)}
and.b32 %r20, %r1, 0xFEFFFFFF;
@%p0 mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%r20], 256;
shl.b32 %r21, %r2, 1;
@%p0 cp.async.bulk.tensor.2d{{before}}.shared::cluster.global.mbarrier::complete_tx::bytes{{after}}
    [%r0], [%d10, {{{{0, %r21}}}}], [%r20];
@!%p1 bra MEET;
{WAIT}
MEET: {SYNC}
ld.shared.b32 %r30, [%r7];
{STORE}
"""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_pair_counts_both_copies_on_the_barrier_of_its_even_block(moment: str, seed: int) -> None:
    report = tensor_copy(PAIR.format(**{"before": "", "after": "", moment: ".cta_group::2"}), seed)
    assert report.clean, messages(report)
    assert (report.tensors["out"] == np.concatenate([np.arange(32), 64 + np.arange(32)])).all()


def test_only_a_pair_counts_in_the_other_block() -> None:
    for group in ("", ".cta_group::1"):
        report = tensor_copy(PAIR.format(before=group, after=""))
        assert "mbarrier" in kinds(report), messages(report)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("owner", [0, 1])
def test_a_multicast_of_a_pair_counts_where_its_barrier_lies(owner: int, seed: int) -> None:
    body = f"""
    {MADE.format(count=1)}
    mapa.shared::cluster.u32 %r20, %r1, {owner};
    setp.eq.u32 %p3, %r2, {owner};
    and.pred %p4, %p3, %p0;
    @%p4 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 512;
    mov.b16 %h0, 3;
    mov.u32 %r21, 4;
    @%p2 cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
        [%r0], [%d10, {{0, %r21}}], [%r20], %h0;
    @!%p3 bra MEET;
    {WAIT}
    MEET: {SYNC}
    ld.shared.b32 %r30, [%r7];
    {STORE}
    """
    report = tensor_copy(body, seed)
    assert report.clean, messages(report)
    assert (report.tensors["out"] == np.tile(4 * 32 + np.arange(32), 2)).all()


def test_multicast_is_for_cluster_destinations() -> None:
    with pytest.raises(UnsupportedPtx):
        copied(f"mov.b16 %h0, 1; {MULTICAST.replace('shared::cluster', 'shared::cta')} [%r0], [%a1], 128, [%r1], %h0;")


def test_a_launch_without_clusters_may_multicast_to_itself() -> None:
    body = (
        START.replace("mapa.shared::cluster.u32 %r4, %r0, %r3;", "")
        .replace("mapa.shared::cluster.u32 %r5, %r1, %r3;", "")
        .replace("add.u32 %r8, %r4, %r6;", "")
    )
    body += MADE.format(count=1) + EXPECT.format(bytes=128)
    body += f"mov.b16 %h0, 1; @%p0 {MULTICAST} [%r0], [%a1], 128, [%r1], %h0; {WAIT} {END}"
    arrays = {"out": np.zeros(32, np.uint32), "x": X}
    report = launch(program(body, list(arrays), shared=2048), arrays, out=("out",), read_only=("x",), shared=2048)
    assert report.clean, messages(report)
    assert (report.tensors["out"] == X[:32]).all()


RING = f"""
{MADE.format(count=1)}
add.u32 %r24, %r1, 8;
@%p0 mbarrier.init.shared::cta.b64 [%r24], 2;
@%p0 fence.mbarrier_init.release.cluster;
{SYNC}
mapa.shared::cluster.u32 %r25, %r24, 0;
mov.b16 %h0, 3;
mul.wide.u32 %d4, %r9, 128; add.u64 %d4, %d4, %a0;
mov.u64 %d5, %a1;
mov.u32 %r20, 0;
LOOP:
xor.b32 %r21, %r20, 1;
{EXPECT.format(bytes=128)}
@!%p2 bra FULL;
EMPTY: mbarrier.try_wait.parity{{wait}}.shared::cta.b64 %p5, [%r24], %r21; @!%p5 bra EMPTY;
{MULTICAST} [%r0], [%d5], 128, [%r1], %h0;
FULL: mbarrier.try_wait.parity.shared::cta.b64 %p5, [%r1], %r20; @!%p5 bra FULL;
{{use}}
@%p0 mbarrier.arrive{{arrive}}.shared::cluster.b64 _, [%r25];
add.u64 %d5, %d5, 128;
add.u32 %r20, %r20, 1;
setp.lt.u32 %p6, %r20, 2;
@%p6 bra LOOP;
{SYNC}
"""
"""Two rounds of one stage: rank 0 waits until both blocks have used it. `%r20` is the parity of the full barrier."""
BULK_USE = """
@%p0 cp.async.bulk.global.shared::cta.bulk_group [%d4], [%r0], 128;
@%p0 cp.async.bulk.commit_group;
@%p0 cp.async.bulk.wait_group 0;
"""
LOAD_USE = "ld.shared.b32 %r30, [%r7]; st.global.b32 [%d0], %r30; bar.sync 0;"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("use", "arrive", "wait"),
    [
        (LOAD_USE, ".release.cluster", ".acquire.cluster"),
        (BULK_USE, ".release.cluster", ".acquire.cluster"),
        (BULK_USE, "", ""),
        (BULK_USE, ".relaxed.cluster", ".relaxed.cluster"),
    ],
)
def test_a_stage_is_reused_after_both_blocks_have_read_it(use: str, arrive: str, wait: str, seed: int) -> None:
    report = run(RING.format(use=use, arrive=arrive, wait=wait), seed=seed, tensors={"x": X})
    assert report.clean, messages(report)
    assert (report.tensors["out"] == np.tile(X[32:64], 2)).all()


@pytest.mark.parametrize(
    ("arrive", "wait"),
    [("", ".acquire.cluster"), (".release.cluster", ""), (".relaxed.cluster", ".acquire.cluster")],
)
def test_a_narrow_signal_orders_operations_of_the_async_proxy_only(arrive: str, wait: str) -> None:
    for seed in SEEDS:
        report = run(RING.format(use=LOAD_USE, arrive=arrive, wait=wait), seed=seed, tensors={"x": X})
        assert kinds(report) == {"race"}, messages(report)


def test_a_stage_that_is_reused_too_early_is_found() -> None:
    for use in (BULK_USE, LOAD_USE):
        body = RING.format(use=use, arrive=".release.cluster", wait=".acquire.cluster").replace("[%r24], 2;", "[%r24], 1;")
        for seed in SEEDS:
            assert not run(body, seed=seed, tensors={"x": X}).clean
