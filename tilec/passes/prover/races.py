"""Proves that no two blocks access one element when one of them writes it, and that no block writes an `Out` element twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from tilec.diagnostics.diagnostic import Fix, Label
from tilec.ir.core import Access, Effect, Parameter, ValueFact
from tilec.ir.ops import For, MemoryOp
from tilec.ir.packed import authored_dims
from tilec.passes.prover import terms
from tilec.passes.prover.accesses import AccessSite, Instance, between_neighbours, same_unknowns
from tilec.passes.prover.bounds import common_element, overlap
from tilec.passes.prover.declared_facts import facts_of
from tilec.passes.prover.discharge import Discharge, Refusal, strongest
from tilec.passes.prover.findings import Complaint, Findings
from tilec.passes.prover.terms import Atom, Formula, Kind


def prove_races(findings: Findings, sites: list[AccessSite]) -> None:
    """Every pair of accesses by two different blocks of a tensor that some block writes."""
    for parameter in _shared(findings):
        accesses = [site for site in sites if site.parameter is parameter]
        pairs = list(_pairs(accesses))
        if any(site.unsafe for pair in pairs for site in pair):
            findings.discharged("race", f"`{parameter.name}`", None, Discharge("unsafe"), parameter.loc)
        discharges = [_prove_pair(findings, left, right) for left, right in pairs if not (left.unsafe or right.unsafe)]
        if discharges and all(discharges):
            discharge = strongest(d for d in discharges if d is not None)
            findings.discharged("race", f"`{parameter.name}`", _first_write(accesses), discharge)


def _shared(findings: Findings) -> Iterator[Parameter]:
    for parameter in findings.index.function.parameters:
        if parameter.access is not None and parameter.access is not Access.IN:
            yield parameter


def _first_write(sites: list[AccessSite]) -> MemoryOp | None:
    return next((site.op for site in sites if site.writes), None)


def _pairs(sites: list[AccessSite]) -> Iterator[tuple[AccessSite, AccessSite]]:
    for index, left in enumerate(sites):
        for right in sites[index:]:
            atomic = left.op.effect is right.op.effect is Effect.ATOMIC
            if (left.writes or right.writes) and not atomic:
                yield (left, right) if left.writes else (right, left)


def _prove_pair(findings: Findings, left: AccessSite, right: AccessSite) -> Discharge | None:
    findings.begin(f"no race of {left.subject} with {right.subject}", left.location)
    first, second = left.instance.renamed(findings.index, 1), right.instance.renamed(findings.index, 2)
    touching = _touching(left, right, first, second)
    quick, exact = blocks_differ(left, right, first, second)
    result = findings.ladder.discharge([quick, *touching])
    if isinstance(result, Refusal) and exact != quick:
        result = findings.ladder.discharge([quick, exact, *touching])
    if isinstance(result, Refusal) and len(first.blocks) > 1:
        result = findings.ladder.discharge([told_apart(zip(first.blocks, second.blocks, strict=True)), *touching])
    if isinstance(result, Refusal):
        result = _by_fewer(findings, left, right, first, second) or result
    if isinstance(result, Discharge):
        return result
    findings.refuse(result, _race(findings, left, right, first, second))
    return None


def _by_fewer(findings: Findings, left: AccessSite, right: AccessSite, first: Instance, second: Instance) -> Discharge | None:
    """A proof from one axis alone: blocks that touch no common row touch no common element, whatever decides the columns. Of
    the conditions of execution, those are kept that only mention what occurs on the axis. Fewer formulas have more solutions,
    so that none of fewer is a proof for all."""
    if len(first.axes) < 2:
        return None
    differ = told_apart(zip(first.blocks, second.blocks, strict=True))
    for a, b in zip(first.axes, second.axes, strict=True):
        part = [differ, *overlap(a, b, (left.clipped, right.clipped))]
        known = set(terms.closure(part))
        part += [one for one in (*first.holds, *second.holds) if known.issuperset(terms.closure([one]))]
        found = findings.ladder.discharge(part)
        if isinstance(found, Discharge):
            return found
    return None


def _touching(left: AccessSite, right: AccessSite, first: Instance, second: Instance) -> list[Formula]:
    found = [*first.holds, *second.holds]
    for a, b in zip(first.axes, second.axes, strict=True):
        found += overlap(a, b, (left.clipped, right.clipped))
    return found


def blocks_differ(left: AccessSite, right: AccessSite, first: Instance, second: Instance) -> tuple[Formula, Formula]:
    """Two formulas that are true of different blocks: one over coordinates, one over the block ids themselves."""
    quick: list[Formula] = []
    for axis, (a, b) in enumerate(zip(first.blocks, second.blocks, strict=True)):
        digits = left.coordinates.digits.get(axis)
        if digits and digits == right.coordinates.digits.get(axis):
            quick += [terms.ne(x, y) for x, y in zip(first.digits[axis], second.digits[axis], strict=True)]
        else:
            quick.append(terms.ne(a, b))
    exact = [terms.ne(a, b) for a, b in zip(first.blocks, second.blocks, strict=True)]
    return terms.disjunction(quick), terms.disjunction(exact)


def told_apart(pairs: Iterable[tuple[terms.Poly, terms.Poly]]) -> Formula:
    """Some pair differs, with a case for each of smaller, equal and larger per pair.

    `h * M + m` with a symbolic `M` needs this: with `h1 == h2` the products cancel, and with `h1 < h2` they differ by at
    least `M`; a case that only states `m1 < m2` gives neither.
    """
    cases: list[Formula] = [terms.TRUE]
    for a, b in pairs:
        cases = [terms.conjunction((case, f)) for case in cases for f in (terms.eq(a, b), terms.lt(a, b), terms.lt(b, a))]
    return terms.disjunction(cases[1:])


def first_difference(pairs: Sequence[tuple[terms.Poly, terms.Poly]]) -> Formula:
    """Some pair differs, with two cases for each: it differs, smaller or larger, and those before it are equal.

    `s * each + j` in two loops needs this, for the reason that `told_apart` gives: a case that only states `j1 < j2` leaves
    `s1` and `s2` unrelated.
    """
    cases: list[Formula] = []
    equal: list[Formula] = []
    for a, b in pairs:
        cases += [terms.conjunction((*equal, terms.lt(a, b))), terms.conjunction((*equal, terms.lt(b, a)))]
        equal.append(terms.eq(a, b))
    return terms.disjunction(cases)


def _race(findings: Findings, left: AccessSite, right: AccessSite, first: Instance, second: Instance) -> Complaint:
    element = common_element(findings, first.axes, second.axes)
    instances = (first, second)
    if right.writes:
        message = f"store to `{left.name}` may write one element from two blocks"
        because = ()
        if right is not left and right.location is not None:
            because = (Label(right.location, "another block may write the same element here"),)
        label = "written by two blocks" if right is left else "written here"
        hint = f"make the index into `{left.name}` depend on every block id, one-to-one"
        fixes = _stated_order(findings, left) if right is left else ()
        if fixes:
            hint = fixes[0].title
        elif right is left:
            hint = _below_the_next(findings, left) or hint
        return Complaint("E0401", message, left.location, label, because, hint, instances, left.name, element, fixes=fixes)
    message = f"{right.subject} may read an element that another block writes"
    because = (Label(left.location, "written here by another block"),) if left.location is not None else ()
    hint = "read only what this block alone writes, or pass the old values as an `In` tensor of their own"
    read_first = (second, first)
    return Complaint("E0402", message, right.location, "read here", because, hint, read_first, left.name, element)


_STATED: Final = {
    "sorted": "no element of `{}` is smaller than the one before it",
    "distinct_in_rows": "no two elements of a row of `{}` are equal",
    "distinct": "no two elements of `{}` are equal",
}


def _stated_order(findings: Findings, site: AccessSite) -> tuple[Fix, ...]:
    """A fix that keeps blocks apart that write at indices from an integer tensor: `sorted` where each block writes between two
    neighbouring elements, and `distinct_in_rows` or `distinct` where it writes at an element of its own. Equal elements are
    empty rows of the first, which the others would forbid. None is proposed unless it suffices."""
    declared = findings.index.function.values
    for fact in _facts_inside(findings, site):
        is_between = between_neighbours(fact.tensor, [site.instance])
        if (
            fact.distinct
            or fact.distinct_in_rows
            or (fact.sorted and is_between)
            or fact.loc is None
            or sum(f.tensor == fact.tensor for f in declared) > 1
        ):
            continue
        has_rows = findings.index.function.parameter(fact.tensor).value.tensor.rank > 1
        for word in ["sorted"] if is_between else ["distinct_in_rows", "distinct"] if has_rows else ["distinct"]:
            if _kept_apart(findings, site, replace(fact, **{word: True})):
                what = _STATED[word].format(fact.tensor)
                title = f"where {what}, say so: `values({fact.tensor}, {fact.low}, {fact.high}, {word}=True)`"
                return (Fix(title, "argument", f"{word}=True", fact.loc, certain=True),)
    return ()


def _facts_inside(findings: Findings, site: AccessSite) -> list[ValueFact]:
    """Declarations of the tensors whose elements decide where a site writes."""
    inside = terms.closure(terms.eq(axis.start, 0) for axis in site.instance.axes)
    tensors = {atom.label for atom in inside if atom.kind is Kind.LOADED}
    return [fact for fact in findings.index.function.values if fact.tensor in tensors]


def _kept_apart(findings: Findings, site: AccessSite, stated: ValueFact) -> bool:
    """Whether no two blocks would write one element with a declaration in place of the one of its tensor."""
    first, second = site.instance.renamed(findings.index, 1), site.instance.renamed(findings.index, 2)
    touching = _touching(site, site, first, second)
    facts = [fact.formula for fact in facts_of(findings.index, stated, touching)]
    formulas = dict.fromkeys(blocks_differ(site, site, first, second))
    return any(isinstance(findings.ladder.discharge([one, *touching, *facts]), Discharge) for one in formulas)


def _below_the_next(findings: Findings, site: AccessSite) -> str:
    """A hint for elements that are counted from the first place of each block on, and not up to the first of the next; else
    empty."""
    inside = terms.closure(terms.eq(axis.start, 0) for axis in site.instance.axes)
    if len(site.instance.axes) > 1 or not any(atom.is_sum for atom in inside):
        return ""
    for fact in _facts_inside(findings, site):
        if fact.sorted and not between_neighbours(fact.tensor, [site.instance]):
            dim = authored_dims(site.parameter.value.tensor)[0]
            limit = f"`where(i < load({fact.tensor}, b + 1), i, {dim})`"
            return f"write below the first place of the next block: {limit} with `mask=True` writes nothing else"
    return ""


def prove_written_once(findings: Findings, sites: list[AccessSite]) -> None:
    """Inside one block, no element of an `Out` is written twice, and no scatter writes one element from two positions."""
    for parameter in _shared(findings):
        if parameter.access is Access.ATOMIC:
            continue
        writes = [site for site in sites if site.parameter is parameter and site.writes and not site.unsafe]
        discharges: list[Discharge | None] = []
        for index, left in enumerate(writes):
            if parameter.access is Access.OUT:
                discharges += [_prove_once(findings, left, right) for right in writes[index:]]
            elif left.op.indexed:
                discharges.append(_prove_once(findings, left, left, same_iteration=True))
        if discharges and all(discharges):
            discharge = strongest(d for d in discharges if d is not None)
            findings.discharged("race", f"`{parameter.name}` written once", _first_write(writes), discharge)


def _prove_once(findings: Findings, left: AccessSite, right: AccessSite, same_iteration: bool = False) -> Discharge | None:
    findings.begin(f"{left.subject} and {right.subject} writing each element once", left.location)
    first, renamed = left.instance.renamed(findings.index, 1), right.instance.renamed(findings.index, 2, like=1)
    second = renamed
    system = _touching(left, right, first, second)
    same_block = [terms.eq(a, b) for a, b in zip(first.blocks, second.blocks, strict=True)]
    system += [f for axis, f in enumerate(same_block) if axis not in left.coordinates.digits]
    coordinate_pairs: list[tuple[terms.Poly, terms.Poly]] = []
    if left is right:
        different = [terms.ne(a, b) for a, b in zip(first.positions, second.positions, strict=True)]
        coordinate_pairs = list(zip(execution_coordinates(left, first), execution_coordinates(left, second), strict=True))
        if same_iteration:
            system += [terms.eq(a, b) for a, b in coordinate_pairs]
        else:
            different += [terms.ne(a, b) for a, b in coordinate_pairs]
        system.append(terms.disjunction(different))
    result = findings.ladder.discharge(system)
    if isinstance(result, Refusal) and not all(f in system for f in same_block):
        result = findings.ladder.discharge([*system, *same_block])
    if isinstance(result, Refusal) and left is right and not same_iteration and len(coordinate_pairs) > 1:
        pairs = [*coordinate_pairs, *zip(first.positions, second.positions, strict=True)]
        result = findings.ladder.discharge([first_difference(pairs), *system[:-1], *same_block])
    if isinstance(result, Refusal) and (common := common_loops(left.instance, right.instance)):
        result, second = _by_iteration(findings, left, right, common, [*system, *same_block], same_iteration)
    if isinstance(result, Refusal) and (known := same_unknowns(first, renamed)):
        again = findings.ladder.discharge([*system, *same_block, *known])
        result = again if isinstance(again, Discharge) else result
    if isinstance(result, Discharge):
        return result
    findings.refuse(result, _twice_written(findings, (left, right), (first, second), same_iteration))
    return None


def common_loops(left: Instance, right: Instance) -> tuple[For, ...]:
    """The loops around both accesses, outermost first."""
    found: list[For] = []
    for (left_loop, _, _), (right_loop, _, _) in zip(left.loops, right.loops, strict=False):
        if left_loop is not right_loop:
            break
        found.append(left_loop)
    return tuple(found)


def _by_iteration(
    findings: Findings,
    left: AccessSite,
    right: AccessSite,
    common: tuple[For, ...],
    system: list[Formula],
    same_iteration: bool,
) -> tuple[Discharge | Refusal, Instance]:
    """Two cases: executions in the same iteration of the common loops share the values computed in it, others do not. The
    result, and the instance of `right` that a refusal is about."""
    first, second = left.instance.renamed(findings.index, 1), right.instance.renamed(findings.index, 3, like=1, loops=common)
    same_iteration_system = _touching(left, right, first, second)
    same_iteration_system += [terms.eq(a, b) for a, b in zip(first.blocks, second.blocks, strict=True)]
    pairs = pairs_of_coordinates(left, within(first, common), right, within(second, common))
    same_iteration_system += [terms.eq(a, b) for a, b in pairs]
    if left is right:
        same_iteration_system.append(
            terms.disjunction(terms.ne(a, b) for a, b in zip(first.positions, second.positions, strict=True))
        )
    result = findings.ladder.discharge(same_iteration_system)
    if isinstance(result, Refusal) or same_iteration:
        return result, second
    second = right.instance.renamed(findings.index, 2, like=1)
    pairs = pairs_of_coordinates(left, within(first, common), right, within(second, common))
    other_iterations = findings.ladder.discharge([*system, terms.disjunction(terms.ne(a, b) for a, b in pairs)])
    return strongest((result, other_iterations)) if isinstance(other_iterations, Discharge) else other_iterations, second


def within(instance: Instance, loops: tuple[For, ...]) -> Instance:
    """The instance with only its outermost loops."""
    return replace(instance, loops=instance.loops[: len(loops)])


def _twice_written(
    findings: Findings, sites: tuple[AccessSite, AccessSite], instances: tuple[Instance, Instance], same_iteration: bool
) -> Complaint:
    left, right = sites
    element = common_element(findings, instances[0].axes, instances[1].axes)
    because = ()
    if right is not left and right.location is not None:
        because = (Label(right.location, "written again here"),)
    manner = "from two positions of one tile" if same_iteration else "twice in one block"
    message = f"{left.subject} may write one element {manner}"
    hint = f"every element of `{left.name}` is written exactly once; use `InOut` or `Scratch` to write it again"
    if same_iteration:
        hint = "make the index one-to-one over the tile, or `store` its elements one after the other in a loop"
    return Complaint("E0404", message, left.location, "written here", because, hint, instances, left.name, element)


def pairs_of_coordinates(
    left: AccessSite, first: Instance, right: AccessSite, second: Instance
) -> list[tuple[terms.Poly, terms.Poly]]:  # fmt: skip
    """Pairs of values that are all equal if and only if two executions by one block are in the same iteration of their loops,
    which are the same; in lexicographic order, the earlier execution has the smaller values. Sites may split the coordinate of
    a persistent loop differently, and `(t // K, t % K)` is not compared with `(t // M, t % M)`: iterations are counted then."""
    found: list[tuple[terms.Poly, terms.Poly]] = []
    for (loop, _, ours), (_, _, theirs) in zip(first.loops, second.loops, strict=True):
        split = _digits_of(left, loop)
        if split is not None and split == _digits_of(right, loop):
            axis, _ = split
            found += zip(first.digits[axis], second.digits[axis], strict=True)
        else:
            found.append((ours, theirs))
    return found


def _digits_of(site: AccessSite, loop: For) -> tuple[int, tuple[Atom, ...]] | None:
    """The grid axis of a persistent loop and the coordinates that a site's access has instead of it."""
    axis = site.coordinates.loops.get(loop)
    return None if axis is None else (axis, site.coordinates.digits[axis])


def execution_coordinates(site: AccessSite, instance: Instance) -> list[terms.Poly]:
    """Values that distinguish two executions of one access by one block: iteration numbers, or the coordinates of a persistent
    loop. `pairs_of_coordinates` compares executions of two accesses."""
    found: list[terms.Poly] = []
    for loop, _, count in instance.loops:
        axis = site.coordinates.loops.get(loop)
        found += list(instance.digits[axis]) if axis is not None else [count]
    return found
