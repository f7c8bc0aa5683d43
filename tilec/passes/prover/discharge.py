"""Results of proving one obligation: how it was discharged, or that it was refused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tilec.passes.prover.terms import Formula

RUNGS = ("static", "interval", "set", "launch", "value", "unsafe")


@dataclass(frozen=True, slots=True)
class Discharge:
    """How an obligation was discharged: rung, the facts it uses, the isl sets shown to be empty."""

    rung: str
    facts: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """An obligation that was not discharged. `system` includes all facts; `undecided`: the budget ran out."""

    system: tuple[Formula, ...]
    undecided: bool


def strongest(discharges: Iterable[Discharge]) -> Discharge:
    """The record of several discharges as one: the highest rung, all facts, all sets."""
    found = list(discharges)
    rung = max((d.rung for d in found), key=RUNGS.index, default="static")
    facts = dict.fromkeys(fact for d in found for fact in d.facts)
    sets = dict.fromkeys(text for d in found for text in d.sets)
    return Discharge(rung, tuple(facts), tuple(sets))
