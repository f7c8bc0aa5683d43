"""`tilec emulate`: compiles one specialisation of a kernel to PTX, emulates it, and compares with the tile interpreter.

Inputs are random within the contract, or those of the author's function. Without `--dims` there are several launches: with
partial blocks, and with small and large, odd and even trip counts of loops.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from tilec.cli.emulate_report import Emulated, Sources, as_json, lines
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
from tilec.ir.facts.order import order_dependent
from tilec.ir.printed_text import difference
from tilec.project.trial.inputs import OwnInputs, launch_inputs, own_inputs
from tilec.project.trial.interpreted import (
    before_launch,
    bounds_of_errors,
    compared_with_interpreter,
    interpret,
    laid_out,
    outputs_of,
)
from tilec.project.trial.launches import Contract, LaunchValuesError, given_values, small_launches

if TYPE_CHECKING:
    from pathlib import Path

    from tilec.artifact.records import Manifest
    from tilec.emulator import Report
    from tilec.ir.core import Function
    from tilec.project.read.buildfile import BuildFile
    from tilec.project.read.kernel_entry import KernelEntry
    from tilec.target.targets import Target

CLOSE: Final = 0.05
"""The largest difference of printed numbers by rounding, as a fraction of the largest of the same field."""
STOPS: Final = ("deadlock", "launch", "limit", "trap")
"""Faults after which a launch has no results."""


def emulate_command(
    project: str | None, kernel: str, arch: str | None, constants: tuple[str, ...], dims: str | None, seed: int, *,
    as_json: bool, deny: str | None = None, compare: bool = True,
) -> int:  # fmt: skip
    """Print the reports of the launches on each target. Returns 1 if a fault or, with `compare`, a difference from the
    interpreter was found, or the kernel is refused; with `deny`, also if the emulator made a note."""
    from tilec.workers.call import call

    build, entry = open_one(project, kernel, constants, arch)
    inputs = own_inputs(build.kernels, entry.name, build.root)
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
                inputs,
                compare,
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
    ptx: str, manifest: Manifest, spans: bytes, tir: str, root: Path, dims: str | None, seed: int, inputs: OwnInputs | None,
    compare: bool,
) -> list[LaunchReport]:  # fmt: skip
    """Emulate the launches, in a worker. Launch `i` has the seed `seed + i` for its inputs and for the order of threads, which
    also determines the scheduling of persistent blocks."""
    from tilec.emulator import UnsupportedPtx, emulate, parse
    from tilec.ir.text.parser import parse_function

    contract = Contract.of_manifest(manifest)
    found: list[LaunchReport] = []
    try:
        module = parse(ptx)
        given, function = given_values(dims), parse_function(tir)
        launches = small_launches(contract, given)[:1]
        launches += _edges(manifest, function, launches[0]) if not dims else []
        for launch_seed, values in enumerate(launches, seed):
            values, storage = launch_inputs(contract, values, launch_seed, inputs, given.keys())
            launch = Emulated(
                manifest, values, launch_seed, emulate(module, manifest, storage, values, seed=launch_seed)
            )  # fmt: skip
            if compare:
                launch = _compared(launch, function, contract, storage)
            found.append(LaunchReport(launch.clean, as_json(launch, spans), tuple(lines(launch, Sources(root, spans)))))
    except LaunchValuesError as error:
        return [LaunchReport(usage=str(error))]
    except UnsupportedPtx as error:
        return [LaunchReport(usage=f"the emulator does not know this PTX: {error}")]
    return found


def _compared(launch: Emulated, function: Function, contract: Contract, storage: Mapping[str, Any]) -> Emulated:
    """The launch with its differences from the interpreter, which gets the same inputs: `storage`, which it changes."""
    from tilec.interpreter import InterpreterError

    report: Report = launch.report
    stopped = [one.kind for one in report.faults if one.kind in STOPS]
    if stopped:
        return replace(launch, problem=f"the launch ended early, by a fault of the kind `{stopped[0]}`")
    integers = {name: int(value) for name, value in launch.values.items() if not isinstance(value, float)}
    unchanged = {name: array.copy() for name, array in storage.items()}
    expected, lines_expected = before_launch(contract, storage, integers), list[str]()
    try:
        interpret(function, contract, expected, launch.values, lines_expected.append)
    except InterpreterError as error:
        return replace(launch, problem=f"the interpreter stopped: {error}")
    found = {spec.name: laid_out(spec, report.tensors[spec.name], integers) for spec in outputs_of(contract)}
    results = compared_with_interpreter(
        function, contract, expected, found, lambda: bounds_of_errors(function, contract, unchanged, launch.values)
    )
    unordered = tuple(sorted(order_dependent(function)))
    other_lines = "" if unordered else difference(lines_expected, report.printed, CLOSE)
    return replace(launch, results=results, unordered=unordered, other_lines=other_lines)


def _edges(manifest: Manifest, function: Function, small: dict[str, float]) -> list[dict[str, float]]:
    """The launches of an audit, with the floats of a small one; none if the solver is not installed."""
    try:
        from tilec.audit.contract import contract_of
        from tilec.audit.launches import edge_launches
        from tilec.audit.work import LAUNCHES
    except ModuleNotFoundError:
        return []
    cases = edge_launches(manifest, function, contract_of(manifest, function), LAUNCHES)
    return [values for case in cases if (values := {**small, **case.values}) != small]


def _built(build: BuildFile, entry: KernelEntry, target: Target) -> tuple[str, Manifest, bytes, str]:
    """PTX, manifest, line table and tile IR of a specialisation, built in a worker. CompileError if it is refused."""
    from tilec.project.build.worker import BUILD_PRELOAD
    from tilec.workers.call import call

    task_name = f"compiling `{entry.name}` for {target}"
    return call(built_here, build, entry, target, what=task_name, span=entry.span, preload=BUILD_PRELOAD, notify=notify)


def built_here(build: BuildFile, entry: KernelEntry, target: Target) -> tuple[str, Manifest, bytes, str]:
    """PTX, manifest, line table and tile IR of a specialisation, as `products_here` builds them."""
    from tilec.artifact.manifest_reader import manifest_from_json

    made = products_here(build, entry, target)
    return made["ptx"].decode(), manifest_from_json(json.loads(made["json"])), made["spans"], made["tir"].decode()


def products_here(build: BuildFile, entry: KernelEntry, target: Target) -> dict[str, bytes]:
    """The products of the only specialisation of an entry, built in this process through the store, each stage under its
    budget. CompileError if it is refused."""
    from tilec import pipeline
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
    return dict(work.products)
