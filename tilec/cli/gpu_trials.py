"""`tilec test --gpu`: builds each specialisation for this machine's GPU and launches there what the interpreter ran.

In: the build file, the specialisations, and the files in which the interpreter's launches were kept. Out: a `DeviceTrial` for
each launch, and the architecture's refusals. Nothing is written outside of a temporary folder.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tilec.cli.emulate_command import products_here
from tilec.cli.project import UsageError, notify
from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.project.build.worker import BUILD_PRELOAD
from tilec.project.read.buildfile import BuildFile
from tilec.project.read.kernel_entry import KernelEntry
from tilec.project.trial.comparison import Written
from tilec.project.trial.device import COMMAND, greeting, on_device
from tilec.project.trial.device_launch import FAILED, OUTSIDE, RIGHT, SIDES, UNTRIED, WRONG, DeviceTrial
from tilec.project.trial.trial import TrialRequest
from tilec.target.targets import Target
from tilec.tuning.measure import NoDevice
from tilec.untrusted.output import Output
from tilec.workers.call import Call, calls

Work = tuple[KernelEntry, TrialRequest]


@dataclass(slots=True)
class OnDevice:
    """The trials by specialisation and launch, and diagnostics of kernels that were refused."""

    found: dict[tuple[int, int], DeviceTrial] = field(default_factory=dict[tuple[int, int], DeviceTrial])
    problems: list[Diagnostic] = field(default_factory=list[Diagnostic])


def device_here() -> dict[str, Any]:
    """The device of this machine, as its process describes it; UsageError if there is none."""
    try:
        return greeting(COMMAND)
    except NoDevice as error:
        raise UsageError(f"`--gpu` launches on this machine's GPU, which cannot be used: {error}") from None


def built_for(entry: KernelEntry, device: dict[str, Any]) -> bool:
    """Whether the build file allows the kernel for the device's architecture."""
    return bool(entry.among((Target.parse(device["arch"]),)))


def launched_on(device: dict[str, Any], build: BuildFile, work: Sequence[Work], folder: Path, jobs: int) -> OnDevice:
    """Build into `folder` what has kept launches there, and launch them."""
    target = Target.parse(device["arch"])
    result, artifacts = OnDevice(), dict[int, Path]()
    kept = [
        (index, number)
        for index, (_, request) in enumerate(work)
        for number in range(request.launches)
        if request.keep is not None and request.kept(number).is_file()
    ]
    wanted = list(dict.fromkeys(index for index, _ in kept))
    for position, outcome in calls([_build(build, *work[one], target) for one in wanted], jobs, BUILD_PRELOAD, notify):
        if isinstance(outcome, CompileError):
            result.problems += [one for one in outcome.diagnostics if one not in result.problems]
            continue
        name = f"artifact-{wanted[position]}"
        for suffix in ("json", "cubin"):
            Output(folder, None).write(f"{name}.{suffix}", outcome[suffix], durable=False)
        artifacts[wanted[position]] = folder / f"{name}.json"
    launches = [(index, number) for index, number in kept if index in artifacts]
    pairs = [(artifacts[index], work[index][1].kept(number)) for index, number in launches]
    try:
        result.found = dict(zip(launches, on_device(pairs, COMMAND), strict=True))
    except NoDevice as error:
        raise UsageError(f"the GPU cannot be used any more: {error}") from None
    return result


def _build(build: BuildFile, entry: KernelEntry, request: TrialRequest, target: Target) -> Call:
    one = replace(entry, constants={name: (value,) for name, value in request.constants.items()}, targets=(target,))
    return Call(products_here, (build, one, target), f"compiling `{entry.name}` for {target}", span=entry.span)


def largest_error(trial: DeviceTrial) -> float:
    """The largest difference of a launch from either side, in units of its tolerance."""
    return max((one.error or 0.0 for side in SIDES for one in _of(trial, side)), default=0.0)


def worst_verdict(found: Sequence[DeviceTrial | None]) -> str:
    """The worst verdict of the launches of a specialisation; None is a launch that could not be tried."""
    verdicts = {UNTRIED if one is None else one.verdict for one in found}
    return next(one for one in (FAILED, OUTSIDE, WRONG, UNTRIED, RIGHT) if one in verdicts or one == RIGHT)


def device_lines(trial: DeviceTrial) -> list[str]:
    """What is wrong with a launch on the device, as text; empty if nothing is."""
    if trial.verdict == RIGHT:
        return []
    found = [f"  on the GPU: {trial.verdict.upper()}" + (f": {trial.reason}" if trial.reason else "")]
    for side in SIDES if trial.verdict == WRONG else ():
        found += [f"    {line}" for one in _of(trial, side) for line in _difference(one, side)]
    return found


def _of(trial: DeviceTrial, side: str) -> tuple[Written, ...]:
    return trial.reference if side == "reference" else trial.interpreter


def _difference(one: Written, side: str) -> list[str]:
    """How a result differs from one side; empty if it does not."""
    if one.error is None or one.error <= 1:
        return []
    element = f"`{one.name}[{', '.join(map(str, one.worst))}]`"
    says = "the reference says" if side == "reference" else "the interpreter has"
    if one.not_finite:
        count = f"{one.not_finite} of {math.prod(one.shape)} results"
        return [f"not finite in {count}, first at {element}, which is {one.found:g}; {says} {one.expected:g}"]
    return [f"{element} is {one.found:g}, {says} {one.expected:g}: {one.error:.3g} tolerances off"]
