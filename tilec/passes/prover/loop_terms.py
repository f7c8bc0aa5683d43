"""Translates loops: when an operation is executed, what is true then, and what a loop carries.

In: operations and the loops around them. Out: formulas over iterations, and values that grow by the same in each iteration as
polynomials of the iteration's number.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass

from tilec.ir.core import Block, Op, Value
from tilec.ir.ops import For, Invariant
from tilec.ir.types import TileType
from tilec.passes.prover import terms
from tilec.passes.prover.related_facts import computed_in, related_to
from tilec.passes.prover.source_positions import Positions
from tilec.passes.prover.structure import Frame
from tilec.passes.prover.terms import Atom, Formula, Kind, Poly
from tilec.passes.prover.unknown_terms import UnknownTerms


@dataclass(slots=True)
class LoopTerms(UnknownTerms):
    """A translation that knows loops."""

    def iteration(self, loop: For) -> Poly:
        """Number of iterations of the loop before this one."""
        step = self.ranges[loop.step]
        variable = self.ranges[loop.regions[0].arguments[0]]
        trips = max(0, variable.high - self.ranges[loop.lower].low) // max(1, step.low)
        name = loop.variable or "i"
        return terms.of(self.atoms.make(loop, Kind.ITERATION, name, (0, trips), label=name))

    def variable(self, loop: For) -> Poly:
        return self.scalar(loop.lower) + self.scalar(loop.step) * self.iteration(loop)

    def runs(self, frames: tuple[Frame, ...]) -> list[Formula]:
        """Conditions under which the body of the innermost frame is executed."""
        found: list[Formula] = []
        for frame in frames:
            if isinstance(frame.op, For):
                found.append(terms.lt(self.variable(frame.op), self.scalar(frame.op.upper)))
            else:
                condition = self.condition(frame.op.operands[0])
                found.append(terms.negate(condition) if frame.arm else condition)
        return found

    def given(self, op: Op, about: Iterable[Formula]) -> list[Formula]:
        """What is true whenever `op` is executed, because of operations that are executed before it: that divisors are
        positive, if they are launch values or computed in the formulas `about`, and claims of loops that share unknowns with
        these or with each other. Each has an obligation, proven from those before it."""
        claimed = dict.fromkeys(self._claimed(claim, op) for claim in self._claims)
        formulas = [*about, *self.runs(self.structure.frames[op])]
        related = related_to([one for one in claimed if one != terms.TRUE], formulas)
        return [*computed_in(formulas, self.divided(op)), *related]

    def _claimed(self, claim: Invariant, op: Op) -> Formula:
        """What a claim says where `op` is executed. One in a branch before it holds if the branch was taken."""
        branches = self.structure.branches_before(claim, op)
        if branches is None:
            return terms.TRUE
        return terms.disjunction((*map(terms.negate, self.runs(branches)), self.condition(claim.operands[0])))

    def divided(self, op: Op) -> list[Formula]:
        """Formulas stating that divisors are positive, for the divisions executed before `op` whenever `op` is. Each division
        has an obligation for its divisor, proven from those before it."""
        position, found = self.structure.position[op], list[Formula]()
        for other in self._divisions:
            if self.structure.position[other] >= position:
                break
            if self.structure.branches_before(other, op) == ():
                found.append(terms.ge(self.scalar(other.operands[1]), 1))
        return [formula for formula in dict.fromkeys(found) if formula != terms.TRUE]

    def _argument(self, value: Value, body: Block, positions: Positions) -> Poly:
        loop = self.structure.loops[body]
        index = body.arguments.index(value)
        if index == 0:
            return self.variable(loop)
        if value in self._trial_values:
            return self.opaque(value, positions)
        first = self.element(loop.initial[index - 1], positions)
        advance = self._advance(loop, index - 1, positions)
        if advance is None:
            later = self.opaque(value, positions)
            return self.choose(terms.eq(self.iteration(loop)), first, later) if value.tile.rank else later
        return first + advance * self.iteration(loop)

    def _after_loop(self, loop: For, number: int, positions: Positions) -> Poly | None:
        advance = self._advance(loop, number, positions)
        if advance is None:
            return None
        lower, upper, step = (self.scalar(v) for v in (loop.lower, loop.upper, loop.step))
        trips = self.atoms.maximum(terms.ZERO, self.atoms.quotient(upper - lower + step - 1, step))
        return self.element(loop.initial[number], positions) + advance * trips

    def _advance(self, loop: For, number: int, positions: Positions) -> Poly | None:
        """Growth per iteration of a carried value's element at `positions`, if it is the same in every iteration."""
        carried = loop.regions[0].arguments[number + 1]
        if not isinstance(carried.type, TileType) or not carried.type.dtype.is_integer:
            return None
        # Translate in a copy in which this element is an unknown, so that the growth found is valid for any value of it. Other
        # carried elements are unknowns that change inside the loop, so growth that depends on them is not constant.
        trial = copy(self)
        unknown = self.opaque(carried, positions)
        trial._trial_values = self._trial_values | {carried}
        trial._elements = {**self._elements, (carried, positions): unknown}
        trial._conditions = dict(self._conditions)
        growth = trial.element(loop.regions[0].ops[-1].operands[number], positions) - unknown
        inner = {*self._varying(loop), *unknown.atoms()}
        varies_in_loop = any(atom in inner or self._inside(atom, loop) for atom in terms.closure([Formula("ge", growth)]))
        return None if varies_in_loop else growth

    def _varying(self, loop: For) -> list[Atom]:
        atoms = [self.iteration(loop).atom]
        for inner in loop.regions[0].walk():
            if isinstance(inner, For):
                atoms.append(self.iteration(inner).atom)
        return [atom for atom in atoms if atom is not None]

    def _inside(self, atom: Atom, loop: For) -> bool:
        source = self.sources.get(atom)
        if atom.kind is not Kind.OPAQUE:
            return False
        if source is None:
            return True
        if isinstance(source.owner, Block):
            return source.owner is loop.regions[0] or self.structure.inside(self.structure.loops[source.owner], loop)
        return source.owner is not None and self.structure.inside(source.owner, loop)
