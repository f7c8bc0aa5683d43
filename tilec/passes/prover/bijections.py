"""Rewrites writes that no linear set describes as writes of the cells of a box.

In: an access whose index permutes block ids (`pid // (GROUP * n)`, `perm[b]` with distinct values), lanes of a tile or
iterations of a loop (`lane ^ 5`). Out: the access with cells in place of the permuted values, and the proofs used. An
injective map from `E` numbers into a box of `E` cells is a bijection, so every cell is written. That the map stays in the
box and that it is injective are ordinary obligations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import gcd, prod

from tilec.passes.prover import terms
from tilec.passes.prover.accesses import AccessSite, Axis, Instance
from tilec.passes.prover.discharge import Discharge, Refusal
from tilec.passes.prover.findings import Findings
from tilec.passes.prover.races import told_apart
from tilec.passes.prover.terms import Atom, Formula, Kind, Poly

MAX_CELLS = 1 << 16  # limit for lanes and iterations together


def over_box_cells(findings: Findings, site: AccessSite) -> tuple[Instance, list[Discharge]] | None:
    """The instance with cells of a box in place of the block ids that it permutes, if the map is injective."""
    permuted = _permuted_atoms(site.instance)
    if not permuted:
        return None
    return _over_box_cells(findings, site, permuted) or _over_box_cells(findings, site, _with_partners(site.instance, permuted))


def _with_partners(instance: Instance, permuted: list[Atom]) -> list[Atom]:
    """The permuted block ids and those added to them, such as `m` in `h * M + m`: only together do they fill an axis."""
    found = set(permuted)
    for axis in instance.axes:
        base_atoms = set(_base([Formula("eq", axis.start)]))
        if base_atoms & found:
            found |= {atom for atom in base_atoms if atom.kind in (Kind.BLOCK, Kind.COORDINATE)}
    return sorted(found, key=lambda atom: atom.uid)


def _over_box_cells(findings: Findings, site: AccessSite, permuted: list[Atom]) -> tuple[Instance, list[Discharge]] | None:
    instance = site.instance
    if any(atom in permuted for formula in instance.runs for atom in terms.closure([formula])):
        return None
    extents = terms.ONE
    for atom in permuted:
        extents = extents * atom.args[0]
    parts = [_split_part(axis, permuted) for axis in instance.axes]
    for counts in product(*(_cells(findings, axis, part) for axis, part in zip(instance.axes, parts, strict=True))):
        total = terms.ONE
        for count in counts:
            total = total * count
        if total != extents:
            continue
        proofs = _one_to_one(findings, instance, permuted, [part[0] for part in parts], list(counts))
        if proofs is None:
            continue
        axes: list[Axis] = []
        for k, (axis, (cell, scale, rest)) in enumerate(zip(instance.axes, parts, strict=True)):
            if cell is None:
                axes.append(axis)
                continue
            high = max(0, terms.interval(counts[k])[1] - 1)
            atom = findings.index.atoms.make((site.op, "cell", k), Kind.COORDINATE, f"u{k}", (0, high), args=(counts[k],))
            axes.append(replace(axis, start=terms.of(atom) * scale + rest))
        return replace(instance, axes=tuple(axes)), proofs
    return None


def _permuted_atoms(instance: Instance) -> list[Atom]:
    """Block ids and coordinates that occur in products, in quotients by a symbol, or in the index of a loaded value."""
    starts = [Formula("eq", axis.start) for axis in instance.axes]
    permuted: set[Atom] = set()
    for atom in terms.closure(starts):
        inner = [Formula("eq", arg) for arg in atom.args] if atom.kind in (Kind.QUOTIENT, Kind.LOADED) else []
        if atom.kind is Kind.OPAQUE and atom.varies:
            return []
        symbolic = atom.kind is Kind.QUOTIENT and atom.args[1].constant is None
        if atom.kind is Kind.LOADED or symbolic:
            permuted.update(_base(inner))
        polys = list(terms.definition(atom).polys()) if atom.kind in (Kind.QUOTIENT, Kind.CHOICE) else []
        for poly in polys:
            permuted.update(_base([Formula("eq", terms.of(a)) for m in poly.terms if len(m) > 1 for a in m]))
    for formula in starts:
        permuted.update(_base([Formula("eq", terms.of(a)) for m in formula.poly.terms if len(m) > 1 for a in m]))
    if any(atom.kind not in (Kind.BLOCK, Kind.COORDINATE) for atom in permuted):
        return []
    return sorted(permuted, key=lambda atom: atom.uid)


def _base(formulas: list[Formula]) -> Iterator[Atom]:
    for atom in terms.closure(formulas):
        if atom.varies and not atom.derived and atom.kind is not Kind.LOADED:
            yield atom


def _split_part(axis: Axis, permuted: list[Atom]) -> tuple[Poly | None, int, Poly]:
    """(cell, scale, rest) with `start == cell * scale + rest`; the cell contains all terms that depend on `permuted`."""
    inside = {m: c for m, c in axis.start.terms.items() if any(a in permuted for a in _base([Formula("eq", Poly({m: 1}))]))}
    rest = Poly({m: c for m, c in axis.start.terms.items() if m not in inside})
    if not inside:
        return None, 1, rest
    scale = gcd(*inside.values())
    return Poly({m: c // scale for m, c in inside.items()}), scale, rest


def _cells(findings: Findings, axis: Axis, part: tuple[Poly | None, int, Poly]) -> list[Poly]:
    """Candidates for the number of cells of an axis."""
    cell, scale, _ = part
    if cell is None:
        return [terms.ONE]
    atoms = findings.index.atoms
    up = atoms.quotient(axis.dim + (scale - 1), terms.const(scale))
    return list(dict.fromkeys((up, atoms.quotient(axis.dim, terms.const(scale)))))


def _one_to_one(
    findings: Findings, instance: Instance, permuted: list[Atom], cells: list[Poly | None], counts: list[Poly]
) -> list[Discharge] | None:
    """Proofs that every cell lies in the box and that different values of `permuted` have different cells."""
    atoms = findings.index.atoms
    proofs: list[Discharge | Refusal] = []
    for cell, count in zip(cells, counts, strict=True):
        if cell is not None:
            proofs.append(findings.ladder.discharge([*instance.holds, terms.lt(cell, 0)]))
            proofs.append(findings.ladder.discharge([*instance.holds, terms.ge(cell, count)]))
    copies: list[dict[Atom, Poly]] = []
    for copy in (1, 2):
        twins = {
            a: atoms.make((a, copy), a.kind, f"{a.name}_{copy}", (a.low, a.high), args=a.args, label=a.label, level=a.level)
            for a in (*permuted, *_untranslated(instance))
        }
        copies.append({a: terms.of(twin) for a, twin in twins.items()})
    system = [told_apart((copies[0][a], copies[1][a]) for a in permuted)]
    for mapping in copies:
        system += [atoms.substitute_in(formula, mapping) for formula in instance.holds]
    for cell in cells:
        if cell is not None:
            system.append(terms.eq(atoms.substitute(cell, copies[0]), atoms.substitute(cell, copies[1])))
    proofs.append(findings.ladder.discharge(system))
    discharges = [proof for proof in proofs if isinstance(proof, Discharge)]
    return discharges if len(discharges) == len(proofs) else None


def _untranslated(instance: Instance) -> list[Atom]:
    """Values of which two executions have their own, such as a number that a loop carries, also where a fact ties it to what is
    permuted."""
    return [atom for atom in _base(list(instance.holds)) if atom.kind is Kind.OPAQUE]


# Lanes of a tile and iterations of a loop


def over_lane_cells(findings: Findings, site: AccessSite) -> tuple[Instance, list[Discharge]]:
    """The instance with cells in place of the lanes of a tile, or iterations of a loop, that its index permutes. Over 16 lanes,
    `lane ^ 5` has every value that a lane has, and so has `lane ^ f(block)` in each block. Unchanged if there are none."""
    instance, proofs = site.instance, list[Discharge]()
    for k in range(len(instance.axes)):
        found = _lane_cells_of_axis(findings, site, instance, k)
        if found is not None:
            instance, proofs = found[0], proofs + found[1]
    return instance, proofs


def _lane_cells_of_axis(
    findings: Findings, site: AccessSite, instance: Instance, k: int
) -> tuple[Instance, list[Discharge]] | None:
    """Lanes and iterations that are permuted on one axis, each alone or all together. They must not occur on another axis, and
    the index must not contain an untranslated value that may change between iterations."""
    axis = instance.axes[k]
    inside = terms.closure([Formula("eq", axis.start)])
    elsewhere = terms.closure(Formula("eq", other.start) for index, other in enumerate(instance.axes) if index != k)
    if any(atom.kind is Kind.OPAQUE and atom.varies for atom in inside):
        return None
    mixed = [atom for atom in _derived_from([axis.start]) if _is_free(instance, atom) and atom not in elsewhere]
    for permuted in [*([atom] for atom in mixed), *([mixed] if len(mixed) > 1 else [])]:
        count = prod(atom.high + 1 for atom in permuted)
        part, scale, rest = _split_part(axis, permuted)
        for offset in dict.fromkeys((0, rest.offset // scale)) if part is not None and count <= MAX_CELLS else ():
            cell = part + offset if part is not None else terms.ZERO
            proofs = _one_to_one(findings, instance, permuted, [cell], [terms.const(count)])
            if proofs is not None:
                fresh = findings.index.atoms.make((site.op, "lane", k, count), Kind.POSITION, f"u{k}", (0, count - 1))
                start = terms.of(fresh) * scale + (rest - scale * offset)
                axes = (*instance.axes[:k], replace(axis, start=start), *instance.axes[k + 1 :])
                return replace(instance, axes=axes), proofs
    return None


def _derived_from(polys: list[Poly]) -> list[Atom]:
    """Lanes and iterations inside quotients and choices, and lanes that a sort permutes."""
    found = terms.closure(Formula("eq", poly) for poly in polys)
    derived = [terms.of(atom) for atom in found if atom.derived]
    derived += [atom.args[-1] for atom in found if atom.is_order]
    inner = terms.closure(Formula("eq", poly) for poly in derived)
    return [atom for atom in inner if atom.kind in (Kind.POSITION, Kind.ITERATION)]


def _is_free(instance: Instance, atom: Atom) -> bool:
    """Whether every value of an unknown is executed: no condition restricts it."""
    return not any(atom in terms.closure([formula]) for formula in instance.runs)
