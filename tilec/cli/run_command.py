"""`tilec run` and `tilec test`: run kernels on the interpreter and compare them with their references; `tilec test --gpu` does
the same on this machine's GPU."""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tilec.cli.options import cores
from tilec.cli.project import UsageError, notify, open_kernels, open_one, print_diagnostics, status_of
from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.project.build.report import diagnostic_json
from tilec.project.read.buildfile import BuildFile
from tilec.project.read.kernel_entry import KernelEntry
from tilec.project.read.models import Constant
from tilec.project.trial.comparison import Written, written_json
from tilec.project.trial.inputs import own_inputs
from tilec.project.trial.launches import LaunchValuesError, given_values, values_text
from tilec.project.trial.trial import Trial, TrialRequest, own_reference, trials
from tilec.workers.call import Call, calls

if TYPE_CHECKING:
    from tilec.project.trial.device_launch import DeviceTrial

UNSUITABLE: Final = "if random inputs do not suit the kernel, write `def {kernel}_inputs(rng, dims)` next to the reference"
PRELOAD = ("tilec.frontend", "tilec.passes.prover", "tilec.interpreter", "tilec.project.trial.trial")


def run_command(
    project: str | None, kernel: str, constants: tuple[str, ...], dims: str | None, seed: int, reference: str | None,
    tolerance: tuple[float | None, float | None], *, as_json: bool,
) -> int:  # fmt: skip
    """Run one launch and print what it wrote. Returns 1 if the kernel is refused or differs from its reference."""
    build, entry = open_one(project, kernel, constants)
    try:
        given = given_values(dims)
    except LaunchValuesError as error:
        raise UsageError(str(error)) from None
    reference_function = _named_reference(reference, entry.name) if reference else own_reference(build.kernels, entry.name)
    (values,) = entry.specialisations()
    request = _trial_request(build, entry, values, reference_function, tolerance, dims=given, seed=seed)
    ((_, outcome),) = calls([_call(entry, request)], 1, PRELOAD, notify)
    if isinstance(outcome, CompileError):
        print_diagnostics(outcome.diagnostics, build.root)
        if as_json:
            print(json.dumps({"errors": _errors(outcome.diagnostics, build)}, indent=1))
        return status_of(outcome.diagnostics)
    (found,) = outcome
    if found.problem and not found.blocks:
        raise UsageError(found.problem)
    if as_json:
        print(json.dumps(_as_json(entry.name, request, found), indent=1))
    else:
        print("\n".join(_lines(entry.name, request, found)))
    return int(not found.right)


@dataclass(frozen=True, slots=True)
class _Tally:
    """Summary of the launches of one specialisation; `error` is the largest, in units of the tolerance."""

    kernel: str
    constants: str
    launches: int
    error: float
    status: str


def test_command(
    project: str | None, kernels: tuple[str, ...], constants: tuple[str, ...], launches: int, jobs: int | None,
    tolerance: tuple[float | None, float | None], *, as_json: bool, gpu: bool = False,
) -> int:  # fmt: skip
    """Run several launches of every specialisation with a reference, with `gpu` on this machine's GPU too. Returns 1 if one
    differs or is refused."""
    build, entries = open_kernels(project, kernels, constants)
    device = _device() if gpu else None
    work, missing, notes = _work(build, entries, tolerance, launches, device)
    with tempfile.TemporaryDirectory(prefix="tilec-test-") if gpu else contextlib.nullcontext() as folder:
        if folder is not None:
            work = [(one, replace(request, keep=Path(folder) / str(index))) for index, (one, request) in enumerate(work)]
        problems: list[Diagnostic] = []
        found: dict[int, tuple[Trial, ...]] = {}
        for index, outcome in calls([_call(*one) for one in work], jobs or cores(), PRELOAD, notify):
            if isinstance(outcome, CompileError):
                problems += [item for item in outcome.diagnostics if item not in problems]
            else:
                found[index] = outcome
        on_gpu: dict[tuple[int, int], DeviceTrial] | None = None
        if device is not None and folder is not None:
            from tilec.cli.gpu_trials import launched_on

            result = launched_on(device, build, work, Path(folder), jobs or cores())
            on_gpu, problems = result.found, problems + [item for item in result.problems if item not in problems]
    rows = [
        (work[index], one, None if on_gpu is None else on_gpu.get((index, number)))
        for index in sorted(found)
        for number, one in enumerate(found[index])
    ]
    tallies = [
        _tally(entry.name, request, found.get(index), None if on_gpu is None else [
            on_gpu.get((index, number)) for number in range(len(found.get(index, ())))
        ])
        for index, (entry, request) in enumerate(work)
    ]  # fmt: skip
    print_diagnostics(problems, build.root)
    if as_json:
        launched = [
            _as_json(entry.name, request, one) | ({} if device is None else {"gpu": None if there is None else there.to_json()})
            for (entry, request), one, there in rows
        ]
        data = {"launches": launched, "without_reference": missing, "errors": _errors(problems, build)}
        print(json.dumps(data | ({} if device is None else {"device": device}), indent=1))
    else:
        print("\n".join([*_shown_lines(rows), *_table(tallies, device)]))
        for note in notes:
            notify(f"note: {note}")
    return status_of(problems) or int(any(tally.status != "right" for tally in tallies))


def _device() -> dict[str, Any]:
    from tilec.cli.gpu_trials import device_here

    return device_here()


def _work(
    build: BuildFile, entries: Sequence[KernelEntry], tolerance: tuple[float | None, float | None], launches: int,
    device: dict[str, Any] | None,
) -> tuple[list[tuple[KernelEntry, TrialRequest]], list[str], list[str]]:  # fmt: skip
    """The specialisations to test, the kernels without a reference, and notes about what is left out. UsageError if nothing is
    left."""
    work: list[tuple[KernelEntry, TrialRequest]] = []
    missing: dict[str, None] = {}
    notes: dict[str, None] = {}
    for entry in entries:
        reference_function = own_reference(build.kernels, entry.name)
        if reference_function is None:
            missing[entry.name] = None
            hint = f"write `def {entry.name}(...)` in `{build.kernels.name}/reference.py`"
            notes[f"`{entry.name}` has no reference: {hint}"] = None
            continue
        if device is not None and not _built_for(entry, device):
            notes[f"`{entry.name}` is not built for {device['arch']}, the architecture of this GPU"] = None
            continue
        for values in entry.specialisations():
            work.append((entry, _trial_request(build, entry, values, reference_function, tolerance, launches=launches)))
    if not work and not missing and notes:
        raise UsageError(f"nothing can be launched: {'; '.join(notes)}")
    if not work:
        hint = f"write `def {next(iter(missing))}(...)` in `{build.kernels.name}/reference.py`" if missing else "name others"
        raise UsageError(f"no kernel here has a reference; {hint}")
    return work, list(missing), list(notes)


def _built_for(entry: KernelEntry, device: dict[str, Any]) -> bool:
    from tilec.cli.gpu_trials import built_for

    return built_for(entry, device)


def _trial_request(
    build: BuildFile, entry: KernelEntry, values: dict[str, Constant], reference_function: tuple[Path, str] | None,
    tolerance: tuple[float | None, float | None], *, dims: dict[str, float] | None = None, seed: int = 0, launches: int = 1,
) -> TrialRequest:  # fmt: skip
    path = build.kernels / f"{entry.name}.py"
    file = None if reference_function is None else reference_function[0]
    inputs = own_inputs(build.kernels, entry.name, build.root, file)
    return TrialRequest(
        path, build.root, values, dims or {}, seed, launches, reference_function, tolerance, entry.limits, inputs
    )  # fmt: skip


def _call(entry: KernelEntry, request: TrialRequest) -> Call:
    return Call(trials, (request,), f"launching kernel `{entry.name}`", span=entry.span)


def _tally(
    kernel: str, request: TrialRequest, found: tuple[Trial, ...] | None, on_gpu: Sequence[DeviceTrial | None] | None
) -> _Tally:  # fmt: skip
    """Summarize the launches of a specialisation; `found` is None if it was refused, `on_gpu` without a GPU."""
    shown = " ".join(f"{name}={value}" for name, value in request.constants.items())
    if found is None:
        return _Tally(kernel, shown, 0, 0.0, "refused")
    problems = [one for one in found if one.problem]
    unsuitable = bool(problems) and all(one.unsuitable for one in problems)
    wrong = any(not one.right and not one.problem for one in found)
    status = "wrong" if wrong else "unsuitable inputs" if unsuitable else "not compared" if problems else "right"
    error = max((one.error or 0.0 for launch in found for one in launch.written), default=0.0)
    if on_gpu is not None:
        from tilec.cli.gpu_trials import largest_error, worst_verdict

        error = max([error, *(largest_error(one) for one in on_gpu if one is not None)])
        status = worst_verdict(on_gpu) if status == "right" else status
    return _Tally(kernel, shown, len(found), error, status)


def _shown_lines(rows: Sequence[tuple[tuple[KernelEntry, TrialRequest], Trial, DeviceTrial | None]]) -> list[str]:
    """The launches that are not right here or on the GPU, or that print."""
    found: list[str] = []
    for (entry, request), one, there in rows:
        on_gpu: list[str] = []
        if there is not None:
            from tilec.cli.gpu_trials import device_lines

            on_gpu = device_lines(there)
        if not one.right or one.printed or on_gpu:
            found += [*_lines(entry.name, request, one), *on_gpu]
    return found


def _named_reference(text: str, kernel: str) -> tuple[Path, str]:
    """Parse `FILE.py` or `FILE.py:NAME`."""
    file, colon, name = text.rpartition(":") if ":" in text else (text, "", "")
    if not os.path.isfile(file):
        raise UsageError(f"no file `{file}`; write --reference FILE.py:NAME")
    return Path(file).resolve(), name if colon else kernel


def _as_json(kernel: str, request: TrialRequest, found: Trial) -> dict[str, Any]:
    return {
        "kernel": kernel, "constants": dict(request.constants), "values": dict(found.values), "seed": found.seed,
        "blocks": found.blocks, "right": found.right, "compared": request.reference is not None, "problem": found.problem,
        "written": [written_json(one) for one in found.written],
    } | ({"printed": list(found.printed)} if found.printed else {})  # fmt: skip


def _errors(found: Iterable[Diagnostic], build: BuildFile) -> list[dict[str, Any]]:
    return [diagnostic_json(one, build.root) for one in found]


def _lines(kernel: str, request: TrialRequest, found: Trial) -> list[str]:
    constants = " ".join(f"{name}={value}" for name, value in request.constants.items())
    values = values_text(found.values)
    lines = [
        f"{kernel}  {constants}  {values}  {found.blocks} blocks, {_source(request)} of seed {found.seed}".replace("    ", "  ")
    ]
    lines += [f"  {line}" for line in found.printed]
    lines += [f"  {line}" for one in found.written for line in _output_lines(one)]
    if found.problem:
        lines.append(f"  {found.problem}")
    elif request.reference is None:
        lines.append("  nothing to compare with")
    elif request.inputs is None and any(one.error is not None and one.error > 1 for one in found.written):
        lines.append(f"  {UNSUITABLE.format(kernel=kernel)}")
    return lines


def _source(request: TrialRequest) -> str:
    """Where inputs come from, as text."""
    return "inputs" if request.inputs is None else f"inputs of `{request.inputs.name}`"


def _output_lines(one: Written) -> list[str]:
    shape = ", ".join(map(str, one.shape))
    lines = [f"{one.name} {one.dtype}[{shape}]: {one.summary}"]
    if one.error is not None:
        element = f"`{one.name}[{', '.join(map(str, one.worst))}]`"
        count = math.prod(one.shape)
        if one.not_finite:
            where = f"first at {element}, which is {one.found:g}; the reference says {one.expected:g}"
            lines.append(f"  WRONG: not finite in {one.not_finite} of {count} results, {where}")
        elif one.error <= 1:
            lines.append(f"  as the reference; the largest difference takes {one.error:.3g} of the tolerance, at {element}")
        else:
            lines.append(
                f"  WRONG: {element} is {one.found:g}, the reference says {one.expected:g}: {one.error:.3g} tolerances off"
            )
    return lines


def _table(found: list[_Tally], device: dict[str, Any] | None) -> list[str]:
    rows = [("kernel", "constants", "launches", "of the tolerance", "")]
    rows += [(one.kernel, one.constants, str(one.launches), f"{one.error:.3g}", one.status) for one in found]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    table = [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}  {e}".rstrip() for a, b, c, d, e in rows]
    if device is None:
        return table
    driver = f", driver {device['driver']}" if device["driver"] else ""
    return [f"on the interpreter and on {device['device']} ({device['arch']}{driver})", *table]
