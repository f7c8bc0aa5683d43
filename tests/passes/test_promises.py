"""`ensures` clauses: an accepted promise is true after every block has run, and the text and the record state it."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from tests import shipped
from tilec.artifact.records import to_json
from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import load_kernel
from tilec.interpreter import InterpreterError, run
from tilec.ir.core import Function
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.passes.prover import prove

KERNEL = """import tilec
from tilec import Const, Dim, In, InOut, Out, arange, bid, cdiv, ensures, gather, grid, i32, minimum, scatter, values, where

class N(Dim):
    pass

@tilec.kernel
def k(a: In[i32, N], p: InOut[i32, N], q: Out[i32, N], *, B: Const):
    grid(cdiv(N, B))
    values(a, {values})
    values(p, 0, 5)
    ensures({promise})
    e = bid(0) * B + arange(B)
    x = gather(a, e, pad=0)
    y = gather(p, e, pad=0)
    {first}
    scatter(p, e, {p}, mask=True)
    scatter(q, e, {q}, mask=True)
"""

EXPRESSIONS = (
    "x", "y", "e", "x + y", "y + 1", "y + x % 2", "where(x > 0, y, 0)", "e // 2", "N - 1 - e", "minimum(e, 3)", "2 * e + 1",
    "where(e > 0, e - 1, N - 1)", "x % 3", "where(y > x, 1, 0)", "e * 0 + 2", "y + e",
)  # fmt: skip
RANGES = ("0, N", "0, 5", "0, 2", "1, 2", "0, 2 * N", "-3, 8", "0, N + 5", "1, 3", "-9, 2 * N + 9", "-N - 5, N + 5")


def kernel(folder: Path, seed: int) -> Function:
    """The kernel of a seed: its stores and its promises are drawn at random."""
    r = random.Random(f"promise {seed}")
    tensor = r.choice("pq")
    above = r.choice(("", "", ", above=p", ", above=a", ", above=(p, a)"))
    relations = r.choice(("", "", ", distinct=True", ", sorted=True"))
    values = r.choice(("0, 5", "0, 2", "-2, 3", "0, N, distinct=True", "0, N + 1, sorted=True"))
    path = folder / f"k{seed}.py"
    text = KERNEL.format(
        values=values, promise=f"{tensor}, {r.choice(RANGES)}{above}{relations}", p=r.choice(EXPRESSIONS),
        q=r.choice(EXPRESSIONS), first=r.choice(("", "", "scatter(p, e, y, mask=True)")),
    )  # fmt: skip
    path.write_text(text)
    return load_kernel(path, {"B": r.choice((1, 2, 4))}, root=folder)


def contents(function: Function, r: np.random.Generator, size: int) -> dict[str, np.ndarray]:
    """Contents that the kernel's `values` clauses allow."""
    stated = next(fact for fact in function.values if fact.tensor == "a")
    low, high = stated.low.evaluate({"N": size}), stated.high.evaluate({"N": size})
    a = r.permutation(np.arange(low, high))[:size] if stated.distinct else r.integers(low, high, size)
    a = np.sort(a) if stated.sorted else a
    return {"a": a.astype(np.int32), "p": r.integers(0, 5, size).astype(np.int32), "q": np.zeros(size, np.int32)}


def breaks(function: Function, seed: int) -> bool:
    """Whether some small launch breaks a promise."""
    r = np.random.default_rng(seed)
    for size in (1, 2, 3, 4, 5, 7):
        for _ in range(6):
            try:
                run(function, contents(function, r, size))
            except InterpreterError:
                return True
    return False


@pytest.mark.parametrize("first", [0, 30])
def test_accepted_promises_hold_in_every_block(tmp_path: Path, first: int) -> None:
    accepted = refused = confirmed = 0
    for seed in range(first, first + 30):
        function = kernel(tmp_path, seed)
        try:
            prove(function)
        except CompileError as error:
            refused += 1
            if any(one.code == "E0406" for one in error.diagnostics):
                confirmed += breaks(function, seed)
        else:
            accepted += 1
            assert not breaks(function, seed), print_function(function)
    assert accepted >= 3
    assert confirmed >= 6, (refused, confirmed)


def test_text_and_record_contain_the_promise() -> None:
    function = shipped.load("advance_rows", {})
    text = print_function(function)
    assert "ensures %positions 0 .. 1 above %positions, %going\n" in text
    assert print_function(parse_function(text)) == text
    (ids, positions, *_) = map(to_json, prove(function).promises)
    assert ids == {"tensor": "ids", "low": 0, "high": "vocab_size"}
    assert positions == {"tensor": "positions", "low": 0, "high": 1, "above": ["positions", "going"]}


MASKED = """import tilec
from tilec import Dim, In, InOut, bid, cdiv, ensures, grid, i32, load, store, values

class N(Dim):
    pass

class M(Dim):
    pass

@tilec.kernel
def k(a: In[i32, {extent}], out: InOut[i32, N]):
    grid(cdiv(N, 4))
    values(a, 0, 5)
    values(out, 0, 5)
    ensures(out, 0, 5)
    i = bid(0)
    store(out, i, load(a, i, shape=4, pad=7), mask=True)
"""


def test_what_a_mask_drops_breaks_no_promise(tmp_path: Path) -> None:
    """Where the other tensor may be shorter, a pad outside of the range is stored."""
    for extent in "NM":
        (tmp_path / f"{extent}.py").write_text(MASKED.format(extent=extent))
    prove(load_kernel(tmp_path / "N.py", {}, root=tmp_path))
    with pytest.raises(CompileError, match="E0406"):
        prove(load_kernel(tmp_path / "M.py", {}, root=tmp_path))


CARRIED = """import tilec
from tilec import In, InOut, ensures, grid, i32, invariant, load, maximum, minimum, store

@tilec.kernel
def k(x: In[i32, 4], out: InOut[i32, 4]):
    grid(1)
    ensures(out, 0, 5)
    c = i32(0)
    for j in range(4):
        invariant(c == j, {index} <= c + 1)
        store(out, {index}, 1)
        c = maximum(minimum(load(x, j), j + 1), j + 1)
"""


def test_two_iterations_have_carried_numbers_of_their_own(tmp_path: Path) -> None:
    """An invariant ties the number to the iteration, which makes no map one-to-one: `(j ^ 1) // 2` is twice each of two."""
    for name, index in (("right", "j ^ 1"), ("wrong", "(j ^ 1) // 2")):
        (tmp_path / f"{name}.py").write_text(CARRIED.format(index=index))
    prove(load_kernel(tmp_path / "right.py", {}, root=tmp_path))
    with pytest.raises(CompileError, match="E0403"):
        prove(load_kernel(tmp_path / "wrong.py", {}, root=tmp_path))
