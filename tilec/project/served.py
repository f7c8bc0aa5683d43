"""What serves each target: a kernel's choices and what was measured of them in, entries to build and tables for bundles out.

A table of `tilec tune` decides where it is for these sources, this toolchain and these choices; else the cost as it is
declared, and a note says why. Of choices with the same constants one serves: they are one artifact.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilec.diagnostics import Diagnostic, Label
from tilec.project.models import Constant
from tilec.project.tuned import Candidate, Tuned, admits, as_declared, cost_text, words
from tilec.step.expressions import StepError
from tilec.step.tuning import read_tuning
from tilec.target import TARGETS, Target
from tilec.tuning.table import Kept, Table, read_table, stale, table_path

if TYPE_CHECKING:
    from tilec.project.buildfile import KernelEntry


@dataclass(frozen=True, slots=True)
class Served:
    """What serves a kernel on a target: the candidates, the table of it that bundles carry, and digests of the machine code
    that was measured, by artifact; none where the cost of build.toml decides."""

    tuned: Tuned
    target: Target
    candidates: tuple[Candidate, ...]
    table: dict[str, Any]
    cubins: Mapping[str, str]


def serve(
    tuned: Tuned, entries: Sequence[KernelEntry], kernels: Path, root: Path, notes: list[Diagnostic]
) -> list[Served]:  # fmt: skip
    """What serves on each target. A table that is stale, or none, is told in `notes` and left aside."""
    found: list[Served] = []
    for target in TARGETS:
        path = table_path(kernels, tuned.kernel, target.name)
        why, table = "", None
        try:
            table = read_table(path)
            if table is not None:
                why = _unfit(table, tuned, entries, target) or stale(table, root)
        except ValueError as error:
            why = f"`{path.name}` {error}"
        if why:
            notes.append(_note(tuned, target, f"what was measured of `{tuned.kernel}` for {target.name} is not used: {why}"))
        if table is not None and not why:
            found.append(_by_table(tuned, entries, target, table))
        else:
            found.append(_by_cost(tuned, entries, target))
    return found


def _note(tuned: Tuned, target: Target, message: str) -> Diagnostic:
    command = f"tilec tune --kernel {tuned.kernel} --arch {target.name.removesuffix('a')}"
    hint = f"run `{command}`; what is the same machine code is not measured again"
    return Diagnostic("N0104", message, Label(tuned.span), hint=hint)


def other_code(served: Iterable[Served], output: Path) -> list[Diagnostic]:
    """A note for each target whose artifacts in `output` are other machine code than was measured: sources and packages are the
    same, and tilec itself is another."""
    found: list[Diagnostic] = []
    for one in served:
        for name, digest in one.cubins.items():
            path = output / one.target.name / f"{name}.cubin"
            if os.path.isfile(path) and hashlib.sha256(path.read_bytes()).hexdigest() != digest:
                message = f"`{name}` for {one.target} is other machine code than was measured"
                found.append(_note(one.tuned, one.target, message))
                break
    return found


def _unfit(table: Table, tuned: Tuned, entries: Sequence[KernelEntry], target: Target) -> str:
    if (table.kernel, table.arch) != (tuned.kernel, target.name):
        return f"it is of `{table.kernel}` for {table.arch}"
    if table.cost != cost_text(tuned.terms):
        return "`cost` is another than it was"
    for one in table.kept:
        if _declared(one, tuned, entries, target) is None:
            return f"the choice {words({**one.constants, **one.schedule})} is no longer declared"
    return ""


def _declared(kept: Kept, tuned: Tuned, entries: Sequence[KernelEntry], target: Target) -> Candidate | None:
    for one in tuned.candidates:
        same = one.constants == kept.constants and tuned.fixed(one, entries, target) == kept.schedule
        if same and tuned.serves(one, entries, target):
            return one
    return None


def _by_table(tuned: Tuned, entries: Sequence[KernelEntry], target: Target, table: Table) -> Served:
    candidates = tuple(one for kept in table.kept if (one := _declared(kept, tuned, entries, target)) is not None)
    rows = [{**one.constants, **one.numbers, **kept.numbers} for one, kept in zip(candidates, table.kept, strict=True)]
    made: dict[str, Any] = {"kernel": tuned.kernel, "cost": table.cost, "choices": rows, "measured": table.words()}
    try:
        read_tuning([made])
    except StepError:  # a hostile table: the cost is ours, its numbers are not
        return _by_cost(tuned, entries, target)
    return Served(tuned, target, candidates, made, {name: digest for one in table.kept for name, digest in one.cubins.items()})


def _by_cost(tuned: Tuned, entries: Sequence[KernelEntry], target: Target) -> Served:
    """The choices of a target as declared; of those with the same constants, the first."""
    first: dict[str, Candidate] = {}
    for one in tuned.candidates:
        if tuned.serves(one, entries, target):
            first.setdefault(repr(sorted(one.constants.items())), one)
    candidates = tuple(first.values())
    fixed = {id(one): tuned.fixed(one, entries, target) for one in candidates}
    return Served(tuned, target, candidates, as_declared(tuned, target, candidates, fixed), {})


def as_entry(
    candidate: Candidate, entry: KernelEntry, constants: Mapping[str, Constant], only: tuple[Target, ...]
) -> KernelEntry:  # fmt: skip
    """An entry that builds a candidate, and at `constants` alone, for some targets and no others."""
    own = {name: (value,) for name, value in {**candidate.constants, **constants}.items()}
    spans = {name: entry.constant_spans.get(name, entry.span) for name in {**entry.constants, **own}}
    return replace(
        entry, constants={**entry.constants, **own}, constant_spans=spans, only=only,
        schedule=entry.schedule if candidate.rules is None else candidate.rules,
    )  # fmt: skip


def fixed_twice(tuned: Tuned, entries: Iterable[KernelEntry]) -> bool:
    """Whether a choice has a schedule of its own, and constants that a `[[kernel]]` lists: it is built by that one's."""
    return any(
        one.rules is not None and one.constants.keys() <= entry.constants.keys()
        for entry in entries
        if entry.name == tuned.kernel
        for one in tuned.candidates
        if admits(entry, one.constants)
    )


def expanded(entries: Sequence[KernelEntry], served: Sequence[Served]) -> list[KernelEntry]:
    """The entries, and in place of each that leaves constants to a tuning one for each candidate that serves somewhere."""
    found: list[KernelEntry] = []
    for entry in entries:
        here = [one for one in served if one.tuned.kernel == entry.name]
        names = {name for one in here for candidate in one.tuned.candidates for name in candidate.constants}
        if names <= entry.constants.keys():
            found.append(entry)
            continue
        places: dict[int, tuple[Candidate, list[Target]]] = {}
        for one in here:
            for candidate in one.candidates:
                if admits(entry, candidate.constants):
                    places.setdefault(id(candidate), (candidate, []))[1].append(one.target)
        found += [as_entry(candidate, entry, {}, tuple(where)) for candidate, where in places.values()]
    return found
