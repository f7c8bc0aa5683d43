"""Integer polynomials over atoms, and formulas over polynomials: the prover's logic.

A scalar of a kernel becomes a `Poly`: an integer polynomial over `Atom`s in normal form, so that equal expressions are equal
objects. An atom is a launch value (symbol), a block id, a loop iteration, a position inside a tile, an element loaded from
memory or an opaque value; or it is *derived*: a floor division, or a choice between cases (`min`, `max`, `where`, joins). A
derived atom carries its definition, and `definition` states it as a formula. Every atom has an interval that is
unconditional: facts that the kernel declares (`requires`, `values`) are not part of it.

Formulas are quantifier-free: comparisons of polynomials with zero, `and`, `or`. Negation is pushed to the leaves on
construction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import Final

from tilec.untrusted.limits import MAX_DEGREE, MAX_TERMS


class OutOfWork(Exception):
    """The proofs of this kernel exceed their limits: the budget of `work` is spent, or a polynomial is too large."""


class Kind(Enum):
    """What an atom stands for."""

    SYMBOL = "symbol"
    BLOCK = "block"
    ITERATION = "iteration"
    POSITION = "position"
    COORDINATE = "coordinate"  # a digit of a decomposed block id or iteration: 0 <= c < extent
    LOADED = "loaded"  # an element of a tensor before the launch: a function of (tensor, index)
    OPAQUE = "opaque"
    QUOTIENT = "quotient"
    CHOICE = "choice"


Monomial = tuple["Atom", ...]


@dataclass(eq=False, slots=True)
class Atom:
    """An integer unknown; interned by `Atoms`, so identity is equality.

    `low`..`high` is an inclusive interval. `args`: (dividend, divisor) of a quotient, the index of a loaded element, the
    extent of a block id or coordinate. `cases` of a choice: exactly one condition holds at a time. `varies` says that two
    blocks or iterations may see different values. `label` groups atoms (the tensor of a loaded element, the loop's name).
    """

    uid: int
    kind: Kind
    name: str
    low: int
    high: int
    args: tuple[Poly, ...] = ()
    cases: tuple[tuple[Formula, Poly], ...] = ()
    varies: bool = True
    label: str = ""
    level: int = 0  # axis of a block id; number of the copy for renamed atoms

    def __repr__(self) -> str:
        return self.name

    @property
    def is_order(self) -> bool:
        """True for a position that a sort takes an element from: a function of block, iterations and positions, the last of
        which is that along the sorted axis. Different ones give different values."""
        return self.label.startswith(ORDER)

    @property
    def is_sum(self) -> bool:
        """True for the sum of the elements of a tile before one of them along an axis: a function of block, iterations and
        positions. The last four of `args` are the number of elements before it, the least and the largest value of an element,
        and the element itself."""
        return self.label.startswith(SUMS)

    @property
    def derived(self) -> bool:
        """True if other atoms determine the value."""
        return self.kind in (Kind.QUOTIENT, Kind.CHOICE)


ORDER: Final = "order of "
"""Begins the labels of atoms of sorts; no name of a tensor does."""
SUMS: Final = "sums of "
"""Begins the labels of atoms of prefix sums."""


class Poly:
    """An immutable integer polynomial: monomial (atoms in order of creation) to coefficient, no zero coefficients."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self.terms: dict[Monomial, int] = {m: c for m, c in terms.items() if c}
        self._hash = 0

    @classmethod
    def of_nonzero(cls, terms: dict[Monomial, int]) -> Poly:
        """The polynomial with these coefficients, none of which is zero; it keeps `terms` without copying."""
        made = cls.__new__(cls)
        made.terms = terms
        made._hash = 0
        return made

    def __hash__(self) -> int:
        if not self._hash:
            self._hash = hash(frozenset(self.terms.items())) or 1
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Poly) and self.terms == other.terms

    def __add__(self, other: Poly | int) -> Poly:
        terms = dict(self.terms)
        for monomial, coefficient in other.terms.items() if isinstance(other, Poly) else (((), other),):
            add_term(terms, monomial, coefficient)
        return Poly.of_nonzero(terms)

    def __neg__(self) -> Poly:
        return Poly.of_nonzero({m: -c for m, c in self.terms.items()})

    def __sub__(self, other: Poly | int) -> Poly:
        return self + (-_poly(other))

    def __mul__(self, other: Poly | int) -> Poly:
        if isinstance(other, int):
            return Poly({m: c * other for m, c in self.terms.items()})
        if len(self.terms) * len(other.terms) > MAX_TERMS or self.degree + other.degree > MAX_DEGREE:
            raise OutOfWork
        terms: dict[Monomial, int] = {}
        for left, a in self.terms.items():
            for right, b in other.terms.items():
                monomial = product(left, right)
                terms[monomial] = terms.get(monomial, 0) + a * b
        return Poly(terms)

    @property
    def constant(self) -> int | None:
        """The value of a polynomial without atoms, else None."""
        if not self.terms:
            return 0
        return self.terms.get(()) if len(self.terms) == 1 else None

    @property
    def offset(self) -> int:
        """The constant term."""
        return self.terms.get((), 0)

    @property
    def degree(self) -> int:
        return max(map(len, self.terms), default=0)

    @property
    def atom(self) -> Atom | None:
        """The atom if the polynomial is a single atom, else None."""
        if len(self.terms) == 1:
            ((monomial, coefficient),) = self.terms.items()
            if coefficient == 1 and len(monomial) == 1:
                return monomial[0]
        return None

    def atoms(self) -> Iterator[Atom]:
        """Atoms that occur, except those inside definitions; may repeat."""
        for monomial in self.terms:
            yield from monomial

    def __repr__(self) -> str:
        parts = [f"{c}*{'*'.join(a.name for a in m)}" if m else str(c) for m, c in self.terms.items()]
        return " + ".join(parts) or "0"


_uid = attrgetter("uid")


def add_term(terms: dict[Monomial, int], monomial: Monomial, coefficient: int) -> None:
    """Add a product to a sum of products, which has no zero coefficients before and after."""
    if value := terms.get(monomial, 0) + coefficient:
        terms[monomial] = value
    else:
        terms.pop(monomial, None)


def product(left: Monomial, right: Monomial) -> Monomial:
    """The atoms of both, in order of creation."""
    return tuple(sorted(left + right, key=_uid)) if left and right else left or right


def _poly(value: Poly | int) -> Poly:
    return value if isinstance(value, Poly) else const(value)


def const(value: int) -> Poly:
    """A constant polynomial."""
    return Poly({(): value})


def of(atom: Atom) -> Poly:
    """The polynomial that is one atom."""
    return Poly({(atom,): 1})


ZERO = const(0)
ONE = const(1)


@dataclass(frozen=True, slots=True)
class Formula:
    """`op` is "ge" (poly >= 0), "eq" (poly == 0), "and" or "or" (of `parts`; empty means true and false)."""

    op: str
    poly: Poly = ZERO
    parts: tuple[Formula, ...] = ()

    def polys(self) -> Iterator[Poly]:
        """Polynomials that occur."""
        if self.op in ("ge", "eq"):
            yield self.poly
        for part in self.parts:
            yield from part.polys()


TRUE = Formula("and")
FALSE = Formula("or")


def interval(poly: Poly) -> tuple[int, int]:
    """Smallest and largest value by interval arithmetic over the atoms."""
    low = high = 0
    for monomial, coefficient in poly.terms.items():
        a = b = coefficient
        for atom in monomial:
            products = (a * atom.low, a * atom.high, b * atom.low, b * atom.high)
            a, b = min(products), max(products)
        low, high = low + a, high + b
    return low, high


def ge(left: Poly, right: Poly | int = 0) -> Formula:
    """`left >= right`, folded to true or false if intervals decide it."""
    poly = left - right
    low, high = interval(poly)
    if low >= 0:
        return TRUE
    return FALSE if high < 0 else Formula("ge", poly)


def eq(left: Poly, right: Poly | int = 0) -> Formula:
    """`left == right`."""
    poly = left - right
    low, high = interval(poly)
    if low == high == 0:
        return TRUE
    return Formula("eq", poly) if low <= 0 <= high else FALSE


def lt(left: Poly, right: Poly | int) -> Formula:
    """`left < right`."""
    return ge(_poly(right) - left, 1)


def ne(left: Poly, right: Poly | int = 0) -> Formula:
    """`left != right`."""
    return disjunction((lt(left, right), lt(_poly(right), left)))


def conjunction(parts: Iterable[Formula]) -> Formula:
    """All of `parts`."""
    return _connect("and", parts, TRUE, FALSE)


def disjunction(parts: Iterable[Formula]) -> Formula:
    """Any of `parts`."""
    return _connect("or", parts, FALSE, TRUE)


def _connect(op: str, parts: Iterable[Formula], neutral: Formula, absorbing: Formula) -> Formula:
    flat: dict[Formula, None] = {}
    for part in parts:
        if part == absorbing:
            return absorbing
        flat.update(dict.fromkeys(part.parts) if part.op == op else {part: None})
    if not flat:
        return neutral
    return next(iter(flat)) if len(flat) == 1 else Formula(op, parts=tuple(flat))


def negate(formula: Formula) -> Formula:
    if formula.op == "ge":
        return lt(formula.poly, 0)
    if formula.op == "eq":
        return ne(formula.poly)
    parts = [negate(part) for part in formula.parts]
    return disjunction(parts) if formula.op == "and" else conjunction(parts)


def definition(atom: Atom) -> Formula:
    """Constraints on an atom in addition to its interval. A quotient is constrained only if its divisor is positive, so that a
    division that is not executed constrains nothing."""
    if atom.kind is Kind.QUOTIENT:
        dividend, divisor = atom.args
        rest = dividend - divisor * of(atom)
        return conjunction_or_free((ge(rest), lt(rest, divisor)), divisor)
    if atom.kind is Kind.CHOICE:
        return disjunction(conjunction((condition, eq(of(atom), value))) for condition, value in atom.cases)
    if atom.kind in (Kind.BLOCK, Kind.COORDINATE):
        return lt(of(atom), atom.args[0])
    return TRUE


def conjunction_or_free(parts: tuple[Formula, ...], divisor: Poly) -> Formula:
    """`parts` if the divisor is positive, unconstrained otherwise."""
    positive = ge(divisor, 1)
    return disjunction((conjunction((positive, *parts)), negate(positive)))


def closure(formulas: Iterable[Formula]) -> list[Atom]:
    """Every atom that formulas and the definitions of their atoms mention, in order of creation."""
    seen: set[Atom] = set()
    pending = [poly for formula in formulas for poly in formula.polys()]
    while pending:
        for atom in pending.pop().atoms():
            if atom not in seen:
                seen.add(atom)
                pending.extend(atom.args)
                pending.extend(p for condition, value in atom.cases for p in (*condition.polys(), value))
    return sorted(seen, key=_uid)


def mentioned(formulas: Iterable[Formula]) -> list[Atom]:
    """`closure` without what decides the indices of elements and of sums, unless formulas mention it elsewhere."""
    seen: set[Atom] = set()
    pending = [poly for formula in formulas for poly in formula.polys()]
    while pending:
        for atom in pending.pop().atoms():
            if atom not in seen:
                seen.add(atom)
                pending.extend(atom.args if atom.kind is not Kind.LOADED else ())
                pending.extend(p for condition, value in atom.cases for p in (*condition.polys(), value))
    return sorted(seen, key=_uid)


def evaluate(poly: Poly, value: Callable[[Atom], int]) -> int:
    """Value of a polynomial, with `value` giving that of each atom."""
    total = 0
    for monomial, coefficient in poly.terms.items():
        for atom in monomial:
            coefficient *= value(atom)
        total += coefficient
    return total


def holds(formula: Formula, value: Callable[[Atom], int]) -> bool:
    """Truth of a formula, with `value` giving the value of each atom."""
    if formula.op == "ge":
        return evaluate(formula.poly, value) >= 0
    if formula.op == "eq":
        return evaluate(formula.poly, value) == 0
    results = (holds(part, value) for part in formula.parts)
    return all(results) if formula.op == "and" else any(results)


def exact_quotient(whole: Poly, divisor: Poly) -> Poly | None:
    """`whole / divisor` as a polynomial, if it is one. Only for a divisor of a single term, or a constant multiple of the
    divisor."""
    if len(divisor.terms) == 1:
        ((monomial, coefficient),) = divisor.terms.items()
        result: dict[tuple[Atom, ...], int] = {}
        for term, c in whole.terms.items():
            remaining = list(term)
            if c % coefficient or any(remaining.count(a) < monomial.count(a) for a in monomial):
                return None
            for a in monomial:
                remaining.remove(a)
            result[tuple(remaining)] = c // coefficient
        return Poly(result)
    first = next(iter(divisor.terms))
    scale, rest = divmod(whole.terms.get(first, 0), divisor.terms[first])
    return const(scale) if scale and not rest and divisor * scale == whole else None
