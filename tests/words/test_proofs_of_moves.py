"""The prover knows that a butterfly and a sort reorder elements: ranges stay, and different positions stay different."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

import numpy as np
import pytest

from tests import campaign
from tests.passes.builder import Kernel
from tests.words.kernels import One
from tilec import interpreter
from tilec.diagnostics.diagnostic import CompileError
from tilec.ir import ops
from tilec.ir.facts.range_facts import Range
from tilec.ir.types import TileType, f32, i32
from tilec.passes.analysis.ranges import value_ranges
from tilec.passes.prover import terms
from tilec.passes.prover.atoms import Atoms
from tilec.passes.prover.declared_facts import consistency

WRITTEN_ONCE = (
    "tl.butterfly(tl.arange(64), 0, 5)",
    "tl.flip(tl.arange(64), 0)",
    "tl.argsort(a, 0)",
    "63 - tl.argsort(a, 0, descending=True)",
    "tl.sort((a, tl.arange(64) ^ 9), 0)[1]",
    "tl.sort((a, tl.argsort(-a, 0)), 0)[1]",
    "tl.butterfly(tl.argsort(a, 0), 0, 3)",
    "tl.flip(tl.sort((a, tl.flip(tl.arange(64), 0)), 0)[1], 0)",
)
REFUSED = {
    "tl.butterfly(tl.arange(64) // 2, 0, 1)": "E0404",
    "tl.butterfly(tl.arange(64), 0, 1) + 1": "E0303",
    "tl.argsort(a, 0) // 2": "E0404",
    "tl.argsort(a, 0) + 1": "E0303",
    "tl.argsort(a, 0) - 1": "E0303",
    "tl.sort((a, tl.arange(64) & 62), 0)[1]": "E0404",
    "tl.sort(tl.load(b_, 0, shape=(64,)), 0)": "E0303",
    "tl.where(a > 0, tl.argsort(a, 0), tl.argsort(-a, 0))": "E0306",
    "tl.topk(a, 64, 0)[1] | 1": "E0404",
}


def scattered(index: str) -> One:
    """Writes each element of `a` to `out`, through an index."""

    class Scattered(One):
        @property
        def text(self) -> str:
            stored = f"tl.store(out, (0,), {self.expression})"
            return super().text.replace(stored, f"tl.scatter(out, {self.expression}, a)")

    return Scattered(index, "f32", (64,), (("f32", (64,)), ("i32", (64,))))


@pytest.mark.parametrize("index", WRITTEN_ONCE)
def test_a_scatter_through_reordered_positions_writes_each_element_once(index: str) -> None:
    assert scattered(index).function() is not None


@pytest.mark.parametrize("index", REFUSED)
def test_a_scatter_that_may_write_twice_or_outside_is_refused(index: str) -> None:
    with pytest.raises(CompileError) as caught:
        scattered(index).function()
    assert REFUSED[index] in {one.code for one in caught.value.diagnostics}


ROWS = '''"""Rows."""

import tilec as tl


@tl.kernel
def k(a_: tl.In[tl.f32, 4, 64], out: tl.Out[tl.f32, 4, 64]):
    tl.grid(1)
    a = tl.load(a_, (0, 0), shape=(4, 64))
    row = tl.broadcast_to(tl.arange(4)[:, None], (4, 64))
    tl.scatter(out, (INDEX), a)
'''


@pytest.mark.parametrize(
    ("index", "accepted"),
    [("row, tl.argsort(a, 1)", True), ("row * 0, tl.argsort(a, 1)", False), ("tl.argsort(a, 0), row * 16", False)],
)
def test_positions_are_distinct_along_the_sorted_axis_alone(index: str, accepted: bool) -> None:
    class Rows(One):
        @property
        def text(self) -> str:
            return ROWS.replace("INDEX", self.expression)

    one = Rows(index, "f32", (4, 64), ())
    if accepted:
        assert one.function() is not None
        return
    with pytest.raises(CompileError):
        one.function()


LOOP = '''"""Positions of two iterations are not the same."""

import tilec as tl


@tl.kernel
def k(a_: tl.In[tl.f32, 2, 64], out: tl.Out[tl.f32, 64]):
    tl.grid(1)
    for i in range(2):
        a = tl.load(a_, (i, 0), shape=(1, 64)).reshape(64)
        tl.scatter(out, tl.argsort(a, 0), a)
'''


def test_iterations_may_write_the_same_element() -> None:
    class Loop(One):
        @property
        def text(self) -> str:
            return LOOP

    with pytest.raises(CompileError) as caught:
        Loop("", "f32", (64,), ()).function()
    assert {one.code for one in caught.value.diagnostics} & {"E0404", "E0405"}


def test_ranges_stay() -> None:
    k = Kernel(1)
    line = k.emit(ops.Iota(), TileType(i32, (16,))).result
    key = k.emit(ops.Constant(value=0.0), TileType(f32, (16,))).result
    sort = ops.Sort(axis=0, operands=[key, line])
    moved = k.emit(ops.Butterfly(axis=0, mask=3, operands=[line]), TileType(i32, (16,))).result
    k.emit_region(sort)
    sort.define(key.tile, line.tile)
    ranges = value_ranges(k.function)
    assert ranges[sort.results[1]] == ranges[moved] == Range(0, 15)


@dataclass(frozen=True)
class Given(One):
    """A kernel of any source."""

    source: str = ""

    @property
    def text(self) -> str:
        return self.source


def random_index(r: random.Random, depth: int) -> str:
    """An index of 16 positions, which may repeat or leave 0..16."""
    if not depth:
        return r.choice(("tl.arange(16)", "tl.arange(16)", "tl.argsort(a, 0)", "tl.argsort(-a, 0, descending=True)"))
    inner, roll = random_index(r, depth - 1), r.random()
    if roll < 0.2:
        return f"tl.butterfly({inner}, 0, {r.randrange(1, 16)})"
    if roll < 0.3:
        return f"tl.flip({inner}, 0)"
    if roll < 0.5:
        return f"tl.sort(({r.choice(('a', 'tl.abs(a)', inner))}, {inner}), 0)[1]"
    if roll < 0.55:
        return f"tl.where(a > 0, {inner}, {random_index(r, depth - 1)})"
    forms = (
        "({} ^ 5)",
        "(15 - {})",
        "({} // 2)",
        "(({} + 3) & 15)",
        "({} * 2)",
        "({} | 1)",
        "tl.topk({}, 16, 0)[0]",
        "({} + 1)",
    )
    return r.choice(forms[: r.choice((2, 8))]).format(inner)


@pytest.mark.parametrize("seed", campaign.first(3, range(12)))
def test_no_accepted_scatter_writes_twice_or_outside(seed: int) -> None:
    """By brute force: what the prover accepts writes each element once, for every data that is tried."""
    r, random_data = random.Random(f"moves {seed}"), np.random.default_rng(seed)
    accepted = 0
    for _ in range(12):
        text = scattered(random_index(r, r.choice((1, 2, 3)))).text.replace("64", "16")

        try:
            function = Given("", "f32", (16,), (), text).function()
        except CompileError:
            continue
        accepted += 1
        for count in (1, 2, 9, 9, 9):
            a = random_data.integers(-count, count, 16).astype(np.float32)
            a[random_data.integers(0, 16)] = np.nan if count == 2 else 0
            out = np.full(16, 99, np.float32)
            interpreter.run(function, {"a_": a, "b_": np.zeros(16, np.int32), "out": out})
            np.testing.assert_array_equal(np.sort(out), np.sort(a), err_msg=text)
    assert accepted


def test_facts_about_sorts_hold_for_every_order() -> None:
    """Two rows of two elements, each in either order: nothing is assumed that one of them contradicts, and that the positions
    of a row are the same is excluded."""
    atoms = Atoms()
    index = [(row, column) for row in range(2) for column in range(2)]
    orders = [atoms.loaded(f"{terms.ORDER}0", (terms.const(row), terms.const(column)), (0, 1)) for row, column in index]
    facts = consistency(terms.eq(terms.of(a), terms.of(b)) for a, b in itertools.pairwise(orders))
    for numbers in itertools.product(range(2), repeat=4):
        values = dict(zip(orders, numbers, strict=True))
        is_order = numbers[0] != numbers[1] and numbers[2] != numbers[3]
        assert all(terms.holds(fact, values.__getitem__) for fact in facts) == is_order
