"""Budget of the proofs of one kernel, counted in steps that are the same on every machine.

A step is about one operation of isl. Every query is charged before it runs, to the obligation being proven, so that when the
budget is spent the error can name the obligation and the operation of the kernel that used most of it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import islpy

from tilec.diagnostics.diagnostic import Diagnostic, Label, Span
from tilec.ir.core import Function
from tilec.passes.prover.nonlinear import Undecided
from tilec.passes.prover.terms import OutOfWork, Poly
from tilec.progress import note
from tilec.untrusted.limits import KERNEL_STEPS, MAX_DEGREE, MAX_TERMS, MAX_VALUE_BITS, QUERY_STEPS

T = TypeVar("T")
STAGES = (QUERY_STEPS // 200, QUERY_STEPS // 10, QUERY_STEPS)
"""isl can limit its operations but does not report how many it used: a query runs with a small limit first and is charged that;
if it does not finish, it runs again with the next."""
USUAL_WORDS = 2
"""Words of 64 bits in the largest number of a system up to which there is no extra charge: a product of dims has two."""
STEPS_PER_WORD = 30
"""Steps for each further word in every column of a constraint. Measured: 139 constraints on 19 unknowns with 7 words take 2 s
in 1,000 operations of isl, 169 on 23 with 14 words 10 s."""


@dataclass(slots=True)
class Work:
    """Steps so far, in total and by (obligation, location)."""

    limit: int = KERNEL_STEPS
    spent: int = 0
    steps_by_obligation: dict[tuple[str, Span | None], int] = field(default_factory=dict[tuple[str, Span | None], int])
    _current: tuple[str, Span | None] = ("the contract", None)
    _end: int | None = None

    def begin(self, obligation: str, span: Span | None) -> None:
        """Charge work to this obligation from here on."""
        self._current = (obligation, span)
        note(f"proving {obligation}" + (f" at {span}" if span is not None else ""))

    def charge(self, steps: int) -> None:
        """Count work; OutOfWork if the budget is exceeded, Undecided if the part of it that `at_most` gives is."""
        self.spent += steps
        self.steps_by_obligation[self._current] = self.steps_by_obligation.get(self._current, 0) + steps
        if self.spent > self.limit:
            raise OutOfWork
        if self._end is not None and self.spent > self._end:
            raise Undecided

    @contextmanager
    def at_most(self, steps: int) -> Generator[None]:
        """Queries inside the `with` block are undecided once they have taken so many steps."""
        self._end = self.spent + steps
        try:
            yield
        finally:
            self._end = None

    def charge_numbers(self, polys: Iterable[Poly], unknowns: int) -> None:
        """Charge a query in advance for the extra time that large numbers add to isl's operations; Undecided if that alone
        exceeds the budget of a query. In a sequence of dependent products, the bits of the bounds double with every line."""
        constraints = list(polys)
        widest = max((abs(value) for poly in constraints for value in poly.terms.values()), default=0)
        words = -(-widest.bit_length() // 64)
        steps = len(constraints) * unknowns * max(words - USUAL_WORDS, 0) * STEPS_PER_WORD
        if steps > QUERY_STEPS:
            raise Undecided
        self.charge(steps)

    @property
    def current(self) -> tuple[str, Span | None]:
        """The obligation being proven."""
        return self._current

    @property
    def most_expensive(self) -> tuple[str, Span | None, int]:
        """The obligation that took the most steps, its location, and its steps."""
        key = max(self.steps_by_obligation, key=lambda key: self.steps_by_obligation[key], default=self._current)
        return *key, self.steps_by_obligation.get(key, 0)

    def limited(self, context: islpy.Context, query: Callable[[], T], stages: tuple[int, ...] = STAGES) -> T:
        """The result of an isl query within the budget of one query; islpy.Error if that is spent."""
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
    """Limit the operations of isl inside the `with` block; parsing stays unlimited, as isl reports a limit there as a syntax
    error."""

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
    """E0510: the obligation being proven, and the obligation of most steps, at its operation."""
    obligation, span, steps = work.most_expensive
    current, _ = work.current
    if work.spent <= work.limit:  # a polynomial or a value was too large, the budget is not spent
        notes = [f"{current}: a product of sums has more than {MAX_TERMS} terms or {MAX_DEGREE} factors,"]
        notes[0] += f" or a value more than {MAX_VALUE_BITS} bits"
        obligation, span = work.current
    else:
        notes = [f"{obligation} took {100 * steps // work.spent} % of {work.limit} steps"]
        if current != obligation:
            notes.append(f"the budget ended at {current}")
    shown_at = span or function.loc
    primary = (
        Label(shown_at, f"{obligation} took most" if work.spent > work.limit else "too large to reason about")
        if shown_at
        else None
    )
    hint = "compute the index in fewer steps, pass an intermediate value as a `Const` or a parameter with `requires(...)`, "
    hint += "or take the access out of the proof with `unsafe`"
    return Diagnostic("E0510", f"the proofs of `{function.name}` exceed the work limit", primary, (), tuple(notes), hint=hint)


def too_deep(function: Function, work: Work) -> Diagnostic:
    """E0512: an expression nested deeper than Python's stack."""
    obligation, span = work.current
    shown_at = span or function.loc
    primary = Label(shown_at, "nested too deeply") if shown_at is not None else None
    hint = "split the expression: each value here is computed from thousands before it"
    return Diagnostic(
        "E0512", f"`{function.name}` is nested too deeply to prove", primary, (), (f"at {obligation}",), hint=hint
    )
