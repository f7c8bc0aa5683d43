"""A block id split into several digits: every order of splitting is proven, wrong digits are refused."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest

from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import load_kernel
from tilec.passes.prover import prove

HEAD = """
import tilec as tl

class A(tl.Dim): \"\"\"a\"\"\"
class B(tl.Dim): \"\"\"b\"\"\"
class C(tl.Dim): \"\"\"c\"\"\"
class D(tl.Dim): \"\"\"d\"\"\"

@tl.kernel
def split(out: tl.Out[tl.f32, {axes}]):
    tl.requires({small})
    tl.grid({grid})
    t = tl.bid(0)
"""
HIGH_FIRST = {
    "A, B": ["x0, x1 = t // B, t % B"],
    "A, B, C": ["x0, rest = t // (B * C), t % (B * C)", "x1, x2 = rest // C, rest % C"],
    "A, B, C, D": [
        "x0, rest = t // (B * C * D), t % (B * C * D)", "x1, more = rest // (C * D), rest % (C * D)",
        "x2, x3 = more // D, more % D",
    ],
}  # fmt: skip
LOW_FIRST = ["x3, rest = t % D, t // D", "x2, more = rest % C, rest // C", "x1, x0 = more % B, more // B"]
MIXED = ["x0, rest = t // (B * C * D), t % (B * C * D)", "x3, more = rest % D, rest // D", "x1, x2 = more // C, more % C"]
WRONG = {
    "a divisor": ["x0, rest = t // (B * C), t % (B * C)", "x1, x2 = rest // B, rest % B"],
    "a remainder": ["x0, rest = t // (B * C), t % (B * C)", "x1, x2 = rest // C, t % B"],
    "one digit twice": ["x0, rest = t // (B * C), t % (B * C)", "x1, x2 = rest // C, rest // C"],
    "a factor left out": ["x0, rest = t // B, t % B", "x1, x2 = rest // C, rest % C"],
}


def proven(folder: Path, axes: str, lines: list[str], order: tuple[int, ...]) -> None:
    names = axes.split(", ")
    small = ", ".join(f"{name} <= 200" for name in names)  # so that products of three fit in i32
    head = HEAD.format(axes=", ".join(names[axis] for axis in order), grid=" * ".join(names), small=small)
    store = f"tl.store(out, ({', '.join(f'x{axis}' for axis in order)},), 0.0)"
    (folder / "split.py").write_text(head + "".join(f"    {line}\n" for line in [*lines, store]), encoding="utf-8")
    prove(load_kernel(folder / "split.py", {}, root=folder))


@pytest.mark.parametrize("axes", HIGH_FIRST)
def test_the_highest_digit_may_come_first(axes: str, tmp_path: Path) -> None:
    count = len(axes.split(", "))
    for order in list(permutations(range(count)))[:: 1 if count < 4 else 7]:
        proven(tmp_path, axes, HIGH_FIRST[axes], order)


@pytest.mark.parametrize("lines", [LOW_FIRST, MIXED], ids=["low first", "mixed"])
def test_other_orders_of_splitting(lines: list[str], tmp_path: Path) -> None:
    proven(tmp_path, "A, B, C, D", lines, (0, 1, 2, 3))


@pytest.mark.parametrize("name", WRONG)
def test_wrong_digits_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(CompileError):
        proven(tmp_path, "A, B, C", WRONG[name], (0, 1, 2))


LOOP = """
import tilec as tl

class A(tl.Dim): \"\"\"a\"\"\"
class B(tl.Dim): \"\"\"b\"\"\"
class C(tl.Dim): \"\"\"c\"\"\"
class M(tl.Dim): \"\"\"rows\"\"\"

@tl.kernel
def split(out: tl.Out[tl.f32, {axes}]):
    tl.requires({small})
    tl.grid({grid})
    for t in range({count}):
        {condition}tl.store(out, ({index}), 0.0)
"""
COUNTED = {
    "two": ("A, B", "1", "A * B", "t // B, t % B"),
    "two, exchanged": ("B, A", "1", "A * B", "t % B, t // B"),
    "three": ("A, B, C", "1", "A * B * C", "t // (B * C), t // C % B, t % C"),
    "rows of two": ("M, A, B", "M", "A * B", "tl.bid(0), t // B, t % B"),
    "the highest for each block": ("A, B", "A", "B", "tl.bid(0), t"),
}
MISCOUNTED = {
    "one short": ("A, B", "1", "A * B - 1", "t // B, t % B"),
    "one more": ("A, B", "1", "A * B + 1", "t // B, t % B"),
    "the other divisor": ("A, B", "1", "A * B", "t // A, t % A"),
    "one digit twice": ("A, B", "1", "A * B", "t // B, t // B"),
    "a digit left out": ("A, B, C", "1", "A * B", "t // B, t % B, 0"),
    "in every block": ("A, B", "2", "A * B", "t // B, t % B"),
}


def counted(folder: Path, parts: tuple[str, str, str, str], condition: str = "") -> None:
    axes, grid, count, index = parts
    small = ", ".join(f"{name} <= 200" for name in axes.split(", "))
    text = LOOP.format(axes=axes, grid=grid, count=count, index=index, condition=condition, small=small)
    (folder / "split.py").write_text(text, encoding="utf-8")
    prove(load_kernel(folder / "split.py", {}, root=folder))


@pytest.mark.parametrize("name", COUNTED)
def test_the_variable_of_a_loop_is_split(name: str, tmp_path: Path) -> None:
    counted(tmp_path, COUNTED[name])


@pytest.mark.parametrize("name", MISCOUNTED)
def test_wrong_loops_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(CompileError):
        counted(tmp_path, MISCOUNTED[name])


def test_a_loop_that_leaves_one_out_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompileError):
        counted(tmp_path, COUNTED["two"], "if t > 0:\n            ")
