"""The proof ladder: discharge an obligation on the lowest rung that does.

An obligation is given by its violations: a system of formulas that must have no solution. The rungs are

1. static    the system is false once constants are folded
2. interval  intervals of the unknowns alone make it false
3. set       isl finds no integer solution, from the structure of the kernel alone
4. launch    as 3, with preconditions (`requires`) that the launcher checks on the real shapes
5. value     as 4, with the declared contents of tensors (`values`) that are checked at the API boundary

and otherwise it is refused. Facts are added only when the rung below failed, and those that turn out not to be needed are
dropped again, so that the record names exactly what a proof rests on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from tilec.ir.core import Access, Value, ValueFact
from tilec.ir.range_facts import Range
from tilec.passes.analysis.declared_ranges import declared_ranges, required, sources
from tilec.passes.analysis.ranges import GRID_LIMITS
from tilec.passes.prover import terms
from tilec.passes.prover.index_terms import IndexTerms
from tilec.passes.prover.integer_sets import Assignment, Solver, evaluator
from tilec.passes.prover.nonlinear import Undecided
from tilec.passes.prover.terms import Atom, Formula, Kind

RUNGS = ("static", "interval", "set", "launch", "value", "unsafe")
MAX_LOADED_PAIRS = 28
SEARCH_STEPS = 1_000_000
"""Of work, per kernel, for the search for counterexamples where products are involved. What is found is the same on every
machine, however busy. Of the kernels in `tests/ui`, the one that searches longest spends 311,826, half a second."""


@dataclass(frozen=True, slots=True)
class Discharge:
    """How an obligation was met: rung, the facts it rests on, the isl sets shown to be empty."""

    rung: str
    facts: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """An obligation that was not met. `system` has all facts in it; `undecided` says that the budget ran out."""

    system: tuple[Formula, ...]
    undecided: bool


@dataclass(frozen=True, slots=True)
class _Fact:
    text: str
    formula: Formula


def strongest(discharges: Iterable[Discharge]) -> Discharge:
    """The record of several obligations taken as one: the highest rung, all facts, all sets."""
    found = list(discharges)
    rung = max((d.rung for d in found), key=RUNGS.index, default="static")
    facts = dict.fromkeys(fact for d in found for fact in d.facts)
    sets = dict.fromkeys(text for d in found for text in d.sets)
    return Discharge(rung, tuple(facts), tuple(sets))


@dataclass(slots=True)
class Ladder:
    """Discharges obligations of one kernel."""

    index: IndexTerms
    solver: Solver = field(default_factory=Solver)
    _requires: list[_Fact] = field(default_factory=list[_Fact])
    _declared: dict[Value, Range] | None = None
    _grid: list[Formula] = field(default_factory=list[Formula])
    _known: dict[frozenset[Formula], Discharge | Refusal] = field(
        default_factory=dict[frozenset[Formula], "Discharge | Refusal"]
    )

    def __post_init__(self) -> None:
        for precondition in self.index.function.requires:
            formula = self.index.predicate(precondition.condition)
            parts = formula.parts if formula.op == "and" else (formula,)
            text = f"requires({precondition.condition})"
            self._requires.extend(_Fact(text, part) for part in parts)
        for extent, limit in zip(self.index.grid, GRID_LIMITS, strict=False):
            self._grid += [terms.ge(terms.const(limit), extent), terms.ge(extent, 1)]

    def discharge(self, violation: Iterable[Formula]) -> Discharge | Refusal:
        """Prove that `violation` has no solution in any launch the contract admits."""
        whole = terms.conjunction(violation)
        if whole == terms.FALSE:
            return Discharge("interval")
        key = frozenset((whole,))
        if key not in self._known:
            self._known[key] = self._climb(list(whole.parts) if whole.op == "and" else [whole])
        return self._known[key]

    def grid_limits(self, formulas: Iterable[Formula]) -> list[Formula]:
        """Limits on the grid that CUDA sets (and every launch is checked for), where they bear on the formulas."""
        given = list(formulas)
        return [limit for limit in self._grid if _shares(limit, given)]

    def preconditions(self, formulas: Iterable[Formula]) -> list[tuple[str, Formula]]:
        """Preconditions that bear on the formulas, as (text, formula)."""
        return [(fact.text, fact.formula) for fact in self._relevant(list(formulas))]

    def _climb(self, violation: list[Formula]) -> Discharge | Refusal:
        base = [*violation, *self._consistency(violation)]
        base += self.grid_limits(base)
        requires, values = self._relevant(base), self._value_facts(base)
        computed = self._opaque_facts(base)
        requires += [fact for fact in computed if "values(" not in fact.text]
        values += [fact for fact in computed if "values(" in fact.text]
        undecided = False
        ladder: list[tuple[str, list[_Fact]]] = [("set", [])]
        if requires:
            ladder.append(("launch", requires))
        if values:
            ladder.append(("value", values))
            bounds = self._relevant([*base, *(fact.formula for fact in values)])
            bounds += [fact for fact in computed if fact not in values]
            if bounds:
                ladder.append(("value", values + bounds))
        for rung, facts in ladder:
            self.solver.texts.clear()
            try:
                empty = self._empty(base, facts)
            except Undecided:
                undecided = True
                continue
            if empty:
                needed = self._needed(base, facts)
                return Discharge(rung, tuple(dict.fromkeys(fact.text for fact in needed)), tuple(self.solver.texts[-1:]))
        everything = [fact.formula for fact in ladder[-1][1]] + [fact.formula for fact in requires]
        return Refusal((*base, *dict.fromkeys(everything)), undecided)

    def _empty(self, base: list[Formula], facts: Sequence[_Fact]) -> bool:
        return self.solver.empty([*base, *(fact.formula for fact in facts)])

    def _needed(self, base: list[Formula], facts: list[_Fact]) -> list[_Fact]:
        """Drop facts one text at a time while the proof still stands."""
        for text in dict.fromkeys(fact.text for fact in facts):
            fewer = [fact for fact in facts if fact.text != text]
            if not fewer:
                break
            try:
                if self._empty(base, fewer):
                    facts = fewer
            except Undecided:
                continue
        return facts

    def _relevant(self, base: list[Formula]) -> list[_Fact]:
        """Preconditions that share launch values with the system, directly or through one another."""
        known = {atom for atom in terms.closure(base) if atom.kind is Kind.SYMBOL}
        found: dict[int, _Fact] = {}
        while True:
            before = len(found)
            for place, fact in enumerate(self._requires):
                symbols = {atom for atom in terms.closure([fact.formula]) if atom.kind is Kind.SYMBOL}
                if symbols & known:
                    found[place] = fact
                    known |= symbols
            if len(found) == before:
                return [found[place] for place in sorted(found)]

    def _value_facts(self, base: list[Formula]) -> list[_Fact]:
        """What `values` says of the loaded elements in the system."""
        loaded = [atom for atom in terms.closure(base) if atom.kind is Kind.LOADED]
        found: list[_Fact] = []
        for fact in self.index.function.values:
            elements = [atom for atom in loaded if atom.label == fact.tensor and self._nonempty(fact)]
            low, high = self.index.expression(fact.low), self.index.expression(fact.high)
            text = _declaration(fact)
            for atom in elements:
                value = terms.of(atom)
                found.append(_Fact(text, terms.conjunction((terms.ge(value, low), terms.lt(value, high)))))
            if fact.distinct and self._nonempty(fact):
                room = terms.ge(high - low, self._count(fact))
                if _shares(room, base):
                    found.append(_Fact(text, room))
                pairs = list(combinations(elements, 2))[:MAX_LOADED_PAIRS]
                found.extend(_Fact(text, self._distinct(fact, left, right)) for left, right in pairs)
        return found

    def _opaque_facts(self, base: list[Formula]) -> list[_Fact]:
        """What declarations say of unknowns that are computed from loaded elements and symbols."""
        function, ranges = self.index.function, self.index.ranges
        if self._declared is None:
            self._declared = declared_ranges(function)
        found: list[_Fact] = []
        for atom in terms.closure(base) if self._declared else ():
            value = self.index.sources.get(atom) if atom.kind is Kind.OPAQUE else None
            if value is None:
                continue
            known, divisor = self._declared[value], max(1, ranges[value].modulus)
            rest = ranges[value].rest if divisor > 1 else 0
            low, high = -((rest - known.low) // divisor), (known.high - rest) // divisor
            if low > atom.low or high < atom.high:
                read = sources(value, function)
                texts = [_declaration(fact) for fact in function.values if fact.tensor in read]
                texts += [bound.text for bound in required(function) if bound.symbol in read]
                text = " and ".join(dict.fromkeys(texts))
                bounds = terms.conjunction((terms.ge(terms.of(atom), low), terms.ge(terms.const(high), terms.of(atom))))
                found.append(_Fact(text, bounds))
        return found

    def _nonempty(self, fact: ValueFact) -> bool:
        """A fact about the elements of a tensor says something only where there are elements."""
        parameter = self.index.function.parameter(fact.tensor)
        dims = [self.index.expression(dim) for dim in parameter.value.tensor.dims]
        return parameter.access is Access.IN and all(terms.interval(dim)[0] >= 1 for dim in dims)

    def _count(self, fact: ValueFact) -> terms.Poly:
        """Number of elements of a tensor; distinct values need as many numbers to choose from."""
        count = terms.ONE
        for dim in self.index.function.parameter(fact.tensor).value.tensor.dims:
            count = count * self.index.expression(dim)
        return count

    def _distinct(self, fact: ValueFact, left: Atom, right: Atom) -> Formula:
        """Elements at different places inside the tensor differ."""
        dims = [self.index.expression(dim) for dim in self.index.function.parameter(fact.tensor).value.tensor.dims]
        outside = [
            formula
            for atom in (left, right)
            for place, dim in zip(atom.args, dims, strict=True)
            for formula in (terms.lt(place, 0), terms.ge(place, dim))
        ]
        same = terms.conjunction(terms.eq(a, b) for a, b in zip(left.args, right.args, strict=True))
        return terms.disjunction((*outside, same, terms.ne(terms.of(left), terms.of(right))))

    def _consistency(self, violation: list[Formula]) -> list[Formula]:
        """A loaded element is a function of its index: equal index, equal value."""
        loaded = [atom for atom in terms.closure(violation) if atom.kind is Kind.LOADED]
        pairs = [(a, b) for a, b in combinations(loaded, 2) if a.label == b.label]
        found: list[Formula] = []
        for left, right in pairs[:MAX_LOADED_PAIRS]:
            differs = [terms.ne(a, b) for a, b in zip(left.args, right.args, strict=True)]
            found.append(terms.disjunction((*differs, terms.eq(terms.of(left), terms.of(right)))))
        return found

    def witness(self, refusal: Refusal, shown: Iterable[terms.Poly] = ()) -> Assignment | None:
        """A violation in small numbers, checked by evaluation; None if none was found. `shown` are values to be printed."""
        self._start_search()
        small = (Kind.SYMBOL, Kind.LOADED, Kind.OPAQUE)
        # Formulas that always hold bring everything that is printed into the system, and with it all facts about it.
        mentions = [Formula("ge", poly - terms.interval(poly)[0]) for poly in shown]
        whole = [*refusal.system, *mentions, *(fact.formula for fact in self._requires)]
        whole += [*self._consistency(whole), *(fact.formula for fact in self._value_facts(whole)), *self.grid_limits(whole)]
        found = self.solver.solution(whole, lambda atom: atom.kind in small)
        if found is not None:
            return found
        found = self.solver.solution(refusal.system, lambda atom: atom.kind in small)
        return found if found is not None else self._with_fixed_symbols(refusal, small)

    def completed(self, found: Assignment) -> Assignment:
        """An assignment with sizes for the symbols that it says nothing of, such that all preconditions hold."""
        facts = [fact.formula for fact in self._requires]
        symbols = [atom for atom in terms.closure(facts) if atom.kind is Kind.SYMBOL]
        if all(atom in found for atom in symbols):
            return found
        fixed = [terms.eq(terms.of(atom), found[atom]) for atom in symbols if atom in found]
        rest = self.solver.solution([*facts, *fixed], lambda atom: atom.kind is Kind.SYMBOL) or {}
        return {**{atom: value for atom, value in rest.items() if atom.kind is Kind.SYMBOL}, **found}

    def _with_fixed_symbols(self, refusal: Refusal, small: tuple[Kind, ...]) -> Assignment | None:
        """Products of a symbol and an unknown are linear once the symbol has a value: try small ones."""
        symbols = [atom for atom in terms.closure(refusal.system) if atom.kind is Kind.SYMBOL]
        for sizes in self.small_sizes(symbols, refusal.system):
            fixed = [terms.eq(terms.of(atom), value) for atom, value in sizes.items()]
            found = self.solver.solution((*refusal.system, *fixed), lambda atom: atom.kind in small, (4, None))
            if found is not None:
                return found
        return None

    def _start_search(self) -> None:
        if self.solver.search_end is None:
            self.solver.search_end = self.solver.work.spent + SEARCH_STEPS

    def small_sizes(self, symbols: Sequence[Atom], system: Iterable[Formula]) -> Iterator[dict[Atom, int]]:
        """Small values of symbols that the preconditions admit, for the search for a counterexample; ends after a while."""
        self._start_search()
        facts = [fact.formula for fact in self._requires]
        least = self.solver.solution(facts, lambda atom: atom.kind is Kind.SYMBOL) or {}
        rounds: list[dict[Atom, int]] = []
        for values in _small_values(len(symbols)):
            rounds.append(dict(zip(symbols, values, strict=True)))
        divisors = [a.args[1].constant or 0 for a in terms.closure(system) if a.kind is Kind.QUOTIENT]
        for tile in sorted({d for d in divisors if d > 1}, reverse=True)[:2]:
            for pair in ((1, 1), (2, 1), (1, 2), (3, 2), (2, 3), (9, 2), (2, 9), (9, 9)):
                rounds.append({atom: tile * pair[place % 2] + 1 for place, atom in enumerate(symbols)})
        for size in (46341, 65536):  # whose squares leave i32
            rounds.append(dict.fromkeys(symbols, size))
            rounds += [{atom: size if atom is large else 1 for atom in symbols} for large in symbols]
        rounds += [{atom: large.high if atom is large else 4 for atom in symbols} for large in symbols]
        for scale in (1, 2, 3):
            rounds.append({atom: least.get(atom, 1) * scale for atom in symbols})
            rounds.append({atom: least.get(atom, 2) * scale for atom in symbols})
        for sizes in rounds:
            value = evaluator(sizes)
            inside = all(atom.low <= size <= atom.high for atom, size in sizes.items())
            known = all(atom in sizes for atom in terms.closure(facts) if atom.kind is Kind.SYMBOL)
            if inside and (not known or all(terms.holds(fact, value) for fact in facts)):
                yield sizes
            if self.solver.searched_enough:
                return


def _declaration(fact: ValueFact) -> str:
    return f"values({fact.tensor}, {fact.low}, {fact.high}{', distinct=True' if fact.distinct else ''})"


def _shares(formula: Formula, base: list[Formula]) -> bool:
    symbols = {atom for atom in terms.closure([formula]) if atom.kind is Kind.SYMBOL}
    return any(atom in symbols for atom in terms.closure(base))


def _small_values(count: int) -> Iterable[tuple[int, ...]]:
    for value in (1, 2, 3, 4, 5, 7, 8, 16):
        yield (value,) * count
    for shift in range(1, 5):
        for first in (2, 3, 5):
            rising = tuple(first + (place * shift) % 5 for place in range(count))
            yield rising
            yield rising[::-1]
