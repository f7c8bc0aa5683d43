"""`tilec tune`: builds the candidates declared in build.toml, measures them, and writes the table that the build reads."""

from __future__ import annotations

import contextlib
import datetime
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

from tilec.cli.project import (
    UsageError,
    chosen_targets,
    named_gpu,
    notify,
    open_project,
    open_store,
    print_diagnostics,
    print_line,
    status_of,
    toolchain,
)
from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.project.read.buildfile import BuildFile
from tilec.project.read.kernel_entry import KernelEntry
from tilec.project.read.served import as_entry, predicting
from tilec.project.read.tuned import Tuned
from tilec.project.trial.trial import own_reference
from tilec.runtime import LaunchError, load_artifact
from tilec.step.expressions import StepError
from tilec.target.targets import Target
from tilec.tuning.made import Built, made, shape_rows, write_table
from tilec.tuning.measure import CHILD, Device, Job, NoDevice, Progress, Session, device_here, hears, todo
from tilec.tuning.records import Records, Shape, read_records, shape_of
from tilec.tuning.table import read_table, table_path
from tilec.untrusted.output import Output
from tilec.untrusted.strict_json import parse

SOURCES: Final = "sources.json"
MAX_SOURCES: Final = 1 << 20


def tune_command(
    project: str | None, kernels: tuple[str, ...], arch: str | None, budget: float, jobs: int, *, build_only: bool,
    prebuilt: bool, again: bool, as_json: bool, predict: str | None = None,
) -> int:  # fmt: skip
    """Build, measure (or `predict` for a card), write and print. Returns the exit status."""
    build = open_project(project)
    chosen = _chosen(build, kernels)
    if predict is not None:
        return _predict_tables(build, chosen, predict, jobs, as_json=as_json)
    device = None if build_only else _device()
    reports: list[dict[str, Any]] = []
    problems: list[Diagnostic] = []
    for tuned in chosen:
        for target in _targets(build, arch, device):
            built, wrong = (_prebuilt(build, tuned, target), []) if prebuilt else _built(build, tuned, target, jobs)
            problems += wrong
            if build_only or not built:
                continue
            reports.append(_tune(build, tuned, target, built, device, budget, again=again))
    return _reported(build, problems, reports, as_json=as_json)


def _reported(build: BuildFile, problems: list[Diagnostic], reports: list[dict[str, Any]], *, as_json: bool) -> int:
    print_diagnostics(problems, build.root)
    if as_json:
        print(json.dumps({"tuned": reports}, indent=1))
    else:
        for one in reports:
            _print(one)
    sys.stdout.flush()
    return status_of(problems) or int(any(one["wrong"] or one["left"] for one in reports))


def _predict_tables(build: BuildFile, chosen: list[Tuned], gpu: str, jobs: int, *, as_json: bool) -> int:
    """Tables of predicted times for a card that nobody has measured. UsageError if a table of measurements is there."""
    from tilec.cost_model.cards import CARDS
    from tilec.cost_model.work import UnknownWork
    from tilec.tuning.predicted import predicted_records

    card, problems, reports = named_gpu(gpu, CARDS), list[Diagnostic](), list[dict[str, Any]]()
    target = Target.parse(card.arch)
    for tuned in chosen:
        path = table_path(build.kernels, tuned.kernel, target.name)
        with contextlib.suppress(ValueError):
            if (table := read_table(path)) is not None and not table.predicted:
                raise UsageError(f"`{path}` holds measurements, which a prediction does not replace")
        built, wrong = _built(build, tuned, target, jobs)
        problems += wrong
        with contextlib.closing(open_store()) as store:
            tools = toolchain(store)
            entries = {id(candidate): entry for candidate, _, entry in _entries(build, tuned, target)}
            try:
                records = predicted_records(build, tuned, entries, target, built, card, store, tools)
            except UnknownWork as error:
                raise UsageError(f"`{tuned.kernel}` has no prediction: {error}") from None
        if built:
            reports.append(_table_of(build, tuned, target, built, records, Progress()))
    return _reported(build, problems, reports, as_json=as_json)


def _chosen(build: BuildFile, names: tuple[str, ...]) -> list[Tuned]:
    tuned_by_kernel = {one.tuned.kernel: one.tuned for one in build.served}
    wanted = [name for text in names for name in text.split(",") if name] or list(tuned_by_kernel)
    if not tuned_by_kernel:
        raise UsageError(f"`{build.path.name}` has no `[[tuning]]` of a kernel; `tilec explain E0810` shows one")
    for name in wanted:
        if name not in tuned_by_kernel:
            raise UsageError(
                f"no `[[tuning]]` of kernel `{name}` in `{build.path.name}`; there are {', '.join(tuned_by_kernel)}"
            )
        if not tuned_by_kernel[name].shapes:
            raise UsageError(f"the `[[tuning]]` of `{name}` has no `shapes` to measure at")
    return [tuned_by_kernel[name] for name in wanted]


def _device() -> Device | str:
    """The device of this machine, or the reason why there is none: complete records need no device."""
    try:
        return device_here(CHILD)
    except NoDevice as error:
        return str(error)


def _targets(build: BuildFile, arch: str | None, device: Device | str | None) -> tuple[Target, ...]:
    given = chosen_targets(arch)
    if isinstance(device, Device):
        device_target = Target.parse(device.arch)
        if given is not None and given != (device_target,):
            raise UsageError(
                f"this machine has {device.name} ({device.arch}); measure other architectures on their own machines"
            )
        return (device_target,)
    return given or build.targets


def _output(build: BuildFile, tuned: Tuned, fixed: Mapping[str, object]) -> Output:
    """The output folder for candidates with one schedule: artifact names contain only constants."""
    folder_name = "_".join(f"{name}={value}" for name, value in fixed.items()) or "own"
    return Output(build.root / "artifacts" / "tune" / tuned.kernel / folder_name, build.root)


def _built(
    build: BuildFile, tuned: Tuned, target: Target, jobs: int
) -> tuple[list[Built], list[Diagnostic]]:  # fmt: skip
    """The candidates, built unless they are in the store, and the diagnostics of those that were refused."""
    from tilec.project.build.driver import build_project
    from tilec.project.build.report import progress

    problems: list[Diagnostic] = []
    groups: dict[Output, list[KernelEntry]] = {}
    for _, fixed, entry in _entries(build, tuned, target):
        groups.setdefault(_output(build, tuned, fixed), []).append(entry)
    for output in groups:
        output.check(target.name)
    Output(table_path(build.kernels, tuned.kernel, target.name).parent, build.root).check()
    with contextlib.closing(open_store()) as store, progress() as show:
        tools = toolchain(store)
        for output, entries in groups.items():
            result = build_project(
                build, tuple(entries), (target,), store, tools, jobs=jobs, progress=show, output=output, notify=notify
            )  # fmt: skip
            problems += result.diagnostics
            for one in result.results:
                if one.status != "failed":
                    text = json.dumps(one.planned.request.sources, sort_keys=True)
                    output.write(f"{target.name}/{SOURCES}", text.encode(), durable=False)
    return _prebuilt(build, tuned, target, strict=False), problems


def _entries(
    build: BuildFile, tuned: Tuned, target: Target
) -> Iterable[tuple[Any, dict[str, int | str | bool], KernelEntry]]:  # fmt: skip
    """Each candidate for a target, its schedule overrides, and an entry for it alone."""
    for candidate in tuned.candidates:
        entry = tuned.entry(candidate, build.declared)
        if not tuned.serves(candidate, build.declared, target):
            continue
        if entry is None:
            values_text = ", ".join(f"{name} = {value}" for name, value in {**candidate.constants, **tuned.constants}.items())
            raise UsageError(f"no `[[kernel]]` of `{tuned.kernel}` takes {values_text}")
        candidate_entry = as_entry(candidate, entry, tuned.constants, (target,))
        open_constants = [name for name, values in candidate_entry.constants.items() if len(values) > 1]
        if open_constants:
            raise UsageError(
                f"the `[[tuning]]` of `{tuned.kernel}` fixes no value of `{open_constants[0]}` to measure at; add `constants`"
            )
        yield candidate, tuned.fixed(candidate, build.declared, target), replace(candidate_entry, budget={})


def _prebuilt(build: BuildFile, tuned: Tuned, target: Target, *, strict: bool = True) -> list[Built]:
    """The candidates already built in the project's folder. With `strict`, UsageError if one is missing."""
    from tilec.project.read.plan import artifact_name

    found: list[Built] = []
    for candidate, fixed, entry in _entries(build, tuned, target):
        output = _output(build, tuned, fixed)
        path = output.path(f"{target.name}/{artifact_name(entry.name, entry.specialisations()[0])}.json")
        output.check(target.name)
        try:
            manifest, _ = load_artifact(path)
            sources = parse(output.read(f"{target.name}/{SOURCES}", MAX_SOURCES), limit=MAX_SOURCES)
        except (LaunchError, OSError, ValueError) as error:
            if strict:
                raise UsageError(f"`{path}` is not built ({error}); build it with `tilec tune --build-only`") from None
            continue
        found.append(Built(candidate, fixed, manifest, path, cast("dict[str, str]", sources)))
    return found


def _tune(
    build: BuildFile,
    tuned: Tuned,
    target: Target,
    built: list[Built],
    device: Device | str | None,
    budget: float,
    *,
    again: bool,
) -> dict[str, Any]:
    path = table_path(build.kernels, tuned.kernel, target.name)
    records = _records(path.with_suffix(".jsonl"), build.root, device.name if isinstance(device, Device) else "")
    if again:
        records.times.clear()
        records.wrong.clear()
    artifacts, names = {one.cubin: one.path for one in built}, {one.cubin: one.description() for one in built}
    job = Job(artifacts, names, own_reference(build.kernels, tuned.kernel), _described_shapes(tuned))
    progress = _measure(job, records, device, budget, built)
    return _table_of(build, tuned, target, built, records, progress)


def _described_shapes(tuned: Tuned) -> dict[Shape, str]:
    """The shapes of a `[[tuning]]`, each with its text."""
    return {shape_of(one): " ".join(f"{name}={value}" for name, value in one.items()) for one in tuned.shapes}


def _table_of(
    build: BuildFile, tuned: Tuned, target: Target, built: list[Built], records: Records, progress: Progress
) -> dict[str, Any]:  # fmt: skip
    """Make and write the table of the records; what to print about it."""
    path = table_path(build.kernels, tuned.kernel, target.name)
    shapes = _described_shapes(tuned)
    try:
        table = made(tuned, built, shapes, records)
    except StepError as error:
        raise UsageError(f"`cost` of the `[[tuning]]` of `{tuned.kernel}`: {error}") from None
    data: dict[str, Any] = {
        "kernel": tuned.kernel, "arch": target.name, "device": records.device, "records": str(path.with_suffix(".jsonl")),
        "candidates": len(built), "checked": progress.checked, "timed": progress.timed, "left": progress.left,
        "wrong": {one.description(): wrong for one in built if (wrong := records.wrong.get(one.cubin, ""))},
        "table": None, "chosen": [],
    }  # fmt: skip
    if table is not None:
        data["written"] = write_table(path, table, build.root)
        data["table"] = str(path)
        data["words"] = table.description()
        data["serves"] = [{**one.constants, **one.schedule} for one in table.kept]
        data["chosen"] = shape_rows(tuned, built, shapes, records, table)
    return data


def _records(path: Path, root: Path, device: str) -> Records:
    try:
        records = read_records(path, device, root)
    except (OSError, ValueError) as error:
        raise CompileError(
            Diagnostic("E0703", f"`{path}` cannot be read: {error}", hint="move it away, and measure again")
        ) from None
    if records.lost:
        print_line("warning", f"`{path}`: {records.lost} lines are not measurements and were skipped")
    return records


def _measure(
    job: Job, records: Records, device: Device | str | None, budget: float, built: list[Built]
) -> Progress:  # fmt: skip
    """Make missing measurements. UsageError if there are some and no device."""
    check, shapes = todo(job, records)
    if not (check or shapes) or not budget:
        return Progress(left=len(shapes))
    if not isinstance(device, Device):
        missing = f"{len(check)} candidates are not checked and {len(shapes)} shapes not measured yet"
        raise UsageError(
            f"{missing}, and no GPU can do it here: {device}; `--build-only` builds the candidates for a machine with one, and "
            f"`--predict` predicts their times"
        )
    for one in built:
        records.describe(one.cubin, one.facts())
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    try:
        return Session(job, records, device, today, budget, notify, CHILD, hears).run()
    except NoDevice as error:
        raise UsageError(str(error)) from None


def _print(data: Mapping[str, Any]) -> None:
    """Print the selection for each shape, and what is left to measure."""
    rows = [("shape", "serves", "us", "fastest", "us")]
    for one in data["chosen"]:
        same = one["serves"] == one["fastest"]
        rows.append((
            one["shape"], one["serves"], f"{one['us']:.2f}", "" if same else one["fastest"],
            "" if same else f"{one['fastest_us']:.2f}",
        ))  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row in rows:
        cells = [
            cell.rjust(width) if column in (2, 4) else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
    for name, wrong in data["wrong"].items():
        print(f"wrong: {name}: {wrong}")
    done = f"{data['kernel']} for {data['arch']}: {data['candidates']} candidates, {data['timed']} shapes measured now"
    print(done + (f", {data['left']} left: run it again" if data["left"] else ""))
    if data["table"] is None:
        command = predicting(data["kernel"], Target.parse(data["arch"]))
        print(f"nothing was measured yet, so there is no table; without such a GPU, `{command}` predicts one")
    else:
        print(f"{data['table']}{'' if data['written'] else ' (as it was)'}: {data['words']}")
