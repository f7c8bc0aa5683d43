"""Unknowns of a counterexample that are one value in one execution, and so have one number.

Two accesses of a counterexample may be in the same block and iterations, with the same positions of a tile. A value there that
the prover does not translate, and no run computes, is an unknown of each of them. In: a solution, its accesses and its runs.
Out: the runs, with the number of the first such unknown for all of them, and the fact that equal executions have equal values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from tilec.passes.prover import terms
from tilec.passes.prover.accesses import Instance
from tilec.passes.prover.index_terms import IndexTerms
from tilec.passes.prover.integer_sets import Assignment, evaluator
from tilec.passes.prover.replay import Replay, assumed_in
from tilec.passes.prover.terms import Atom, Formula, Poly


def with_equal_unknowns(
    index: IndexTerms, found: Assignment, instances: Sequence[Instance], runs: Iterable[Replay]
) -> Iterator[Replay]:
    """The runs of a solution; unknowns that a run computes keep its numbers."""
    pairs = list(_different(index, found, instances))
    for run in runs:
        numbers, learned = dict(run.numbers), list(run.learned)
        for first, second, equal in pairs:
            if first not in run.numbers and second not in run.numbers:
                numbers[second] = found[first]
                learned.append(equal)
        yield replace(run, numbers=numbers, learned=learned)


def _different(index: IndexTerms, found: Assignment, instances: Sequence[Instance]) -> Iterator[tuple[Atom, Atom, Formula]]:
    """Pairs of unknowns with different numbers that are one value of one execution, and the fact that these are equal."""
    value = evaluator(found)
    seen: dict[object, tuple[Atom, list[Poly]]] = {}
    for instance in instances:
        point = [*instance.blocks, *(count for _, _, count in instance.loops)]
        loops = tuple(loop for loop, _, _ in instance.loops)
        for atom in assumed_in(index, found, instance):
            if atom not in index.positions_of:
                continue
            here = [*point, *index.positions_of[atom]]
            key = (
                index.sources[atom],
                atom.low,
                atom.high,
                atom.label,
                loops,
                tuple(terms.evaluate(poly, value) for poly in here),
            )
            first, there = seen.setdefault(key, (atom, here))
            if found[first] != found[atom]:
                apart = [terms.ne(a, b) for a, b in zip(there, here, strict=True)]
                yield first, atom, terms.disjunction((*apart, terms.eq(terms.of(first), terms.of(atom))))
