"""Facts about integers that a sort takes in order: of two of one row, the later one is not smaller.

In: the translation of a kernel, and a system with unknowns for the positions that sorts take elements from. Out: formulas about
the keys at these positions. A key is translated at such a position like any element of a tile; a row is that of one block,
iteration and position along the other axes, so that formulas hold for two executions if all these are equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from typing import Final

from tilec.ir.ops import For, Sort
from tilec.passes.prover import terms
from tilec.passes.prover.index_terms import IndexTerms
from tilec.passes.prover.terms import Atom, Formula, Kind, Poly

MAX_PAIRS: Final = 28


def sort_facts(index: IndexTerms, formulas: Iterable[Formula]) -> list[Formula]:
    """The order of the keys of each sort, of which a system has all that they are computed from."""
    atoms = dict.fromkeys(terms.closure(formulas))
    keys = {
        atom: key for atom in atoms if atom.kind is Kind.LOADED and atom.is_order and (key := _key(index, atom)) is not None
    }
    known = {
        atom: (key, descending)
        for atom, (key, descending) in keys.items()
        if all(one in atoms for one in terms.closure([Formula("eq", key)]) if one.kind is Kind.LOADED)
    }
    pairs = [(a, b) for a, b in combinations(known, 2) if a.label == b.label]
    return [_in_order(a, b, *known[a], known[b][0]) for a, b in pairs[:MAX_PAIRS]]


def _in_order(left: Atom, right: Atom, left_key: Poly, descending: bool, right_key: Poly) -> Formula:
    (*row, at), (*other_row, other_at) = left.args, right.args
    first, second = (right_key, left_key) if descending else (left_key, right_key)
    rising = terms.conjunction((terms.ge(other_at, at), terms.ge(second, first)))
    falling = terms.conjunction((terms.ge(at, other_at), terms.ge(first, second)))
    differs = [terms.ne(a, b) for a, b in zip(row, other_row, strict=True)]
    return terms.disjunction((*differs, rising, falling))


def sort_of(index: IndexTerms, atom: Atom) -> Sort:
    """The sort that takes an element from a position."""
    op = next(op for op, position in index.structure.position.items() if atom.label == f"{terms.ORDER}{position}")
    assert isinstance(op, Sort)
    return op


def _key(index: IndexTerms, atom: Atom) -> tuple[Poly, bool] | None:
    """The key that a sort takes from a position, and whether it sorts downwards; None if the key depends on unknowns that may
    differ between executions."""
    op = sort_of(index, atom)
    if not op.operands[0].tile.dtype.is_integer:
        return None
    points = [index.block(axis) for axis in range(len(index.grid))]
    points += [index.iteration(frame.op) for frame in index.structure.frames[op] if isinstance(frame.op, For)]
    here, others = atom.args[: len(points)], atom.args[len(points) : -1]
    moved = {one.atom: there for one, there in zip(points, here, strict=True) if one.atom is not None and one != there}
    if any(one in moved for one in terms.closure(Formula("eq", poly) for poly in (*here, *others))):
        return None
    key = index.element(op.operands[0], (*others[: op.axis], terms.of(atom), *others[op.axis :]))
    inside = terms.closure([Formula("eq", key)])
    canonical = {one.atom for one in points}
    for one in inside:
        if one.kind is Kind.OPAQUE and one.varies:
            return None
        if one.kind is Kind.ITERATION and one not in canonical and not _in_arguments(one, atom):
            return None
    return index.atoms.substitute(key, moved), op.descending


def _in_arguments(one: Atom, atom: Atom) -> bool:
    return one in terms.closure(Formula("eq", poly) for poly in atom.args)
