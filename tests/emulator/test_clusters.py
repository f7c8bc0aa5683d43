"""Clusters of several blocks: launches, addresses of shared memory in peers, and accesses to them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.cluster_programs import STORE, SYNC, THREADS, messages, run
from tests.emulator.tiny import kinds, launch, program

SEEDS = range(4)
THREAD = np.arange(THREADS, dtype=np.uint32)
EXCHANGE = f"""
mad.lo.u32 %r20, %r2, 1000, %t;
{SYNC}
st.shared::cluster.b32 [%r8], %r20;
{SYNC}
ld.shared.b32 %r30, [%r7];
{STORE}
"""


@pytest.mark.parametrize("seed", SEEDS)
def test_each_block_gets_what_its_peer_stored_in_it(seed: int) -> None:
    report = run(EXCHANGE, seed=seed, blocks=6)
    assert report.clean, messages(report)
    ranks = np.repeat(np.arange(6) % 2, THREADS)
    assert (report.tensors["out"] == (1 - ranks) * 1000 + np.tile(THREAD, 6)).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_special_registers_describe_the_cluster(seed: int) -> None:
    names = (
        "cluster_ctaid.x", "cluster_ctaid.y", "cluster_nctaid.x", "cluster_nctaid.y", "clusterid.x", "clusterid.y",
        "nclusterid.x", "nclusterid.y", "cluster_ctarank", "cluster_nctarank", "is_explicit_cluster", "nctaid.x",
    )  # fmt: skip
    reads = "".join(f"mov.u32 %r{k}, %{name}; st.global.b32 [%d0+{4 * k}], %r{k};" for k, name in enumerate(names))
    address = "mov.u32 %r30, %ctaid.x; mov.u32 %r31, %ctaid.y; mad.lo.u32 %r32, %r31, 4, %r30; mad.wide.u32 %d0, %r32, 48, %a0;"
    out = np.zeros((6, 4, len(names)), np.uint32)
    report = launch(program(address + reads, ["out"]), {"out": out}, threads=1, grid=(4, 6), cluster=(2, 3), seed=seed)
    assert report.clean, messages(report)
    y, x = np.mgrid[:6, :4]
    columns = (x % 2, y % 3, 2, 3, x // 2, y // 3, 2, 2, x % 2 + y % 3 * 2, 6, 1, 4)
    for k, truth in enumerate(columns):
        assert (report.tensors["out"][:, :, k] == truth).all(), names[k]


def with_directives(text: str, directives: str) -> str:
    return text.replace("\n{\n", f"\n{directives}\n{{\n", 1)


def test_the_kernel_names_its_cluster() -> None:
    text = program("mov.u32 %r0, %cluster_nctarank; st.global.b32 [%a0], %r0;", ["out"])
    out = {"out": np.zeros(1, np.uint32)}
    named = with_directives(text, ".explicitcluster\n.reqnctapercluster 1, 1, 2")
    report = launch(named, out, threads=1, grid=(1, 1, 4), replicating=range(99))
    assert report.tensors["out"][0] == 2
    assert kinds(launch(text, out, threads=1)) == set()


@pytest.mark.parametrize(
    ("directives", "options", "message"),
    [
        (".reqnctapercluster 2", {"grid": (3,)}, "no multiple"),
        (".reqnctapercluster 2", {"grid": (4,), "cluster": (4,)}, "demands"),
        (".explicitcluster", {}, "explicitcluster"),
        (".maxclusterrank 4", {"grid": (8,), "cluster": (8,)}, "more than 4"),
        ("", {"grid": (32,), "cluster": (32,)}, "more than 16"),
    ],
)
def test_a_launch_with_an_impossible_cluster_is_refused(directives: str, options: dict[str, object], message: str) -> None:
    text = with_directives(program("mov.u32 %r0, 1;", ["out"]), directives)
    report = launch(text, {"out": np.zeros(1, np.uint32)}, threads=1, checked=False, **options)  # pyright: ignore
    assert kinds(report) == {"launch"} and message in messages(report)


def test_targets_before_sm_90_have_no_clusters() -> None:
    text = program("mov.u32 %r0, 1;", ["out"], target="sm_80")
    report = launch(text, {"out": np.zeros(1, np.uint32)}, threads=1, grid=(2,), cluster=(2,))
    assert kinds(report) == {"launch"}


def test_a_part_of_a_cluster_is_refused() -> None:
    with pytest.raises(ValueError, match="part of a cluster"):
        run(EXCHANGE, blocks=4, only=[(1, 0, 0)])


ADDRESSES = f"""
getctarank.shared::cluster.u32 %r20, %r0;
getctarank.shared::cluster.u32 %r21, %r4;
cvt.u64.u32 %d1, %r0;
cvta.shared.u64 %d2, %d1;
mapa.u64 %d3, %d2, %r3;
getctarank.u64 %r22, %d3;
cvt.u64.u32 %d4, %r4;
cvta.shared::cluster.u64 %d5, %d4;
setp.eq.u64 %p5, %d3, %d5;
isspacep.shared::cta %p6, %d2;
isspacep.shared::cta %p7, %d3;
isspacep.shared::cluster %p8, %d3;
isspacep.shared::cluster %p9, %a0;
and.b32 %r23, %r0, 0xFEFFFFFF;
mapa.shared::cluster.u32 %r24, %r0, 0;
setp.eq.u32 %p10, %r23, %r24;
selp.u32 %r25, 1, 0, %p5;
selp.u32 %r26, 2, 0, %p6;
selp.u32 %r27, 4, 0, %p7;
selp.u32 %r28, 8, 0, %p8;
selp.u32 %r29, 16, 0, %p9;
selp.u32 %r31, 32, 0, %p10;
or.b32 %r30, %r25, %r26; or.b32 %r30, %r30, %r27; or.b32 %r30, %r30, %r28; or.b32 %r30, %r30, %r29; or.b32 %r30, %r30, %r31;
shl.b32 %r20, %r20, 8; shl.b32 %r21, %r21, 9; shl.b32 %r22, %r22, 10;
or.b32 %r30, %r30, %r20; or.b32 %r30, %r30, %r21; or.b32 %r30, %r30, %r22;
{STORE}
"""


@pytest.mark.parametrize("seed", SEEDS)
def test_addresses_name_the_block_of_their_rank(seed: int) -> None:
    report = run(ADDRESSES, seed=seed)
    assert report.clean, messages(report)
    rank = np.repeat([0, 1], THREADS)
    truth = 1 + 2 + 8 + 32 + (rank << 8) + (1 - rank << 9) + (1 - rank << 10)
    assert (report.tensors["out"] == truth).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_generic_loads_reach_a_peer_and_own_addresses_work_in_both_spaces(seed: int) -> None:
    body = f"""
    add.u32 %r20, %r10, 100;
    st.shared::cluster.b32 [%r7], %r20;
    {SYNC}
    cvt.u64.u32 %d1, %r7;
    cvta.shared.u64 %d2, %d1;
    mapa.u64 %d3, %d2, %r3;
    ld.b32 %r30, [%d3];
    {STORE}
    {SYNC}
    """
    report = run(body, seed=seed)
    assert report.clean, messages(report)
    assert (report.tensors["out"] == np.concatenate([THREAD + THREADS, THREAD]) + 100).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_atomics_of_both_blocks_add_up_in_one(seed: int) -> None:
    body = f"""
    @%p0 st.shared.b32 [%r0], 5;
    {SYNC}
    mapa.shared::cluster.u32 %r20, %r0, 1;
    red.relaxed.cluster.shared::cluster.add.u32 [%r20], 3;
    atom.relaxed.cluster.shared::cluster.add.u32 %r21, [%r20], 1;
    {SYNC}
    ld.shared.b32 %r30, [%r0];
    {STORE}
    """
    report = run(body, seed=seed)
    assert report.clean, messages(report)
    assert (report.tensors["out"] == np.repeat([5, 5 + 2 * THREADS * 4], THREADS)).all()


def test_an_atomic_of_block_scope_does_not_exclude_a_peer() -> None:
    body = f"""
    @%p0 st.shared.b32 [%r0], 5;
    {SYNC}
    mapa.shared::cluster.u32 %r20, %r0, 1;
    red.relaxed.cta.shared::cluster.add.u32 [%r20], 3;
    {SYNC}
    mov.u32 %r30, 0;
    {STORE}
    """
    for seed in SEEDS:
        assert kinds(run(body, seed=seed)) == {"race"}


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("mapa.shared::cluster.u32 %r20, %r0, 2;", "cluster"),
        ("add.u32 %r20, %r8, 0x2000000; st.shared::cluster.b32 [%r20], 1;", "cluster"),
        ("st.shared.b32 [%r8], 1;", "space"),
        ("mov.u32 %r20, 2048; add.u32 %r20, %r20, %r4; st.shared::cluster.b32 [%r20], 1;", "bounds"),
        ("getctarank.u64 %r20, %a0;", "space"),
    ],
)
def test_a_wrong_address_is_a_fault_of_its_kind(body: str, kind: str) -> None:
    for seed in SEEDS:
        report = run(f"mov.u32 %r30, 0; {STORE} {SYNC} {body} {SYNC}", seed=seed)
        assert kinds(report) == {kind}, messages(report)


def test_a_store_to_a_peer_without_a_barrier_races_with_its_load() -> None:
    first, _, rest = EXCHANGE.rpartition(SYNC)
    for seed in SEEDS:
        assert kinds(run(f"st.shared.b32 [%r7], 0; {first} bar.sync 0; {rest} {SYNC}", seed=seed)) == {"race"}


def test_a_peer_may_not_have_started_before_a_barrier_of_the_cluster() -> None:
    before, _, _ = EXCHANGE.partition(SYNC)
    for seed in SEEDS:
        report = run(EXCHANGE.replace(before + SYNC, before), seed=seed)
        assert kinds(report) == {"cluster"} and "may not have started" in messages(report)


LATE = f"""
st.shared.b32 [%r7], %r10;
{SYNC}
ld.shared::cluster.b32 %r30, [%r8];
{STORE}
"""


@pytest.mark.parametrize("seed", SEEDS)
def test_a_block_may_not_exit_before_its_peer_has_read_it(seed: int) -> None:
    assert run(LATE + SYNC, seed=seed).clean
    report = run(LATE, seed=seed)
    assert kinds(report) - {"unwritten", "poison"} == {"cluster"}, messages(report)


def test_an_access_to_a_block_that_has_exited_is_a_fault() -> None:
    body = f"""
    st.shared.b32 [%r7], %r10;
    {SYNC}
    mov.u32 %r30, 0;
    {STORE}
    @%p1 bra LEAVE;
    mov.u32 %r20, 0;
    AGAIN: add.u32 %r20, %r20, 1; setp.lt.u32 %p5, %r20, 9999; @%p5 bra AGAIN;
    ld.shared::cluster.b32 %r21, [%r8];
    LEAVE:
    """
    report = run(body)
    assert kinds(report) == {"cluster"} and "has exited" in messages(report)


ASYNC_STORE = f"""
@%p0 mbarrier.init.shared::cta.b64 [%r1], 1;
@%p0 fence.mbarrier_init.release.cluster;
{SYNC}
@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], {{bytes}};
{{store}}
{{wait}}
ld.shared.b32 %r30, [%r7];
{STORE}
{SYNC}
"""
WAIT = "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p5, [%r1], 0; @!%p5 bra WAIT;"
ST_ASYNC = "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r8], %r10, [%r5];"


@pytest.mark.parametrize("seed", SEEDS)
def test_an_asynchronous_store_is_visible_when_its_bytes_are_counted(seed: int) -> None:
    report = run(ASYNC_STORE.format(store=ST_ASYNC, bytes=128, wait=WAIT), seed=seed)
    assert report.clean, messages(report)
    assert (report.tensors["out"] == np.concatenate([THREAD + THREADS, THREAD])).all()


def test_an_asynchronous_store_is_in_flight_until_then() -> None:
    for seed in SEEDS:
        assert "async" in kinds(run(ASYNC_STORE.format(store=ST_ASYNC, bytes=128, wait=""), seed=seed))


def test_an_asynchronous_store_counts_in_the_block_that_it_writes() -> None:
    wrong = ST_ASYNC.replace("[%r5]", "[%r1]")
    for seed in SEEDS:
        assert "mbarrier" in kinds(run(ASYNC_STORE.format(store=wrong, bytes=128, wait=""), seed=seed))


REDUCTION = f"""
@%p0 mbarrier.init.shared::cta.b64 [%r1], 1;
@%p0 st.shared.b32 [%r0], 1;
{SYNC}
@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 128;
red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r4], %r10, [%r5];
{{wait}}
ld.shared.b32 %r30, [%r0];
{STORE}
{SYNC}
"""


@pytest.mark.parametrize("seed", SEEDS)
def test_asynchronous_reductions_add_up(seed: int) -> None:
    report = run(REDUCTION.format(wait=WAIT), seed=seed)
    assert report.clean, messages(report)
    sums = 1 + (THREAD + THREADS).sum(), 1 + THREAD.sum()
    assert (report.tensors["out"] == np.repeat(sums, THREADS)).all()


def test_a_read_without_a_wait_races_with_asynchronous_reductions() -> None:
    for seed in SEEDS:
        assert "race" in kinds(run(REDUCTION.format(wait=""), seed=seed))


@pytest.mark.parametrize("seed", SEEDS)
def test_clusters_of_several_waves_run_apart(seed: int) -> None:
    from tilec.emulator import Limits

    report = run(EXCHANGE, seed=seed, blocks=8, limits=Limits(resident_lanes=3 * THREADS))
    assert report.clean, messages(report)
    assert report.statistics["lane_counts"]
    assert (report.tensors["out"].reshape(8, THREADS)[:, 0] == np.array([1000, 0] * 4)).all()
