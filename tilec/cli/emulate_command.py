"""`tilec emulate`: compiles one specialisation of a kernel to PTX and emulates it on random inputs within the contract.

Without `--dims` there are several launches: with partial blocks, and with small and large, odd and even trip counts of loops.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tilec.cli.project import (
    UsageError,
    chosen_targets,
    notify,
    open_one,
    open_store,
    print_diagnostics,
    status_of,
    toolchain,
)  # fmt: skip
from tilec.diagnostics.diagnostic import CompileError
from tilec.project.trial.launches import Contract, LaunchValuesError, given_values, random_tensors, small_launches

if TYPE_CHECKING:
    from pathlib import Path

    from tilec.artifact.records import Manifest
    from tilec.emulator import Fault, Report
    from tilec.project.read.buildfile import BuildFile
    from tilec.project.read.kernel_entry import KernelEntry
    from tilec.target.targets import Target


def emulate_command(
    project: str | None, kernel: str, arch: str | None, constants: tuple[str, ...], dims: str | None, seed: int, *,
    as_json: bool, deny: str | None = None,
) -> int:  # fmt: skip
    """Print the reports of the launches on each target. Returns 1 if a fault was found or the kernel is refused; with `deny`,
    also if the emulator made a note."""
    from tilec.workers.call import call

    build, entry = open_one(project, kernel, constants, arch)
    found = 0
    results: list[dict[str, Any]] = []
    for target in chosen_targets(arch) or entry.targets[:1]:
        task_name = f"the emulation of kernel `{entry.name}`"
        try:
            ptx, manifest, spans, tir = _built(build, entry, target)
            launch_reports: list[LaunchReport] = call(
                _emulated,
                ptx,
                manifest,
                spans,
                tir,
                build.root,
                dims,
                seed,
                what=task_name,
                limits=entry.limits,
                span=entry.span,
            )
        except CompileError as error:
            print_diagnostics(error.diagnostics, build.root)
            return status_of(error.diagnostics)
        for launch_report in launch_reports:
            if launch_report.usage:
                raise UsageError(launch_report.usage)
            found += not launch_report.clean or bool(deny and launch_report.data["notes"])
            results.append(launch_report.data)
            if not as_json:
                print("\n".join(launch_report.lines))
    if as_json:
        print(json.dumps(results, indent=1))
    return int(found > 0)


@dataclass(frozen=True, slots=True)
class LaunchReport:
    """The report of one launch as plain data and as printed lines; or in `usage` an error in the user's request."""

    clean: bool = True
    data: dict[str, Any] = field(default_factory=dict[str, Any])
    lines: tuple[str, ...] = ()
    usage: str = ""


def _emulated(
    ptx: str, manifest: Manifest, spans: bytes, tir: str, root: Path, dims: str | None, seed: int
) -> list[LaunchReport]:  # fmt: skip
    """Emulate the launches, in a worker. Launch `i` has the seed `seed + i` for its inputs and for the order of threads, which
    also determines the scheduling of persistent blocks."""
    from tilec.emulator import UnsupportedPtx, emulate, parse

    contract = Contract.of_manifest(manifest)
    found: list[LaunchReport] = []
    try:
        module = parse(ptx)
        launches = small_launches(contract, given_values(dims))[:1]
        launches += _edges(manifest, tir, launches[0]) if not dims else []
        for launch_seed, values in enumerate(launches, seed):
            report = emulate(module, manifest, random_tensors(contract, values, launch_seed), values, seed=launch_seed)
            lines = _lines(manifest, values, launch_seed, report, Sources(root, spans))
            found.append(LaunchReport(report.clean, _as_json(manifest, values, launch_seed, report, spans), tuple(lines)))
    except LaunchValuesError as error:
        return [LaunchReport(usage=str(error))]
    except UnsupportedPtx as error:
        return [LaunchReport(usage=f"the emulator does not know this PTX: {error}")]
    return found


def _edges(manifest: Manifest, tir: str, small: dict[str, float]) -> list[dict[str, float]]:
    """The launches of an audit, with the floats of a small one; none if the solver is not installed."""
    try:
        from tilec.audit.contract import contract_of
        from tilec.audit.launches import edge_launches
        from tilec.audit.work import LAUNCHES
    except ModuleNotFoundError:
        return []
    from tilec.ir.text.parser import parse_function

    function = parse_function(tir)
    cases = edge_launches(manifest, function, contract_of(manifest, function), LAUNCHES)
    return [values for case in cases if (values := {**small, **case.values}) != small]


def _built(build: BuildFile, entry: KernelEntry, target: Target) -> tuple[str, Manifest, bytes, str]:
    """PTX, manifest, line table and tile IR of a specialisation, built in a worker. CompileError if it is refused."""
    from tilec.project.build.worker import BUILD_PRELOAD
    from tilec.workers.call import call

    task_name = f"compiling `{entry.name}` for {target}"
    return call(built_here, build, entry, target, what=task_name, span=entry.span, preload=BUILD_PRELOAD, notify=notify)


def built_here(build: BuildFile, entry: KernelEntry, target: Target) -> tuple[str, Manifest, bytes, str]:
    """PTX, manifest, line table and tile IR of a specialisation, built in this process through the store, each stage under its
    budget. CompileError if it is refused."""
    from tilec import pipeline
    from tilec.artifact.manifest_reader import manifest_from_json
    from tilec.cache import FileDigests
    from tilec.link import link
    from tilec.project.read.plan import plan

    with contextlib.closing(open_store()) as store:
        planned, refusals = plan(build, (entry,), (target,), store, FileDigests(), toolchain(store))
        if refusals:
            raise CompileError(item for refusal in refusals for item in refusal.diagnostics)
        work = pipeline.Work(planned[0].request, target)
        for stage in pipeline.STAGES:
            pipeline.run_stage(stage, work, store)
        link(work)
    return (
        work.products["ptx"].decode(),
        manifest_from_json(json.loads(work.products["json"])),
        work.products["spans"],
        work.products["tir"].decode(),
    )


class Sources:
    """Maps lines of a kernel's tile IR to source locations."""

    def __init__(self, root: Path, spans: bytes) -> None:
        self.root, self.spans = root, spans

    def location_of(self, tir_line: int) -> str:
        """`file:line:column` and the source line; empty if the line of the tile IR has no source location."""
        from tilec.ir.text.lines import source_of

        span = source_of(self.spans, tir_line)
        if span is None:
            return ""
        try:
            line = (self.root / span.file).read_text(encoding="utf-8").split("\n")[span.line - 1].strip()
        except (OSError, IndexError):
            return str(span)
        return f"{span}: {line}"


def _as_json(manifest: Manifest, values: dict[str, float], seed: int, report: Report, spans: bytes) -> dict[str, Any]:
    from dataclasses import asdict

    from tilec.ir.text.lines import source_of

    def located(found: list[Fault]) -> list[dict[str, Any]]:
        sources = [source_of(spans, one.tir_line) for one in found]
        return [
            {**asdict(one), "source": None if source is None else str(source)}
            for one, source in zip(found, sources, strict=True)
        ]

    statistics = {key: report.statistics[key] for key in ("steps", "instruction_lanes", "seconds", "coverage")}
    return {
        "kernel": manifest.kernel,
        "arch": manifest.arch,
        "constants": manifest.constants,
        "values": values,
        "seed": seed,
        "faults": located(report.faults),
        "notes": located(report.notes),
        "statistics": statistics,
    }


def _lines(manifest: Manifest, values: dict[str, float], seed: int, report: Report, sources: Sources) -> Iterator[str]:
    launch_values = ", ".join(f"{name}={value}" for name, value in values.items())
    counts = report.statistics
    yield f"{manifest.kernel} on {manifest.arch}, {launch_values}, schedule {seed}"
    yield (
        f"  {counts['instruction_lanes']} instructions of threads in {counts['seconds']:.2f} s, "
        f"{counts['coverage']:.0%} of the PTX executed"
    )
    for label, found in (("", report.faults), ("note, ", report.notes)):
        for one in found:
            yield f"  {label}{one}, {one.count} times"
            location = sources.location_of(one.tir_line)
            if location:
                yield f"    {location}"
    yield "  FAULTS" if not report.clean else "  notes, but no fault" if report.notes else "  nothing found"
