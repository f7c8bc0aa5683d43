"""Asynchronous copies, mbarriers and proxies in small programs: correct ones pass, each violated rule is named."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.tiny import launch, program

COPY = """
mov.u32 %r0, smem;
shl.b32 %r1, %t, 4;
add.u32 %r2, %r0, %r1;
mad.wide.u32 %d0, %t, 16, %a0;
{copy}
cp.async.commit_group;
{wait}
{barrier}
xor.b32 %r3, %r1, 16;
add.u32 %r3, %r3, %r0;
ld.shared.b32 %r4, [%r3];
mad.wide.u32 %d1, %t, 4, %a1;
st.global.b32 [%d1], %r4;
"""


def copied(
    copy: str = "cp.async.cg.shared.global [%r2], [%d0], 16;",
    wait: str = "cp.async.wait_group 0;",
    barrier: str = "bar.sync 0;",
):
    x = np.arange(128, dtype=np.uint32)
    text = program(COPY.format(copy=copy, wait=wait, barrier=barrier), ["x", "out"], shared=1024)
    return launch(text, {"x": x, "out": np.zeros(32, np.uint32)}, out=["out"], read_only=["x"], shared=1024)


def kinds(report) -> set[str]:
    return {fault.kind for fault in report.faults}


def test_a_copy_is_visible_after_wait_and_barrier():
    report = copied()
    assert not report.faults
    assert (report.tensors["out"] == (np.arange(32) ^ 1) * 4).all()


def test_a_copy_fills_the_rest_of_its_size_or_predicate_with_zeros():
    half = copied("cp.async.ca.shared.global [%r2], [%d0], 16, 0;")
    assert not half.faults and (half.tensors["out"] == 0).all()
    skipped = copied("setp.lt.u32 %p0, %t, 4; cp.async.cg.shared.global [%r2], [%d0], 16, %p0;")
    assert not skipped.faults
    assert (skipped.tensors["out"] == np.where((np.arange(32) ^ 1) < 4, 0, (np.arange(32) ^ 1) * 4)).all()


def test_reading_before_the_wait_or_without_the_barrier_is_found():
    assert "async" in kinds(copied(wait=""))
    assert "async" in kinds(copied(wait="cp.async.wait_group 1;"))
    assert "race" in kinds(copied(barrier=""))


def test_a_copy_checks_its_addresses():
    assert "bounds" in kinds(copied("add.u64 %d0, %d0, 16; cp.async.cg.shared.global [%r2], [%d0], 16;"))
    assert "alignment" in kinds(copied("add.u32 %r2, %r2, 4; cp.async.cg.shared.global [%r2], [%d0], 16;"))


BARRIER = """
mov.u32 %r0, smem;
add.u32 %r1, %r0, 512;
setp.eq.u32 %p0, %t, 0;
@%p0 mbarrier.init.shared::cta.b64 [%r1], {count};
{fence}
bar.sync 0;
{work}
WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], {parity};
@!%p1 bra WAIT;
ld.shared.b32 %r4, [%r0+{read}];
mad.wide.u32 %d1, %t, 4, %a1;
st.global.b32 [%d1], %r4;
"""
STORE = "@%p0 st.shared.b32 [%r0], 7; mbarrier.arrive.shared::cta.b64 _, [%r1];"
BULK = """@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], {bytes};
@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%a0], 64, [%r1];"""


FENCE = "@%p0 fence.proxy.async.shared::cta;"


def waited(
    work: str, count: int = 32, parity: int = 0, read: int = 0, seed: int = 0, barrier: str = BARRIER, fence: str = FENCE
):
    body = barrier.format(work=work, count=count, parity=parity, read=read, fence=fence)
    text = program(body, ["x", "out"], shared=1024)
    arrays = {"x": np.arange(16, dtype=np.uint32) + 5, "out": np.zeros(32, np.uint32)}
    return launch(text, arrays, out=["out"], read_only=["x"], shared=1024, seed=seed)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_an_mbarrier_orders_a_store_before_the_readers(seed: int):
    report = waited(STORE, seed=seed)
    assert not report.faults
    assert (report.tensors["out"] == 7).all()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_bulk_copy_is_visible_when_its_bytes_have_been_counted(seed: int):
    report = waited(BULK.format(bytes=64), count=1, read=8, seed=seed)
    assert not report.faults
    assert (report.tensors["out"] == 7).all()


@pytest.mark.parametrize(
    ("fence", "found"),
    [
        (FENCE, set()),
        ("fence.proxy.async;", set()),
        ("@%p0 fence.mbarrier_init.release.cluster;", set()),
        ("bar.sync 1; setp.eq.u32 %p2, %t, 9; @%p2 fence.proxy.async.shared::cta;", set()),
        ("", {"proxy"}),
        ("@!%p0 fence.proxy.async.shared::cta;", {"proxy"}),
        ("@!%p0 fence.mbarrier_init.release.cluster;", {"proxy"}),
        ("@%p0 fence.proxy.async.global;", {"proxy"}),
        ("@%p0 fence.acq_rel.cta;", {"proxy"}),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_async_proxy_counts_on_an_mbarrier_that_was_fenced_since_it_was_made(fence: str, found: set[str], seed: int):
    """By the thread that initialized it, or by one synchronized with it by a barrier; no other thread's fence counts, and none
    before the initialization."""
    assert kinds(waited(BULK.format(bytes=64), count=1, read=8, seed=seed, fence=fence)) == found
    fenced_init = BARRIER.replace("@%p0 mbarrier.init", "{fence} @%p0 mbarrier.init").replace("{fence}\nbar", "bar")
    assert kinds(waited(BULK.format(bytes=64), count=1, read=8, seed=seed, fence=fence, barrier=fenced_init)) == {"proxy"}


def test_threads_alone_need_no_proxy_fence_for_their_mbarrier():
    assert not waited(STORE, fence="").faults


def test_a_fence_of_mbarriers_is_none_of_data():
    assert "proxy" in kinds(stored(fence="fence.mbarrier_init.release.cluster;"))


def test_a_wait_that_asks_once_is_found_in_some_interleaving():
    """`try_wait` may return early: a thread that does not retry may read data that has not arrived."""
    once = BARRIER.replace("@!%p1 bra WAIT;\n", "")
    found = [kinds(waited(BULK.format(bytes=64), count=1, read=8, seed=seed, barrier=once)) for seed in range(1, 21)]
    assert sum("race" in one for one in found) >= 5


def test_misuse_of_an_mbarrier_is_found():
    assert "deadlock" in kinds(waited(STORE, count=33))
    assert "deadlock" in kinds(waited(STORE, count=31, parity=1))
    assert "mbarrier" in kinds(waited(STORE.replace("_, [%r1];", "_, [%r1], 33;")))
    assert "deadlock" in kinds(waited(BULK.format(bytes=80), count=1))
    assert "async" in kinds(waited(BULK.format(bytes=64), count=1, parity=1))
    assert "mbarrier" in kinds(waited("st.shared.b32 [%r1], 0; mbarrier.arrive.shared::cta.b64 _, [%r1];"))
    assert "deadlock" in kinds(waited(STORE, parity=1))


OUT = """
mov.u32 %r0, smem;
shl.b32 %r1, %t, 2;
add.u32 %r2, %r0, %r1;
st.shared.b32 [%r2], %t;
{fence}
bar.sync 0;
setp.eq.u32 %p0, %t, 0;
@%p0 cp.async.bulk.global.shared::cta.bulk_group [%a0], [%r0], 128;
cp.async.bulk.commit_group;
{wait}
"""


def stored(fence: str = "fence.proxy.async.shared::cta;", wait: str = "cp.async.bulk.wait_group 0;"):
    text = program(OUT.format(fence=fence, wait=wait), ["out"], shared=256)
    return launch(text, {"out": np.zeros(32, np.uint32)}, out=["out"], shared=256)


def test_a_bulk_store_needs_the_proxy_fence_and_its_wait():
    report = stored()
    assert not report.faults
    assert (report.tensors["out"] == np.arange(32)).all()
    assert "proxy" in kinds(stored(fence=""))
    assert "async" in kinds(stored(wait=""))
    assert "async" in kinds(stored(wait="st.shared.b32 [%r2], 0; cp.async.bulk.wait_group 0;"))


def test_a_launch_that_may_overlap_must_wait_before_it_touches_memory():
    body = "{wait} mad.wide.u32 %d0, %t, 4, %a0; st.global.b32 [%d0], %t;"
    arrays = {"out": np.zeros(32, np.uint32)}
    for wait, found in (("griddepcontrol.wait;", set()), ("", {"dependency"})):
        report = launch(program(body.format(wait=wait), ["out"]), arrays, out=["out"], overlaps=True)
        assert kinds(report) == found


def test_the_read_only_path_is_for_what_no_launch_before_writes():
    """`ld.global.nc` requires read-only data from the start of the launch, so the wait does not help."""
    body = "griddepcontrol.wait; mad.wide.u32 %d0, %t, 4, %a0; ld.global{path}.b32 %r0, [%d0]; {store}"
    store = "mad.wide.u32 %d0, %t, 4, %a1; st.global.b32 [%d0], %r0;"
    arrays = {"x": np.arange(32, dtype=np.uint32), "out": np.zeros(32, np.uint32)}
    for path, overlaps, resident, found in (
        (".nc", True, set(), {"non-coherent"}),
        (".nc", True, {"x"}, set()),
        (".nc", False, set(), set()),
        ("", True, set(), set()),
    ):
        text = program(body.format(path=path, store=store), ["x", "out"])
        report = launch(text, arrays, out=["out"], overlaps=overlaps, resident=resident)
        assert kinds(report) == found


def test_what_is_resident_may_be_read_before_the_wait():
    body = "mad.wide.u32 %d0, %t, 4, %a0; ld.global.b32 %r0, [%d0]; griddepcontrol.wait; mad.wide.u32 %d0, %t, 4, %a1; {store}"
    text = program(body.format(store="st.global.b32 [%d0], %r0;"), ["x", "out"])
    arrays = {"x": np.arange(32, dtype=np.uint32), "out": np.zeros(32, np.uint32)}
    for resident, found in (({"x"}, set()), (set(), {"dependency"})):
        report = launch(text, arrays, out=["out"], overlaps=True, resident=resident)
        assert kinds(report) == found
        assert (report.tensors["out"] == arrays["x"]).all()


def test_what_is_resident_may_not_be_written_before_the_wait():
    """A kernel may write a tensor that it declares resident, but earlier kernels may still read it before the wait."""
    body = "mad.wide.u32 %d0, %t, 4, %a0; {wait} st.global.b32 [%d0], %t;"
    arrays = {"out": np.zeros(32, np.uint32)}
    for wait, found in (("griddepcontrol.wait;", set()), ("", {"dependency"})):
        report = launch(program(body.format(wait=wait), ["out"]), arrays, out=["out"], overlaps=True, resident={"out"})
        assert kinds(report) == found


def test_unmodelled_instructions_are_refused_by_name():
    from tilec.emulator.errors import UnsupportedPtx

    with pytest.raises(UnsupportedPtx, match="wmma"):
        launch(program("wmma.load.a.sync.aligned.row.m16n16k16.f16 {%r0}, [%d0];", ["out"]), {"out": np.zeros(32, np.uint32)})
