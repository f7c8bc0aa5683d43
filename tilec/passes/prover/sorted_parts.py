"""Facts about sorts whose keys are apart in two parts of the axis: the elements of one part stand before those of the other.

In: the translation of a kernel, a system with unknowns for the positions that sorts take elements from, and a prover. Out:
formulas about these positions. A part is what a condition of the keys tells from the rest, such as `place < X` in
`where(place < X, maximum(rising, 5), 0)`. If a descending sort has greater keys at all positions below X than at all others,
then it takes its first X elements from below X. For each key there is greater than all from X on, so that at most X - 1 others
stand before it. So it is one of the first X, and these are X. All other elements are taken from X on. Equal keys could change
sides, so each must be greater than each of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from tilec.ir.ops import Sort
from tilec.passes.prover import terms
from tilec.passes.prover.declared_facts import Fact
from tilec.passes.prover.discharge import Discharge, Refusal
from tilec.passes.prover.index_terms import IndexTerms
from tilec.passes.prover.sort_facts import sort_of
from tilec.passes.prover.terms import Atom, Formula, Kind, Poly

MAX_BOUNDARIES: Final = 4
"""Of one sort that are tried."""

Part = tuple[int, bool, str]
"""A position along the axis, whether the elements below it stand first, and the declarations that show it."""


def sorted_parts(
    index: IndexTerms, formulas: Iterable[Formula], climb: Callable[[list[Formula]], Discharge | Refusal]
) -> list[Fact]:
    """On which side of a boundary the elements of each sort in a system are taken from. The text of a fact that needs no
    declaration is empty."""
    found: list[Fact] = []
    known: dict[str, list[Part]] = {}
    for atom in terms.closure(formulas):
        if atom.kind is not Kind.LOADED or not atom.is_order:
            continue
        if atom.label not in known:
            known[atom.label] = _parts(index, sort_of(index, atom), climb)
        for boundary, is_first, text in known[atom.label]:
            found.append(Fact(text, _on_its_side(terms.of(atom), atom.args[-1], boundary, atom.high + 1, is_first)))
    return found


def _on_its_side(source: Poly, position: Poly, boundary: int, extent: int, is_first: bool) -> Formula:
    """An element is among the first exactly if it is taken from the part whose elements stand first."""
    below, above = terms.lt(source, boundary), terms.ge(source, boundary)
    first, second, count = (below, above, boundary) if is_first else (above, below, extent - boundary)
    return terms.disjunction(
        (
            terms.conjunction((terms.lt(position, count), first)),
            terms.conjunction((terms.ge(position, count), second)),
        )
    )


def _parts(index: IndexTerms, op: Sort, climb: Callable[[list[Formula]], Discharge | Refusal]) -> list[Part]:
    """The boundaries of a sort that its keys are proven to be apart at."""
    keys = op.operands[0]
    if not keys.tile.dtype.is_integer:
        return []
    shape = keys.tile.shape
    positions = [index.atoms.make((op, "part", axis), Kind.POSITION, "l", (0, extent - 1)) for axis, extent in enumerate(shape)]
    lane, key = positions[op.axis], index.element(keys, tuple(map(terms.of, positions)))
    found: list[Part] = []
    for boundary in _boundaries(key, lane)[:MAX_BOUNDARIES]:
        below, above = (_elsewhere(index, key, lane, copy) for copy in (1, 2))
        sides = [terms.lt(below[1], boundary), terms.ge(above[1], boundary)]
        for is_first in (True, False):
            greater, smaller = (below[0], above[0]) if is_first is op.descending else (above[0], below[0])
            proof = _is_apart(climb, sides, greater, smaller)
            if isinstance(proof, Discharge):
                found.append((boundary, is_first, " and ".join(proof.facts)))
    return found


def _is_apart(
    climb: Callable[[list[Formula]], Discharge | Refusal], sides: list[Formula], greater: Poly, smaller: Poly
) -> Discharge | Refusal:
    """Whether every key of one side is greater than every one of the other."""
    return climb([*sides, terms.ge(smaller, greater)])


def _elsewhere(index: IndexTerms, key: Poly, lane: Atom, copy: int) -> tuple[Poly, Poly]:
    """The key at another position of the same row, and the position. What is not translated is another unknown there, unless
    it is an element whose position does not follow from that one: in one execution, that is the same for the whole row."""
    mapping: dict[Atom, Poly] = {}
    for atom in terms.closure([Formula("eq", key), Formula("eq", terms.of(lane))]):
        if atom is lane or (atom.kind is Kind.OPAQUE and not _is_of_the_row(index, atom, lane)):
            name, bounds = f"{atom.name}_{copy}", (atom.low, atom.high)
            twin = index.atoms.make(
                (atom, "part", copy), atom.kind, name, bounds, args=atom.args, label=atom.label, level=atom.level
            )
            mapping[atom] = terms.of(twin)
    return index.atoms.substitute(key, mapping), mapping[lane]


def _is_of_the_row(index: IndexTerms, atom: Atom, lane: Atom) -> bool:
    positions = index.positions_of.get(atom)
    return positions is not None and lane not in terms.closure(Formula("eq", position) for position in positions)


def _boundaries(key: Poly, lane: Atom) -> list[int]:
    """Positions that a condition of a key tells from the one before."""
    found: set[int] = set()
    for atom in terms.closure([Formula("eq", key)]):
        for condition, _ in atom.cases:
            for poly in condition.polys():
                factor = poly.terms.get((lane,), 0)
                if factor in (1, -1) and poly == terms.of(lane) * factor + poly.offset:
                    found.add(-poly.offset if factor == 1 else poly.offset + 1)
    return sorted(boundary for boundary in found if lane.low < boundary <= lane.high)
