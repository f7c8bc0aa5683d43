"""Warp-wide instructions against their definition, thread by thread: shfl, vote, match, redux, elect, activemask."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import pytest

from tests.emulator.tiny import AT, go

LANES = np.arange(64, dtype=np.uint32)
DATA = np.random.default_rng(4).integers(0, 1 << 32, 64, dtype=np.uint32)
FEW = (LANES * 7 % 5).astype(np.uint32)


def across(instruction: str, data: Any, seed: int = 0) -> Any:
    """`instruction` with %r1 (the thread's item of `data`) as operand and %r2 as result; %p1 says whether %r1 is odd."""
    body = f"""{AT} ld.global.u32 %r1, [%d0]; and.b32 %r9, %r1, 1; setp.ne.u32 %p1, %r9, 0;
    {instruction} st.global.u32 [%d1], %r2;"""
    tensors = {"source": data, "out": np.zeros(64, np.uint32)}
    report = go(body, tensors=tensors, threads=64, seed=seed)
    assert report.faults == [], [str(fault) for fault in report.faults]
    return report.tensors["out"]


@pytest.mark.parametrize("width", [32, 8])
@pytest.mark.parametrize("by", [0, 1, 5, 31])
@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shfl(mode: str, by: int, width: int) -> None:
    """As __shfl_sync: the lane of the same group of `width` lanes, or the thread's own if that is outside the group."""
    clamp = (32 - width) << 8 | (0 if mode == "up" else 31)
    actual = across(f"shfl.sync.{mode}.b32 %r2|%p2, %r1, {by}, {clamp}, -1; @!%p2 xor.b32 %r2, %r2, 1;", DATA)
    for t in range(64):
        lane, base = t % 32, t % 32 // width * width
        source = {"up": lane - by, "down": lane + by, "bfly": lane ^ by, "idx": base + by % width}[mode]
        inside = source >= base if mode == "up" else source < base + width
        expected = DATA[t - lane + source] if inside else DATA[t] ^ 1
        assert actual[t] == expected, t


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("data", [FEW, np.zeros(64, np.uint32), np.ones(64, np.uint32)], ids=["some", "none", "all"])
def test_vote(data: Any, seed: int) -> None:
    for warp in (slice(0, 32), slice(32, 64)):
        odd = data[warp] & 1
        ballot = sum(int(bit) << k for k, bit in enumerate(odd))
        assert (across("vote.sync.ballot.b32 %r2, %p1, -1;", data, seed)[warp] == ballot).all()
        expected = {"all": odd.all(), "any": odd.any(), "uni": odd.all() or not odd.any()}
        for mode, value in expected.items():
            assert (across(f"vote.sync.{mode}.pred %p2, %p1, -1; selp.b32 %r2, 1, 0, %p2;", data, seed)[warp] == value).all()


@pytest.mark.parametrize("data", [FEW, np.full(64, 9, np.uint32)], ids=["some", "equal"])
def test_match(data: Any) -> None:
    any_of = across("match.any.sync.b32 %r2, %r1, -1;", data)
    all_of = across("match.all.sync.b32 %r2|%p2, %r1, -1; @!%p2 mov.u32 %r2, 77;", data)
    for t in range(64):
        warp = data[t // 32 * 32 :][:32]
        assert any_of[t] == sum(1 << k for k in range(32) if warp[k] == data[t])
        assert all_of[t] == (0xFFFFFFFF if (warp == warp[0]).all() else 77)


REDUCTIONS: dict[str, Callable[[int, int], int]] = {
    "add.u32": lambda a, b: (a + b) % (1 << 32), "add.s32": lambda a, b: (a + b) % (1 << 32),
    "min.u32": min, "max.u32": max, "and.b32": lambda a, b: a & b, "or.b32": lambda a, b: a | b, "xor.b32": lambda a, b: a ^ b,
    "min.s32": lambda a, b: min(a, b, key=lambda x: x ^ 1 << 31), "max.s32": lambda a, b: max(a, b, key=lambda x: x ^ 1 << 31),
}  # fmt: skip


@pytest.mark.parametrize("operation", REDUCTIONS)
def test_redux(operation: str) -> None:
    actual = across(f"redux.sync.{operation} %r2, %r1, -1;", DATA)
    for warp in (slice(0, 32), slice(32, 64)):
        assert (actual[warp] == reduce(REDUCTIONS[operation], DATA[warp].tolist())).all()


def test_redux_of_part_of_a_warp() -> None:
    """Even and odd threads reduce separately."""
    actual = across("mov.u32 %r3, 0x55555555; @%p1 mov.u32 %r3, 0xaaaaaaaa; redux.sync.add.u32 %r2, %r1, %r3;", LANES)
    assert all(actual[t] == LANES[t // 32 * 32 + t % 2 :][:32:2][:16].sum() for t in range(64))


def test_elect_and_activemask() -> None:
    assert (across("elect.sync %r2|%p2, -1; @%p2 add.u32 %r2, %r2, 100;", DATA) == np.where(LANES % 32, 0, 100)).all()
    actual = across("mov.u32 %r2, 0; @%p1 activemask.b32 %r2;", LANES)
    assert (actual == np.where(LANES % 2, 0xAAAAAAAA, 0)).all()
