"""What runs over intervals show, and the declarations that they need for it.

In: a kernel and a question about a run (`interval_runs`). Out: the texts of the declarations with which the answer is yes, none
if it needs none, or None. Runs are made when they are first asked for, so a kernel that is proven without them pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tilec.ir.core import Function, Op, Value, ValueFact
from tilec.ir.facts.range_facts import Range
from tilec.passes.analysis.declared_ranges import Bound, required
from tilec.passes.prover import terms
from tilec.passes.prover.declared_facts import Fact
from tilec.passes.prover.index_terms import IndexTerms
from tilec.passes.prover.interval_runs import IntervalRun, interval_run
from tilec.passes.prover.terms import Formula, Kind

DROPPED: Final = 8  # with more declarations than this, those that a proof does not need are not looked for

Declared = tuple[str, ValueFact | Bound]


@dataclass(slots=True)
class Runs:
    """The runs of one kernel, each with some of its declarations."""

    function: Function
    deciding: Sequence[Op]
    spelled: Callable[[ValueFact], str]
    _declared: list[Declared] | None = None
    _made: dict[tuple[int, ...], IntervalRun] = field(default_factory=dict[tuple[int, ...], IntervalRun])

    def shows(self, question: Callable[[IntervalRun], bool]) -> tuple[str, ...] | None:
        """The declarations that a run needs so that it answers yes; None if it does not."""
        chosen: tuple[int, ...] = ()
        if question(self._run(chosen)):
            return chosen
        chosen = tuple(range(len(self._declarations())))
        if not chosen or not question(self._run(chosen)):
            return None
        for number in chosen if len(chosen) <= DROPPED else ():
            fewer = tuple(one for one in chosen if one != number)
            if fewer and question(self._run(fewer)):
                chosen = fewer
        return tuple(dict.fromkeys(self._declarations()[number][0] for number in chosen))

    def range_of(self, value: Value) -> tuple[Range, tuple[str, ...]] | None:
        """The range of a value wherever it is computed, and the declarations that it follows from."""
        every = tuple(range(len(self._declarations())))
        found = self._run(every).results.get(value)
        if found is None:
            return None
        texts = self.shows(lambda run: (now := run.results.get(value)) is not None and now == found)
        return (found, texts) if texts is not None else None

    def operand(self, op: Op, number: int) -> tuple[Range, tuple[str, ...]] | None:
        """The range of an operand whenever an operation is executed, and the declarations that it follows from."""
        every = tuple(range(len(self._declarations())))
        found = self._run(every).operands.get(op)
        if found is None:
            return None
        texts = self.shows(lambda run: (now := run.operands.get(op)) is not None and now[number] == found[number])
        return (found[number], texts) if texts is not None else None

    def _declarations(self) -> list[Declared]:
        if self._declared is None:
            self._declared = [(self.spelled(fact), fact) for fact in self.function.values]
            self._declared += [(bound.text, bound) for bound in required(self.function)]
        return self._declared

    def _run(self, chosen: tuple[int, ...]) -> IntervalRun:
        if chosen not in self._made:
            used = [self._declarations()[number][1] for number in chosen]
            values = [one for one in used if isinstance(one, ValueFact)]
            bounds = [one for one in used if isinstance(one, Bound)]
            self._made[chosen] = interval_run(self.function, self.deciding, values, bounds)
        return self._made[chosen]


def run_facts(index: IndexTerms, runs: Runs, system: Iterable[Formula]) -> list[Fact]:
    """What runs know of the untranslated values in a system and their intervals do not say. The text of a fact that needs no
    declaration is empty."""
    found: list[Fact] = []
    for atom in terms.closure(system):
        value = index.sources.get(atom) if atom.kind is Kind.OPAQUE else None
        known = runs.range_of(value) if value is not None else None
        if value is None or known is None:
            continue
        range_, texts = known
        modulus, rest = index.ranges[value].modulus, index.ranges[value].rest
        divisor, rest = (modulus, rest) if modulus > 1 else (1, 0)
        low, high = -((rest - range_.low) // divisor), (range_.high - rest) // divisor
        if low <= high and (low > atom.low or high < atom.high):
            bounds = terms.conjunction((terms.ge(terms.of(atom), low), terms.ge(terms.const(high), terms.of(atom))))
            found.append(Fact(" and ".join(texts), bounds))
    return found


def rung_of(texts: Iterable[str]) -> str:
    """The rung of a proof by ranges from these declarations."""
    given = list(texts)
    return "value" if any(text.startswith("values(") for text in given) else "launch" if given else "interval"


def operand_in(op: Op, number: int, low: int | None, high: int | None) -> Callable[[IntervalRun], bool]:
    """Whether an operand is within limits whenever an operation is executed."""

    def answer(run: IntervalRun) -> bool:
        found = run.operands.get(op)
        return run.unreached(op) if found is None else _inside(found[number], low, high)

    return answer


def result_in(op: Op, low: int | None, high: int | None) -> Callable[[IntervalRun], bool]:
    """Whether the result of an operation on unbounded integers is within limits whenever it is executed."""

    def answer(run: IntervalRun) -> bool:
        found = run.unbounded.get(op)
        return run.unreached(op) if found is None else _inside(found, low, high)

    return answer


def is_true(op: Op) -> Callable[[IntervalRun], bool]:
    """Whether a claim is true whenever it is executed."""
    return lambda run: run.claimed.get(op, run.unreached(op))


def _inside(found: Range, low: int | None, high: int | None) -> bool:
    return (low is None or low <= found.low) and (high is None or found.high <= high)
