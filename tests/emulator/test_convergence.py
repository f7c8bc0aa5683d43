"""What the threads of a warp must do together: uniform branches, and warp-wide instructions whose members name one mask."""

from __future__ import annotations

import pytest

from tests.emulator.tiny import go, kinds

NONE = set[str]()
BRANCHES = {
    "all take it": ("setp.lt.u32 %p0, %t, 64; @%p0 bra.uni L; L:", NONE),
    "none takes it": ("setp.ge.u32 %p0, %t, 64; @%p0 bra.uni L; L:", NONE),
    "whole warps take it": ("setp.lt.u32 %p0, %t, 32; @%p0 bra.uni L; L:", NONE),
    "a part of a warp takes it": ("setp.lt.u32 %p0, %t, 7; @%p0 bra.uni L; L:", {"divergent"}),
    "a part of a warp does not take it": ("setp.lt.u32 %p0, %t, 7; @!%p0 bra.uni L; L:", {"divergent"}),
    "one that is not marked": ("setp.lt.u32 %p0, %t, 7; @%p0 bra L; L:", NONE),
    "the active part of a diverged warp": ("setp.lt.u32 %p0, %t, 7; @%p0 bra A; bra.uni L; A: bra.uni L; L:", NONE),
    "an index for each warp": ("shr.u32 %r0, %t, 5; T: .branchtargets A, B; brx.idx.uni %r0, T; A: mov.u32 %r1, 0; B:", NONE),
    "an index for each thread": (
        "and.b32 %r0, %t, 1; T: .branchtargets A, B; brx.idx.uni %r0, T; A: mov.u32 %r1, 0; B:",
        {"divergent"},
    ),
    "an index that is not marked": ("and.b32 %r0, %t, 1; T: .branchtargets A, B; brx.idx %r0, T; A: B:", NONE),
    "whole warps leave": ("setp.lt.u32 %p0, %t, 32; @%p0 ret.uni;", NONE),
    "a part of a warp leaves": ("setp.lt.u32 %p0, %t, 7; @%p0 ret.uni;", {"divergent"}),
}


@pytest.mark.parametrize("name", BRANCHES)
@pytest.mark.parametrize("seed", range(3))
def test_uniform_branches(name: str, seed: int) -> None:
    body, found = BRANCHES[name]
    assert kinds(go(body, threads=64, checked=False, seed=seed)) == found


MASKED = {
    "bar.warp.sync": "bar.warp.sync {};",
    "shfl": "shfl.sync.idx.b32 %r1, %t, 0, 31, {};",
    "vote": "vote.sync.ballot.b32 %r1, %p1, {};",
    "match": "match.any.sync.b32 %r1, %t, {};",
    "redux": "redux.sync.add.u32 %r1, %t, {};",
    "elect": "elect.sync %r1|%p3, {};",
}
MASKS = "and.b32 %r5, %t, 1; setp.eq.u32 %p1, %r5, 0; selp.b32 %r6, {}, {}, %p1; "
"""Masks of the even and of the odd threads."""
BY_THREAD = {
    "one mask": (MASKS.format("0xffffffff", "0xffffffff"), NONE),
    "one mask for each half": (MASKS.format("0x55555555", "0xaaaaaaaa"), NONE),
    "one mask within the other": (MASKS.format("0x55555555", "0xffffffff"), {"divergent"}),
    "masks that meet": (MASKS.format("0x55555555", "0xaaaaaaab"), {"divergent"}),
    "one mask for each warp": (
        "setp.lt.u32 %p1, %t, 48; setp.lt.u32 %p2, %t, 32; selp.b32 %r6, 0xffff, 0xffff0000, %p1;"
        "@%p2 mov.b32 %r6, -1;", NONE),
}  # fmt: skip


@pytest.mark.parametrize("masks", BY_THREAD)
@pytest.mark.parametrize("name", MASKED)
def test_threads_that_name_each_other_name_one_mask(name: str, masks: str) -> None:
    body, found = BY_THREAD[masks]
    for seed in range(3):
        assert kinds(go(body + MASKED[name].format("%r6"), threads=64, checked=False, seed=seed)) == found
