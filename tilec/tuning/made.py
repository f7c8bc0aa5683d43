"""Makes the tuning table: records and artifacts of candidates in, the selected candidates and their costs out."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from tilec.artifact.records import Manifest
from tilec.project.read.tuned import AT_ONCE, Candidate, Tuned, at_once, cost_text, weight_names
from tilec.step.expressions import parse
from tilec.tuning.fit import Measured, fit
from tilec.tuning.records import Records, Shape
from tilec.tuning.table import Kept, Table
from tilec.untrusted.output import Output

CODE_MAKERS: Final = ("tilec", "torch-mlir", "llvmlite", "nvidia-nvjitlink")
"""The distributions of a manifest's toolchain that determine the machine code; the others are used for proofs."""


@dataclass(frozen=True, slots=True)
class Built:
    """A built candidate: its schedule overrides (`fixed`), its manifest and the path of it, and digests of the sources by
    path."""

    candidate: Candidate
    fixed: Mapping[str, int | str | bool]
    manifest: Manifest
    path: Path
    sources: Mapping[str, str]

    @property
    def cubin(self) -> str:
        """The digest that identifies the candidate in the records."""
        return self.manifest.digests["cubin"]

    def description(self) -> str:
        """Constants and schedule as text."""
        return " ".join(f"{name}={value}" for name, value in {**self.candidate.constants, **self.fixed}.items())

    def facts(self) -> dict[str, Any]:
        """The description of the candidate in the records."""
        return {
            "constants": dict(self.manifest.constants), "schedule": dict(self.fixed), "source": self.manifest.digests["source"],
            "toolchain": makers(self.manifest),
        }  # fmt: skip


def makers(manifest: Manifest) -> dict[str, str]:
    """The part of a manifest's toolchain that determines the machine code."""
    return {name: text for name, text in manifest.toolchain.items() if name in CODE_MAKERS}


def features(tuned: Tuned, built: Built, shape: Shape, multiprocessors: int) -> list[float]:
    """1, followed by the value of each term of the cost."""
    values: dict[str, Any] = {**built.candidate.constants, **built.candidate.numbers}
    values[AT_ONCE] = at_once(built.candidate, built.fixed, multiprocessors)
    launch = dict(shape)
    for spec in built.manifest.tensors:
        for axis, dim in enumerate(spec.dims):
            values[f"{spec.name}[{axis}]"] = dim.evaluate(launch)
    return [1.0, *(float(parse(text).value(values)) for text in tuned.terms.values())]


def made(
    tuned: Tuned, built: Sequence[Built], shapes: Iterable[Shape], records: Records
) -> Table | None:  # fmt: skip
    """The table; None if no shape was measured with a correct candidate. StepError if the cost cannot be evaluated."""
    whole = [one for one in built if not records.wrong.get(one.cubin, "unchecked")]
    whole, known = _together(whole, {shape: records.times.get(shape, {}).keys() for shape in shapes})
    latest = records.last
    if not known or not whole or latest is None:
        return None
    multiprocessors = latest.multiprocessors
    times = [[records.times[shape][one.cubin][0] for shape in known] for one in whole]
    terms = [[features(tuned, one, shape, multiprocessors) for shape in known] for one in whole]
    alike = [repr(sorted(one.candidate.constants.items())) for one in whole]
    found = fit(Measured(np.array(times), np.array(terms), alike), tuned.keep)
    names = weight_names(tuned.terms)
    kept: list[Kept] = []
    for number, weights in zip(found.kept, found.weights, strict=True):
        one = whole[number]
        numbers = {name: float(f"{weight:.6g}") for name, weight in zip(names, weights, strict=True)}
        if any(AT_ONCE in text for text in tuned.terms.values()):
            numbers[AT_ONCE] = at_once(one.candidate, one.fixed, multiprocessors)
        kept.append(Kept(dict(one.candidate.constants), dict(one.fixed), numbers, {one.path.stem: one.cubin}))
    dates = sorted(records.dates)
    first = whole[0].manifest
    return Table(
        tuned.kernel, first.arch, records.device, latest.driver, (dates[0], dates[-1]), dict(whole[0].sources), makers(first),
        cost_text(tuned.terms), tuple(kept), len(known), len(whole), found.regret, found.held_out,
    )  # fmt: skip


def _together(
    built: Sequence[Built], measured: Mapping[Shape, Collection[str]]
) -> tuple[list[Built], list[Shape]]:  # fmt: skip
    """Candidates, and the shapes at which all of them were measured. The candidates with the fewest shapes are dropped until
    these are at least half of the shapes at which any was measured."""
    left = list(built)
    while True:
        some = [shape for shape, names in measured.items() if any(one.cubin in names for one in left)]
        common = [shape for shape in some if all(one.cubin in measured[shape] for one in left)]
        if 2 * len(common) >= len(some):
            return left, common
        left.remove(min(left, key=lambda one: sum(one.cubin in measured[shape] for shape in some)))


def write_table(path: Path, table: Table, root: Path) -> bool:
    """Write a table into the project at `root` if it differs from the existing file; returns whether it was written.
    CompileError E0702."""
    text = (json.dumps(table.to_json(), indent=1, ensure_ascii=False) + "\n").encode()
    return Output(path.parent, root).write(path.name, text)


def shape_rows(
    tuned: Tuned, built: Sequence[Built], shapes: Mapping[Shape, str], records: Records, table: Table
) -> list[dict[str, Any]]:  # fmt: skip
    """The candidate that the table selects at each measured shape and the fastest one: for the printed table and `--json`."""
    by_cubin = {one.cubin: one for one in built}
    serving = [(by_cubin[cubin], kept) for kept in table.kept for cubin in kept.cubins.values()]
    names = weight_names(tuned.terms)
    multiprocessors = records.last.multiprocessors if records.last else 1
    rows: list[dict[str, Any]] = []
    for shape, description in shapes.items():
        times = {cubin: time for cubin, time in records.times.get(shape, {}).items() if cubin in by_cubin}
        if not times:
            continue
        costs = [
            sum(
                kept.numbers[name] * value
                for name, value in zip(names, features(tuned, one, shape, multiprocessors), strict=True)
            )
            for one, kept in serving
        ]
        picked = serving[costs.index(min(costs))][0]
        fastest = min(times, key=lambda cubin: times[cubin][0])
        if picked.cubin in times:
            rows.append({
                "shape": description, "serves": picked.description(), "us": times[picked.cubin][0],
                "fastest": by_cubin[fastest].description(), "fastest_us": times[fastest][0],
            })  # fmt: skip
    return rows
