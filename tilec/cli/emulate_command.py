"""`tilec emulate`: one specialisation of a kernel to PTX, and its PTX emulated on random inputs within the contract."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tilec.cli.project import (
    UsageError,
    chosen_targets,
    open_one,
    open_store,
    print_diagnostics,
    say,
    status_of,
    toolchain,
)  # fmt: skip
from tilec.diagnostics import CompileError
from tilec.project.launches import Contract, LaunchValuesError, given_values, random_tensors, small_launches

if TYPE_CHECKING:
    from pathlib import Path

    from tilec.artifact import Manifest
    from tilec.emulator import Report
    from tilec.project.buildfile import BuildFile, KernelEntry
    from tilec.target import Target


def emulate_command(
    project: str | None, kernel: str, arch: str | None, constants: tuple[str, ...], dims: str | None, seed: int, *,
    as_json: bool,
) -> int:  # fmt: skip
    """Print the report of one launch on each target; 1 where a fault was found or the kernel is refused."""
    from tilec.workers.call import call

    build, entry = open_one(project, kernel, constants, arch)
    found = 0
    results: list[dict[str, Any]] = []
    for target in chosen_targets(arch) or entry.targets[:1]:
        what = f"the emulation of kernel `{entry.name}`"
        try:
            ptx, manifest, spans = _built(build, entry, target)
            answer: Answer = call(
                _emulated, ptx, manifest, spans, build.root, dims, seed, what=what, limits=entry.limits, span=entry.span
            )
        except CompileError as error:
            print_diagnostics(error.diagnostics, build.root)
            return status_of(error.diagnostics)
        if answer.usage:
            raise UsageError(answer.usage)
        found += not answer.clean
        results.append(answer.data)
        if not as_json:
            print("\n".join(answer.lines))
    if as_json:
        print(json.dumps(results, indent=1))
    return int(found > 0)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one launch gave: as plain data and as lines for a person; or in `usage` what was wrong with the question."""

    clean: bool = True
    data: dict[str, Any] = field(default_factory=dict[str, Any])
    lines: tuple[str, ...] = ()
    usage: str = ""


def _emulated(ptx: str, manifest: Manifest, spans: bytes, root: Path, dims: str | None, seed: int) -> Answer:
    """What the worker does."""
    from tilec.emulator import UnsupportedPtx, emulate

    contract = Contract.of_manifest(manifest)
    try:
        values = small_launches(contract, given_values(dims))[0]
        report = emulate(ptx, manifest, random_tensors(contract, values, seed), values, seed=seed)
    except LaunchValuesError as error:
        return Answer(usage=str(error))
    except UnsupportedPtx as error:
        return Answer(usage=f"the emulator does not know this PTX: {error}")
    lines = _lines(manifest, values, seed, report, Sources(root, spans))
    return Answer(report.clean, _as_json(manifest, values, seed, report, spans), tuple(lines))


def _built(build: BuildFile, entry: KernelEntry, target: Target) -> tuple[str, Manifest, bytes]:
    """PTX, manifest and the table of lines of a specialisation, made in a worker; CompileError where the kernel is refused."""
    from tilec.project.worker import BUILD_PRELOAD
    from tilec.workers.call import call

    what = f"compiling `{entry.name}` for {target}"
    return call(_stages, build, entry, target, what=what, span=entry.span, preload=BUILD_PRELOAD, say=say)


def _stages(build: BuildFile, entry: KernelEntry, target: Target) -> tuple[str, Manifest, bytes]:
    """What the worker does, through the store, each stage under its budget."""
    from tilec import pipeline
    from tilec.cache import FileDigests
    from tilec.link import link
    from tilec.manifest_reader import manifest_from_json
    from tilec.project.plan import plan

    with contextlib.closing(open_store()) as store:
        planned, refusals = plan(build, (entry,), (target,), store, FileDigests(), toolchain(store))
        if refusals:
            raise CompileError(item for refusal in refusals for item in refusal.diagnostics)
        work = pipeline.Work(planned[0].request, target)
        for stage in pipeline.STAGES:
            pipeline.run_stage(stage, work, store)
        link(work)
    return work.products["ptx"].decode(), manifest_from_json(json.loads(work.products["json"])), work.products["spans"]


class Sources:
    """Where a kernel's tile IR came from: `at` gives the place of one of its lines, and what stands there."""

    def __init__(self, root: Path, spans: bytes) -> None:
        self.root, self.spans = root, spans

    def at(self, tir_line: int) -> str:
        """`file:line:column` and the source line; nothing where the line of the tile IR stands for no place."""
        from tilec.ir.lines import source_of

        span = source_of(self.spans, tir_line)
        if span is None:
            return ""
        try:
            text = (self.root / span.file).read_text(encoding="utf-8").split("\n")[span.line - 1].strip()
        except (OSError, IndexError):
            return str(span)
        return f"{span}: {text}"


def _as_json(manifest: Manifest, values: dict[str, float], seed: int, report: Report, spans: bytes) -> dict[str, Any]:
    from dataclasses import asdict

    from tilec.ir.lines import source_of

    statistics = {key: report.statistics[key] for key in ("steps", "instruction_lanes", "seconds", "coverage")}
    places = [source_of(spans, fault.tir_line) for fault in report.faults]
    return {
        "kernel": manifest.kernel,
        "arch": manifest.arch,
        "constants": manifest.constants,
        "values": values,
        "seed": seed,
        "faults": [
            {**asdict(fault), "source": None if place is None else str(place)}
            for fault, place in zip(report.faults, places, strict=True)
        ],
        "statistics": statistics,
    }


def _lines(manifest: Manifest, values: dict[str, float], seed: int, report: Report, sources: Sources) -> Iterator[str]:
    named = ", ".join(f"{name}={value}" for name, value in values.items())
    s = report.statistics
    yield f"{manifest.kernel} on {manifest.arch}, {named}, schedule {seed}"
    yield f"  {s['instruction_lanes']} instructions of threads in {s['seconds']:.2f} s, {s['coverage']:.0%} of the PTX executed"
    for fault in report.faults:
        yield f"  {fault}, {fault.count} times"
        place = sources.at(fault.tir_line)
        if place:
            yield f"    {place}"
    yield "  nothing found" if report.clean else "  FAULTS"
