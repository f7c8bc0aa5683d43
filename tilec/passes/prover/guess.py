"""Searches for a solution of a large system by trial: assigns values to base atoms, and computes the derived ones.

Ten nested `//` and `%` are twenty unknowns for isl but one for the kernel. If a violation is easy to satisfy, a few trials
find one at once; if none is found, nothing follows. Trials are the same on every run: numbers come from a fixed sequence.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilec.passes.prover import terms
from tilec.passes.prover.terms import Atom, Formula, Kind

DERIVED = 12  # least number of derived atoms of a large system
TRIES = 192
LIMITS = (2, 4, 16, 64, 1024, 1 << 31)


def guessed(whole: Formula) -> dict[Atom, int] | None:
    """Values of all atoms that satisfy `whole`, if a trial finds some; None proves nothing."""
    atoms = terms.closure([whole])
    if sum(atom.derived for atom in atoms) < DERIVED:
        return None
    base = [atom for atom in atoms if not atom.derived]
    for values in _tries(base):
        found = dict(values)
        for atom in atoms:  # in order of creation: an atom comes after those it is derived from
            if atom.derived:
                derived = _derived(atom, found)
                if derived is None:
                    break
                found[atom] = derived
        else:
            if terms.holds(whole, found.__getitem__):
                return found
    return None


def _tries(base: list[Atom]) -> Iterator[dict[Atom, int]]:
    number = 1
    for count in range(TRIES):
        limit = LIMITS[count % len(LIMITS)]
        values: dict[Atom, int] = {}
        for atom in base:
            number = (number * 6364136223846793005 + 1442695040888963407) % (1 << 64)
            low = max(atom.low, min(-limit, atom.high)) if atom.low < 0 else atom.low
            range_size = limit * 64 if atom.kind is Kind.SYMBOL else limit
            high = min(atom.high, max(low, low + range_size))
            values[atom] = low + (number >> 20) % (high - low + 1)
        yield values


def _derived(atom: Atom, found: dict[Atom, int]) -> int | None:
    try:
        if atom.kind is Kind.QUOTIENT:
            dividend, divisor = (terms.evaluate(arg, found.__getitem__) for arg in atom.args)
            return dividend // divisor if divisor > 0 else None
        return next((terms.evaluate(p, found.__getitem__) for c, p in atom.cases if terms.holds(c, found.__getitem__)), None)
    except KeyError:
        return None
