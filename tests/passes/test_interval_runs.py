"""Runs over intervals contain what programs compute: by brute force on random programs of every integer dtype, which an oracle
runs that shares no code with the prover; and what kernels are accepted and refused because of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import campaign
from tests.passes.integer_oracle import Maker
from tests.passes.texts import function_of
from tests.soundness.verdict import examine_function
from tilec.diagnostics.diagnostic import CompileError
from tilec.ir.core import ValueFact
from tilec.ir.expr import const
from tilec.passes.prover import interval_runs, prove
from tilec.passes.prover.interval_runs import IntervalRun, interval_run

HEAD = '''"""Kernels for runs over intervals."""

import tilec
from tilec import Dim, In, Out, arange, argmax, bid, f32, gather, grid, i8, i32, i64, invariant, kernel, load, maximum, minimum
from tilec import requires, store, take, u8, u16, values, where, zeros


class N(Dim):
    """elements"""


class E(Dim):
    """elements of a small tensor"""


@kernel
'''


@pytest.mark.parametrize("seed", campaign.first(20, range(1000)))
@pytest.mark.parametrize(("unrolled", "peeled"), [(32, 2), (0, 1), (0, 0)])
def test_every_value_is_in_its_range(seed: int, unrolled: int, peeled: int, monkeypatch: pytest.MonkeyPatch):
    """Also where loops are run together, and with declared contents."""
    monkeypatch.setattr(interval_runs, "UNROLLED", unrolled)
    monkeypatch.setattr(interval_runs, "PEELED", peeled)
    program = Maker(seed).program()
    function = program.kernel.function
    facts = [
        ValueFact(p.name, const(min(program.contents[p.name])), const(max(program.contents[p.name]) + 1))
        for p in function.parameters
        if p.access is not None
    ]
    for run in (interval_run(function, ()), interval_run(function, (), facts)):
        assert run.is_whole
        for _, state in program.states():
            for value, numbers in state.items():
                if value in run.results:
                    low, high, modulus, rest = run.results[value]
                    assert all(low <= number <= high for number in numbers), (value, numbers, run.results[value])
                    assert all((number - rest) % modulus == 0 if modulus else number == rest for number in numbers)


ACCEPTED = {
    "a bounded count": """def k(x: In[i32, N], t: In[f32, 4], out: Out[f32, N]):
    grid(N)
    c = i32(0)
    for j in range(3):
        if load(x, bid(0)) > j:
            c = c + 1
    store(out, bid(0), load(t, c))
""",
    "a value after a loop with a claim": """def k(x: In[i32, N], t: In[f32, 8], out: Out[f32, N]):
    grid(N)
    c = i32(0)
    while c < 5:
        invariant(0 <= c, c <= 5)
        if c > bid(0):
            break
        c = c + 1
    for j in range(N):
        v = load(t, c)
        c = where(c > 0, c - 1, 7)
    store(out, bid(0), 1.0)
""",
    "what a break leaves": """def k(x: In[u16, N], t: In[f32, 2], out: Out[f32, N]):
    grid(N)
    c = load(x, bid(0)) % 2
    for j in range(N):
        v = load(t, c.astype(i32))
        if j == 0:
            break
        c = c - 1
    store(out, bid(0), 1.0)
""",
    "elements of constant tiles": """def k(t: In[f32, E], out: Out[f32, N]):
    grid(N)
    requires(E > 6)
    odd = tilec.max(arange(8).reshape((4, 2)), axis=1)
    v = gather(t, (take(odd - arange(4), minimum(odd, 3), 0) + arange(4) // 2,))
    store(out, bid(0), 1.0)
""",
    "a loop that may not run": """def k(t: In[f32, 8], out: Out[f32, N], P: i32):
    grid(N)
    requires(P >= 0, P <= 3)
    c = i32(7)
    for j in range(P):
        c = j
    store(out, bid(0), load(t, c))
""",
    "the size of a float": """def k(x: In[f32, N], t: In[f32, 1], out: Out[f32, N]):
    grid(N)
    d = abs(load(x, bid(0))).astype(i64)
    store(out, bid(0), load(t, minimum(d, 0).astype(i32)))
""",
    "the largest of integers": """def k(t: In[f32, 1], out: Out[f32, N]):
    grid(N)
    store(out, bid(0), load(t, 1 - argmax((arange(2) + 2048), 0)))
""",
    "lanes of a product": """def k(x: In[u8, N, 4], t: In[f32, 13], out: Out[f32, N]):
    grid(N)
    values(x, 0, 5)
    i = load(x, (bid(0), 0), shape=(1, 4)).reshape((4,)).astype(i32) * arange(4)
    v = gather(t, (i,))
    store(out, bid(0), 1.0)
""",
}
REFUSED = {  # each off by one of those
    "a bounded count": ("range(3)", "range(4)"),
    "a value after a loop with a claim": ("c - 1, 7)", "c - 1, 8)"),
    "what a break leaves": ("if j == 0:", "if j == 1:"),
    "elements of constant tiles": ("requires(E > 6)", "requires(E > 4)"),
    "a loop that may not run": ("In[f32, 8]", "In[f32, 7]"),
    "the size of a float": ("abs(load(x, bid(0)))", "load(x, bid(0))"),
    "the largest of integers": ("(arange(2) + 2048)", "(arange(2) + 2048).astype(tilec.f16)"),
    "lanes of a product": ("In[f32, 13]", "In[f32, 12]"),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepts(name: str, tmp_path: Path):
    function = function_of(tmp_path, HEAD + ACCEPTED[name])
    assert prove(function)
    assert examine_function(function).kind == "accepted"


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_what_is_off_by_one(name: str, tmp_path: Path):
    before, after = REFUSED[name]
    assert before in ACCEPTED[name]
    function = function_of(tmp_path, HEAD + ACCEPTED[name].replace(before, after))
    with pytest.raises(CompileError):
        prove(function)


def test_a_claim_that_is_not_proven_proves_nothing(tmp_path: Path):
    """The claim keeps what follows in range, and is refused itself."""
    body = """def k(x: In[i32, N], t: In[f32, 4], out: Out[f32, N]):
    grid(N)
    c = load(x, bid(0))
    for j in range(3):
        invariant(0 <= c, c <= 3)
        c = minimum(c + 1, 3)
    store(out, bid(0), load(t, c))
"""
    with pytest.raises(CompileError) as error:
        prove(function_of(tmp_path, HEAD + body))
    assert "the invariant" in str(error.value.diagnostics[0].message)


def test_records_the_declarations_that_a_run_needs(tmp_path: Path):
    body = """def k(x: In[i32, N], y: In[i32, N], t: In[f32, 8], out: Out[f32, N]):
    grid(N)
    values(x, 0, 3)
    values(y, 0, 9)
    c = load(x, bid(0))
    for j in range(N):
        v = load(t, c)
        c = (c + load(x, bid(0)) * load(x, bid(0))) % 8
    store(out, bid(0), 1.0)
"""
    proofs = prove(function_of(tmp_path, HEAD + body))
    facts = {fact for obligation in proofs.obligations for fact in obligation.facts}
    assert "values(x, 0, 3)" in facts
    assert not any("y" in fact for fact in facts)


def test_a_run_that_takes_too_long_shows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    function = function_of(tmp_path, HEAD + ACCEPTED["a bounded count"])
    monkeypatch.setattr(interval_runs, "STEPS", 5)
    run = interval_run(function, ())
    assert not run.is_whole and not run.operands
    assert not any(run.unreached(op) for op in function.body.walk())
    with pytest.raises(CompileError):
        prove(function)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-9, 9), min_size=4, max_size=4), st.sampled_from(["max", "min", "argmax", "argmin", "sum"]))
def test_reductions_of_intervals(numbers: list[int], kind: str):
    """A reduction of numbers is in that of intervals around them."""
    from tilec.ir import ops
    from tilec.ir.facts.range_facts import Range
    from tilec.ir.types import TileType, i32
    from tilec.passes.prover.element_ranges import reduced_row

    tile = ops.Constant(value=0, operands=[])
    tile.define(TileType(i32, (4,)))
    op = ops.Reduce(kind=kind, axis=0, operands=[tile.result])
    op.define(TileType(i32, ()))
    for width in (0, 1, 3):
        found = reduced_row(op, [Range(n - width, n + width) if width else Range(n, n) for n in numbers])
        best = max(numbers) if "max" in kind else min(numbers)
        actual = numbers.index(best) if kind.startswith("arg") else sum(numbers) if kind == "sum" else best
        assert found.low <= actual <= found.high


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 4)), min_size=4, max_size=4), st.booleans(), st.data())
def test_sorted_intervals(ends: list[tuple[int, int]], descending: bool, data: st.DataObject):
    """Sorted numbers are in the ranges of the sorted intervals that they are from, and so are what is taken of them."""
    from tests.passes.builder import Kernel
    from tilec.ir import ops
    from tilec.ir.facts.range_facts import between
    from tilec.ir.types import TileType, i32
    from tilec.passes.analysis.ranges import RangeAnalysis
    from tilec.passes.prover.element_ranges import computed, each

    source = ops.Constant(value=0, operands=[])
    source.define(TileType(i32, (4,)))
    op = ops.Sort(axis=0, descending=descending, operands=[source.result])
    op.define(TileType(i32, (4,)))
    taken = ops.Take(axis=0, operands=[source.result, op.results[0]])
    taken.define(TileType(i32, (4,)))
    analysis = RangeAnalysis(Kernel(1).function, {})
    known = {source.result: tuple(between(low, low + width) for low, width in ends)}
    numbers = [data.draw(st.integers(low, low + width)) for low, width in ends]
    (found,) = computed(analysis, op, known)
    for one, number in zip(each(found, 4), sorted(numbers, reverse=descending), strict=True):
        assert one.low <= number <= one.high
    indices = [(data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))) for _ in range(4)]
    known[op.results[0]] = tuple(between(min(pair), max(pair)) for pair in indices)
    (found,) = computed(analysis, taken, known)
    for one, pair in zip(each(found, 4), indices, strict=True):
        assert all(one.low <= numbers[index] <= one.high for index in range(min(pair), max(pair) + 1))


def test_an_empty_run_answers_no():
    run = IntervalRun(is_whole=False)
    assert not run.operands
