"""Second attempts at systems that the ladder did not decide, each with a limit for the whole kernel.

Systems with products are tried by bounds of their factors, without what choices are between, with equal unknowns in one, and
with each value of unknowns of few values. Then everything is tried again with what runs over intervals know, and with the parts
that sorts take elements from. Each attempt adds what is implied or leaves out what is known, so that a proof is one of the
original system.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilec.passes.prover import terms
from tilec.passes.prover.declared_facts import Fact
from tilec.passes.prover.discharge import Discharge, Refusal, strongest
from tilec.passes.prover.few_values import each_value, small_factor
from tilec.passes.prover.index_terms import IndexTerms
from tilec.passes.prover.integer_sets import Solver, has_products
from tilec.passes.prover.runs import Runs, run_facts
from tilec.passes.prover.sorted_parts import sorted_parts
from tilec.passes.prover.terms import Formula, Kind
from tilec.passes.prover.unified import unified

AGAIN_STEPS = 500_000  # steps of work, per kernel, for second attempts at systems with products
MAX_VALUES_TRIED = 280  # systems, per kernel, with a number in place of an unknown of few values


@dataclass(slots=True)
class SecondAttempts:
    """The attempts at obligations of one kernel; `climb` is an attempt on all rungs, with additional facts."""

    index: IndexTerms
    solver: Solver
    runs: Runs
    climb: Callable[[list[Formula], Sequence[Fact]], Discharge | Refusal]
    spent: int = 0
    values_tried: int = 0

    def proof(self, violation: list[Formula], refusal: Refusal) -> Discharge | None:
        """A proof that `violation` has no solution, which `refusal` did not find."""
        found = self._by_factors(violation, refusal)
        if isinstance(found, Discharge):
            return found
        return self._with_runs(violation, refusal) or self._with_parts(violation)

    def _with_parts(self, violation: list[Formula]) -> Discharge | None:
        """A proof that also uses from which parts of an axis sorts take elements."""
        parts = sorted_parts(self.index, violation, lambda formulas: self.climb(formulas, ()))
        if not parts:
            return None
        formulas = [*violation, *(fact.formula for fact in parts if not fact.text)]
        found = self.climb(formulas, [fact for fact in parts if fact.text])
        return found if isinstance(found, Discharge) else None

    def _with_runs(self, violation: list[Formula], refusal: Refusal) -> Discharge | None:
        """A proof that also uses what runs over intervals know of untranslated values."""
        facts = run_facts(self.index, self.runs, refusal.system)
        if not facts:
            return None
        formulas = [*violation, *(fact.formula for fact in facts if not fact.text)]
        found = self.climb(formulas, [fact for fact in facts if fact.text])
        found = self._by_factors(formulas, found) if isinstance(found, Refusal) else found
        return found if isinstance(found, Discharge) else None

    def _by_factors(self, violation: list[Formula], refusal: Refusal) -> Discharge | Refusal:
        """A proof of a system with products by bounds of their factors, without what choices are between and with it, then with
        equal unknowns in one; or the refusal."""
        if self.spent >= AGAIN_STEPS or not has_products(refusal.system):
            return refusal  # isl has decided a system without products
        before, left = self.solver.work.spent, AGAIN_STEPS - self.spent
        has_choices = any(atom.kind is Kind.CHOICE for atom in terms.closure(violation))
        same: tuple[tuple[bool, Callable[[], list[Formula] | None]], ...] = (
            (True, lambda: violation if has_choices else None),
            (False, lambda: violation),
            (False, lambda: unified(self.index.atoms, violation)),
        )
        self.solver.bounds_factors = True
        try:
            with self.solver.work.at_most(left):
                for leaves_choices, formulas in same:
                    given, self.solver.leaves_choices = formulas(), leaves_choices
                    found = self.climb(given, ()) if given is not None else refusal
                    if isinstance(found, Discharge):
                        return found
                self.solver.leaves_choices = False
                found = self._by_values(unified(self.index.atoms, violation) or violation, before + left)
                if found is not None:
                    return found
        finally:
            self.solver.bounds_factors = self.solver.leaves_choices = False
            self.spent += self.solver.work.spent - before
        return refusal

    def _by_values(self, violation: list[Formula], end: int, depth: int = 0) -> Discharge | None:
        """A proof for each value of an unknown of few values, and of a second one if need be, before so many steps of work."""
        atom = small_factor(violation)
        if atom is None:
            return None
        proofs: list[Discharge] = []
        for case in each_value(self.index.atoms, atom, violation):
            self.values_tried += 1
            if self.solver.work.spent > end or self.values_tried > MAX_VALUES_TRIED:
                return None
            found = self.climb(case, ())
            proof = found if isinstance(found, Discharge) else self._by_values(case, end, depth + 1) if not depth else None
            if proof is None:
                return None
            proofs.append(proof)
        return strongest((Discharge("interval"), *proofs))
