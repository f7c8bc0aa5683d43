"""Bytes in flight: an operation is under way until its own wait, whatever else has ended; also the sources of `cp.async`."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.tiny import Array, kinds, launch, program
from tilec.emulator import Memory, parse
from tilec.emulator.machine.launch_state import LaunchState
from tilec.emulator.machine.machine import Machine
from tilec.emulator.ordering.in_flight import NOTHING

STORE = """
mov.u32 %r0, smem; mad.lo.u32 %r2, %t, 4, %r0; setp.eq.u32 %p0, %t, 0;
st.shared.u32 [%r2], %t; st.shared.u32 [%r2+128], %t; fence.proxy.async; bar.sync 0; @!%p0 bra L;
cp.async.bulk.global.shared::cta.bulk_group [%a0], [%r0], 64; cp.async.bulk.commit_group;
{then}
cp.async.bulk.wait_group 0;
L: bar.sync 0; st.shared.u32 [%r2], %t;
"""
"""Thread 0 stores bytes in bulk, without an mbarrier; after its wait everyone overwrites them."""
FIRST = "cp.async.bulk.wait_group 0; "
TWO = """
cp.async.bulk.global.shared::cta.bulk_group [%a0], [%r0], 64; cp.async.bulk.commit_group;
cp.async.bulk.global.shared::cta.bulk_group [%a0+64], [%r0+64], 64; cp.async.bulk.commit_group;
"""


def run(body: str, *, threads: int = 32, seed: int = 0) -> set[str]:
    arrays: dict[str, Array] = {"x": np.zeros(256, np.uint32)}
    return kinds(launch(program(body, ["x"], shared=4096), arrays, threads=threads, shared=4096, seed=seed))


STORES = {
    "a destination before its read wait": ("ld.global.u32 %r5, [%a0];", {"async"}),
    "a destination after its read wait": ("cp.async.bulk.wait_group.read 0; ld.global.u32 %r5, [%a0];", {"async"}),
    "a destination after its wait": (FIRST + "ld.global.u32 %r5, [%a0];", set[str]()),
    "a source after its read wait": ("cp.async.bulk.wait_group.read 0; st.shared.u32 [%r0], %t;", set[str]()),
    "the second of two sources": (FIRST + TWO + "cp.async.bulk.wait_group.read 1; st.shared.u32 [%r0+64], %t;", {"async"}),
    "the first of two sources": (FIRST + TWO + "cp.async.bulk.wait_group.read 1; st.shared.u32 [%r0], %t;", set[str]()),
    "the second of two destinations": (FIRST + TWO + "cp.async.bulk.wait_group 1; ld.global.u32 %r5, [%a0+64];", {"async"}),
}


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("seed", range(3))
def test_bytes_of_a_bulk_store(name: str, seed: int) -> None:
    then, found = STORES[name]
    assert run(STORE.format(then=then), seed=seed) == found


WARPS = """
mov.u32 %r0, smem; mad.lo.u32 %r1, %t, 16, %r0; mad.wide.u32 %d0, %t, 16, %a0; shr.u32 %r3, %t, 5; setp.eq.u32 %p0, %r3, {};
cp.async.ca.shared.global [%r1], [%d0], 16; cp.async.commit_group;
@%p0 bra L; cp.async.wait_group 0; ld.shared.u32 %r4, [%r1]; bra E;
L: {} cp.async.wait_group 0;
E: bar.sync 0;
"""
"""Two warps copy in one instruction; one waits."""


@pytest.mark.parametrize(("then", "found"), [("", set[str]()), ("ld.shared.u32 %r4, [%r1];", {"async"})])
@pytest.mark.parametrize("warp", range(2))
@pytest.mark.parametrize("seed", range(3))
def test_copies_of_one_instruction_end_with_the_wait_of_each_thread(then: str, found: set[str], warp: int, seed: int) -> None:
    assert run(WARPS.format(warp, then), threads=64, seed=seed) == found


def test_what_is_ended_twice_is_an_internal_error() -> None:
    module = parse(program("", []))
    launched = LaunchState(module, module.functions["k"], (1, 1, 1), (32, 1, 1))
    pending = Machine(launched, Memory()).ordering.in_flight
    bytes_ = np.arange(100, 104)
    first, second = pending.begin(bytes_, NOTHING), pending.begin(NOTHING, bytes_)
    pending.end_reads(first)
    pending.end(first)
    assert pending.busy
    with pytest.raises(KeyError):
        pending.end(first)
    parts = pending.split(second, [(NOTHING, bytes_[:1]), (NOTHING, bytes_[1:])])
    with pytest.raises(KeyError):
        pending.end(second)
    for part in parts:
        assert pending.busy
        pending.end(part)
    assert not pending.busy


SOURCE = """
mov.u32 %r0, smem; mad.lo.u32 %r1, %t, 16, %r0; mad.wide.u32 %d0, %t, 16, %a0; xor.b32 %r2, %t, 32;
mad.wide.u32 %d1, %r2, 16, %a0;
cp.async.ca.shared.global [%r1], [%d0], 16{amount}; cp.async.commit_group;
{early}
cp.async.wait_group 0; {late}
"""
"""Each of 64 threads copies 16 bytes; %d1 is the source of the same lane of the other warp."""
SOURCES = {
    "nothing": ("", "", "", set[str]()),
    "an own store under it": ("", "st.global.u32 [%d0+12], %t;", "", {"async"}),
    "an own store after it": ("", "", "st.global.u32 [%d0], %t;", set[str]()),
    "an own read under it": ("", "ld.global.u32 %r5, [%d0];", "", set[str]()),
    "an own atomic under it": ("", "red.global.add.u32 [%d0], %t;", "", {"async"}),
    "another's store under it": ("", "bar.sync 0; st.global.u32 [%d1], %t;", "", {"async", "race"}),
    "another's store after a barrier under it": ("", "bar.sync 0;", "st.global.u32 [%d1], %t;", {"async", "race"}),
    "another's store after a barrier after it": ("", "", "bar.sync 0; st.global.u32 [%d1], %t;", set[str]()),
    "bytes past a short copy": (", 4", "st.global.u32 [%d0+4], %t;", "", set[str]()),
    "bytes of a short copy": (", 5", "st.global.u32 [%d0+4], %t;", "", {"async"}),
    "a source that is ignored": (", 0", "st.global.u32 [%d0], %t;", "", set[str]()),
}


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("seed", range(3))
def test_the_source_of_a_copy_is_read_until_its_wait(name: str, seed: int) -> None:
    amount, early, late, found = SOURCES[name]
    here = run(SOURCE.format(amount=amount, early=early, late=late), threads=64, seed=seed)
    assert here & found if found else not here, here


def test_one_source_that_two_warps_copy_is_read_until_the_last_wait() -> None:
    body = """
mov.u32 %r0, smem; mad.lo.u32 %r1, %t, 16, %r0; cp.async.ca.shared.global [%r1], [%a0], 16; cp.async.commit_group;
setp.lt.u32 %p0, %t, 32; setp.eq.u32 %p1, %t, 40; {} cp.async.wait_group 0; L: bar.sync 0;
@!%p1 bra E; st.global.u32 [%a0], %t; E: cp.async.wait_group 0;
"""
    for seed in range(3):
        assert "async" in run(body.format("@!%p0 bra L;"), threads=64, seed=seed)
        assert run(body.format(""), threads=64, seed=seed) == set()
