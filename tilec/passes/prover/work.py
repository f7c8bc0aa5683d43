"""How much work the proofs of one kernel may take, counted in steps that are the same on every machine.

A step is about one operation of isl. Every query is charged before it runs, under the obligation that is being proven, so
that where the budget ends the error can say which obligation and which operation of the kernel took most of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import islpy

from tilec.diagnostics import Diagnostic, Label, Span
from tilec.ir.core import Function
from tilec.limits import KERNEL_STEPS, MAX_DEGREE, MAX_TERMS, MAX_VALUE_BITS, QUERY_STEPS
from tilec.passes.prover.nonlinear import Undecided
from tilec.passes.prover.terms import OutOfWork, Poly
from tilec.progress import note

T = TypeVar("T")
STAGES = (QUERY_STEPS // 200, QUERY_STEPS // 10, QUERY_STEPS)
"""isl counts its operations but does not tell: a query runs with a small limit first and is charged that; where it is not
done, it runs again with the next."""
USUAL_WORDS = 2
"""Words of 64 bits in the largest number of a system, up to which their count does not matter: a product of dims has two."""
STEPS_PER_WORD = 30
"""Steps for each further word in every column of a constraint. Measured: 139 constraints on 19 unknowns with 7 words take 2 s
in 1,000 operations of isl, 169 on 23 with 14 words 10 s."""


@dataclass(slots=True)
class Work:
    """Steps so far, in all and by (obligation, place)."""

    limit: int = KERNEL_STEPS
    spent: int = 0
    by: dict[tuple[str, Span | None], int] = field(default_factory=dict[tuple[str, Span | None], int])
    _at: tuple[str, Span | None] = ("the contract", None)

    def begin(self, what: str, where: Span | None) -> None:
        """From here on work is charged to this obligation."""
        self._at = (what, where)
        note(f"proving {what}" + (f" at {where}" if where is not None else ""))

    def charge(self, steps: int) -> None:
        """Count work; OutOfWork where there is none left."""
        self.spent += steps
        self.by[self._at] = self.by.get(self._at, 0) + steps
        if self.spent > self.limit:
            raise OutOfWork

    def charge_numbers(self, polys: Iterable[Poly], unknowns: int) -> None:
        """Charge a query in advance for what its numbers make each of isl's operations longer; Undecided where that alone is
        more than a query may take. A chain of products doubles the bits of its bounds with every line."""
        constraints = list(polys)
        widest = max((abs(value) for poly in constraints for value in poly.terms.values()), default=0)
        words = -(-widest.bit_length() // 64)
        steps = len(constraints) * unknowns * max(words - USUAL_WORDS, 0) * STEPS_PER_WORD
        if steps > QUERY_STEPS:
            raise Undecided
        self.charge(steps)

    @property
    def now(self) -> tuple[str, Span | None]:
        """The obligation being proven."""
        return self._at

    @property
    def dearest(self) -> tuple[str, Span | None, int]:
        """The obligation that took most, its place, and its steps."""
        at = max(self.by, key=lambda key: self.by[key], default=self._at)
        return *at, self.by.get(at, 0)

    def limited(self, context: islpy.Context, query: Callable[[], T], stages: tuple[int, ...] = STAGES) -> T:
        """The result of a query to isl within the budget of one; islpy.Error where that is spent."""
        for steps in stages:
            self.charge(steps)
            try:
                with Limited(context, steps):
                    return query()
            except islpy.Error:
                if steps == stages[-1]:
                    raise
        raise AssertionError


class Limited:
    """Limit the operations of isl within the block; parsing stays unlimited, as isl reports a limit there as bad syntax."""

    def __init__(self, context: islpy.Context, steps: int) -> None:
        self.context = context
        self.steps = steps

    def __enter__(self) -> None:
        self.context.reset_operations()
        self.context.set_max_operations(self.steps)

    def __exit__(self, *_: object) -> None:
        self.context.set_max_operations(0)
        self.context.reset_operations()


def out_of_work(function: Function, work: Work) -> Diagnostic:
    """E0510: which obligation was being proven, and which took most, at the operation it is about."""
    what, where, steps = work.dearest
    now, _ = work.now
    if work.spent <= work.limit:  # not the budget: one polynomial, or one value
        notes = [f"{now}: a product of sums has more than {MAX_TERMS} terms or {MAX_DEGREE} factors,"]
        notes[0] += f" or a value more than {MAX_VALUE_BITS} bits"
        what, where = work.now
    else:
        notes = [f"{what} took {100 * steps // work.spent} % of {work.limit} steps"]
        if now != what:
            notes.append(f"the budget ended at {now}")
    place = where or function.loc
    primary = Label(place, f"{what} took most" if work.spent > work.limit else "too large to reason about") if place else None
    hint = "compute the index in fewer steps, pass an intermediate value as a `Const` or a parameter with `requires(...)`, "
    hint += "or take the access out of the proof with `unsafe`"
    return Diagnostic("E0510", f"the proofs of `{function.name}` take too much work", primary, (), tuple(notes), hint=hint)


def too_deep(function: Function, work: Work) -> Diagnostic:
    """E0512 where the prover met something nested deeper than Python's stack."""
    what, where = work.now
    place = where or function.loc
    primary = Label(place, "nested too deeply") if place is not None else None
    hint = "split the expression: each value here is computed from thousands before it"
    return Diagnostic("E0512", f"`{function.name}` is nested too deeply to prove", primary, (), (f"at {what}",), hint=hint)
