"""One query to z3: the assumptions of a contract, the executions involved, and the facts about their values.

A query contains true facts (about launch values, data, quotients) and records approximations: `approximated` names the values
known by their bounds only. Without vague values a model is a true counterexample; with them it may be spurious. Data is a
function of tensor and element: two loads of one element of a tensor that nothing writes give the same value.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Final

from tilec.audit import smt
from tilec.audit.contract import HostTerms
from tilec.audit.intervals import Bounds
from tilec.audit.program import Program
from tilec.audit.smt import Budget, SolverResult, Term
from tilec.ir.expr import Expr

ORDER: Final = "order of "
"""Begins the names of what sorts take; no name of a tensor does."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """An integer that was read: its term, the tensor, and the element's index."""

    term: Term
    tensor: str
    element_index: tuple[Term, ...]


class Query:
    """The facts of one query about a program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.host = HostTerms(program.contract)
        self.facts: list[Term] = self.host.assumptions()
        self.universal = self.host.definitions
        self.approximated: dict[str, str] = {}
        self.loaded: list[Loaded] = []
        self._named = 0

    def fresh(self, label: str, bounds: Bounds | None = None) -> Term:
        """A new integer unknown, within bounds that are always satisfied."""
        self._named += 1
        term = smt.unknown(f"{label}#{self._named}")
        if bounds is not None:
            self.facts += [term >= bounds[0], term <= bounds[1]]
        return term

    def fresh_boolean(self, label: str) -> Term:
        """A new boolean unknown."""
        self._named += 1
        return smt.unknown_boolean(f"{label}#{self._named}")

    def expression(self, expr: Expr) -> Term:
        """A launch expression."""
        return self.host.expression(expr)

    def record(self, loaded: Loaded) -> list[Term]:
        """Records a value that was read; returns the facts that the contract and earlier reads imply."""
        facts: list[Term] = []
        as_launched = self.program.reads_initial_contents(loaded.tensor)
        checks = self.program.contract.values.get(loaded.tensor, []) if as_launched else []
        inside = smt.every(self.inside(loaded.tensor, loaded.element_index))
        for check in checks:
            low, high = self.expression(check.low), self.expression(check.high)
            facts.append(smt.implies(inside, smt.every([loaded.term >= low, loaded.term < high])))
            if check.ends:
                facts += self._ends(loaded, low, high)
        for earlier in self.loaded if as_launched else ():
            if earlier.tensor == loaded.tensor:
                same = smt.every(a == b for a, b in zip(loaded.element_index, earlier.element_index, strict=True))
                facts.append(smt.implies(same, loaded.term == earlier.term))
                both = [inside, *self.inside(earlier.tensor, earlier.element_index)]
                if any(check.distinct for check in checks):
                    facts.append(smt.implies(smt.every([*both, loaded.term == earlier.term]), same))
                if any(check.distinct_in_rows for check in checks):
                    *row, column = (a == b for a, b in zip(loaded.element_index, earlier.element_index, strict=True))
                    facts.append(smt.implies(smt.every([*both, *row, loaded.term == earlier.term]), column))
                if any(check.sorted for check in checks):
                    facts += self._in_order(loaded, earlier, both)
        self.loaded.append(loaded)
        return facts

    def record_order(self, order: Loaded) -> list[Term]:
        """Records the position that a sort takes an element from, at an index whose last component is the position along the
        axis; returns the facts that earlier ones of the same sort imply: one position for each index, and where only the last
        component differs, different ones."""
        facts: list[Term] = []
        assert order.tensor.startswith(ORDER)
        for earlier in self.loaded:
            if earlier.tensor == order.tensor:
                same = [a == b for a, b in zip(order.element_index, earlier.element_index, strict=True)]
                facts.append(smt.implies(smt.every(same), order.term == earlier.term))
                facts.append(smt.implies(smt.every([*same[:-1], order.term == earlier.term]), same[-1]))
        self.loaded.append(order)
        return facts

    def sorted_positions(self, names: Set[str]) -> set[str]:
        """The positions that sorts take elements from, where these are elements of tensors among these names."""
        read = [loaded for loaded in self.loaded if str(loaded.term) in names]
        inside = self.universal.defined_by(smt.mentioned([index for loaded in read for index in loaded.element_index]))
        orders = {str(loaded.term) for loaded in self.loaded if loaded.tensor.startswith(ORDER)}
        return orders & inside

    def record_sum(self, total: Loaded, element: Bounds) -> list[Term]:
        """Records the sum of the elements of a tile that precede one; `element` are the bounds of each. The last two components
        of the index are the number of these elements and the one after them. Returns the bounds of the sum, and what an earlier
        sum of the same row implies: the longer sum has the shorter one, the element after it and those up to its own."""
        *row, count, _ = total.element_index
        facts = [smt.mul(count, smt.integer(element[0])) <= total.term, total.term <= smt.mul(count, smt.integer(element[1]))]
        for other in self.loaded:
            if other.tensor == total.tensor:
                *other_row, other_count, _ = other.element_index
                same = [a == b for a, b in zip(row, other_row, strict=True)]
                facts.append(smt.implies(smt.every([*same, count == other_count]), total.term == other.term))
                for short, long in ((total, other), (other, total)):
                    between = smt.sub(smt.sub(long.element_index[-2], short.element_index[-2]), smt.integer(1))
                    rest = smt.sub(long.term, smt.add(short.term, short.element_index[-1]))
                    limits = [
                        rest >= smt.mul(between, smt.integer(element[0])),
                        rest <= smt.mul(between, smt.integer(element[1])),
                    ]
                    facts.append(smt.implies(smt.every([*same, between >= 0]), smt.every(limits)))
        self.loaded.append(total)
        return facts

    def _ends(self, loaded: Loaded, low: Term, high: Term) -> list[Term]:
        """The first element is the lowest value of the range, the last one the highest."""
        (dim,) = self.program.function.parameter(loaded.tensor).value.tensor.dims
        (element_index,) = loaded.element_index
        last = smt.sub(self.expression(dim), smt.integer(1))
        return [
            smt.implies(smt.compare("eq", element_index, smt.integer(0)), loaded.term == low),
            smt.implies(smt.compare("eq", element_index, last), loaded.term == smt.sub(high, smt.integer(1))),
        ]

    def _in_order(self, left: Loaded, right: Loaded, inside: list[Term]) -> list[Term]:
        """Of two elements inside a sorted tensor, the later one is not smaller."""
        (first,), (second,) = left.element_index, right.element_index
        return [
            smt.implies(smt.every([*inside, smt.compare("le", first, second)]), left.term <= right.term),
            smt.implies(smt.every([*inside, smt.compare("le", second, first)]), right.term <= left.term),
        ]

    def inside(self, tensor: str, element_index: tuple[Term, ...]) -> list[Term]:
        """Conditions for an index to lie in the tensor."""
        dims = [self.expression(dim) for dim in self.program.function.parameter(tensor).value.tensor.dims]
        conditions: list[Term] = []
        for index, dim in zip(element_index, dims, strict=True):
            conditions += [smt.compare("ge", index, smt.integer(0)), smt.compare("lt", index, dim)]
        return conditions

    def check(self, assertions: list[Term], budget: Budget) -> SolverResult:
        """Whether the assertions are satisfiable together with the facts."""
        known = [smt.boolean(False)] if any(smt.constant_boolean(term) is False for term in assertions) else assertions
        return smt.check([*self.facts, *self.universal.facts, *known], budget, self.universal.splits)
