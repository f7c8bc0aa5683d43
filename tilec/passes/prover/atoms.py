"""Creates atoms: interned by their definition, simplified on creation, rebuilt when their arguments are substituted."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import gcd

from tilec.passes.prover.terms import (
    FALSE,
    ONE,
    ORDER,
    SUMS,
    ZERO,
    Atom,
    Formula,
    Kind,
    Monomial,
    OutOfWork,
    Poly,
    conjunction,
    const,
    disjunction,
    eq,
    exact_quotient,
    ge,
    interval,
    lt,
    of,
)
from tilec.untrusted.limits import MAX_VALUE_BITS

_numbers = itertools.count()
"""Numbers of atoms in order of creation. Tables share it, so that atoms of two tables in one system have an order too."""


@dataclass(eq=False, slots=True)
class Atoms:
    """The atoms of one proof, interned by their definition."""

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
        """The atom for `key`; the first call creates it with the given properties and a unique name. OutOfWork if its bounds
        exceed `MAX_VALUE_BITS`."""
        atom = self._interned.get((kind, key))
        if atom is None:
            if max(map(int.bit_length, bounds)) > MAX_VALUE_BITS:
                raise OutOfWork
            count = self._names.get(name, 0)
            self._names[name] = count + 1
            unique = name if not count else f"{name}_{count}"
            atom = Atom(next(_numbers), kind, unique, *bounds, args, cases, varies, label, level)
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
        if d_low >= 1 and (shorter := _without_low_digit(rest, divisor)) is not None:
            return whole + self.quotient(*shorter)
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
        """The polynomial of the case whose condition is true; exactly one must be. It is unknown where none can be, which is so
        in code that does not run and where a value outside of its range is substituted: anything would follow from a definition
        without a true case."""
        every = tuple(cases)
        kept = tuple((condition, value) for condition, value in every if condition != FALSE)
        values = {value for _, value in kept or every} or {ZERO}
        if len(values) == 1:
            return values.pop()
        bounds = [interval(value) for value in values]
        range_of_values = min(low for low, _ in bounds), max(high for _, high in bounds)
        if not kept:
            return of(self.make(every, Kind.OPAQUE, "c", range_of_values))
        polys = [p for condition, value in kept for p in (*condition.polys(), value)]
        varies = any(a.varies for p in polys for a in p.atoms())
        return of(self.make(kept, Kind.CHOICE, "c", range_of_values, cases=kept, varies=varies))

    def minimum(self, left: Poly, right: Poly) -> Poly:
        return self.choice(((ge(right, left), left), (lt(right, left), right)))

    def maximum(self, left: Poly, right: Poly) -> Poly:
        return self.choice(((ge(left, right), left), (lt(left, right), right)))

    def substitute(self, poly: Poly, mapping: Mapping[Atom, Poly], memo: dict[Atom, Poly] | None = None) -> Poly:
        """Replace atoms, also inside definitions; derived atoms and loaded elements are rebuilt over the new arguments."""
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
        """The element of a tensor before the launch, at an index."""
        varies = any(a.varies for p in index for a in p.atoms())
        key = (tensor, index)
        name = "order_at" if tensor.startswith(ORDER) else "sum_at" if tensor.startswith(SUMS) else f"{tensor}_at"
        return self.make(key, Kind.LOADED, name, bounds, args=index, varies=varies, label=tensor)


def _without_low_digit(rest: Poly, divisor: Poly) -> tuple[Poly, Poly] | None:
    """`(y, E)` with `rest // divisor == y // E`, of a positive divisor: where `rest == d + D * y` for a digit `0 <= d < D`, and
    `divisor == D * E`."""
    for digit in sorted(rest.atoms(), key=lambda atom: atom.uid):
        if digit.kind is Kind.COORDINATE and rest.terms.get((digit,)) == 1 and interval(digit.args[0])[0] >= 1:
            y, e = (exact_quotient(poly, digit.args[0]) for poly in (rest - of(digit), divisor))
            if y is not None and e is not None:
                return y, e
    return None


def _split(dividend: Poly, divisor: Poly) -> tuple[Poly, Poly]:
    """(whole, rest) with `dividend == whole * divisor + rest`, dividing term by term."""
    if not divisor.terms:
        return ZERO, dividend
    if len(divisor.terms) != 1:
        scale = _multiple(dividend, divisor)
        return (const(scale), dividend - divisor * scale) if scale else (ZERO, dividend)
    ((monomial, coefficient),) = divisor.terms.items()
    if coefficient <= 0:
        return ZERO, dividend
    whole: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for term, c in dividend.terms.items():
        factor = _without(term, monomial)
        # The constant term rounds down, so that its remainder is not negative; the others round toward zero, to stay simple.
        share = 0 if factor is None else c // coefficient if c > 0 or not term else -(-c // coefficient)
        if factor is not None and share:
            whole[factor] = share
        rest[term] = c - share * coefficient
    return Poly(whole), Poly(rest)


def _multiple(dividend: Poly, divisor: Poly) -> int:
    """The multiple of a divisor with several terms that the dividend contains as a whole; 0 if there is none."""
    scales = {divmod(dividend.terms.get(m, 0), c) for m, c in divisor.terms.items() if m}
    scale, rest = scales.pop()
    return scale if not scales and not rest else 0


def _without(term: Monomial, part: Monomial) -> Monomial | None:
    remaining = list(term)
    for atom in part:
        if atom not in remaining:
            return None
        remaining.remove(atom)
    return tuple(remaining)


def _reduce(rest: Poly, divisor: int) -> tuple[Poly, Poly]:
    """Divide both sides of `rest // divisor` by the common divisor of all coefficients; the constant rounds down."""
    common = divisor
    for monomial, coefficient in rest.terms.items():
        if monomial:
            common = gcd(common, coefficient)
    return Poly({m: c // common for m, c in rest.terms.items()}), const(divisor // common)
