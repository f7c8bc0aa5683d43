"""The proof ladder: discharges an obligation on the lowest rung that can.

An obligation is given by its violations: a system of formulas that must have no solution. The rungs are

1. static    the system is false once constants are folded
2. interval  intervals of the unknowns alone make it false
3. set       isl finds no integer solution, from the structure of the kernel alone
4. launch    as 3, with preconditions (`requires`) that the launcher checks on the real shapes
5. value     as 4, with declared contents of tensors (`values`) that are checked at the API boundary

If no rung discharges it, it is refused. Facts are added only after the rung below failed, and unneeded facts are removed
afterwards, so that the record names exactly the facts that a proof uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tilec.ir.core import Value
from tilec.ir.facts.range_facts import Range
from tilec.ir.types import MAX_DIM
from tilec.passes.analysis.declared_ranges import declared_ranges, required, sources
from tilec.passes.analysis.ranges import GRID_LIMITS
from tilec.passes.prover import terms
from tilec.passes.prover.declared_facts import (
    Fact,
    consistency,
    declaration,
    extent_facts,
    has_sums_of_one_row,
    stored_facts,
    sum_facts,
)
from tilec.passes.prover.discharge import Discharge, Refusal
from tilec.passes.prover.index_terms import IndexTerms
from tilec.passes.prover.integer_sets import Assignment, Solver, evaluator, system
from tilec.passes.prover.nonlinear import Undecided
from tilec.passes.prover.replay import Replay
from tilec.passes.prover.runs import Runs
from tilec.passes.prover.second_attempts import SecondAttempts
from tilec.passes.prover.small_numbers import ELEMENTS, SMALL, loaded_factors, small_values
from tilec.passes.prover.sort_facts import sort_facts
from tilec.passes.prover.terms import Atom, Formula, Kind

SEARCH_STEPS = 1_000_000
"""Steps of work, per kernel, for the search for counterexamples to systems with products. A step count, unlike a time limit,
finds the same on every machine. Of the kernels in `tests/ui`, the longest search takes 311,826 steps, half a second."""
MAX_CORRECTIONS = 12  # refinements of a spurious counterexample, after which the search ends


@dataclass(slots=True)
class Ladder:
    """Discharges obligations of one kernel."""

    index: IndexTerms
    solver: Solver = field(default_factory=Solver)
    runs: Runs = field(init=False)
    again: SecondAttempts = field(init=False)
    _requires: list[Fact] = field(default_factory=list[Fact])
    _declared: dict[Value, Range] | None = None
    _grid: list[Formula] = field(default_factory=list[Formula])
    _extents: list[Fact] = field(default_factory=list[Fact])
    _known: dict[frozenset[Formula], Discharge | Refusal] = field(
        default_factory=dict[frozenset[Formula], "Discharge | Refusal"]
    )

    def __post_init__(self) -> None:
        self.runs = Runs(self.index.function, self.index.deciding, declaration)
        self.again = SecondAttempts(self.index, self.solver, self.runs, self._climb)
        for precondition in self.index.function.requires:
            formula = self.index.predicate(precondition.condition)
            parts = formula.parts if formula.op == "and" else (formula,)
            text = f"requires({precondition.condition})"
            self._requires.extend(Fact(text, part) for part in parts)
        for extent, limit in zip(self.index.grid, GRID_LIMITS, strict=False):
            self._grid += [terms.ge(terms.const(limit), extent), terms.ge(extent, 1)]
        self._extents = extent_facts(self.index)

    def discharge(self, violation: Iterable[Formula]) -> Discharge | Refusal:
        """Prove that `violation` has no solution in any launch that the contract admits."""
        whole = terms.conjunction(violation)
        if whole == terms.FALSE:
            return Discharge("interval")
        key = frozenset((whole,))
        if key not in self._known:
            formulas = list(whole.parts) if whole.op == "and" else [whole]
            found = self._climb(formulas)
            self._known[key] = self.again.proof(formulas, found) or found if isinstance(found, Refusal) else found
        return self._known[key]

    def grid_limits(self, formulas: Iterable[Formula]) -> list[Formula]:
        """CUDA's limits on the grid, which every launch is checked against, that share symbols with the formulas."""
        given = list(formulas)
        return [limit for limit in self._grid if _shares(limit, given)]

    def preconditions(self, formulas: Iterable[Formula]) -> list[tuple[str, Formula]]:
        """Preconditions relevant to the formulas, as (text, formula)."""
        return [(fact.text, fact.formula) for fact in self._relevant(list(formulas))]

    def extents(self, formulas: Iterable[Formula]) -> list[tuple[str, Formula]]:
        """Limits on computed extents that are relevant to the formulas, and preconditions relevant to those, as (text,
        formula)."""
        given = list(formulas)
        return [(fact.text, fact.formula) for fact in self._with_extents(given)] if self._extents else []

    def _climb(self, violation: list[Formula], also: Sequence[Fact] = ()) -> Discharge | Refusal:
        by_sums = self._by_sums(violation)
        if by_sums is not None:
            return by_sums
        base = [*violation, *consistency(violation), *sort_facts(self.index, violation)]
        base += self.grid_limits(base)
        requires, values = self._relevant(base), stored_facts(self.index, base)
        computed = [*self._opaque_facts(base), *also]
        requires += [fact for fact in computed if "values(" not in fact.text]
        values += [fact for fact in computed if "values(" in fact.text]
        undecided = False
        ladder: list[tuple[str, list[Fact]]] = [("set", [])]
        if requires:
            ladder.append(("launch", requires))
        if values:
            ladder.append(("value", values))
            bounds = self._relevant([*base, *(fact.formula for fact in values)])
            bounds += [fact for fact in computed if fact not in values]
            if bounds:
                ladder.append(("value", values + bounds))
        sizes = self._with_extents([*base, *(fact.formula for fact in ladder[-1][1])]) if self._extents else []
        if sizes:
            ladder.append(("launch", requires + sizes))
            if values:
                ladder.append(("value", ladder[-2][1] + sizes))
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
        everything = [fact.formula for fact in (*ladder[-1][1], *requires)]
        return Refusal((*base, *dict.fromkeys(everything)), undecided)

    def _by_sums(self, violation: list[Formula]) -> Discharge | None:
        """A proof from the order of prefix sums alone. What decides the indices of elements has many unknowns, and does not
        matter to it."""
        if not has_sums_of_one_row(violation):
            return None
        self.solver.texts.clear()
        try:
            empty = self.solver.empty([*violation, *sum_facts(violation)], terms.mentioned)
        except Undecided:
            return None
        return Discharge("set", (), tuple(self.solver.texts[-1:])) if empty else None

    def _empty(self, base: list[Formula], facts: Sequence[Fact]) -> bool:
        """Whether base and facts have no solution. If that is undecided, those without products may still have none."""
        everything = [*base, *(fact.formula for fact in facts)]
        try:
            return self.solver.empty(everything)
        except Undecided:
            if self.solver.empty_without_products(everything):
                return True
            raise

    def _needed(self, base: list[Formula], facts: list[Fact]) -> list[Fact]:
        """Remove facts one text at a time as long as the proof succeeds."""
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

    def _with_extents(self, base: list[Formula]) -> list[Fact]:
        """Limits on computed extents that share launch values with the system, and preconditions that share some with these;
        nothing if there is no such limit."""
        found = self._relevant(base, [*self._extents, *self._requires])
        return found if any(fact in self._extents for fact in found) else []

    def _relevant(self, base: list[Formula], facts: Sequence[Fact] | None = None) -> list[Fact]:
        """Preconditions (or `facts`) that share launch values with the system, directly or through one another."""
        facts = self._requires if facts is None else facts
        known = {atom for atom in terms.closure(base) if atom.kind is Kind.SYMBOL}
        found: dict[int, Fact] = {}
        while True:
            before = len(found)
            for index, fact in enumerate(facts):
                symbols = {atom for atom in terms.closure([fact.formula]) if atom.kind is Kind.SYMBOL}
                if symbols & known:
                    found[index] = fact
                    known |= symbols
            if len(found) == before:
                return [found[index] for index in sorted(found)]

    def _opaque_facts(self, base: list[Formula]) -> list[Fact]:
        """Bounds that declarations imply for unknowns computed from loaded elements and symbols."""
        function, ranges = self.index.function, self.index.ranges
        if self._declared is None:
            self._declared = declared_ranges(function)
        found: list[Fact] = []
        for atom in terms.closure(base) if self._declared else ():
            value = self.index.sources.get(atom) if atom.kind is Kind.OPAQUE else None
            if value is None or value.tile.dtype.is_float:
                continue  # an unknown of a float is its class (`float_orders`), which no range of numbers bounds
            known, divisor = self._declared[value], max(1, ranges[value].modulus)
            rest = ranges[value].rest if divisor > 1 else 0
            low, high = -((rest - known.low) // divisor), (known.high - rest) // divisor
            if low > atom.low or high < atom.high:
                names_read = sources(value, function)
                texts = [declaration(fact) for fact in function.values if fact.tensor in names_read]
                texts += [bound.text for bound in required(function) if bound.symbol in names_read]
                text = " and ".join(dict.fromkeys(texts))
                bounds = terms.conjunction((terms.ge(terms.of(atom), low), terms.ge(terms.const(high), terms.of(atom))))
                found.append(Fact(text, bounds))
        return found

    def witness(
        self,
        refusal: Refusal,
        shown: Iterable[terms.Poly] = (),
        replays: Callable[[Assignment], Iterable[Replay]] = lambda _: (Replay({}, [], True),),
    ) -> tuple[Assignment, str] | None:
        """A counterexample in small numbers, in a launch that the contract admits, checked by evaluation, and the note of its
        replay; None if none was found. `shown` are values that will be printed. `replays` runs the launch of a counterexample:
        it is kept if it still is one with the values of a run that leaves no carried value assumed; otherwise what the last run
        showed is added and the search is repeated, at most `MAX_CORRECTIONS` times."""
        self._start_search()
        for _ in range(MAX_CORRECTIONS):
            admitted = (self.admitted(found) for found in self._violations(refusal, shown))
            found = next((one for one in admitted if one is not None), None)
            if found is None:
                return None
            found = self._with_small_symbols(found, refusal)
            learned: list[Formula] = []
            for replay in replays(found):
                actual = {**found, **replay.numbers}
                value = evaluator(actual)
                if replay.complete and all(terms.holds(formula, value) for formula in refusal.system):
                    # Corrected numbers may be of other elements, so they are a launch only if a run of their own agrees.
                    agreed = (again for again in replays(actual) if again.complete and not again.numbers)
                    settled = next(agreed, None) if replay.numbers else replay
                    if settled is not None:
                        return {**actual, **settled.shown}, settled.note
                learned = replay.learned or learned
            if not learned:
                return None
            refusal = Refusal((*refusal.system, *learned), refusal.undecided)
        return None

    def _violations(self, refusal: Refusal, shown: Iterable[terms.Poly]) -> Iterator[Assignment]:
        """Solutions of a refused system, by several methods in order."""
        small = (Kind.SYMBOL, Kind.LOADED, Kind.OPAQUE)
        # Tautologies bring every printed value into the system, so that the facts about it apply.
        mentions = [Formula("ge", poly - terms.interval(poly)[0]) for poly in shown]
        whole = [*refusal.system, *mentions, *(fact.formula for fact in (*self._requires, *self._extents))]
        whole += [
            *consistency(whole),
            *sort_facts(self.index, whole),
            *(fact.formula for fact in stored_facts(self.index, whole)),
            *self.grid_limits(whole),
        ]
        found = self.solver.solution(whole, lambda atom: atom.kind in small)
        if found is not None:
            yield found
        found = self.solver.solution(refusal.system, lambda atom: atom.kind in small)
        if found is not None:
            yield found
        yield from self._with_fixed_symbols(refusal, small)

    def admitted(self, found: Assignment) -> Assignment | None:
        """The assignment, extended with sizes for symbols it lacks, if it then satisfies the whole contract: preconditions,
        extents, the grid, and the declarations about the elements in it."""
        sizes = [*(fact.formula for fact in (*self._requires, *self._extents)), *self._grid]
        symbols = [atom for atom in terms.closure(sizes) if atom.kind is Kind.SYMBOL]
        if not all(atom in found for atom in symbols):
            fixed = [terms.eq(terms.of(atom), found[atom]) for atom in symbols if atom in found]
            rest = self.solver.solution([*sizes, *fixed], lambda atom: atom.kind is Kind.SYMBOL) or {}
            found = {**{atom: value for atom, value in rest.items() if atom.kind is Kind.SYMBOL}, **found}
        elements = [Formula("ge", terms.of(atom) - atom.low) for atom in found if atom.kind is Kind.LOADED]
        declared = [fact.formula for fact in stored_facts(self.index, elements)]
        value = evaluator(found)
        return found if self._launcher_accepts(found) and all(terms.holds(formula, value) for formula in declared) else None

    def _with_small_symbols(self, found: Assignment, refusal: Refusal) -> Assignment:
        """The solution with small numbers for symbols that need no larger one, so that its launch is short; as it is, if it has
        elements or values that a run decides."""
        free = {atom: number for atom, number in found.items() if not atom.derived}
        if any(atom.kind in (Kind.LOADED, Kind.OPAQUE) for atom in free):
            return found
        # Bounds of what is found are part of it: a block is in the grid of these sizes, an iteration in its loop.
        whole = system([*refusal.system, *(Formula("ge", terms.of(atom) - atom.low) for atom in found)])
        for symbol in [atom for atom, number in free.items() if atom.kind is Kind.SYMBOL and abs(number) > SMALL[-1]]:
            for number in SMALL:
                value = evaluator({**free, symbol: number})
                trial = {atom: value(atom) for atom in found}
                if terms.holds(whole, value) and self.admitted(trial) is not None:
                    free[symbol], found = number, trial
                    break
        return found

    def _launcher_accepts(self, found: Assignment) -> bool:
        """Whether the launcher accepts these sizes, by evaluating its checks: in formulas a quotient by a possibly negative
        number is an unknown."""
        function = self.index.function
        sizes: dict[str, int] = {}
        for name, bounds in self.index.symbols.items():
            atom = self.index.symbol(name).atom
            sizes[name] = found[atom] if atom in found else max(bounds.low, min(bounds.high, 0))
            if not bounds.low <= sizes[name] <= bounds.high:
                return False
        dims = [dim for p in function.parameters if p.access is not None for dim in p.value.tensor.dims]
        try:
            return (
                all(precondition.condition.evaluate(sizes) for precondition in function.requires)
                and all(1 <= dim.evaluate(sizes) <= MAX_DIM for dim in dims)
                and all(1 <= e.evaluate(sizes) <= limit for e, limit in zip(function.grid, GRID_LIMITS, strict=False))
            )
        except ZeroDivisionError:
            return False  # the launcher rejects it too

    def _with_fixed_symbols(self, refusal: Refusal, small: tuple[Kind, ...]) -> Iterator[Assignment]:
        """Products of a symbol and an unknown are linear once the symbol has a value: try small ones."""
        symbols = [atom for atom in terms.closure(refusal.system) if atom.kind is Kind.SYMBOL]
        loaded = loaded_factors(refusal.system)
        for sizes in self.small_sizes(symbols, refusal.system):
            fixed = [terms.eq(terms.of(atom), value) for atom, value in sizes.items()]
            for element in ELEMENTS if loaded else ():
                elements = dict.fromkeys(loaded, element)
                found = self._with_numbers(refusal.system, {**sizes, **elements}, fixed)
                if found is not None:
                    yield found
            found = self.solver.solution((*refusal.system, *fixed), lambda atom: atom.kind in small, (4, None))
            if found is not None:
                yield found

    def _with_numbers(self, system: tuple[Formula, ...], numbers: Assignment, fixed: list[Formula]) -> Assignment | None:
        """A solution with numbers in place of some unknowns, also where others are computed from them: what is multiplied by an
        unknown, such as `cdiv(n[b], S)`, is a number then."""
        mapping = {atom: terms.const(number) for atom, number in numbers.items()}
        simpler = [self.index.atoms.substitute_in(formula, mapping) for formula in system]
        found = self.solver.solution((*simpler, *fixed), lambda _: False, (4, None))
        if found is None:
            return None
        value = evaluator({**{atom: number for atom, number in found.items() if not atom.derived}, **numbers})
        return {atom: value(atom) for atom in terms.closure(system)}

    def _start_search(self) -> None:
        if self.solver.search_end is None:
            self.solver.search_end = self.solver.work.spent + SEARCH_STEPS

    def small_sizes(self, symbols: Sequence[Atom], system: Iterable[Formula]) -> Iterator[dict[Atom, int]]:
        """Small values of symbols that the preconditions admit, for the search for a counterexample; a finite sequence."""
        self._start_search()
        facts = [fact.formula for fact in (*self._requires, *self._extents)]
        smallest = self.solver.solution(facts, lambda atom: atom.kind is Kind.SYMBOL) or {}
        candidates: list[dict[Atom, int]] = []
        for values in small_values(len(symbols)):
            candidates.append(dict(zip(symbols, values, strict=True)))
        divisors = [a.args[1].constant or 0 for a in terms.closure(system) if a.kind is Kind.QUOTIENT]
        for tile in sorted({d for d in divisors if d > 1}, reverse=True)[:2]:
            for pair in ((1, 1), (2, 1), (1, 2), (3, 2), (2, 3), (9, 2), (2, 9), (9, 9)):
                candidates.append({atom: tile * pair[index % 2] + 1 for index, atom in enumerate(symbols)})
        for size in (46341, 65536, 46340):  # the squares of the first two exceed i32, twice that of the last does
            candidates.append(dict.fromkeys(symbols, size))
            candidates += [{atom: size if atom is large else 1 for atom in symbols} for large in symbols]
        candidates += [{atom: large.high if atom is large else 4 for atom in symbols} for large in symbols]
        for scale in (1, 2, 3):
            candidates.append({atom: smallest.get(atom, 1) * scale for atom in symbols})
            candidates.append({atom: smallest.get(atom, 2) * scale for atom in symbols})
        for sizes in candidates:
            value = evaluator(sizes)
            inside = all(atom.low <= size <= atom.high for atom, size in sizes.items())
            known = all(atom in sizes for atom in terms.closure(facts) if atom.kind is Kind.SYMBOL)
            if inside and (not known or all(terms.holds(fact, value) for fact in facts)):
                yield sizes
            if self.solver.searched_enough:
                return


def _shares(formula: Formula, base: list[Formula]) -> bool:
    symbols = {atom for atom in terms.closure([formula]) if atom.kind is Kind.SYMBOL}
    return any(atom in symbols for atom in terms.closure(base))
