"""Selects the choices of a tuned kernel for each target: choices and measurements in, entries and tables for bundles out.

A table of `tilec tune` is used if it is valid for the sources, the toolchain and the declared choices. Otherwise the declared
cost is used, and a note says why. Of several choices with the same constants one is selected: they would be one artifact.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tilec.cost_model.cards import CARDS
from tilec.diagnostics.diagnostic import Diagnostic, Label
from tilec.project.read.kernel_entry import KernelEntry
from tilec.project.read.models import Constant
from tilec.project.read.tuned import Candidate, Tuned, admits, as_declared, cost_text, description
from tilec.step.expressions import StepError
from tilec.step.tuning import read_tuning
from tilec.target.targets import TARGETS, Target
from tilec.tuning.table import Kept, Table, read_table, stale, table_path


@dataclass(frozen=True, slots=True)
class Served:
    """The selection for a kernel on a target: the candidates, the table for bundles, and digests of the machine code that was
    measured, or `predicted`, by artifact. `cubins` is empty if the declared cost is used."""

    tuned: Tuned
    target: Target
    candidates: tuple[Candidate, ...]
    table: dict[str, Any]
    cubins: Mapping[str, str]
    predicted: bool = False

    @property
    def accepted(self) -> bool:
        """Whether it is predicted, and build.toml accepts that: notes on it are no reason to refuse a build."""
        return self.predicted and self.target in self.tuned.predicted


def serve(
    tuned: Tuned, entries: Sequence[KernelEntry], kernels: Path, root: Path, notes: list[Diagnostic]
) -> list[Served]:  # fmt: skip
    """The selection for each target that some choice is for. A stale or malformed table is reported in `notes` and not used."""
    found: list[Served] = []
    for target in TARGETS:
        path = table_path(kernels, tuned.kernel, target.name)
        reason, table = "", None
        try:
            table = read_table(path)
            if table is not None:
                reason = _unfit(table, tuned, entries, target) or stale(table, root)
        except ValueError as error:
            reason = f"`{path.name}` {error}"
        if reason:
            predicted = table is not None and table.predicted
            what = f"the {'predictions' if predicted else 'measurements'} of `{tuned.kernel}` for {target.name}"
            notes.append(_note(tuned, target, f"{what} are not used: {reason}", predictable=predicted or table is None))
        if table is not None and not reason:
            found.append(_by_table(tuned, entries, target, table))
        else:
            found.append(_by_cost(tuned, entries, target))
    return [one for one in found if one.candidates]


def _note(tuned: Tuned, target: Target, message: str, *, predictable: bool = False) -> Diagnostic:
    """`predictable`: no measurements are there that a prediction would have to replace."""
    command = f"tilec tune --kernel {tuned.kernel} --arch {target.name.removesuffix('a')}"
    hint = f"run `{command}`; unchanged machine code is not measured again"
    if predictable:
        hint += f"; without such a GPU, `{predicting(tuned.kernel, target)}`"
    return Diagnostic("N0104", message, Label(tuned.span), hint=hint)


def predicting(kernel: str, target: Target) -> str:
    """The command that predicts a table for a target: for the first card of its architecture."""
    card = next((name for name, card in CARDS.items() if card.arch == target.name), "GPU")
    return f"tilec tune --kernel {kernel} --predict {card}"


def predicted_choices(served: Iterable[Served], targets: Sequence[Target]) -> list[Diagnostic]:
    """A note for each table of predictions that a build for `targets` uses."""
    return [
        _note(one.tuned, one.target, f"the choices of `{one.tuned.kernel}` for {one.target} are predicted, not measured")
        for one in served
        if one.predicted and one.target in targets
    ]


def other_code(served: Iterable[Served], output: Path) -> list[Diagnostic]:
    """A note for each target whose artifacts in `output` differ from the machine code of the table. Sources and packages are
    then the same, but tilec itself has changed."""
    found: list[Diagnostic] = []
    for one in served:
        for name, digest in one.cubins.items():
            path = output / one.target.name / f"{name}.cubin"
            if os.path.isfile(path) and hashlib.sha256(path.read_bytes()).hexdigest() != digest:
                code = "predicted" if one.predicted else "measured"
                message = f"`{name}` for {one.target} has other machine code than the {code} one"
                found.append(_note(one.tuned, one.target, message, predictable=one.predicted))
                break
    return found


def _unfit(table: Table, tuned: Tuned, entries: Sequence[KernelEntry], target: Target) -> str:
    if (table.kernel, table.arch) != (tuned.kernel, target.name):
        return f"it is of `{table.kernel}` for {table.arch}"
    if table.cost != cost_text(tuned.terms):
        return "`cost` changed"
    for one in table.kept:
        if _declared(one, tuned, entries, target) is None:
            return f"the choice {description({**one.constants, **one.schedule})} is no longer declared"
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
    tuning_table: dict[str, Any] = {
        "kernel": tuned.kernel,
        "cost": table.cost,
        "choices": rows,
        "measured": table.description(),
    }
    try:
        read_tuning([tuning_table])
    except StepError:  # a hostile table: its numbers are untrusted, the declared cost is not
        return _by_cost(tuned, entries, target)
    cubins = {name: digest for one in table.kept for name, digest in one.cubins.items()}
    return Served(tuned, target, candidates, tuning_table, cubins, table.predicted)


def _by_cost(tuned: Tuned, entries: Sequence[KernelEntry], target: Target) -> Served:
    """The selection by the declared cost; of choices with the same constants, the first."""
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
    """An entry that builds only a candidate, at `constants` and for the targets in `only`."""
    single_constants = {name: (value,) for name, value in {**candidate.constants, **constants}.items()}
    spans = {name: entry.constant_spans.get(name, entry.span) for name in {**entry.constants, **single_constants}}
    return replace(
        entry, constants={**entry.constants, **single_constants}, constant_spans=spans, only=only,
        schedule=entry.schedule if candidate.rules is None else candidate.rules,
    )  # fmt: skip


def fixed_twice(tuned: Tuned, entries: Iterable[KernelEntry]) -> bool:
    """Whether a choice has its own schedule although a `[[kernel]]` lists its constants, whose schedule would be used."""
    return any(
        one.rules is not None and one.constants.keys() <= entry.constants.keys()
        for entry in entries
        if entry.name == tuned.kernel
        for one in tuned.candidates
        if admits(entry, one.constants)
    )


def expanded(entries: Sequence[KernelEntry], served: Sequence[Served]) -> list[KernelEntry]:
    """The entries. An entry that leaves constants to a tuning is replaced by one per selected candidate."""
    found: list[KernelEntry] = []
    for entry in entries:
        selections = [selection for selection in served if selection.tuned.kernel == entry.name]
        names = {name for selection in selections for candidate in selection.tuned.candidates for name in candidate.constants}
        if names <= entry.constants.keys():
            found.append(entry)
            continue
        targets_by_candidate: dict[int, tuple[Candidate, list[Target]]] = {}
        for selection in selections:
            for candidate in selection.candidates:
                if admits(entry, candidate.constants):
                    targets_by_candidate.setdefault(id(candidate), (candidate, []))[1].append(selection.target)
        found += [
            as_entry(candidate, entry, {}, tuple(chosen_targets)) for candidate, chosen_targets in targets_by_candidate.values()
        ]
    return found
