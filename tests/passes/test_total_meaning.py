"""The prover's facts about values agree with the semantics table, on random integer programs.

A plain oracle checks ranges and congruences of every value, and the terms of every element exactly, with each unknown replaced
by the value it stands for. If an access uses a value, its arithmetic has obligations; then, and only then, its terms may rely
on integers that do not wrap.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.passes.builder import Access
from tests.passes.integer_oracle import SIZE, Maker, Program, State
from tilec.ir import ops
from tilec.ir.core import Value
from tilec.ir.types import TileType, i64
from tilec.passes.analysis.divisibility import aligned_ranges
from tilec.passes.analysis.obligations import note_proofs
from tilec.passes.analysis.ranges import Range, value_ranges
from tilec.passes.prover import terms
from tilec.passes.prover.index_terms import IndexTerms
from tilec.passes.prover.integer_sets import evaluator
from tilec.passes.prover.terms import Atom, Kind

seeds = st.integers(0, 1 << 32)


def inside(fact: Range, value: int) -> bool:
    if not fact.low <= value <= fact.high:
        return False
    return value == fact.rest if fact.modulus == 0 else (value - fact.rest) % fact.modulus == 0


def integers(state: State) -> list[Value]:
    return [value for value in state if isinstance(value.type, TileType) and not value.type.dtype.is_float]


@settings(max_examples=300, deadline=None)
@given(seeds)
def test_ranges_and_congruences_hold_of_every_element(seed: int) -> None:
    program = Maker(seed).program()
    facts = value_ranges(program.kernel.function)
    for iteration, state in program.states():
        for value in integers(state):
            for number in state[value]:
                assert inside(facts[value], number), (seed, iteration, value.owner, number, facts[value])


@settings(max_examples=300, deadline=None)
@given(seeds)
def test_terms_are_exact_without_any_obligation(seed: int) -> None:
    program = Maker(seed).program()
    index = IndexTerms(program.kernel.function)
    assert all(isinstance(op, ops.For | ops.Constant) for op in index.deciding)
    for iteration, state in program.states():
        check_terms(seed, program, index, iteration, state)


@settings(max_examples=200, deadline=None)
@given(seeds)
def test_terms_are_exact_if_no_value_of_an_access_wraps(seed: int) -> None:
    program = Maker(seed).program()
    gathered = program.kernel.tensor("g", Access.IN, 1 << 20)
    program.contents["g"] = []
    last = next(value for op in reversed(program.kernel.body.ops) for value in op.results if value.tile.shape == (SIZE,))
    wide = program.kernel.emit(ops.Cast(operands=[last]), TileType(i64, (SIZE,))).result
    states = [(iteration, dict(state)) for iteration, state in program.states()]
    access = ops.Gather(operands=[gathered, wide], pad=0.0)
    access.define(TileType(gathered.tensor.dtype, wide.tile.shape))
    program.kernel.body.ops.append(access)
    index = IndexTerms(program.kernel.function)
    facts = aligned_ranges(note_proofs(program.kernel.function))
    if program.wrapped & set(index.deciding):
        return  # an obligation fails: the kernel would be refused
    for iteration, state in states:
        check_terms(seed, program, index, iteration, state)
        for value in integers(state):
            decides = value.owner in set(index.deciding) and not isinstance(value.owner, ops.For)  # one of its values may wrap
            assert not decides or all(inside(facts[value], number) for number in state[value]), (seed, value.owner)


def check_terms(seed: int, program: Program, index: IndexTerms, iteration: int, state: State) -> None:
    for value in integers(state):
        shape = value.tile.shape
        for element in range(max(1, value.tile.size)):
            position = (element // 2, element % 2) if len(shape) == 2 else (element,) if shape else ()
            poly = index.element(value, tuple(map(terms.const, position)))
            found = evaluator(known(program, index, iteration, state))
            assert terms.evaluate(poly, found) == state[value][element], (seed, iteration, value.owner, position, poly)


def known(program: Program, index: IndexTerms, iteration: int, state: State) -> dict[Atom, int]:
    """The number that each unknown stands for in this iteration; each lies in its interval."""
    found: dict[Atom, int] = {}
    for (kind, key), atom in index.atoms._interned.items():  # type: ignore[misc]
        if kind is Kind.SYMBOL:
            found[atom] = program.contents[key][0]
        elif kind is Kind.LOADED:
            tensor, (position,) = key
            assert position.constant is not None
            found[atom] = program.contents[tensor][position.constant]
        elif kind is Kind.ITERATION:
            found[atom] = max(iteration, 0)
        elif kind is Kind.OPAQUE:
            value, positions, *multiple = key
            if value not in state:
                continue  # of another iteration
            numbers = [p.constant for p in positions]
            if any(n is None for n in numbers):
                continue
            flat = numbers[0] * 2 + numbers[1] if len(numbers) == 2 else numbers[0] if numbers else 0
            number = state[value][flat]
            fact = index.ranges[value]
            found[atom] = (number - fact.rest) // fact.modulus if multiple else number
        if atom in found:
            assert atom.low <= found[atom] <= atom.high, (atom, found[atom])
    return found
