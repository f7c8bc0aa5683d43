"""Names the block, iteration and position that write an element, where products keep isl from finding them.

A write covers an element `e` if some values of its unknowns (block ids, iterations, positions in a tile) satisfy its
conditions. isl finds them if these are linear. With shares of `each = cdiv(length, S)` elements, block `s` writes `e = s * each
+ j` for `0 <= j` with `s * each + j < minimum((s + 1) * each, length)`, and `s * each` is a product of unknowns. Division
names the values instead: `s = e // each` and `j = e - s * each`.

In general, an index `c1 * x1 + c2 * x2 + ... + rest`, whose coefficients depend on no unknown of the write, is read as a number
with the digits `x1, x2, ...`: each is what is left of `e - rest`, divided by its coefficient. The largest coefficient comes
first, and the last digit may leave a rest below the extent of a tile. An index that falls, such as `N - 1 - j`, is read
likewise. Axes are solved in turn, so that an index of a later one may depend on what an earlier one decided.

The proof does not depend on how values were found. For any polynomials `w` over elements and launch values, `C(e, w)` implies
`exists x: C(e, x)`. It therefore suffices that no element in no launch satisfies `not C(e, w)`, which the ladder proves.

That holds only where what the ladder adds to a system has a solution: else nothing satisfies `not C(e, w)` because nothing
satisfies what was added. Intervals and definitions of quotients and of choices between two complements always have one. Facts
about loaded elements do not: an element that is not there, of an empty tensor or at a branch that is not taken, may have to be
less than 0 and at least 0. So do not choices that only have cases for the range of an operand. Writes that depend on any of
these are left out, and so are those that depend on untranslated values, which have no index. Limits of unknowns, the grid and
the iterations of a loop, are proven first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, permutations

from tilec.passes.prover import terms
from tilec.passes.prover.accesses import Axis, Instance
from tilec.passes.prover.atoms import Atoms
from tilec.passes.prover.covering import Cover, described
from tilec.passes.prover.discharge import Discharge, strongest
from tilec.passes.prover.ladder import Ladder
from tilec.passes.prover.terms import Atom, Formula, Kind, Poly

ARMS = 4  # limit on the arms of choices in an index that are tried
TRIED = 6  # limit on the assignments of one write that are tried
TOGETHER = 3  # limit on the writes that may cover a tensor only together
_UNKNOWNS = (Kind.BLOCK, Kind.COORDINATE, Kind.ITERATION, Kind.POSITION)


def by_named_writers(
    ladder: Ladder, universe: list[Formula], elements: Sequence[Poly], writes: Iterable[tuple[Instance, Cover]]
) -> Discharge | None:
    """A proof that every element of `universe` is in one of the covers, which belong to the instances."""
    alone: list[list[Formula]] = []
    known = list(universe)
    for instance, cover in writes:
        first = True
        for limits, conditions in islice(_named(ladder.index.atoms, elements, instance, cover), TRIED):
            if _always(ladder, universe, limits) is None:
                continue
            proof = _always(ladder, [*universe, *limits], conditions)
            if proof is not None:
                return proof
            if first:
                alone.append(conditions)
                known += limits
            first = False
    if not 1 < len(alone) <= TOGETHER:
        return None
    proof = ladder.discharge([*known, *(terms.negate(terms.conjunction(named)) for named in alone)])
    return proof if isinstance(proof, Discharge) else None


def _always(ladder: Ladder, universe: list[Formula], named: list[Formula]) -> Discharge | None:
    """A proof that all of `named` is true in `universe`, one after the other, each with those before it."""
    proofs: list[Discharge] = []
    known = list(universe)
    for formula in named:
        proof = ladder.discharge([*known, terms.negate(formula)])
        if not isinstance(proof, Discharge):
            return None
        proofs.append(proof)
        known.append(formula)
    return strongest(proofs)


def _named(
    atoms: Atoms, elements: Sequence[Poly], instance: Instance, cover: Cover
) -> Iterator[tuple[list[Formula], list[Formula]]]:
    """The limits of the unknowns of a cover, and its conditions, with values in place of the unknowns; once per choice of
    values."""
    own = terms.closure(cover)
    if any(_may_contradict(atom) for atom in own):
        return
    unknowns = [atom for atom in own if atom.varies and atom.kind in _UNKNOWNS]
    seen: set[tuple[Formula, ...]] = set()
    for order in permutations(range(len(elements))):
        for values in _values(atoms, elements, instance.axes, order, {}):
            chosen = {atom: terms.const(max(0, atom.low)) for atom in unknowns if atom not in values}
            chosen |= {atom: value for atom, value in values.items() if atom in unknowns}
            limits = tuple(atoms.substitute_in(formula, chosen) for formula in described(chosen))
            conditions = tuple(atoms.substitute_in(formula, chosen) for formula in cover)
            named = (*limits, *conditions)
            if named not in seen and terms.FALSE not in named:
                seen.add(named)
                yield _open(limits), _open(conditions)


def _open(formulas: Iterable[Formula]) -> list[Formula]:
    """Those that are not true already."""
    return [formula for formula in dict.fromkeys(formulas) if formula != terms.TRUE]


def _may_contradict(atom: Atom) -> bool:
    """Whether there may be facts about an atom, or a definition, that no value satisfies."""
    is_partial = atom.kind is Kind.CHOICE and not (len(atom.cases) == 2 and terms.negate(atom.cases[0][0]) == atom.cases[1][0])
    return atom.kind in (Kind.OPAQUE, Kind.LOADED) or is_partial


def _values(
    atoms: Atoms, elements: Sequence[Poly], axes: Sequence[Axis], order: Sequence[int], known: Mapping[Atom, Poly]
) -> Iterator[dict[Atom, Poly]]:
    """Values of unknowns that solve the indices of the axes in this order, given those of the axes before."""
    if not order:
        yield dict(known)
        return
    first, *rest = order
    start = atoms.substitute(axes[first].start, known)
    for arm in islice(_arms(atoms, start), ARMS):
        found = _digits(atoms, arm, elements[first])
        if found is not None:
            yield from _values(atoms, elements, axes, rest, {**known, **found})


def _arms(atoms: Atoms, index: Poly) -> Iterator[Poly]:
    """An index without its choices: one for each arm of them."""
    choice = next((atom for atom in index.atoms() if atom.kind is Kind.CHOICE and atom.varies), None)
    if choice is None:
        yield index
        return
    for _, value in choice.cases:
        yield from _arms(atoms, atoms.substitute(index, {choice: value}))


def _digits(atoms: Atoms, index: Poly, element: Poly) -> dict[Atom, Poly] | None:
    """Values of the unknowns of an index at which it is the element; None if its coefficients depend on unknowns."""
    coefficients: dict[Atom, Poly] = {}
    left = element
    for monomial, count in index.terms.items():
        inside = [atom for atom in monomial if atom.varies]
        if not inside:
            left = left - Poly({monomial: count})
            continue
        if len(inside) > 1 or inside[0].kind not in _UNKNOWNS:
            return None
        others = tuple(atom for atom in monomial if not atom.varies)
        coefficients[inside[0]] = coefficients.get(inside[0], terms.ZERO) + Poly({others: count})
    found: dict[Atom, Poly] = {}
    for atom in sorted(coefficients, key=lambda atom: _size(coefficients[atom]), reverse=True):
        coefficient = coefficients[atom]
        is_falling = all(count < 0 for count in coefficient.terms.values())
        found[atom] = atoms.quotient(-left, -coefficient) if is_falling else atoms.quotient(left, coefficient)
        left = left - found[atom] * coefficient
    return found


def _size(coefficient: Poly) -> tuple[int, int]:
    """A product of sizes is taken to be larger than one size, and that larger than any number."""
    return coefficient.degree, abs(coefficient.constant or 0)
