"""Values that the prover does not translate, each a function of its execution: writes under conditions of them are accepted if
they are complements wherever they are evaluated, and refused with the smallest change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.passes.texts import function_of
from tests.soundness.verdict import examine_function
from tilec.diagnostics.diagnostic import CompileError
from tilec.passes.prover import prove, terms
from tilec.passes.prover.accesses import access_sites, same_unknowns
from tilec.passes.prover.index_terms import IndexTerms

HEAD = '''"""Writes under conditions that the prover does not translate."""

from tilec import Dim, In, Out, arange, bid, f32, grid, i32, kernel, load, maximum, mulhi, num_blocks
from tilec import requires, scatter, store, u8, values, where, zeros


class M(Dim):
    """rows"""


class N(Dim):
    """elements of a row"""


@kernel
'''
SHIFTED = """def k(out: Out[f32, M, N], S: i32):
    grid(M)
    for j in range(N):
        if {first}:
            store(out, (bid(0), j), 1.0)
        if {second}:
            store(out, (bid(0), j), 1.0)
"""
OTHER_LOOP = """def k(out: Out[f32, M, N], S: i32):
    grid(M)
    for j in range(N):
        if (S >> j) > 1:
            store(out, (bid(0), j), 1.0)
    for i in range(N):
        if (S >> {other}) <= 1:
            store(out, (bid(0), i), 1.0)
"""
LANES = """def k(out: Out[f32, M, 16], y: In[f32, M, 16]):
    grid(M)
    p = 15 - arange(16)
    q = load(y, (bid(0), 0), shape=(1, 16)).reshape((16,)) >= 0
    scatter(out, (bid(0), where(q, p, 16)), zeros((16,), f32), mask=True)
    scatter(out, (bid(0), where({second}, {index}, 16)), zeros((16,), f32), mask=True)
"""
QUOTIENTS = """def k(out: Out[f32, 4], S: u8):
    grid(1)
    requires(S >= 0, S <= 23)
    p = arange(4)
    d = (1 << p) // maximum(S, 1)
    scatter(out, where({first}, p, 4), zeros((4,), f32), mask=True)
    scatter(out, where({second}, p, 4), zeros((4,), f32), mask=True)
"""
FALLING = """def k(out: Out[f32, N], S: i32):
    requires(1 <= S, S <= 40, N <= 1000000)
    grid(S)
    each = (N - 1) // S + 1
    for j in range(bid(0) * each, {end}):
        store(out, N - 1 - j, 1.0)
"""
MIN = "N if N < (bid(0) + 1) * each else (bid(0) + 1) * each"
ACCEPTED = {
    "shifted": SHIFTED.format(first="(S >> j) > 1", second="(S >> j) <= 1"),
    "high bits": SHIFTED.format(first="mulhi(S, j) > 1", second="mulhi(S, j) <= 1"),
    "lanes": LANES.format(second="~q", index="p"),
    "quotients": QUOTIENTS.format(first="d == 1", second="d != 1"),
    "falling": FALLING.format(end=MIN),
}
REFUSED = {
    "shifted, one number in neither": SHIFTED.format(first="(S >> j) > 2", second="(S >> j) <= 1"),
    "shifted, one number in both": SHIFTED.format(first="(S >> j) > 0", second="(S >> j) <= 1"),
    "shifted, of another iteration": SHIFTED.format(first="(S >> j) > 1", second="(S >> (j + 1)) <= 1"),
    "two loops, of another iteration": OTHER_LOOP.format(other="(i + 1)"),
    "two rounds over all rows, by other blocks": """def k(out: Out[f32, N], y: In[f32, N]):
    grid(N)
    q = load(y, bid(0)) > 0
    for t in range(bid(0), N, num_blocks(0)):
        if q:
            store(out, t, 1.0)
    for s in range(bid(0), N + 1, num_blocks(0)):
        if ~q:
            store(out, s - 1, 1.0)
""",
    "lanes, of the other end": LANES.format(second="~q", index="arange(16)"),
    "lanes, in both": LANES.format(second="q", index="p"),
    "quotients, in neither": QUOTIENTS.format(first="d > 1", second="d < 1"),
    "quotients, in both": QUOTIENTS.format(first="d >= 1", second="d <= 1"),
    "falling, one short": FALLING.format(end=MIN + " - 1"),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepts(name: str, tmp_path: Path):
    function = function_of(tmp_path, HEAD + ACCEPTED[name])
    assert prove(function)
    assert examine_function(function).kind == "accepted"


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name: str, tmp_path: Path):
    with pytest.raises(CompileError):
        prove(function_of(tmp_path, HEAD + REFUSED[name]))


def test_equal_points_have_equal_values_and_others_need_not(tmp_path: Path):
    """What is said of the two flags of two lanes: nothing at different positions, equality at the same one."""
    index = IndexTerms(function_of(tmp_path, HEAD + ACCEPTED["lanes"]))
    site = next(site for site in access_sites(index) if site.writes)
    first, second = site.instance.renamed(index, 1), site.instance.renamed(index, 2, like=1)
    facts = same_unknowns(first, second)
    assert facts and {one.value for one in first.unknowns} == {one.value for one in second.unknowns}
    flags = {one.atom: number for instance, number in ((first, 1), (second, 0)) for one in instance.unknowns}

    def hold(left: int, right: int) -> bool:
        lanes = {poly.atom: lane for instance, lane in ((first, left), (second, right)) for poly in instance.positions}
        return all(terms.holds(fact, lambda atom: flags.get(atom, lanes.get(atom, 0))) for fact in facts)

    assert hold(0, 1) and hold(3, 2)
    assert not hold(0, 0) and not hold(5, 5)
