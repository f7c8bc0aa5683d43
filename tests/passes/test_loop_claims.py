"""`while`, `decreases` and `invariant`: what is accepted ends, keeps its claims and computes what Python computes.

By brute force: loops that are right, with up to three small mistakes. Python runs each accepted one as it stands, with claims
as assertions, every index checked and a limit of passes.
"""

from __future__ import annotations

import random
import re
import textwrap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from tests import campaign
from tests.soundness.verdict import examine_function
from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Function
from tilec.passes.prover import prove

HEAD = '''"""Loops."""

import tilec
from tilec import Dim, In, InOut, Out, bid, decreases, function, grid, i32, invariant, load, maximum, minimum, requires
from tilec import store, unsafe, values


class N(Dim):
    """elements"""


@tilec.kernel
def k(x: In[i32, N], out: Out[i32, 4], p: InOut[i32, N], a: i32, b: i32):
    requires(N <= 100000)
    grid(1)
'''
LOOPS = {
    "binary search": """
        lo, hi = i32(0), N
        while lo < hi:
            invariant(0 <= lo, lo <= hi, hi <= N)
            middle = (lo + hi) // 2
            if load(x, middle) < a:
                lo = middle + 1
            else:
                hi = middle
        s, t = lo, hi
    """,
    "remainder": """
        s, t = minimum(maximum(a, 0), 1000), maximum(b, 1)
        while s >= t:
            invariant(0 <= s, 1 <= t)
            decreases(s)
            s = s - t
    """,
    "sum until a number": """
        s, t = i32(0), i32(0)
        while t < N:
            invariant(0 <= t, t <= N)
            v = load(x, t)
            if v == a:
                break
            t = t + 1
            if v < 0:
                continue
            s = s + v
    """,
    "two ends": """
        s, t = i32(0), N - 1
        while s < t:
            invariant(0 <= s, s <= N, t < N, 0 <= t + 1)
            decreases(t - s)
            if load(x, s) + 0 < load(x, t):
                s = s + 1
            else:
                t = t - 1
    """,
    "halving": """
        s, t = maximum(a, 0), i32(0)
        while s > 0:
            invariant(0 <= s, 0 <= t, t <= 31)
            decreases(s)
            s = s // 2
            if t < 31:
                t = t + 1
    """,
    "packing": """
        s, t = i32(0), i32(0)
        for i in range(N):
            invariant(0 <= s, s <= i)
            v = load(x, i)
            if v > a:
                store(p, s, v)
                s = s + 1
    """,
    "packing until a number": """
        s, t = i32(0), i32(0)
        for i in range(0, N, 2):
            invariant(0 <= s, s <= i)
            v = load(x, i)
            if v == a:
                t = i32(1)
                break
            if v > b:
                continue
            store(p, s, v)
            s = s + 1
    """,
    "a loop in a loop": """
        s, t = i32(0), i32(0)
        while s < N:
            invariant(0 <= s, s <= N, 0 <= t, t <= s)
            w = i32(0)
            while w < s:
                invariant(0 <= w, w <= s)
                if load(x, w) > load(x, s):
                    break
                w = w + 1
            if w < s:
                t = t + 1
            s = s + 1
        s = t
        if N > 0:
            t = load(x, minimum(t, N - 1))
    """,
    "never": """
        s, t = i32(0), minimum(maximum(a, -5), 5)
        while True:
            invariant(0 <= s, s <= 10)
            decreases(11 - s)
            if s >= 10:
                break
            if s == t:
                break
            s = s + 1
    """,
    "what a branch leaves": """
        s, t = i32(0), i32(0)
        if a > 0:
            for i in range(N):
                invariant(0 <= s, s <= i)
                if load(x, i) > b:
                    s = s + 1
            t = s
        else:
            t = N
        if t > 0:
            s = load(x, t - 1)
    """,
    "a loop in a branch": """
        s, t = i32(0), i32(0)
        if a > 0:
            while s < N:
                invariant(0 <= s, s <= N)
                s = s + 1
            if s > 0:
                t = load(x, s - 1)
        else:
            for i in range(1, N):
                invariant(0 <= s, s < i)
                if load(x, s) < load(x, i):
                    s = i
        s = s + 1
    """,
}
END = """
    store(out, 0, s)
    store(out, 1, t)
    store(out, 2, a)
    store(out, 3, b)
"""
EDITS: tuple[tuple[str, str], ...] = (
    (r" < ", " <= "), (r" <= ", " < "), (r" > ", " >= "), (r" \+ 1", ""), (r" \+ 1", " + 2"), (r" - 1", ""),
    (r" // 2", " // 3"), (r"else:", "if a > 1:"),
    (r"i32\(0\)", "i32(1)"), (r"i32\(0\)", "i32(-1)"), (r"\b0 <=", "1 <="), (r"\bN\b", "(N - 1)"), (r"\bs\b", "t"),
    (r"\bt\b", "s"), (r"maximum\((\w), 0\)", r"\1"), (r"\n +break\n", "\n            pass\n"), (r"continue", "pass"),
    (r"\n +invariant\([^\n]*\n", "\n"), (r"\n +decreases\([^\n]*\n", "\n"), (r"invariant\(0 <= (\w), ", r"invariant("),
    (r"\+", "-"), (r" = t\b", " = t + 1"), (r"\blo\b", "hi"), (r"\bhi\b", "lo"), (r" == ", " != "), (r"10", "2147483647"),
    (r"range\(", "range(1, "), (r"load\(x, (\w)\)", r"load(x, \1 + 1)"), (r"\bN\b", "a"), (r"\bi\b", "s"),
)  # fmt: skip


def edited(r: random.Random, text: str) -> str:
    """A small mistake at a random place."""
    for _ in range(20):
        pattern, new = r.choice(EDITS)
        matches = list(re.finditer(pattern, text))
        if matches:
            at = r.choice(matches)
            return text[: at.start()] + at.expand(new) + text[at.end() :]
    return text


def source(loop: str) -> str:
    return HEAD + textwrap.indent(textwrap.dedent(loop), "    ") + END


def accepted(text: str) -> Function | tuple[Diagnostic, ...]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "k.py"
        path.write_text(text, encoding="utf-8")
        try:
            function = load_kernel(path, {}, root=Path(folder))
            prove(function)
        except CompileError as error:
            return error.diagnostics
    return function


class _Long(Exception):
    """More passes than are run here."""


class _Elements(list[int]):
    """A tensor: an index outside is an error, as is a number that is no i32."""

    def at(self, index: int) -> int:
        assert 0 <= index < len(self), "outside"
        return self[index]

    def put(self, index: int, value: int) -> None:
        assert 0 <= index < len(self), "outside"
        self[index] = (value + 2**31) % 2**32 - 2**31


def in_python(loop: str, x: list[int], a: int, b: int) -> tuple[list[int], list[int]]:
    """What CPython computes: `out`, and the packed elements; _Long if it takes too many passes."""
    fuel, before = 5_000, dict[int, int]()
    out, packed = _Elements([0] * 4), _Elements([0] * len(x))

    def burn() -> bool:
        nonlocal fuel
        fuel -= 1
        if not fuel:
            raise _Long
        return True

    def invariant(*conditions: bool) -> None:
        assert all(conditions), "a false invariant"

    def decreases(loop: int, number: int) -> None:
        assert number > 0, "the number is not positive"
        assert number < before.get(loop, number + 1), "the number does not fall"
        before[loop] = number

    def begin(loop: int) -> None:
        before.pop(loop, None)

    names: dict[str, Any] = {
        "x": _Elements(x), "p": packed, "out": out, "a": a, "b": b, "N": len(x), "i32": int, "maximum": max, "minimum": min,
        "load": _Elements.at, "store": _Elements.put, "invariant": invariant, "decreases": decreases, "burn": burn,
        "begin": begin,
    }  # fmt: skip
    lines, loops = list[str](), 0
    for line in textwrap.dedent(loop).split("\n"):
        if (found := re.fullmatch(r"( *)while (.*):", line)) is not None:
            loops += 1
            lines.append(f"{found.group(1)}begin({loops})")
            line = f"{found.group(1)}while burn() and ({found.group(2)}):"
        lines.append(line.replace("decreases(", f"decreases({loops}, "))
    exec("\n".join(lines) + textwrap.dedent(END), names)
    return list(out), list(packed)


def check(loop: str, function: Function, r: random.Random) -> None:
    """Runs an accepted kernel on data of small and extreme numbers."""
    for trial in range(14):
        numbers = (-2, -1, 0, 1, 2, 3, 7) if trial % 3 else (-(2**31), 2**31 - 1, 0, 5, -1)
        x = [r.choice(numbers) for _ in range(r.choice((1, 1, 2, 3, 5, 8)))]
        x = sorted(x) if trial % 2 else x
        a, b = r.choice((*numbers, 12, 18)), r.choice((*numbers, 24))
        try:
            expected, packed = in_python(loop, x, a, b)
        except _Long:
            assert "2147483647" in loop or not trial % 3, (loop, x, a, b)
            continue
        out, p = np.zeros(4, np.int32), np.zeros(len(x), np.int32)
        run(function, {"x": np.array(x, np.int32), "out": out, "p": p}, {"a": a, "b": b})
        assert out.tolist() == expected, (loop, x, a, b)
        assert p.tolist() == packed, (loop, x, a, b)


@pytest.mark.parametrize("name", LOOPS)
def test_right_loops_are_accepted(name: str) -> None:
    function = accepted(source(LOOPS[name]))
    assert isinstance(function, Function), [(one.code, one.message) for one in function]
    check(LOOPS[name], function, random.Random(name))


@pytest.mark.parametrize("seed", campaign.first(1, range(100)))
def test_no_loop_with_mistakes_goes_wrong_if_it_is_accepted(seed: int) -> None:
    r, kept, refused = random.Random(f"loops {seed}"), 0, 0
    for _ in range(10):
        loop = LOOPS[r.choice(sorted(LOOPS))]
        for _ in range(r.choice((1, 1, 2, 3))):
            loop = edited(r, loop)
        function = accepted(source(loop))
        if isinstance(function, Function):
            kept += 1
            check(loop, function, r)
        else:
            refused += 1
    assert kept + refused == 10


@pytest.mark.parametrize("seed", campaign.first(2, range(20)))
def test_counterexamples_of_loops_occur(seed: int) -> None:
    """The oracle runs the launch of a refusal, and meets the claimed fault."""
    r, shown = random.Random(f"refused loops {seed}"), 0
    for _ in range(12):
        loop = edited(r, LOOPS[r.choice(sorted(LOOPS))])
        with TemporaryDirectory() as folder:
            path = Path(folder) / "k.py"
            path.write_text(source(loop), encoding="utf-8")
            try:
                function = load_kernel(path, {}, root=Path(folder))
            except CompileError:
                continue
        verdict = examine_function(function, seed, launches=8)
        assert verdict.kind != "false_accept", (loop, verdict.fault, verdict.sizes)
        assert not verdict.wrong_examples, (loop, verdict.diagnostics)
        shown += any(one.counterexample is not None for one in verdict.diagnostics)
    assert shown
