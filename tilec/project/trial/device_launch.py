"""One case launched on a device: its tensors between guard zones, and the results compared.

In: a loaded kernel and a `Case`. Out: a `DeviceTrial`, plain data. The guard zones, and what a launch must not write, are those
of `tilec.qualify.arena`; here tensors hold the inputs of the case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilec.artifact.records import Manifest
from tilec.project.trial.cases import Case
from tilec.project.trial.comparison import Written, compared, written_json
from tilec.project.trial.interpreted import outputs_of
from tilec.project.trial.launches import Contract
from tilec.qualify.arena import PATTERN, Arena, Placed, Staging
from tilec.qualify.recipe import KINDS, NoContents
from tilec.qualify.side_file import Launch
from tilec.qualify.trial import plan_of
from tilec.runtime import DriverError, Kernel, LaunchError
from tilec.target.dtypes import DTYPES, numpy_dtype

Array = NDArray[Any]
RIGHT, WRONG, OUTSIDE, FAILED, UNTRIED = "right", "wrong", "wrote outside", "failed", "not launched"
"""Verdicts."""
SIDES: Final = ("reference", "interpreter")


@dataclass(frozen=True, slots=True)
class DeviceTrial:
    """A launch on the device: its verdict, and the reason if it is neither right nor wrong. `reference` and `interpreter` are
    the differences from each."""

    verdict: str
    reason: str = ""
    reference: tuple[Written, ...] = ()
    interpreter: tuple[Written, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), **{side: [written_json(one) for one in getattr(self, side)] for side in SIDES}}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> DeviceTrial:
        """The inverse of `to_json`."""
        sides = [tuple(_written(one) for one in data[side]) for side in SIDES]
        return DeviceTrial(data["verdict"], data["reason"], sides[0], sides[1])


def _written(data: Mapping[str, Any]) -> Written:
    fields: dict[str, Any] = {**data, "shape": tuple(data["shape"]), "worst": tuple(data["worst"])}
    fields |= {name: float(data[name]) for name in ("error", "found", "expected") if data[name] is not None}
    return Written(**fields)


def launched(kernel: Kernel, staging: Staging, case: Case) -> DeviceTrial:
    """Launch once and compare. DriverError if the launch faults: this process cannot use the device any more."""
    contract = Contract.of_manifest(kernel.manifest)
    integers = {name: int(value) for name, value in case.values.items() if not isinstance(value, float)}
    floats = {name: value for name, value in case.values.items() if isinstance(value, float)}
    launch = Launch("", integers, floats, KINDS[0], "", 0, None, False)
    try:
        arena = Arena(kernel.device.driver, staging, kernel.manifest, integers, KINDS[0], loose=True)
    except NoContents as error:
        return DeviceTrial(UNTRIED, str(error))
    try:
        for name, one in arena.tensors.items():
            if one.spec.access not in ("out", "scratch"):
                arena.tensors[name] = _stocked(arena, one, case.before[name])
        plan_of(kernel, arena, launch).launch(0)
        arena.driver.synchronize(0)
        return _compared(kernel.manifest, contract, arena, case)
    except DriverError:
        raise
    except LaunchError as error:
        return DeviceTrial(UNTRIED, f"the launcher refuses it: {error.message}")
    finally:
        arena.close()


def _stocked(arena: Arena, one: Placed, storage: Array) -> Placed:
    """Upload the contents of a tensor and, of one that is also written, the copy that shows what it was."""
    flat = np.ascontiguousarray(storage)
    if one.spec.strides is not None:
        inside = np.zeros(one.form.span, np.bool_)
        np.lib.stride_tricks.as_strided(inside, one.form.shape, one.form.strides)[...] = True
        gaps = np.full(flat.nbytes, PATTERN, np.uint8).view(flat.dtype)
        flat = np.where(inside, flat, gaps)
    contents = flat.view(np.uint8)
    for offset in (one.offset, one.copy):
        if offset is not None:
            arena.staging.upload(arena.base + offset, contents)
    return replace(one, pattern=contents)


def _compared(manifest: Manifest, contract: Contract, arena: Arena, case: Case) -> DeviceTrial:
    """What a finished launch wrote, outside its tensors first."""
    harm = arena.harm()
    found: dict[str, list[Written]] = {side: [] for side in SIDES}
    reason = ""
    for spec in outputs_of(contract):
        dtype, shape = numpy_dtype(DTYPES[spec.dtype]), arena.tensors[spec.name].form.shape
        result = np.ascontiguousarray(arena.result(spec.name)).view(dtype).reshape(shape)
        truths = {"interpreter": case.interpreted[spec.name].view(dtype).reshape(shape)}
        if spec.name in case.references:
            truths["reference"] = case.references[spec.name]
        for side, truth in truths.items():
            allowed = case.allowances[spec.name] if side == "interpreter" else case.tolerance
            analysed = side == "interpreter" or case.tolerance == (None, None)
            least = 0.0 if side == "interpreter" else case.least.get(spec.name, 0.0)
            one = compared(spec, result, truth, allowed, case.bounds.get(spec.name) if analysed else None, least)
            if isinstance(one, str):
                reason = reason or one
            else:
                found[side].append(one)
    written = [one for side in SIDES for one in found[side]]
    wrong = any(one.error is not None and not one.error <= 1 for one in written)
    verdict = OUTSIDE if harm else WRONG if wrong else UNTRIED if reason else RIGHT
    return DeviceTrial(verdict, harm or reason, tuple(found["reference"]), tuple(found["interpreter"]))
