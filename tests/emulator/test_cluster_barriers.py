"""`barrier.cluster`, mbarriers of peers, and the order of memory that release, acquire and relaxed signals make."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.cluster_programs import RELAXED, STORE, SYNC, THREADS, messages, run
from tests.emulator.tiny import kinds
from tilec.emulator import UnsupportedPtx

SEEDS = range(4)
THREAD = np.arange(THREADS, dtype=np.uint32)
PEER = np.concatenate([THREAD + THREADS, THREAD])
"""What each thread gets if the same thread of the peer sends its number in the grid."""
AROUND = f"""
{{before}}
st.shared::cta.b32 [%r7], %r10;
{{signal}}
ld.shared::cluster.b32 %r30, [%r8];
{STORE}
{SYNC}
"""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "signal",
    [
        SYNC,
        "barrier.cluster.arrive; barrier.cluster.wait;",
        "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;",
        "fence.acq_rel.cluster; " + RELAXED,
        "fence.sc.gpu; " + RELAXED,
    ],
)
def test_a_barrier_of_the_cluster_orders_its_blocks(signal: str, seed: int) -> None:
    report = run(AROUND.format(before="", signal=signal), seed=seed, blocks=4)
    assert report.clean, messages(report)
    assert (report.tensors["out"] == np.concatenate([PEER, PEER + 2 * THREADS])).all()


@pytest.mark.parametrize(
    "signal",
    [
        RELAXED,
        "fence.acq_rel.cta; " + RELAXED,
        "fence.mbarrier_init.release.cluster; " + RELAXED,
        RELAXED + "fence.acq_rel.cluster;",
    ],
)
def test_a_relaxed_barrier_orders_nothing(signal: str) -> None:
    for seed in SEEDS:
        assert kinds(run(AROUND.format(before=SYNC, signal=signal), seed=seed)) == {"race"}


def test_accesses_between_arrival_and_wait_are_not_ordered() -> None:
    late = "barrier.cluster.arrive.aligned; st.shared.b32 [%r7], %t; barrier.cluster.wait.aligned;"
    for seed in SEEDS:
        assert kinds(run(AROUND.format(before=SYNC, signal=late), seed=seed)) == {"race"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("barrier.cluster.arrive.aligned; barrier.cluster.arrive.aligned;", "twice"),
        ("barrier.cluster.wait.aligned;", "without an arrival"),
    ],
)
def test_arrivals_and_waits_alternate(body: str, message: str) -> None:
    report = run(f"mov.u32 %r30, 0; {STORE} {body}", size=2)
    assert kinds(report) == {"barrier"} and message in messages(report)


@pytest.mark.parametrize("seed", SEEDS)
def test_exited_threads_are_not_waited_for(seed: int) -> None:
    report = run(f"mov.u32 %r30, 7; {STORE} @%p1 ret; {SYNC}", seed=seed)
    assert report.clean, messages(report)
    assert (report.tensors["out"] == 7).all()


def test_a_block_that_never_arrives_and_never_exits_is_a_deadlock() -> None:
    body = f"mov.u32 %r30, 0; {STORE} @%p0 mbarrier.init.shared.b64 [%r1], 1; bar.sync 0; @!%p1 bra WAIT; {SYNC} ret;"
    wait = "WAIT: mbarrier.try_wait.parity.shared.b64 %p5, [%r1], 0; @!%p5 bra WAIT;"
    for seed in SEEDS:
        assert kinds(run(body + wait, seed=seed)) == {"deadlock"}


MAKE = "@%p0 mbarrier.init.shared::cta.b64 [%r1], 32;"
HANDSHAKE = f"""
{MAKE}
{{meet}}
st.shared::cluster.b32 [%r8], %r10;
{{arrive}}
WAIT: {{wait}} %p5, [%r1], 0;
@!%p5 bra WAIT;
{{after}}
ld.shared.b32 %r30, [%r7];
{STORE}
{SYNC}
"""
ARRIVE = "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r5];"
WAIT = "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64"


def shaken(arrive: str = ARRIVE, wait: str = WAIT, after: str = "", meet: str = SYNC, seed: int = 0):
    return run(HANDSHAKE.format(arrive=arrive, wait=wait, after=after, meet=meet), seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("arrive", "wait", "after"),
    [
        (ARRIVE, WAIT, ""),
        (ARRIVE, WAIT.replace("try_wait", "test_wait"), ""),
        ("fence.acq_rel.cluster; " + ARRIVE.replace("release", "relaxed"), WAIT, ""),
        (ARRIVE, WAIT.replace("acquire", "relaxed"), "fence.acq_rel.cluster;"),
        ("fence.acq_rel.gpu; " + ARRIVE.replace("release", "relaxed"), WAIT.replace("acquire", "relaxed"), "fence.sc.gpu;"),
    ],
)
def test_an_arrival_at_a_peers_mbarrier_orders_memory(arrive: str, wait: str, after: str, seed: int) -> None:
    report = shaken(arrive, wait, after, seed=seed)
    assert report.clean, messages(report)
    assert (report.tensors["out"] == PEER).all()


@pytest.mark.parametrize(
    ("arrive", "wait", "after"),
    [
        (ARRIVE.replace("release", "relaxed"), WAIT, ""),
        (ARRIVE, WAIT.replace("acquire", "relaxed"), ""),
        (ARRIVE, WAIT.replace("acquire", "relaxed"), "fence.acq_rel.cta;"),
        (ARRIVE.replace(".release.cluster", ""), WAIT, ""),
        (ARRIVE.replace("release.cluster", "release.cta"), WAIT, ""),
        (ARRIVE, WAIT.replace(".acquire.cluster", ""), ""),
        (ARRIVE, WAIT.replace("acquire.cluster", "acquire.cta"), ""),
        ("fence.acq_rel.cta; " + ARRIVE.replace("release", "relaxed"), WAIT, ""),
    ],
)
def test_a_relaxed_or_narrow_signal_between_blocks_does_not(arrive: str, wait: str, after: str) -> None:
    for seed in SEEDS:
        report = shaken(arrive, wait, after, seed=seed)
        assert kinds(report) == {"race"}, messages(report)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_relaxed_signal_inside_a_block_needs_fences_too(seed: int) -> None:
    body = f"""
    {MAKE}
    bar.sync 0;
    st.shared.b32 [%r7], %r10;
    {{arrive}}
    WAIT: mbarrier.try_wait.parity.{{wait}}.cta.shared::cta.b64 %p5, [%r1], 0;
    @!%p5 bra WAIT;
    {{after}}
    xor.b32 %r20, %r7, 4;
    ld.shared.b32 %r30, [%r20];
    {STORE}
    """
    relaxed = "mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [%r1];"
    fenced = run(body.format(arrive="fence.acq_rel.cta;" + relaxed, wait="relaxed", after="fence.acq_rel.cta;"), seed=seed)
    assert fenced.clean, messages(fenced)
    for options in ({"arrive": relaxed, "wait": "acquire", "after": ""},
                    {"arrive": relaxed.replace("relaxed", "release"), "wait": "relaxed", "after": ""}):  # fmt: skip
        assert kinds(run(body.format(**options), seed=seed)) == {"race"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("meet", [SYNC, "@%p0 fence.mbarrier_init.release.cluster; " + RELAXED])
def test_a_peer_may_use_an_mbarrier_after_a_barrier_of_the_cluster(meet: str, seed: int) -> None:
    report = shaken(meet=meet, seed=seed)
    assert report.clean, messages(report)


def test_a_peer_may_not_use_it_before() -> None:
    for meet in (RELAXED, "@!%p0 fence.mbarrier_init.release.cluster; " + RELAXED):
        for seed in SEEDS:
            assert kinds(shaken(meet=meet, seed=seed)) == {"race"}
    late = HANDSHAKE.replace(MAKE, "").replace("{meet}", SYNC + MAKE + "bar.sync 0;")
    for seed in SEEDS:
        assert kinds(run(late.format(arrive=ARRIVE, wait=WAIT, after=""), seed=seed)) & {"race", "mbarrier"}


@pytest.mark.parametrize("seed", SEEDS)
def test_remote_expectations_and_counts(seed: int) -> None:
    body = f"""
    @%p0 mbarrier.init.shared::cta.b64 [%r1], 3;
    {SYNC}
    @%p0 mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [%r5], 8;
    @%p0 mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r5], 8;
    @%p0 mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r5], 16;
    @%p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r5], 2;
    WAIT: {WAIT} %p5, [%r1], 0;
    @!%p5 bra WAIT;
    {SYNC}
    mov.u32 %r30, 3;
    {STORE}
    """
    report = run(body, seed=seed)
    assert report.clean, messages(report)
    assert (report.tensors["out"] == 3).all()


@pytest.mark.parametrize(
    "text",
    [
        "mbarrier.init.shared::cluster.b64 [%r1], 1;",
        "mbarrier.test_wait.shared::cluster.b64 %p5, [%r1], %d1;",
        "mbarrier.arrive.shared::cluster.b64 %d1, [%r1];",
        "mbarrier.arrive.relaxed.shared::cta.b64 _, [%r1];",
    ],
)
def test_forms_that_the_isa_does_not_have_are_refused(text: str) -> None:
    with pytest.raises(UnsupportedPtx):
        run(text)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("@%p0 mbarrier.init.shared::cta.b64 [%r5], 1;", "space"),
        ("mbarrier.try_wait.parity.shared::cta.b64 %p5, [%r5], 1;", "space"),
        ("mbarrier.arrive.shared::cta.b64 _, [%r5];", "space"),
        ("@%p0 mbarrier.init.b64 [%d0], 1;", "space"),
    ],
)
def test_waits_and_initialisation_are_for_the_own_block(text: str, kind: str) -> None:
    for seed in SEEDS:
        report = run(f"{MAKE} {SYNC} mov.u32 %r30, 0; {STORE} {SYNC} {text} {SYNC}", seed=seed)
        assert kinds(report) == {kind}, messages(report)


def test_a_block_may_not_exit_before_a_peers_arrival() -> None:
    body = f"{MAKE} {SYNC} mov.u32 %r30, 0; {STORE} @%p1 {ARRIVE}"
    for seed in SEEDS:
        report = run(body, seed=seed)
        assert kinds(report) == {"cluster"}, messages(report)
        assert run(body + SYNC, seed=seed).clean
    waited = f"{body} @%p1 ret; WAIT: mbarrier.try_wait.parity.shared.b64 %p5, [%r1], 0; @!%p5 bra WAIT;"
    for seed in SEEDS:
        assert run(waited, seed=seed).clean


FLAG = f"""
@%p0 st.shared.b32 [%r0+512], 0;
{SYNC}
@%p2 st.shared::cluster.b32 [%r4], 42;
@%p2 st.release.{{scope}}.shared::cluster.b32 [%r4+512], 1;
mov.u32 %r30, 42;
@%p1 bra END;
WAIT: ld.acquire.{{scope}}.shared::cta.b32 %r20, [%r0+512];
setp.ne.u32 %p5, %r20, 1;
@%p5 bra WAIT;
ld.shared.b32 %r30, [%r0];
END: {STORE}
{SYNC}
"""


@pytest.mark.parametrize("seed", SEEDS)
def test_release_and_acquire_work_within_their_scope(seed: int) -> None:
    report = run(FLAG.format(scope="cluster"), seed=seed)
    assert report.clean, messages(report)
    assert (report.tensors["out"] == 42).all()
    assert kinds(run(FLAG.format(scope="cta"), seed=seed)) == {"race"}


GLOBAL_FLAG = f"""
setp.eq.u32 %p5, %r10, 0;
@%p5 st.global.b32 [%a1], 42;
@%p5 st.release.{{scope}}.global.b32 [%a1+4], 1;
setp.lt.u32 %p6, %r9, 2;
mov.u32 %r30, 42;
@%p6 bra END;
WAIT: ld.acquire.{{scope}}.global.b32 %r20, [%a1+4];
setp.ne.u32 %p7, %r20, 1;
@%p7 bra WAIT;
ld.global.b32 %r30, [%a1];
END: {STORE}
"""


@pytest.mark.parametrize("seed", SEEDS)
def test_cluster_scope_ends_at_the_cluster(seed: int) -> None:
    from tests.emulator.cluster_programs import START
    from tests.emulator.tiny import launch, program

    def flagged(scope: str):
        arrays = {"out": np.zeros(4 * THREADS, np.uint32), "flag": np.zeros(2, np.uint32)}
        text = program(START + GLOBAL_FLAG.format(scope=scope), list(arrays), shared=2048, target="sm_100a")
        return launch(text, arrays, grid=(4,), out=("out",), shared=2048, seed=seed, cluster=(2,))

    report = flagged("gpu")
    assert report.clean, messages(report)
    assert (report.tensors["out"] == 42).all()
    assert kinds(flagged("cluster")) == {"race"}
