"""The order of tcgen05 instructions: what the PTX ISA orders has no fault and no note, and each planted misuse has its own."""

from __future__ import annotations

import numpy as np
import pytest

from tests.clean import check_clean
from tests.emulator.tensor_programs import (
    BARRIERS,
    IMAGE,
    alloc,
    barriers,
    commit,
    copy_image,
    descriptor,
    free,
    go,
    mma,
    names,
    read_back,
    store_registers,
    wait,
    whole,
)
from tests.emulator.tiny import kinds
from tilec.emulator import Report

ONES = np.full(2 * 128 * 32 + 1024, 0x3C00, np.uint16).view(np.uint8)[: 128 * 32 + 16 * 32]
"""A of 128 rows and B of 16, of ones in f16: each product adds 16 to every element."""
IDESC = 128 << 20 | 16 << 14 | 1 << 4
START = (
    alloc() + barriers() + copy_image(len(ONES)) + descriptor("%a_desc", 0, lbo=128, sbo=256)
    + descriptor("%b_desc", 4096, lbo=128, sbo=256)
)  # fmt: skip
MMA, MORE = mma(IDESC), mma(IDESC, p="%yes")
BEFORE, AFTER = "tcgen05.fence::before_thread_sync;", "tcgen05.fence::after_thread_sync;"
SIGNAL = BEFORE + "bar.sync 0;" + AFTER
LOAD = f"tcgen05.ld.sync.aligned.32x32b.x16.b32 {names(16)}, [%own];"
WAIT_LOAD, WAIT_STORE = "tcgen05.wait::ld.sync.aligned;", "tcgen05.wait::st.sync.aligned;"
STORE = f"tcgen05.st.sync.aligned.32x32b.x16.b32 [%own], {names(16)};"
ZERO = "".join(f"mov.b32 %v{k}, 0;" for k in range(16))
END = free()
SEEDS = range(4)


def ran(body: str, *, seed: int = 0, out: int = 16, stored: bool = True) -> Report:
    """The report of a body after START, which stores 16 registers of each thread."""
    return go(START + body + (store_registers(out) if stored else "") + END, out, image=ONES, seed=seed, written=stored)


def faulty(body: str, kind: str, text: str) -> None:
    """Every schedule of a body has faults, the first of exactly this kind and one with this text. Of threads without an order,
    `race` and `async` depend on which comes first."""
    allowed = {"race", "async"} if kind in ("race", "async") else {kind}
    for seed in SEEDS:
        report = ran(body, seed=seed, stored=False)
        found = "\n".join(map(str, report.faults)) or "no fault"
        assert kinds(report) and kinds(report) <= allowed, found
        if seed == 0:
            assert kinds(report) == {kind}, found
            assert any(text in fault.message for fault in report.faults), found


ARRIVES = f"mbarrier.arrive.shared::cta.b64 %y6, [%sm+{BARRIERS + 32}];"
RELAXED = f"mbarrier.arrive.relaxed.cluster.shared::cta.b64 %y6, [%sm+{BARRIERS + 32}];"
MANY = f"@%one mbarrier.init.shared::cta.b64 [%sm+{BARRIERS + 32}], 128; bar.sync 0;"
READY = f"ready: mbarrier.try_wait.parity.shared::cta.b64 %done, [%sm+{BARRIERS + 32}], 0; @!%done bra ready;"
RELAXED_READY = READY.replace("parity.", "parity.relaxed.cluster.")
READ = wait() + AFTER + read_back(16)
SECOND = ".reg .pred %second; setp.eq.u32 %second, %t, 32;"
OTHER_THREAD = mma(IDESC, p="%yes", guard="@%second ")
RIGHT = {
    "product, commit, wait, load": (MMA + commit() + READ, 16),
    "products pipelined in one thread": (MMA + MORE * 3 + commit() + READ, 64),
    "products pipelined in two threads": (
        MMA + commit(1) + SIGNAL + OTHER_THREAD + commit(0, "@%second ") + wait(1) + READ, 32,
    ),
    "load, wait, arrive, wait, product": (
        MANY + MMA + commit() + wait() + AFTER + LOAD + WAIT_LOAD + BEFORE + ARRIVES + READY + AFTER + MORE + commit(1)
        + wait(1) + AFTER + read_back(16), 32,
    ),
    "store, wait, barrier, product": (ZERO + STORE + WAIT_STORE + SIGNAL + MORE + commit() + READ, 16),
    "store, wait, relaxed arrive and wait, product": (
        MANY + ZERO + STORE + WAIT_STORE + BEFORE + RELAXED + RELAXED_READY + AFTER + MORE + commit() + READ, 16,
    ),
    "wait by another thread than the load": (
        MMA + commit() + "@!%first bra skip;" + wait() + "skip: bar.sync 0;" + AFTER + read_back(16), 16,
    ),
    "the second of two commits observed first": (
        MMA + commit() + MORE + commit(1) + wait(1) + AFTER + read_back(16) + wait(0), 32,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_patterns_that_the_isa_orders_have_no_fault(name: str) -> None:
    body, total = RIGHT[name]
    for seed in SEEDS:
        report = ran(SECOND + body, seed=seed)
        check_clean(report)
        assert (whole(report, 16) == total).all()


def test_two_commits_of_one_product_tell_two_groups_of_threads() -> None:
    split = "setp.ge.u32 %done, %t, 32; @%done bra other;"
    other = "other:" + wait(1) + "setp.eq.u32 %done, %t, 64; @%done " + f"st.shared.b32 [%sm+{IMAGE}], 0;"
    for seed in range(8):
        report = ran(MMA + commit(0) + commit(1) + split + wait(0) + "bra both;" + other + "both:", seed=seed, stored=False)
        check_clean(report)


ISSUED = MMA + commit() + "bar.sync 0;"
ONE_WARP = "@!%first bra skip;" + wait() + "skip:"
SPOIL = f"st.shared.b32 [%sm+{IMAGE}], 0;"
WRONG = {
    "load without a wait for the commit": (ISSUED + LOAD + WAIT_LOAD + wait(), "async", "its completion is not observed"),
    "load after a wait by one warp only": (ISSUED + ONE_WARP + LOAD + WAIT_LOAD, "race", "without an order"),
    "operand overwritten before the commit is observed": (
        ISSUED + "@%one " + SPOIL + wait(), "async", "an unfinished operation reads",
    ),
    "operand overwritten by a thread that did not wait": (
        ISSUED + ONE_WARP + "setp.eq.u32 %done, %t, 64; @%done " + SPOIL, "race", "writes what another thread reads",
    ),
    "product over cells whose load is not complete": (
        MMA + commit() + wait() + AFTER + LOAD + SIGNAL + MMA + commit(1) + wait(1) + WAIT_LOAD, "async", "still reads",
    ),
    "product over cells whose load nobody signalled": (
        MMA + commit() + wait() + AFTER + LOAD + WAIT_LOAD + MMA + commit(1) + wait(1), "race", "of another thread reads",
    ),
    "product over cells whose store is not complete": (
        ZERO + STORE + SIGNAL + MORE + commit() + wait() + WAIT_STORE, "async", "still writes",
    ),
    "load of a store that is not complete": (ZERO + STORE + LOAD + WAIT_STORE + WAIT_LOAD, "async", "still writes"),
    "product with another accumulator on the same cells": (
        MMA + "add.u32 %x6, %tm, 8;" + mma(IDESC, d="%x6") + commit() + wait(), "async", "still writes",
    ),
    "product of another shape on the same cells": (
        MMA + mma(128 << 20 | 8 << 14 | 1 << 4) + commit() + wait(), "async", "still writes",
    ),
    "product that takes A from an unfinished result": (
        MMA + "add.u32 %x6, %tm, 16;" + mma(IDESC, a="[%tm]", d="%x6") + commit() + wait(), "async", "still writes",
    ),
    "products of two threads without a signal": (
        MMA + commit() + OTHER_THREAD + commit(1, "@%second ") + wait() + wait(1), "race",
        "which another thread issued",
    ),
    "commit to memory that holds no mbarrier": (MMA + commit() + wait() + commit(9), "mbarrier", "holds no mbarrier"),
    "result in columns of nobody": ("add.u32 %x6, %tm, 56;" + mma(IDESC, d="%x6"), "bounds", "is not allocated"),
    "result at a wrong lane": ("add.u32 %x6, %tm, 0x100000;" + mma(IDESC, d="%x6"), "tensor-memory", "D at lane 16"),
    "A at a wrong lane": ("add.u32 %x6, %tm, 0x100000;" + mma(IDESC, a="[%x6]"), "tensor-memory", "A at lane 16"),
    "wrong instruction descriptor": (mma(IDESC | 1 << 6), "descriptor", "sets bits 0x40"),
    "A in tensor memory that is MN-major": (mma(IDESC | 1 << 15, a="[%tm]"), "descriptor", "makes A MN-major"),
    "wrong shared memory descriptor": (
        "xor.b64 %b_desc, %b_desc, 0x400000000000;" + MMA, "descriptor", "0 in bits 46 to 48",
    ),
    "operand outside shared memory": (descriptor("%b_desc", 1 << 15, lbo=128, sbo=256) + MMA, "bounds", "outside the block's"),
    "copy to a wrong lane": (
        "add.u32 %x6, %tm, 0x200000; @%one tcgen05.cp.cta_group::1.128x128b [%x6], %a_desc;", "tensor-memory", "to lane 32",
    ),
    "shift from a wrong lane": (
        "add.u32 %x6, %tm, 0x100000; @%one tcgen05.shift.cta_group::1.down [%x6];", "tensor-memory", "no multiple of 32",
    ),
    "descriptor that nobody defined": (mma(IDESC, a="%y4"), "poison", "a shared memory descriptor is not defined"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_planted_misuse_is_reported(name: str) -> None:
    body, kind, text = WRONG[name]
    faulty(SECOND + body, kind, text)


def test_columns_are_not_freed_under_a_product() -> None:
    report = go(START + ISSUED + END.replace("bar.sync 0;", "") + wait(), image=ONES, written=False)
    assert kinds(report) == {"async"}


def test_operands_of_threads_need_a_proxy_fence_and_a_barrier() -> None:
    plain = START.replace("fence.proxy.async.shared::cta;", "")
    body = MMA + commit() + wait() + END
    assert kinds(go(plain + body, image=ONES, written=False)) == {"proxy"}
    unsynchronised = START.replace("fence.proxy.async.shared::cta; bar.sync 0;", "fence.proxy.async.shared::cta;")
    assert kinds(go(unsynchronised + body, image=ONES, written=False)) == {"race", "proxy"}


def test_a_block_waits_for_its_products() -> None:
    report = go(START + "add.u32 %x6, %tm, 0;" + MMA + commit(), image=ONES, written=False)
    assert kinds(report) == {"async", "tensor-memory"}
    assert "whose commit no thread has waited for" in next(fault.message for fault in report.faults if fault.kind == "async")


def test_a_bulk_copy_does_not_overwrite_an_operand_in_use() -> None:
    expect = f"@%one mbarrier.arrive.expect_tx.shared::cta.b64 %y5, [%sm+{BARRIERS + 8}], 16;"
    copy = f"add.u32 %x3, %sm, {IMAGE}; add.u32 %x4, %sm, {BARRIERS + 8}; @%one cp.async.bulk.shared::cta.global.mbarrier"
    copy += "::complete_tx::bytes [%x3], [%a1], 16, [%x4];"
    faulty(MMA + commit() + expect + copy + wait() + wait(1), "async", "an unfinished operation reads")
    for seed in SEEDS:
        assert not ran(MMA + commit() + wait() + expect + copy + wait(1), seed=seed, stored=False).faults


def noted(body: str, kind: str, text: str) -> None:
    """Every schedule of a body has no fault, and notes of exactly this kind."""
    for seed in SEEDS:
        report = ran(body, seed=seed)
        assert report.clean, "\n".join(map(str, report.faults))
        assert {note.kind for note in report.notes} == {kind}
        assert any(text in note.message for note in report.notes)


def test_fences_that_are_missing_are_notes() -> None:
    stored = ZERO + STORE + WAIT_STORE
    rest = MORE + commit() + wait() + AFTER + read_back(16)
    noted(MMA + commit() + wait() + read_back(16), "tensor-fence", "after_thread_sync after the wait")
    noted(stored + "bar.sync 0;" + AFTER + rest, "tensor-fence", "before_thread_sync in the thread that signals")
    noted(stored + BEFORE + "bar.sync 0;" + rest, "tensor-fence", "after_thread_sync after the wait")
    noted(stored + "bar.sync 0;" + BEFORE + AFTER + rest, "tensor-fence", "before_thread_sync")
    noted(stored + BEFORE + AFTER + "bar.sync 0;" + rest, "tensor-fence", "after_thread_sync")


def test_a_register_used_before_its_wait_is_a_note() -> None:
    early = MMA + commit() + wait() + AFTER + LOAD + "add.u32 %v0, %v0, 0;" + WAIT_LOAD
    noted(early, "tensor-wait", "before tcgen05.wait::ld")


def test_an_operand_in_tensor_memory_overwritten_by_the_same_thread_is_a_note() -> None:
    filled = "".join(f"mov.b32 %v{k}, 0x3C003C00;" for k in range(16)) + STORE + WAIT_STORE + SIGNAL
    body = filled + "add.u32 %x6, %tm, 32;" + mma(IDESC, a="[%tm]", d="%x6") + MMA + commit() + wait() + AFTER + read_back(16)
    noted(body, "tensor-order", "overwrites what line")
    for seed in SEEDS:
        assert (whole(ran(body, seed=seed), 16) == 16).all()


def test_scale_factors_overwritten_after_a_product_are_a_note() -> None:
    cp = "add.u32 %x5, %tm, 32; @%one tcgen05.cp.cta_group::1.32x128b.warpx4 [%x5], %a_desc;"
    scaled = (
        f"mov.b32 %x7, {128 << 20 | 16 << 14 | 1 << 23}; add.u32 %x6, %tm, 32; @%one tcgen05.mma.cta_group::1.kind::mxf8f6f4"
    )
    scaled += ".block_scale [%tm], %a_desc, %b_desc, %x7, [%x6], [%x6], %no;"
    noted(cp + scaled + cp + commit() + wait() + AFTER + read_back(16), "tensor-order", "overwrites what line")


def test_a_seed_chooses_when_a_product_reads_its_operands() -> None:
    """The program is wrong, so that its result shows whether the product was performed when it was issued or at its commit."""
    body = MMA + f"@%one st.shared.b32 [%sm+{IMAGE}], 0;" + commit() + wait() + AFTER + read_back(16)
    found = [float(whole(ran(body, seed=seed), 16)[0, 0]) for seed in range(10)]
    assert set(found) == {14.0, 16.0}
    assert found == [float(whole(ran(body, seed=seed), 16)[0, 0]) for seed in range(10)]


def test_a_product_of_a_pair_needs_a_pair() -> None:
    body = alloc(32).replace("cta_group::1", "cta_group::2")
    report = go(body, written=False)
    assert "cluster" in kinds(report)
    assert "which are no pairs" in report.faults[0].message
