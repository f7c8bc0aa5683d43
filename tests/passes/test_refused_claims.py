"""Attacks on claims of loops: what would be assumed if it were not shown first."""

from __future__ import annotations

import textwrap

import pytest

from tests.passes.test_loop_claims import HEAD, accepted
from tilec.ir.core import Function

CASES: dict[str, tuple[list[str], str]] = {
    "a step that every block has in common": ([], """
        requires(1 <= a, a <= 65536)
        grid(a)
        c = i32(0)
        for i in range(bid(0), N, num_blocks(0)):
            invariant(0 <= c, c <= i)
            v = load(x, c)
            c = c + 1
    """),
    "the same, too strict": (["E0310"], """
        requires(1 <= a, a <= 65536)
        grid(a)
        c = i32(0)
        for i in range(bid(0), N, num_blocks(0)):
            invariant(0 <= c, c < i)
            v = load(x, c)
            c = c + 1
    """),
    "the same, too fast": (["E0310"], """
        requires(1 <= a, a <= 65536)
        grid(a)
        c = i32(0)
        for i in range(bid(0), N, num_blocks(0)):
            invariant(0 <= c, c <= i)
            v = load(x, c)
            c = c + 2
    """),
    "no unsafe block takes a claim away": (["E0310"], """
        grid(1)
        with unsafe("x"):
            s = i32(0)
            while s < N:
                invariant(0 <= s, s < N)
                s = s + 1
    """),
    "numbers of 64 bits": ([], """
        grid(1)
        s = i64(0)
        for i in range(N):
            invariant(i64(0) <= s, s <= i64(i))
            v = load(x, i32(s))
            s = s + 1
    """),
    "arithmetic that wraps in a claim": (["E0304", "E0310"], """
        grid(1)
        s = i32(2147483647)
        for i in range(N):
            invariant(s + 1 > s)
            s = s - 1
    """),
    "a sum that wraps to end the loop": (["E0306"], """
        grid(1)
        s = i32(0)
        while s >= 0:
            invariant(s >= 0)
            decreases(2147483647 - s)
            s = s + 1
    """),
    "a number that wraps": (["E0306"], """
        grid(1)
        s = a
        while s != 0:
            decreases(s)
            s = s - 1
    """),
    "loaded numbers of any size": (["E0310"], """
        grid(1)
        s = i32(0)
        for i in range(N):
            invariant(0 <= s, s < N)
            s = load(x, s)
    """),
    "loaded numbers that are declared": ([], """
        grid(1)
        values(x, 0, N)
        s = i32(0)
        for i in range(N):
            invariant(0 <= s, s < N)
            s = load(x, s)
    """),
    "a claim of the other arm": (["E0301"], """
        grid(1)
        s = i32(0)
        if a > 0:
            for i in range(N):
                invariant(0 <= s, s <= i)
                s = s + 1
        else:
            s = b
        v = load(x, minimum(s, N - 1))
    """),
    "a false claim of a loop without iterations": (["E0310"], """
        grid(1)
        for i in range(0):
            invariant(False)
            v = load(x, i + 5)
    """),
    "a claim that the first iteration breaks": (["E0310"], """
        grid(1)
        s = i32(0)
        for i in range(N):
            invariant(s == 0)
            s = s + 1
        v = load(x, s + 7)
    """),
    "a claim that a break breaks": (["E0310"], """
        grid(1)
        s = i32(0)
        for i in range(N):
            invariant(0 <= s, s < N)
            if load(x, i) == 3:
                s = N
                break
        v = load(x, s)
    """),
    "a claim that the end of the loop breaks": (["E0310"], """
        grid(1)
        i = i32(3)
        for i in range(N):
            invariant(i < N)
            v = load(x, i)
    """),
    "a number that stays the same": (["E0309", "E0310"], """
        grid(1)
        s, n = i32(0), i32(5)
        while s < n:
            invariant(0 <= s, n <= 5)
            decreases(n - s)
            s, n = s + 1, n + 1
    """),
    "a number that some passes keep": (["E0306"], """
        grid(1)
        s = minimum(maximum(a, 0), 100)
        while s > 0:
            invariant(0 <= s)
            s = s - 1
            if load(x, 0) > 3:
                continue
            s = s + 1
    """),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_claim_is_shown_before_it_is_known(name: str) -> None:
    codes, body = CASES[name]
    head = HEAD.replace("    requires(N <= 100000)\n    grid(1)\n", "").replace("out: Out[i32, 4], ", "")
    head = head.replace("minimum, requires", "minimum, num_blocks, requires").replace("i32, invariant", "i32, i64, invariant")
    found = accepted(head + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ") + "\n")
    assert sorted({one.code for one in found} if not isinstance(found, Function) else set()) == codes
