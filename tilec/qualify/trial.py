"""One launch of an artifact on the device: launched, repeated, compared. In: a loaded kernel and a `Launch`. Out: a `Trial`.

Before every repetition everything that the launch may write is as it was. Results must then be equal bit by bit, except where
floats are added by atomics, whose order is not determined: those tensors the manifest declares `atomic`. Of a result of more
than `PART` bytes each repetition compares a part, and the next one the part after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tilec.artifact.records import Manifest
from tilec.qualify.arena import Arena, Placed, Staging
from tilec.qualify.comparison import NotComparable, Wrong, compared, differs
from tilec.qualify.recipe import NoContents, digest
from tilec.qualify.side_file import Expected, Launch
from tilec.runtime import TRUSTED, Driver, Kernel, LaunchError, Plan
from tilec.runtime.driver import DriverError
from tilec.target.dtypes import DTYPES

REPEATS: Final = 50
ROOM: Final = 2
"""Arenas of a launch may take one in so many bytes of the free memory."""
RIGHT, WRONG, OUTSIDE, VARIES, FAILED, UNTRIED = "right", "wrong", "wrote outside", "not repeatable", "failed", "not tried"
"""Verdicts, of a launch and of an artifact."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of a launch: its verdict, and the reason unless it is right."""

    launch: str
    verdict: str
    reason: str = ""


def arena_bytes(manifest: Manifest, launch: Launch) -> int:
    """Bytes of the tensors of a launch; NoContents for sizes that no tensor can have."""
    from tilec.qualify.recipe import form_of

    return sum(
        form_of(spec, launch.values).span * DTYPES[spec.dtype].bytes * (2 if spec.access in ("inout", "atomic") else 1)
        for spec in manifest.tensors
    )


def plan_of(kernel: Kernel, arena: Arena, launch: Launch) -> Plan:
    """The checked launch; LaunchError if it is outside of the contract. Integers are vouched for: `recipe` keeps them in
    range."""
    manifest = kernel.manifest
    integers = {one.name: launch.values[one.name] for one in manifest.scalars if one.name in launch.values}
    floats = {one.name: launch.scalars[one.name] for one in manifest.scalars if one.name in launch.scalars}
    seen = {name for spec in manifest.tensors for expr in (*spec.dims, *(spec.strides or ())) for name in expr.symbols()
            if expr.op == "sym"}  # fmt: skip
    wanted = {slot.name for slot in manifest.abi if slot.kind in ("dim", "stride")}
    wanted |= {name for spec in manifest.tensors for expr in spec.dims for name in expr.symbols()}
    open_dims = {name: launch.values[name] for name in sorted(wanted - seen - set(integers)) if name in launch.values}
    vouched = {check.tensor: TRUSTED for check in manifest.value_checks}
    return kernel.plan({**arena.views(), **integers, **floats}, values=vouched, dims=open_dims or None)


def tried(kernel: Kernel, staging: Staging, launch: Launch, repeats: int = REPEATS) -> Trial:
    """Launch `repeats` times and compare. DriverError if a launch faults: the device is then unusable in this process."""
    manifest, driver = kernel.manifest, kernel.device.driver
    reason = refusal(manifest, driver, launch)
    if reason:
        return Trial(launch.name, UNTRIED, reason)
    arena = Arena(driver, staging, manifest, launch.values, launch.kind, loose=True)
    try:
        plan = plan_of(kernel, arena, launch)
        return _compared(plan, arena, launch, repeats)
    except DriverError:
        raise
    except LaunchError as error:
        return Trial(launch.name, UNTRIED, f"the launcher refuses it: {error.message}"[:300])
    finally:
        arena.close()


def refusal(manifest: Manifest, driver: Driver, launch: Launch) -> str:
    """Why a launch cannot be tried here; empty if it can."""
    try:
        needed = arena_bytes(manifest, launch)
        if ROOM * needed > driver.memory()[0]:
            return f"it needs {needed >> 20} MiB, and the device has {driver.memory()[0] >> 20} MiB free"
        if digest(manifest, launch.values, launch.kind) != launch.inputs:
            return "its inputs are not those that the side file was prepared with"
    except (NoContents, KeyError, ZeroDivisionError, MemoryError, ValueError) as error:
        return f"its sizes are none: {error}"[:300]
    return ""


def _compared(plan: Plan, arena: Arena, launch: Launch, repeats: int) -> Trial:
    """The first launch is compared with what is expected, the others with the first."""
    manifest, driver = plan.kernel.manifest, arena.driver
    first: dict[str, Any] = {}
    varies = ""
    for number in range(max(1, repeats)):
        arena.reset()
        plan.launch(0)
        driver.synchronize(0)
        for name, one in arena.tensors.items():
            if one.spec.access not in ("in", "scratch") and not varies:
                varies = _repeated(arena, one, first, number)
                if number == 0:
                    first[name] = arena.result(name)
    harm = arena.harm()
    wrong = _wrong(manifest, arena, launch.expected, first)
    if isinstance(wrong, str):
        return Trial(launch.name, UNTRIED, wrong)
    if harm:
        return Trial(launch.name, OUTSIDE, harm)
    if wrong is not None:
        return Trial(launch.name, WRONG, str(wrong))
    return Trial(launch.name, VARIES, varies) if varies else Trial(launch.name, RIGHT)


def _repeated(arena: Arena, one: Placed, first: dict[str, Any], number: int) -> str:
    """How a repetition differs from the first launch; empty if it does not, or may."""
    if number == 0 or (one.spec.access == "atomic" and DTYPES[one.spec.dtype].is_float):
        return ""
    start, again = arena.part(one.spec.name, number)
    before = first[one.spec.name][start : start + again.size]
    difference = differs(before, again)
    if difference is None:
        return ""
    return (
        f"repetition {number} of `{one.spec.name}`: element {start + difference} is {again[difference]}, "
        f"and was {before[difference]} in the first launch (as stored)"
    )


def _wrong(manifest: Manifest, arena: Arena, expected: tuple[Expected, ...], found: dict[str, Any]) -> Wrong | str | None:
    """The first wrong element, or why the side file cannot say; None if all are right."""
    written = {spec.name: spec for spec in manifest.tensors if spec.access not in ("in", "scratch")}
    if {one.tensor for one in expected} != set(written) or len(expected) != len(written):
        return "the side file lacks the results of this kernel"
    compared_elements = 0
    for one in expected:
        if one.dtype != written[one.tensor].dtype:
            return f"the side file has `{one.tensor}` in `{one.dtype}`"
        compared_elements += one.bits.size
        try:
            wrong = compared(one, found[one.tensor], arena.tensors[one.tensor].form.shape)
        except NotComparable as error:
            return str(error)
        if wrong is not None:
            return wrong
    return None if compared_elements else "the side file expects nothing of it"
