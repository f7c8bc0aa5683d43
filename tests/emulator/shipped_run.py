"""The PTX of shipped kernels, compiled as by the build, and its launches in the emulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from tests import shipped, shipped_launches
from tests.clean import check_clean
from tests.programs.machines import manifest
from tilec.codegen import to_ptx
from tilec.emulator import launch
from tilec.emulator.errors import Report
from tilec.interpreter import run
from tilec.ir.core import Function
from tilec.lowering import Lowered, lower
from tilec.passes.schedule import choose
from tilec.target.families import TMA
from tilec.target.schedule import Schedule, merged
from tilec.target.targets import MAIN_TARGETS, TARGETS, Target


@dataclass(frozen=True)
class Compiled:
    """A kernel at one size: the function as written and as scheduled, its launch information from lowering, its schedule, and
    its PTX."""

    function: Function
    scheduled: Function
    lowered: Lowered
    schedule: Schedule
    ptx: str
    env: dict[str, float]
    target: Target


def target_named(name: str) -> Target:
    """The target of an architecture's name."""
    return next(target for target in TARGETS if target.name == name)


def _specialisation(name: str, size: Any, target: Target) -> Any:
    """That of the build for the target; for a target that the build has only on request, the first one."""
    return shipped.specialisation(name, size, target if target in MAIN_TARGETS else None)


def is_fed_by_producer(name: str, number: int, arch: str) -> bool:
    """Whether the schedule of a shipped kernel at size `number` has a producer of its operands on an architecture."""
    target = target_named(arch)
    entry, constants = _specialisation(name, shipped_launches.SIZES[name][number], target)
    return merged(entry.overrides(constants), target).copy == TMA


@cache
def compiled(name: str, number: int, arch: str) -> Compiled:
    """A shipped kernel at size `number` of `shipped_launches.SIZES`."""
    size, target = shipped_launches.SIZES[name][number], target_named(arch)
    entry, constants = _specialisation(name, size, target)
    schedule = choose(shipped.load(name, constants), target, merged(entry.overrides(constants), target))
    scheduled = shipped.prepared(name, target, constants)
    lowered = lower(scheduled, target, min_blocks=schedule.blocks)
    function = shipped.load(name, constants)
    env = shipped_launches.launch_values(function, size)
    return Compiled(function, scheduled, lowered, schedule, to_ptx(lowered.mlir, target), env, target)


def emulate(kernel: Compiled, arrays: dict[str, Any], *, seed: int = 0, text: str | None = None, **more: Any) -> Report:
    """A launch; `text` replaces the PTX. Tensors have the alignment that the schedule requires of them."""
    described = manifest(kernel.scheduled, kernel.lowered, kernel.target, kernel.schedule)
    return launch.emulate(kernel.ptx if text is None else text, described, arrays, kernel.env, seed=seed, **more)


def interpreted(kernel: Compiled, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """What the interpreter makes of copies of the arrays."""
    found, env, function = {name: array.copy() for name, array in arrays.items()}, kernel.env, kernel.function
    scalars = {parameter.name: env[parameter.name] for parameter in function.parameters if parameter.access is None}
    run(function, found, scalars, dims={name: int(value) for name, value in env.items() if name in function.dims})
    return found


def emulated(kernel: Compiled, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """What the machine code's PTX makes of copies of them; it touches nothing outside of its tensors."""
    report = emulate(kernel, {name: array.copy() for name, array in arrays.items()})
    check_clean(report)
    return report.tensors


def tolerance(function: Function, array: Any) -> float:
    """Error allowed relative to the largest value: a few roundings to the kernel's element type (f32 outputs of `mma` have
    those of its operands)."""
    return {"float32": 2.0**-18, "f16": 2.0**-9, "bf16": 2.0**-6}[str(function.constants.get("E", array.dtype.name))]
