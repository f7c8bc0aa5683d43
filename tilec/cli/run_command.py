"""`tilec run` and `tilec test`: run kernels on the interpreter with random inputs and compare them with their references."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilec.cli.options import cores
from tilec.cli.project import UsageError, notify, open_kernels, open_one, print_diagnostics, status_of
from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.project.build.report import diagnostic_json
from tilec.project.read.buildfile import BuildFile
from tilec.project.read.kernel_entry import KernelEntry
from tilec.project.read.models import Constant
from tilec.project.trial.comparison import Written, written_json
from tilec.project.trial.inputs import own_inputs
from tilec.project.trial.launches import LaunchValuesError, given_values
from tilec.project.trial.trial import Trial, TrialRequest, own_reference, trials
from tilec.workers.call import Call, calls

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
    tolerance: tuple[float | None, float | None], *, as_json: bool,
) -> int:  # fmt: skip
    """Run several launches of every specialisation with a reference. Returns 1 if one differs or is refused."""
    build, entries = open_kernels(project, kernels, constants)
    work: list[tuple[KernelEntry, TrialRequest]] = []
    missing: list[str] = []
    for entry in entries:
        reference_function = own_reference(build.kernels, entry.name)
        if reference_function is None:
            missing.append(entry.name)
            continue
        for values in entry.specialisations():
            work.append((entry, _trial_request(build, entry, values, reference_function, tolerance, launches=launches)))
    if not work:
        hint = f"write `def {missing[0]}(...)` in `{build.kernels.name}/reference.py`" if missing else "name others"
        raise UsageError(f"no kernel here has a reference; {hint}")
    problems: list[Diagnostic] = []
    found: dict[int, tuple[Trial, ...]] = {}
    for index, outcome in calls([_call(*one) for one in work], jobs or cores(), PRELOAD, notify):
        if isinstance(outcome, CompileError):
            problems += [item for item in outcome.diagnostics if item not in problems]
        else:
            found[index] = outcome
    rows = [(work[index][0].name, work[index][1], one) for index in sorted(found) for one in found[index]]
    tallies = [_tally(entry.name, request, found.get(index)) for index, (entry, request) in enumerate(work)]
    print_diagnostics(problems, build.root)
    if as_json:
        print(
            json.dumps(
                {
                    "launches": [_as_json(*one) for one in rows],
                    "without_reference": list(dict.fromkeys(missing)),
                    "errors": _errors(problems, build),
                },
                indent=1,
            )
        )
    else:
        wrong = [line for one in rows if not one[2].right for line in _lines(*one)]
        print("\n".join([*wrong, *_table(tallies)]))
        for name in dict.fromkeys(missing):
            notify(f"note: `{name}` has no reference: write `def {name}(...)` in `{build.kernels.name}/reference.py`")
    return status_of(problems) or int(any(tally.status != "right" for tally in tallies))


def _trial_request(
    build: BuildFile, entry: KernelEntry, values: dict[str, Constant], reference_function: tuple[Path, str] | None,
    tolerance: tuple[float | None, float | None], *, dims: dict[str, float] | None = None, seed: int = 0, launches: int = 1,
) -> TrialRequest:  # fmt: skip
    path = build.kernels / f"{entry.name}.py"
    beside = None if reference_function is None else reference_function[0]
    inputs = own_inputs(build.kernels, entry.name, build.root, beside)
    return TrialRequest(
        path, build.root, values, dims or {}, seed, launches, reference_function, tolerance, entry.limits, inputs
    )  # fmt: skip


def _call(entry: KernelEntry, request: TrialRequest) -> Call:
    return Call(trials, (request,), f"launching kernel `{entry.name}`", span=entry.span)


def _tally(kernel: str, request: TrialRequest, found: tuple[Trial, ...] | None) -> _Tally:
    """Summarize the launches of a specialisation; `found` is None if it was refused."""
    shown = " ".join(f"{name}={value}" for name, value in request.constants.items())
    if found is None:
        return _Tally(kernel, shown, 0, 0.0, "refused")
    wrong = any(not one.right and not one.problem for one in found)
    problems = [one for one in found if one.problem]
    unsuitable = bool(problems) and all(one.unsuitable for one in problems)
    status = "wrong" if wrong else "unsuitable inputs" if unsuitable else "not compared" if problems else "right"
    error = max((one.error or 0.0 for launch in found for one in launch.written), default=0.0)
    return _Tally(kernel, shown, len(found), error, status)


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
    }  # fmt: skip


def _errors(found: Iterable[Diagnostic], build: BuildFile) -> list[dict[str, Any]]:
    return [diagnostic_json(one, build.root) for one in found]


def _lines(kernel: str, request: TrialRequest, found: Trial) -> list[str]:
    constants = " ".join(f"{name}={value}" for name, value in request.constants.items())
    values = " ".join(f"{name}={value:g}" for name, value in found.values.items())
    lines = [
        f"{kernel}  {constants}  {values}  {found.blocks} blocks, {_source(request)} of seed {found.seed}".replace("    ", "  ")
    ]
    lines += [f"  {line}" for one in found.written for line in _output_lines(one)]
    if found.problem:
        lines.append(f"  {found.problem}")
    elif request.reference is None:
        lines.append("  nothing to compare with")
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
            told = f"first at {element}, which is {one.found:g}; the reference says {one.expected:g}"
            lines.append(f"  WRONG: not finite in {one.not_finite} of {count} results, {told}")
        elif one.error <= 1:
            lines.append(f"  as the reference; the largest difference takes {one.error:.3g} of the tolerance, at {element}")
        else:
            lines.append(
                f"  WRONG: {element} is {one.found:g}, the reference says {one.expected:g}: {one.error:.3g} tolerances off"
            )
    return lines


def _table(found: list[_Tally]) -> list[str]:
    rows = [("kernel", "constants", "launches", "of the tolerance", "")]
    rows += [(one.kernel, one.constants, str(one.launches), f"{one.error:.3g}", one.status) for one in found]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}  {e}".rstrip() for a, b, c, d, e in rows]
