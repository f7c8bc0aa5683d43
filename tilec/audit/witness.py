"""Solves for the block, iteration and position that access a given element: equations go in, candidate solutions come out.

The index of an access is a sum of unknowns (ids, iterations, positions, their quotients and remainders) with known
coefficients. One unknown follows from a floor division, several from one division after the other, largest first, like the
digits of a number. A known quotient and remainder give their dividend. Soundness does not depend on this module: a candidate
is substituted into every condition, and z3 decides whether they hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import permutations

from tilec.audit import smt
from tilec.audit.definitions import Definitions
from tilec.audit.smt import Term

CANDIDATES = 12
DIGITS = 3
"""Maximum number of unknowns solved from one axis."""


@dataclass(frozen=True, slots=True)
class Linear:
    """`rest` plus a sum of unknowns times coefficients; neither contains an unknown."""

    rest: Term
    coefficients: dict[str, Term]


@dataclass(slots=True)
class Unknowns:
    """The unknowns of a query. `targets` are pairs of an index and the element that it must equal; `terms` the unknowns by
    name; `definitions` the quotients among them; `defaults` the values of unknowns that nothing determines."""

    terms: dict[str, Term]
    targets: list[tuple[Term, Term]]
    definitions: Definitions
    defaults: dict[str, Term] = field(default_factory=dict[str, Term])


def candidates(unknowns: Unknowns, universal: Definitions) -> Iterator[dict[str, Term]]:
    """Candidate solutions, at most `CANDIDATES`; quotients in them are defined in `universal`."""
    for number, solution in enumerate(_search(unknowns, {}, universal)):
        yield solution
        if number + 1 == CANDIDATES:
            return


def applied(term: Term, unknowns: Unknowns, solution: dict[str, Term]) -> Term:
    """A term with the solution substituted for the unknowns."""
    return smt.replaced(term, [(unknowns.terms[name], value) for name, value in solution.items()])


def _search(unknowns: Unknowns, solution: dict[str, Term], universal: Definitions) -> Iterator[dict[str, Term]]:
    solution = dict(solution)
    while True:
        if len(solution) == len(unknowns.terms):
            yield solution
            return
        if not (_one_axis(unknowns, solution, universal) or _definition(unknowns, solution, universal)):
            break
    options = list(_several(unknowns, solution, universal))
    for option in options:
        yield from _search(unknowns, {**solution, **option}, universal)
    if options:
        return
    open_names = [name for name in unknowns.terms if name not in solution and name in unknowns.defaults]
    if open_names:
        yield from _search(unknowns, {**solution, open_names[0]: unknowns.defaults[open_names[0]]}, universal)


def _one_axis(unknowns: Unknowns, solution: dict[str, Term], universal: Definitions) -> bool:
    """Solves an axis with a single remaining unknown."""
    for index, element in unknowns.targets:
        linear = linear_in(applied(index, unknowns, solution), unknowns)
        if linear is not None and len(linear.coefficients) == 1:
            ((name, coefficient),) = linear.coefficients.items()
            solution[name] = _digit(smt.sub(element, linear.rest), coefficient, universal)[0]
            return True
    return False


def _definition(unknowns: Unknowns, solution: dict[str, Term], universal: Definitions) -> bool:
    """Applies the definition of a quotient: forward from a known dividend, or backward to an unknown in it."""
    for quotient, rest, left, right in unknowns.definitions.known.values():
        names = [str(quotient), str(rest)]
        dividend, divisor = applied(left, unknowns, solution), applied(right, unknowns, solution)
        if not names[0].startswith(unknowns.definitions.prefix) or open_in(divisor, unknowns):
            continue
        known = [name in solution for name in names]
        if not open_in(dividend, unknowns):
            if not all(known):
                values = universal.divided(dividend, divisor, False, None)
                solution |= {name: value for name, value in zip(names, values, strict=True) if name not in solution}
                return True
        elif all(known):
            linear = linear_in(dividend, unknowns)
            if linear is not None and len(linear.coefficients) == 1:
                ((name, coefficient),) = linear.coefficients.items()
                dividend_value = smt.add(smt.mul(divisor, solution[names[0]]), solution[names[1]])
                solution[name] = _digit(smt.sub(dividend_value, linear.rest), coefficient, universal)[0]
                return True
    return False


def _several(unknowns: Unknowns, solution: dict[str, Term], universal: Definitions) -> Iterator[dict[str, Term]]:
    """Solves the unknowns of one axis as digits, in every order."""
    for index, element in unknowns.targets:
        linear = linear_in(applied(index, unknowns, solution), unknowns)
        if linear is None or not 2 <= len(linear.coefficients) <= DIGITS:
            continue
        for order in permutations(sorted(linear.coefficients)):
            remaining, option = smt.sub(element, linear.rest), dict[str, Term]()
            for name in order:
                option[name], remaining = _digit(remaining, linear.coefficients[name], universal)
            yield option
        return


def _digit(left: Term, coefficient: Term, universal: Definitions) -> tuple[Term, Term]:
    """Quotient and remainder by a coefficient; for a negative one the quotient is rounded up."""
    value = smt.constant(coefficient)
    if value is not None and value < 0:
        quotient, rest = universal.divided(left, smt.integer(-value), True, None)
        return smt.sub(smt.integer(0), quotient), rest
    quotient, rest = universal.divided(left, coefficient, False, None)
    return quotient, rest


def open_in(term: Term, unknowns: Unknowns) -> bool:
    """Whether a term still contains an unknown."""
    pending, seen = [term], set[int]()
    while pending:
        current = pending.pop()
        if current.get_id() in seen:
            continue
        seen.add(current.get_id())
        if current.num_args():
            pending += current.children()
        elif smt.constant(current) is None and str(current) in unknowns.terms:
            return True
    return False


def linear_in(term: Term, unknowns: Unknowns) -> Linear | None:
    """A term as a linear sum over the unknowns, or None if it is not linear."""
    z3 = smt.z3
    if not open_in(term, unknowns):
        return Linear(term, {})
    if not term.num_args():
        return Linear(smt.integer(0), {str(term): smt.integer(1)})
    kind = term.decl().kind()
    parts = [linear_in(part, unknowns) for part in term.children()]
    if any(part is None for part in parts):
        return None
    known = [part for part in parts if part is not None]
    if kind == z3.Z3_OP_ADD:
        return _sum(known, [1] * len(known))
    if kind == z3.Z3_OP_SUB:
        return _sum(known, [1, *[-1] * (len(known) - 1)])
    if kind == z3.Z3_OP_UMINUS:
        return _sum(known, [-1])
    if kind == z3.Z3_OP_MUL and sum(bool(part.coefficients) for part in known) == 1:
        factor: Term = smt.integer(1)
        for part in known:
            factor = factor if part.coefficients else smt.mul(factor, part.rest)
        (moving,) = (part for part in known if part.coefficients)
        return Linear(smt.mul(factor, moving.rest), {n: smt.mul(factor, c) for n, c in moving.coefficients.items()})
    return None


def _sum(parts: list[Linear], signs: list[int]) -> Linear:
    rest: Term = smt.integer(0)
    coefficients: dict[str, Term] = {}
    for part, sign in zip(parts, signs, strict=True):
        rest = smt.add(rest, part.rest) if sign > 0 else smt.sub(rest, part.rest)
        for name, value in part.coefficients.items():
            before = coefficients.get(name, smt.integer(0))
            coefficients[name] = smt.add(before, value) if sign > 0 else smt.sub(before, value)
    return Linear(rest, {name: value for name, value in coefficients.items() if smt.constant(value) != 0})
