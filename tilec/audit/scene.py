"""One query to z3: the assumptions of a contract, the executions involved, and the facts about their values.

A scene contains true facts (about launch values, data, quotients) and records approximations: `vague` names values that are
known by their bounds only. Without vague values a model is a true counterexample; with them it may be spurious. Data is a
function of tensor and element: two loads of one element of a tensor that nothing writes give the same value.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilec.audit import smt
from tilec.audit.contract import HostTerms
from tilec.audit.intervals import Bounds
from tilec.audit.program import Program
from tilec.audit.smt import Answer, Budget, Term
from tilec.ir.expr import Expr


@dataclass(frozen=True, slots=True)
class Loaded:
    """An integer that was read: its term, the tensor, and the element's index."""

    term: Term
    tensor: str
    place: tuple[Term, ...]


class Scene:
    """The facts of one query about a program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.host = HostTerms(program.contract)
        self.facts: list[Term] = self.host.assumptions()
        self.universal = self.host.definitions
        self.vague: dict[str, str] = {}
        self.loaded: list[Loaded] = []
        self._named = 0

    def fresh(self, what: str, bounds: Bounds | None = None) -> Term:
        """A new integer unknown, within bounds that are always satisfied."""
        self._named += 1
        term = smt.unknown(f"{what}#{self._named}")
        if bounds is not None:
            self.facts += [term >= bounds[0], term <= bounds[1]]
        return term

    def fresh_truth(self, what: str) -> Term:
        """A new boolean unknown."""
        self._named += 1
        return smt.unknown_truth(f"{what}#{self._named}")

    def expression(self, expr: Expr) -> Term:
        """A launch expression."""
        return self.host.expression(expr)

    def record(self, loaded: Loaded) -> list[Term]:
        """Records a value that was read; returns the facts that the contract and earlier reads imply."""
        found: list[Term] = []
        as_launched = self.program.reads_as_launched(loaded.tensor)
        checks = self.program.contract.values.get(loaded.tensor, []) if as_launched else []
        inside = smt.every(self.inside(loaded.tensor, loaded.place))
        for check in checks:
            low, high = self.expression(check.low), self.expression(check.high)
            found.append(smt.implies(inside, smt.every([loaded.term >= low, loaded.term < high])))
            if check.ends:
                found += self._ends(loaded, low, high)
        for other in self.loaded if as_launched else ():
            if other.tensor == loaded.tensor:
                same = smt.every(a == b for a, b in zip(loaded.place, other.place, strict=True))
                found.append(smt.implies(same, loaded.term == other.term))
                both = [inside, *self.inside(other.tensor, other.place)]
                if any(check.distinct for check in checks):
                    found.append(smt.implies(smt.every([*both, loaded.term == other.term]), same))
                if any(check.sorted for check in checks):
                    found += self._in_order(loaded, other, both)
        self.loaded.append(loaded)
        return found

    def _ends(self, loaded: Loaded, low: Term, high: Term) -> list[Term]:
        """The first element is the lowest value of the range, the last one the highest."""
        (dim,) = self.program.function.parameter(loaded.tensor).value.tensor.dims
        (place,) = loaded.place
        last = smt.sub(self.expression(dim), smt.integer(1))
        return [
            smt.implies(smt.compare("eq", place, smt.integer(0)), loaded.term == low),
            smt.implies(smt.compare("eq", place, last), loaded.term == smt.sub(high, smt.integer(1))),
        ]

    def _in_order(self, left: Loaded, right: Loaded, inside: list[Term]) -> list[Term]:
        """Of two elements inside a sorted tensor, the later one is not smaller."""
        (first,), (second,) = left.place, right.place
        return [
            smt.implies(smt.every([*inside, smt.compare("le", first, second)]), left.term <= right.term),
            smt.implies(smt.every([*inside, smt.compare("le", second, first)]), right.term <= left.term),
        ]

    def inside(self, tensor: str, place: tuple[Term, ...]) -> list[Term]:
        """Conditions for an index to lie in the tensor."""
        dims = [self.expression(dim) for dim in self.program.function.parameter(tensor).value.tensor.dims]
        found: list[Term] = []
        for index, dim in zip(place, dims, strict=True):
            found += [smt.compare("ge", index, smt.integer(0)), smt.compare("lt", index, dim)]
        return found

    def check(self, assertions: list[Term], budget: Budget) -> Answer:
        """Whether the assertions are satisfiable together with the facts."""
        known = [smt.truth(False)] if any(smt.constant_truth(term) is False for term in assertions) else assertions
        return smt.check([*self.facts, *self.universal.facts, *known], budget, self.universal.splits)
