"""Phases of an mbarrier."""

import pytest

from tilec.emulator.ordering.transaction_barrier import BarrierMisuse, TransactionBarrier


def test_a_phase_ends_after_all_arrivals_and_bytes_and_the_next_begins():
    barrier = TransactionBarrier(2)
    barrier.expect(96)
    assert barrier.arrive() == 0 and not barrier.passed_parity(0) and barrier.passed_parity(1)
    assert barrier.arrive() == 0 and not barrier.passed_parity(0)
    barrier.complete(64)
    assert not barrier.passed(0)
    barrier.complete(32)
    assert barrier.passed_parity(0) and barrier.passed(0) and not barrier.passed_parity(1)
    assert barrier.arrive(2) == 1 and barrier.passed_parity(1)


def test_bytes_may_arrive_before_they_are_expected():
    barrier = TransactionBarrier(1)
    barrier.complete(16)
    assert barrier.phase == 0
    barrier.expect(16)
    barrier.arrive()
    assert barrier.phase == 1


def test_what_the_isa_leaves_undefined_is_misuse():
    with pytest.raises(BarrierMisuse, match="0 arrivals"):
        TransactionBarrier(0)
    barrier = TransactionBarrier(2)
    with pytest.raises(BarrierMisuse, match="3 arrivals in phase 0"):
        barrier.arrive(3)
    with pytest.raises(BarrierMisuse, match="more than"):
        barrier.expect(1 << 20)
    barrier = TransactionBarrier(1)
    barrier.arrive()
    barrier.arrive()
    with pytest.raises(BarrierMisuse, match="asked for phase 0 in phase 2"):
        barrier.passed(0)
