"""Integer polynomials over atoms, and formulas over polynomials: what the prover reasons in.

A scalar of a kernel becomes a `Poly`: an integer polynomial over `Atom`s in normal form, so that equal expressions are equal
objects. An atom is a launch value (symbol), a block id, a loop iteration, a position inside a tile, an element loaded from
memory, something opaque - or it is *derived*: a floor division, or a choice between cases (`min`, `max`, `where`, joins).
A derived atom carries its definition, and `definition` states it as a formula. Every atom has an interval that holds
unconditionally, so facts declared by the kernel (`requires`, `values`) are no part of it.

Formulas are quantifier-free: comparisons of polynomials with zero, `and`, `or`. Negation is pushed down when it is built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import gcd


class Kind(Enum):
    """What an atom stands for."""

    SYMBOL = "symbol"
    BLOCK = "block"
    ITERATION = "iteration"
    POSITION = "position"
    COORDINATE = "coordinate"  # a digit of a decomposed block id or iteration: 0 <= c < extent
    LOADED = "loaded"  # an element of an In tensor: a function of (tensor, index)
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
    def derived(self) -> bool:
        """True where the value follows from other atoms."""
        return self.kind in (Kind.QUOTIENT, Kind.CHOICE)


class Poly:
    """An immutable integer polynomial: monomial (atoms in order of creation) to coefficient, no zero coefficients."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self.terms: dict[Monomial, int] = {m: c for m, c in terms.items() if c}
        self._hash = 0

    def __hash__(self) -> int:
        if not self._hash:
            self._hash = hash(frozenset(self.terms.items())) or 1
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Poly) and self.terms == other.terms

    def __add__(self, other: Poly | int) -> Poly:
        terms = dict(self.terms)
        for monomial, coefficient in _poly(other).terms.items():
            terms[monomial] = terms.get(monomial, 0) + coefficient
        return Poly(terms)

    def __neg__(self) -> Poly:
        return Poly({m: -c for m, c in self.terms.items()})

    def __sub__(self, other: Poly | int) -> Poly:
        return self + (-_poly(other))

    def __mul__(self, other: Poly | int) -> Poly:
        if isinstance(other, int):
            return Poly({m: c * other for m, c in self.terms.items()})
        terms: dict[Monomial, int] = {}
        for left, a in self.terms.items():
            for right, b in other.terms.items():
                monomial = tuple(sorted(left + right, key=_uid)) if left and right else left or right
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
        return max((len(m) for m in self.terms), default=0)

    @property
    def atom(self) -> Atom | None:
        """The atom that this polynomial consists of, if it is just one."""
        if len(self.terms) == 1:
            ((monomial, coefficient),) = self.terms.items()
            if coefficient == 1 and len(monomial) == 1:
                return monomial[0]
        return None

    def atoms(self) -> Iterator[Atom]:
        """Atoms that occur (not those inside definitions), repeats possible."""
        for monomial in self.terms:
            yield from monomial

    def __repr__(self) -> str:
        parts = [f"{c}*{'*'.join(a.name for a in m)}" if m else str(c) for m, c in self.terms.items()]
        return " + ".join(parts) or "0"


def _uid(atom: Atom) -> int:
    return atom.uid


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
    """`left >= right`, decided at once where intervals do."""
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
    """The complement."""
    if formula.op == "ge":
        return lt(formula.poly, 0)
    if formula.op == "eq":
        return ne(formula.poly)
    parts = [negate(part) for part in formula.parts]
    return disjunction(parts) if formula.op == "and" else conjunction(parts)


@dataclass(eq=False, slots=True)
class Atoms:
    """The atoms of one proof, interned by what defines them."""

    _interned: dict[object, Atom] = field(default_factory=dict[object, Atom])
    _names: dict[str, int] = field(default_factory=dict[str, int])

    def make(
        self,
        key: object,
        kind: Kind,
        name: str,
        bounds: tuple[int, int],
        *,
        args: tuple[Poly, ...] = (),
        cases: tuple[tuple[Formula, Poly], ...] = (),
        varies: bool = True,
        label: str = "",
        level: int = 0,
    ) -> Atom:
        """The atom for `key`; made with the given properties the first time, with a name of its own."""
        atom = self._interned.get((kind, key))
        if atom is None:
            count = self._names.get(name, 0)
            self._names[name] = count + 1
            unique = name if not count else f"{name}_{count}"
            atom = Atom(len(self._interned), kind, unique, *bounds, args, cases, varies, label, level)
            self._interned[(kind, key)] = atom
        return atom

    def quotient(self, dividend: Poly, divisor: Poly) -> Poly:
        """`dividend // divisor`, rounded toward minus infinity; whole multiples of the divisor are split off first."""
        whole, rest = _split(dividend, divisor)
        low, high = interval(rest)
        d_low, d_high = interval(divisor)
        if low >= 0 and high < d_low:
            return whole
        digit = rest.atom
        if digit is not None and digit.kind is Kind.COORDINATE and digit.args[0] == divisor:
            return whole
        if divisor.constant is not None and divisor.constant > 0:
            rest, divisor = _reduce(rest, divisor.constant)
            if divisor == ONE:
                return whole + rest
        if d_low >= 1:
            corners = [value // d for value in (low, high) for d in (d_low, d_high)]
            bounds = min(corners), max(corners)
        else:
            magnitude = max(abs(low), abs(high)) + 1
            bounds = -magnitude, magnitude
        if bounds[0] == bounds[1] and d_low >= 1:
            return whole + bounds[0]
        varies = any(a.varies for p in (rest, divisor) for a in p.atoms())
        return whole + of(self.make((rest, divisor), Kind.QUOTIENT, "q", bounds, args=(rest, divisor), varies=varies))

    def choice(self, cases: Iterable[tuple[Formula, Poly]]) -> Poly:
        """The polynomial of the case whose condition holds; exactly one must."""
        kept = tuple((condition, value) for condition, value in cases if condition != FALSE)
        values = {value for _, value in kept}
        if len(values) == 1:
            return values.pop()
        bounds = [interval(value) for value in values]
        spread = min(low for low, _ in bounds), max(high for _, high in bounds)
        polys = [p for condition, value in kept for p in (*condition.polys(), value)]
        varies = any(a.varies for p in polys for a in p.atoms())
        return of(self.make(kept, Kind.CHOICE, "c", spread, cases=kept, varies=varies))

    def minimum(self, left: Poly, right: Poly) -> Poly:
        """The smaller of two."""
        return self.choice(((ge(right, left), left), (lt(right, left), right)))

    def maximum(self, left: Poly, right: Poly) -> Poly:
        """The larger of two."""
        return self.choice(((ge(left, right), left), (lt(left, right), right)))

    def substitute(self, poly: Poly, mapping: Mapping[Atom, Poly], memo: dict[Atom, Poly] | None = None) -> Poly:
        """Replace atoms, inside definitions too; derived atoms and loaded elements are rebuilt over the new arguments."""
        memo = {} if memo is None else memo
        result: Poly = ZERO
        for monomial, coefficient in poly.terms.items():
            product = const(coefficient)
            for atom in monomial:
                product = product * self._replace(atom, mapping, memo)
            result = result + product
        return result

    def substitute_in(self, formula: Formula, mapping: Mapping[Atom, Poly], memo: dict[Atom, Poly] | None = None) -> Formula:
        """`substitute` in every polynomial of a formula."""
        memo = {} if memo is None else memo
        if formula.op == "ge":
            return ge(self.substitute(formula.poly, mapping, memo))
        if formula.op == "eq":
            return eq(self.substitute(formula.poly, mapping, memo))
        parts = [self.substitute_in(part, mapping, memo) for part in formula.parts]
        return conjunction(parts) if formula.op == "and" else disjunction(parts)

    def _replace(self, atom: Atom, mapping: Mapping[Atom, Poly], memo: dict[Atom, Poly]) -> Poly:
        if atom in mapping:
            return mapping[atom]
        if atom in memo:
            return memo[atom]
        result = of(atom)
        if atom.kind is Kind.QUOTIENT:
            args = [self.substitute(arg, mapping, memo) for arg in atom.args]
            if tuple(args) != atom.args:
                result = self.quotient(args[0], args[1])
        elif atom.kind is Kind.CHOICE:
            cases = [(self.substitute_in(c, mapping, memo), self.substitute(v, mapping, memo)) for c, v in atom.cases]
            if tuple(cases) != atom.cases:
                result = self.choice(cases)
        elif atom.kind is Kind.LOADED:
            index = tuple(self.substitute(arg, mapping, memo) for arg in atom.args)
            if index != atom.args:
                result = of(self.loaded(atom.label, index, (atom.low, atom.high)))
        memo[atom] = result
        return result

    def loaded(self, tensor: str, index: tuple[Poly, ...], bounds: tuple[int, int]) -> Atom:
        """The element of an In tensor at an index."""
        varies = any(a.varies for p in index for a in p.atoms())
        key = (tensor, index)
        return self.make(key, Kind.LOADED, f"{tensor}_at", bounds, args=index, varies=varies, label=tensor)


def _split(dividend: Poly, divisor: Poly) -> tuple[Poly, Poly]:
    """(whole, rest) with `dividend == whole * divisor + rest`, taking what divides term by term."""
    if len(divisor.terms) != 1:
        scale = _multiple(dividend, divisor)
        return (const(scale), dividend - divisor * scale) if scale else (ZERO, dividend)
    ((monomial, coefficient),) = divisor.terms.items()
    if coefficient <= 0:
        return ZERO, dividend
    whole: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for term, c in dividend.terms.items():
        left = _without(term, monomial)
        # The constant term rounds down, so that a small remainder is left; the others round toward zero, to stay simple.
        share = 0 if left is None else c // coefficient if c > 0 or not term else -(-c // coefficient)
        if left is not None and share:
            whole[left] = share
        rest[term] = c - share * coefficient
    return Poly(whole), Poly(rest)


def _multiple(dividend: Poly, divisor: Poly) -> int:
    """How often a divisor of several terms can be taken off as a whole; 0 if its terms do not all occur."""
    scales = {divmod(dividend.terms.get(m, 0), c) for m, c in divisor.terms.items() if m}
    scale, rest = scales.pop()
    return scale if not scales and not rest else 0


def _without(term: Monomial, part: Monomial) -> Monomial | None:
    left = list(term)
    for atom in part:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def _reduce(rest: Poly, divisor: int) -> tuple[Poly, Poly]:
    """Divide both sides of `rest // divisor` by the common divisor of all coefficients; the constant rounds down."""
    common = divisor
    for monomial, coefficient in rest.terms.items():
        if monomial:
            common = gcd(common, coefficient)
    return Poly({m: c // common for m, c in rest.terms.items()}), const(divisor // common)


def definition(atom: Atom) -> Formula:
    """What holds of an atom beside its interval. A quotient is defined only where its divisor is positive, so that a
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
    """`parts` where the divisor is positive, anything elsewhere."""
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


def evaluate(poly: Poly, value: Callable[[Atom], int]) -> int:
    """Value of a polynomial when `value` gives each atom's."""
    total = 0
    for monomial, coefficient in poly.terms.items():
        for atom in monomial:
            coefficient *= value(atom)
        total += coefficient
    return total


def holds(formula: Formula, value: Callable[[Atom], int]) -> bool:
    """Truth of a formula when `value` gives each atom's value."""
    if formula.op == "ge":
        return evaluate(formula.poly, value) >= 0
    if formula.op == "eq":
        return evaluate(formula.poly, value) == 0
    results = (holds(part, value) for part in formula.parts)
    return all(results) if formula.op == "and" else any(results)
