"""Rows between two offsets of a sorted tensor: the segment to which an element belongs.

`values(cu, 0, T + 1, sorted=True, ends=True)` says that the `n + 1` numbers in `cu` rise from 0 to `T`. So every `e` in `0
<= e < T` has an `i < n` with `cu[i] <= e < cu[i + 1]`: the last `i` whose `cu[i]` is at most `e`. If block `i` writes the
rows from `cu[i]` to below `cu[i + 1]`, it therefore suffices to show, for an element together with its `i` and these two
numbers, that this block writes it.

In: the elements to be covered, and covers that depend on such numbers. Out: facts about an element and its segment, and the
declarations and proofs they use.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilec.ir.core import Access, ValueFact
from tilec.passes.prover import terms
from tilec.passes.prover.accesses import Instance, between_neighbours
from tilec.passes.prover.covering import Cover
from tilec.passes.prover.declared_facts import declaration, dims_of, stored_facts
from tilec.passes.prover.discharge import Discharge, strongest
from tilec.passes.prover.findings import Findings
from tilec.passes.prover.terms import Atom, Formula, Kind, Poly


@dataclass(frozen=True, slots=True)
class Segment:
    """`holds` are formulas that every element satisfies for some values of the unknowns in them other than elements; `proof` is
    the proof."""

    holds: list[Formula]
    proof: Discharge


def segments(findings: Findings, universe: list[Formula], elements: list[Poly], covers: list[Cover]) -> Iterator[Segment]:
    """One for each axis and each sorted tensor whose segments occur in the covers."""
    index = findings.index
    for fact in index.function.values:
        if not (fact.sorted and fact.ends) or index.function.parameter(fact.tensor).access is not Access.IN:
            continue
        loaded = [atom for cover in covers for atom in terms.closure(cover) if atom.label == fact.tensor]
        for first in dict.fromkeys(
            atom for atom in loaded if atom.kind is Kind.LOADED and _ranges_over_segments(findings, fact, atom)
        ):
            last = index.atoms.loaded(fact.tensor, (first.args[0] + 1,), (first.low, first.high))
            for element in elements:
                range_proof = _within(findings, fact, universe, element)
                if range_proof is not None:
                    holds = [terms.ge(element, terms.of(first)), terms.lt(element, terms.of(last))]
                    holds += [known.formula for known in stored_facts(index, holds)]
                    yield Segment(holds, strongest((range_proof, Discharge("value", (declaration(fact),)))))


def _ranges_over_segments(findings: Findings, fact: ValueFact, atom: Atom) -> bool:
    """Whether an element is `cu[i]` with `i` a block id or coordinate that ranges over all indices except the last."""
    index = atom.args[0].atom
    (count,) = dims_of(findings.index, fact.tensor)
    return index is not None and index.kind in (Kind.BLOCK, Kind.COORDINATE) and index.args[0] + 1 == count


def undeclared(findings: Findings, instances: list[Instance]) -> ValueFact | None:
    """The declaration of a tensor whose neighbouring elements bound the accesses, if it does not say that these segments lie
    side by side from the first to the last."""
    facts = (fact for fact in findings.index.function.values if not (fact.sorted and fact.ends))
    return next((fact for fact in facts if between_neighbours(fact.tensor, instances)), None)


def _within(findings: Findings, fact: ValueFact, universe: list[Formula], element: Poly) -> Discharge | None:
    """A proof that an element's coordinate is at least the first number of the tensor and less than the last."""
    low, high = findings.index.expression(fact.low), findings.index.expression(fact.high)
    outside = terms.disjunction((terms.lt(element, low), terms.ge(element, high - 1)))
    found = findings.ladder.discharge([*universe, outside])
    return found if isinstance(found, Discharge) else None
