"""Change of coordinates: block ids and loop variables in terms of independent digits.

Two kinds of schedule are nonlinear only in their original coordinates:

- A persistent loop, `for t in range(bid(a), n, num_blocks(a))`. Block id and iteration together are equivalent to `t`: with
  `G = num_blocks(a)`, `(b, k) -> b + G * k` is a bijection from the pairs that run to `0 <= t < n`, with inverse
  `b = t % G`, `k = t // G`. So `t` becomes a coordinate of its own, and two different blocks have different `t`. The same is
  true of `range(start + bid(a), end, num_blocks(a))` for bounds that the other block ids decide, such as the rows between two
  loaded offsets: for each value of those, `(b, k) -> b + G * k` is a bijection to `0 <= t < end - start`.
- A block id `t` in `0 <= t < A * P` that is decomposed into `t // P` and `t % P` for a symbolic `P >= 1`. The map
  `(q, r) -> q * P + r` is a bijection from `0 <= q < A, 0 <= r < P`, so `q` and `r` become coordinates. The same is true of the
  variable of a loop `for t in range(A * P)`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tilec.ir.ops import For
from tilec.passes.prover import terms
from tilec.passes.prover.index_terms import IndexTerms
from tilec.passes.prover.structure import Frame
from tilec.passes.prover.terms import Atom, Formula, Kind, Poly, exact_quotient


@dataclass(slots=True)
class Coordinates:
    """Substitution for the atoms of one access. `digits` are the coordinates that replace the block id of a grid axis, `loops`
    the grid axis of each persistent loop. Different blocks have different digits; with a persistent loop, so have different
    iterations of one block. `inner` are the coordinates that replace the iterations of other loops. `implied` are formulas true
    of all values of the digits: `q * P + r < A * P` follows from their extents, and is a product."""

    mapping: dict[Atom, Poly] = field(default_factory=dict[Atom, Poly])
    digits: dict[int, tuple[Atom, ...]] = field(default_factory=dict[int, "tuple[Atom, ...]"])
    loops: dict[For, int] = field(default_factory=dict[For, int])
    inner: dict[For, tuple[Atom, ...]] = field(default_factory=dict[For, "tuple[Atom, ...]"])
    implied: set[Formula] = field(default_factory=set[Formula])

    def imply(self, formula: Formula) -> None:
        """Record a formula that all values of the digits satisfy, unless it is constant."""
        if formula not in (terms.TRUE, terms.FALSE):
            self.implied.add(formula)

    def runs(self, formula: Formula) -> Formula:
        """A condition of execution, replaced if the extents of the digits imply it. The replacement states that the extents are
        positive, which matters for an access that does not depend on the digits."""
        if formula not in self.implied:
            return formula
        every = (*self.digits.values(), *self.inner.values())
        return terms.conjunction(terms.ge(atom.args[0], 1) for digits in every for atom in digits)


def persistent(index: IndexTerms, frames: tuple[Frame, ...]) -> Coordinates:
    """Coordinates of the persistent loops among the frames, at most one per grid axis."""
    found = Coordinates()
    for loop in (frame.op for frame in frames if isinstance(frame.op, For)):
        axis = _axis(index, loop)
        if axis is None:
            _count_to_product(index, found, loop)
        if axis is None or axis in found.digits:
            continue
        upper = index.scalar(loop.upper)
        block, iteration = index.block(axis).atom, index.iteration(loop).atom
        if block is None or iteration is None:
            continue
        start = index.scalar(loop.lower) - terms.of(block)
        count = upper - start
        if not (plain := start == terms.ZERO and not any(atom.varies for atom in upper.atoms())) and not (
            index.grid[axis].constant is None and _depends_on_others(index, (start, upper), axis)
        ):
            continue
        high = max(0, terms.interval(count)[1] - 1)
        name = loop.variable or "t"
        # An extent that varies is no property of the unknown: then the condition of execution states it.
        extent = count if plain else terms.const(high + 1)
        t = index.atoms.make((loop, "t"), Kind.COORDINATE, name, (0, high), args=(extent,), label=name)
        round = index.atoms.quotient(terms.of(t), index.grid[axis])
        found.mapping[iteration] = round
        found.mapping[block] = terms.of(t) - index.grid[axis] * round
        found.digits[axis] = (t,)
        found.loops[loop] = axis
        if plain:
            found.imply(terms.definition(t))
    return found


def _count_to_product(index: IndexTerms, found: Coordinates, loop: For) -> None:
    """A coordinate for the variable of a loop that counts from 0 to a product of launch values."""
    upper, iteration = index.scalar(loop.upper), index.iteration(loop).atom
    is_plain = index.scalar(loop.lower) == terms.ZERO and index.scalar(loop.step) == terms.ONE
    if not is_plain or iteration is None or upper.degree < 2 or any(atom.varies for atom in upper.atoms()):
        return
    high = max(0, terms.interval(upper)[1] - 1)
    t = index.atoms.make((loop, "t"), Kind.COORDINATE, iteration.name, (0, high), args=(upper,), label=iteration.label)
    found.mapping[iteration] = terms.of(t)
    found.inner[loop] = (t,)
    found.imply(terms.definition(t))


def _depends_on_others(index: IndexTerms, polys: Iterable[Poly], axis: int) -> bool:
    """Whether launch values, other block ids and elements at such indices decide the polynomials."""
    atoms = terms.closure(Formula("eq", poly) for poly in polys)
    allowed = (Kind.LOADED, Kind.QUOTIENT, Kind.CHOICE)
    return all(not a.varies or a.kind in allowed or (a.kind is Kind.BLOCK and a.level != axis) for a in atoms)


def _axis(index: IndexTerms, loop: For) -> int | None:
    """The grid axis whose block id is the loop's lower bound, or is added to it, and whose extent is its step."""
    step = index.scalar(loop.step)
    for monomial, coefficient in index.scalar(loop.lower).terms.items():
        atom = monomial[0] if len(monomial) == 1 else None
        if atom is not None and coefficient == 1 and atom.kind is Kind.BLOCK and step == index.grid[atom.level]:
            return atom.level
    return None


def split_digits(index: IndexTerms, found: Coordinates, formulas: Iterable[Formula]) -> bool:
    """Decompose one block id or persistent loop variable of the formulas by a symbolic divisor; False if there is none to
    decompose."""
    for atom in terms.closure(formulas):
        if atom.kind is not Kind.QUOTIENT or atom.args[1].constant is not None:
            continue
        digit, divisor = atom.args[0].atom, atom.args[1]
        if digit is None or digit.kind not in (Kind.BLOCK, Kind.COORDINATE) or terms.interval(divisor)[0] < 1:
            continue
        count = exact_quotient(digit.args[0], divisor)
        if count is None or any(a.varies for a in divisor.atoms()):
            continue
        q = _digit(index, digit, divisor, "q", count)
        r = _digit(index, digit, divisor, "r", divisor)
        _refine(index, found, digit, terms.of(q) * divisor + terms.of(r), (q, r))
        return True
    return False


def _digit(index: IndexTerms, whole: Atom, divisor: Poly, part: str, extent: Poly) -> Atom:
    high = max(0, terms.interval(extent)[1] - 1)
    key = (whole, divisor, part)
    return index.atoms.make(key, Kind.COORDINATE, f"{whole.name}_{part}", (0, high), args=(extent,), label=whole.label)


def _refine(index: IndexTerms, found: Coordinates, digit: Atom, value: Poly, parts: tuple[Atom, Atom]) -> None:
    step = {digit: value}
    found.mapping = {atom: index.atoms.substitute(poly, step) for atom, poly in found.mapping.items()}
    found.mapping[digit] = value
    found.implied = {index.atoms.substitute_in(formula, step) for formula in found.implied}
    found.imply(index.atoms.substitute_in(terms.definition(digit), step))
    if digit.kind is Kind.BLOCK:
        found.digits[digit.level] = parts
        return
    for axis, digits in found.digits.items():
        found.digits[axis] = _parted(digits, digit, parts)
    for loop, digits in found.inner.items():
        found.inner[loop] = _parted(digits, digit, parts)


def _parted(digits: tuple[Atom, ...], digit: Atom, parts: tuple[Atom, Atom]) -> tuple[Atom, ...]:
    """Digits with two in place of one."""
    return tuple(one for each in digits for one in (parts if each is digit else (each,)))
