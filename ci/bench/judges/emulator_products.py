"""Emulate every shipped artifact with a product, for sm_100a and sm_120a, in three orders of threads, and compare with float64.

`judges.py emulator_products --jobs 64` builds the artifacts of build.toml through the store, and runs those whose PTX has
`tcgen05.mma` or `mma.sync` at the sizes of `emulator_cases`: at most one block, several with a ragged edge, and five larger
ones of attention. The seeds also choose between 2, 3 and 16 persistent blocks. The emulator must find no fault and make no
note, and each output must be as near to the float64 reference as rounding allows, or to the tile interpreter's, which rounds
where the kernel's text does: a score of attention that is large makes more of a rounded query than any fixed tolerance grants.
`--only` selects kernels, `--arch` a target.

Verdicts are cached in `verdicts/emulator_products.txt` by PTX, launches and the sources of the emulator, one for each artifact.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from ci.bench.front import Outcome, Unfinished
from ci.bench.judges import emulator_run
from ci.bench.judges.emulator_cases import Case, larger_sizes, launches, make_arrays, sizes
from ci.bench.markdown import grid, page
from ci.evidence import ROOT, Digests
from ci.evidence.digests import short
from ci.evidence.verdicts import Budget, Line, Verdict, Verdicts, key
from tilec.artifact.records import Manifest
from tilec.cli.emulate_command import built_here
from tilec.emulator import parse
from tilec.frontend import load_kernel
from tilec.interpreter import run as interpret
from tilec.project.read.buildfile import BuildFile, read_build_file
from tilec.project.read.kernel_entry import KernelEntry
from tilec.project.read.models import Constant
from tilec.target.dtypes import DTYPES
from tilec.target.targets import SM_100A, SM_120A, Target

TARGETS: Final = (SM_100A, SM_120A)
SEEDS: Final = (0, 1, 2)
PRODUCT: Final = re.compile(r"\b(tcgen05\.mma|mma\.sync)\.")
COPY: Final = "cp.async.bulk.tensor"
BASIS: Final = (
    "tilec/emulator", "tilec/interpreter", "tilec/target/dtypes.py", "tilec/artifact/records.py", "kernels_src",
    "ci/bench/judges/emulator_run.py", "ci/bench/judges/emulator_cases.py",
    "ci/bench/judges/emulator_products.py",
)  # fmt: skip
"""Sources that a verdict depends on, in addition to the PTX."""
ROUNDINGS: Final = 4
"""Largest error of an output relative to its largest value, in roundings of the kernel's elements."""


@dataclass(frozen=True, slots=True)
class Task:
    """An artifact to check: its kernel's entry with one value of each constant, and its line of an earlier run."""

    entry: KernelEntry
    constants: tuple[tuple[str, Constant], ...]
    target: Target
    kept: Line | None
    basis: str

    @property
    def name(self) -> str:
        """The artifact, without spaces."""
        return "-".join([self.entry.name, self.target.name, *(f"{name}={value}" for name, value in self.constants)])


@cache
def project() -> BuildFile:
    """The build file, read once in each process."""
    return read_build_file(ROOT / "build.toml")


def tasks(arguments: argparse.Namespace, basis: str, verdicts: Verdicts) -> Iterator[Task]:
    """All artifacts; their PTX says which have a product."""
    for entry in project().entries:
        if arguments.only not in entry.name:
            continue
        for target in TARGETS:
            if target in entry.targets and arguments.arch in ("", target.name):
                for constants in entry.specialisations():
                    task = Task(entry, tuple(constants.items()), target, None, basis)
                    yield replace(task, kept=verdicts.known(task.name))


def checked(task: Task) -> tuple[str, Line]:
    """The name of an artifact and the verdict on it: the kept one, if its PTX and the emulator are those of then."""
    one = replace(task.entry, constants={name: (value,) for name, value in task.constants})
    ptx, manifest, _, _ = built_here(project(), one, task.target)
    now = key(task.basis, short(ptx.encode()), SEEDS)
    if task.kept is not None and now in task.kept.keys:
        return task.name, task.kept
    return task.name, Line((now,), verdict(task.name, ptx, manifest))


def verdict(name: str, ptx: str, manifest: Manifest) -> Verdict:
    """What the emulator says of all launches of an artifact: `agrees`, `fault`, `note` or `differs`; `none` without a
    product."""
    products = sorted(set(PRODUCT.findall(ptx)))
    if not products:
        return Verdict("none")
    module, noted, worst = parse(ptx), list[str](), "agrees"
    run = lanes = 0
    errors: dict[str, float] = {"float64": 0.0, "interpreter": 0.0}
    for case in launches(name, manifest, b"", [*sizes(manifest), *larger_sizes(manifest)]):
        for seed in SEEDS:
            report = emulator_run.run(case, module, arrays := make_arrays(case, seed), seed)
            run, lanes = run + 1, lanes + report.statistics["instruction_lanes"]
            wrong, apart = differences(case, arrays, report.tensors)
            errors = {examine: max(most, apart.get(examine, 0.0)) for examine, most in errors.items()}
            words = {"fault": report.faults, "note": report.notes, "differs": wrong}
            for word, found in words.items():
                noted += [f"{case.name}, seed {seed}: {one}"[:300] for one in found[:2]]
                worst = word if found and worst == "agrees" else worst
    detail: dict[str, Any] = {"launches": run, "instructions": lanes, "products": products, "fed": COPY in ptx}
    detail["errors"] = {examine: float(f"{most:.3g}") for examine, most in errors.items()}
    return Verdict(worst, detail | ({"noted": noted} if noted else {}))


def differences(case: Case, arrays: dict[str, Any], found: dict[str, Any]) -> tuple[list[str], dict[str, float]]:
    """Outputs that differ by more than rounding from the float64 reference, and from the interpreter's result too; and the
    largest error against each, relative to the largest value of its output. The interpreter runs where float64 does not do."""
    wrong: list[str] = []
    rounded: dict[str, Any] = {}
    apart = {"float64": 0.0, "interpreter": 0.0}
    element = str(case.manifest.constants.get("E", "f32"))
    limit = ROUNDINGS * 2.0 ** -DTYPES[element].significand
    dtypes = {spec.name: spec.dtype for spec in case.manifest.tensors}
    for name, exact in emulator_run.expected(case, arrays).items():
        value = emulator_run.typed(found[name], dtypes[name])
        if dtypes[name][0] == "i":
            wrong += [f"`{name}` has other integers"] if (value != exact).any() else []
            continue
        largest = emulator_run.error(value, exact).largest
        apart["float64"] = max(apart["float64"], largest)
        if largest > limit:
            rounded = rounded or interpreted(case, arrays)
            other = emulator_run.error(value, rounded[name]).largest
            apart["interpreter"] = max(apart["interpreter"], other)
            if other > limit:
                wrong.append(f"`{name}` is {largest:.1e} of its largest value off")
    return wrong, apart


def interpreted(case: Case, arrays: dict[str, Any]) -> dict[str, Any]:
    """What the tile interpreter makes of the kernel's text and the same inputs."""
    manifest = case.manifest
    function = load_kernel(ROOT / "kernels_src" / f"{manifest.kernel}.py", manifest.constants, root=ROOT)
    tensors = {spec.name: emulator_run.typed(arrays[spec.name], spec.dtype).copy() for spec in manifest.tensors}
    interpret(function, tensors, {spec.name: case.scalars[spec.name] for spec in manifest.scalars})
    return tensors


def summary(lines: dict[str, Line]) -> dict[str, Any]:
    """Counts of the artifacts with a product: by target, by kernel, by instruction; and whatever does not agree."""
    counted = {name: line.verdict for name, line in lines.items() if line.verdict.word != "none"}
    data: dict[str, Any] = {"artifacts": len(counted), "words": dict(Counter(one.word for one in counted.values()))}
    for part in ("launches", "instructions"):
        data[part] = sum(one.detail[part] for one in counted.values())
    rows: dict[tuple[str, str], Counter[str]] = {}
    for name, one in sorted(counted.items()):
        kernel, target, *_ = name.split("-")
        row = rows.setdefault((kernel, target), Counter())
        row.update({"artifacts": 1, "launches": one.detail["launches"], "agree": one.word == "agrees"})
        row.update({"fed": one.detail["fed"], **dict.fromkeys(one.detail["products"], 1)})
    data["errors"] = {
        examine: max(one.detail["errors"][examine] for one in counted.values()) for examine in ("float64", "interpreter")
    }
    data["rows"] = [{"kernel": kernel, "arch": target, **row} for (kernel, target), row in rows.items()]
    data["noted"] = [text for one in counted.values() for text in one.detail.get("noted", ())]
    return data


def table(data: dict[str, Any]) -> str:
    """The page of the result."""
    columns = ["artifacts", "launches", "agree", "fed", "tcgen05.mma", "mma.sync"]
    lines = [
        "# Products of sm_100a and sm_120a in the emulator", "",
        f"Every artifact of build.toml with a product, {data['artifacts']} in all, in {data['launches']} launches: each size "
        f"in {len(SEEDS)} orders of threads. *fed*: a producer copies by TMA. An artifact agrees if the emulator finds "
        "no fault, makes no note, and every output is as near to float64, or to the tile interpreter, as rounding allows. "
        f"Largest error of an output relative to its largest value: {data['errors']['float64']:.2e} against float64, and "
        f"{data['errors']['interpreter']:.2e} against the interpreter where it was asked.", "",
        *grid(["kernel", "target", *columns], (
            (f"`{row['kernel']}`", row["arch"], *(row.get(name, 0) for name in columns)) for row in data["rows"]
        ), left=2), "",
        *([f"- {text}" for text in data["noted"]] or ["Nothing was found."]),
    ]  # fmt: skip
    return page(lines)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("--only", default="", help="kernels whose name contains this")
    parser.add_argument("--arch", default="", choices=["", *(target.name for target in TARGETS)], help="only this target")


def measure(options: argparse.Namespace) -> Outcome:
    """Check all artifacts; status 1 if one does not agree."""
    verdicts, budget = Verdicts("emulator_products", options.out / "verdicts"), Budget(options.budget)
    basis = Digests(ROOT).sources(BASIS)
    every = list(tasks(options, basis, verdicts))
    lines: dict[str, Line] = {}
    with multiprocessing.get_context("forkserver").Pool(options.jobs, maxtasksperchild=50) as pool:
        for name, line in pool.imap_unordered(checked, (task for task in every if not budget.is_spent()), chunksize=1):
            lines[name] = line
            if line != verdicts.known(name):
                verdicts.add(name, *line)
                print(f"{name}: {line.verdict.word}", flush=True)
    whole = not options.only and not options.arch
    verdicts.close(lines if whole and len(lines) == len(every) else None)
    if len(lines) < len(every):
        raise Unfinished(f"{len(lines)} of {len(every)} artifacts checked")
    data = summary(lines)
    return Outcome(data, {"emulator_products.md": table(data)}, int(set(data["words"]) != {"agrees"}), whole=whole)
