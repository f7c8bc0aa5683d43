"""The process of `tilec bench` that times a kernel, a copy and a baseline at several launches.

It sends the greeting of `tilec.tuning.child` with the chip's clock rates and bus width, reads one line, and answers in lines:

    {"artifact": "PATH", "copy": "PATH" or null, "reference": [...], "baseline": [...], "launches": [{"N": 1000}],
     "inputs": ["FILE", "FUNCTION", "ROOT"] or null, "given": ["eps"]}
    {"inputs": ["message", "given", "required"]}   the author's inputs do not satisfy the contract
    {"at": "kernel"}, {"checked": "kernel", "wrong": ""}, {"note": "why there is no baseline"}
    {"copy": [us, low, high], "bytes": 536870912}
    {"launch": {"N": 1000}, "us": {"kernel": [...], "baseline": [...]}, "wrong": ""}   or "refused": "why"
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from tilec.project.trial.comparison import compared
from tilec.project.trial.inputs import InputsRefused, OwnInputs
from tilec.project.trial.launches import Contract
from tilec.runtime import Device, DeviceArray, DriverError, LaunchError
from tilec.tuning.baseline import Baseline, NoBaseline, load_baseline, torch_here
from tilec.tuning.bench import POISON, Bench
from tilec.tuning.child import Send, serve
from tilec.tuning.clock import timed
from tilec.tuning.records import Time

COPY_ELEMENTS: Final = 1 << 26
"""i32 elements of the copy: 256 MiB are read and 256 MiB written, which exceeds every L2 cache."""
ATTRIBUTES: Final = {
    "memory_khz": "CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE",
    "bus_bits": "CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH",
    "clock_khz": "CU_DEVICE_ATTRIBUTE_CLOCK_RATE",
}


def chip(device: Device) -> dict[str, int]:
    """Clock rates in kHz and bus width in bits; 0 for an attribute that the driver lacks."""
    found: dict[str, int] = {}
    for name, attribute in ATTRIBUTES.items():
        try:
            found[name] = device.driver.device_attribute(device.ordinal, attribute)
        except (DriverError, KeyError):  # the driver does not know the attribute
            found[name] = 0
    return found


@dataclass(frozen=True, slots=True)
class _DriverCopy:
    """A device-to-device copy that is launched and captured like a plan."""

    device: Device
    source: DeviceArray
    into: DeviceArray

    def launch(self, stream: int = 0) -> None:
        self.device.driver.copy_on_device(self.into.pointer, self.source.pointer, self.source.nbytes, stream)


class Run:
    """One job on a device."""

    def __init__(self, job: Mapping[str, Any], device: Device, send: Send) -> None:
        paths = {name: Path(job[key]) for name, key in (("kernel", "artifact"), ("copy", "copy")) if job[key]}
        reference = job["reference"]
        self.job, self.device, self.send = job, device, send
        own = job.get("inputs")
        inputs = OwnInputs(Path(own[0]), own[1], Path(own[2])) if own else None
        pair = (Path(reference[0]), reference[1]) if reference else None
        self.bench = Bench(device, paths, pair, inputs, job.get("given", ()))
        self.contract = Contract.of_manifest(self.bench.kernel("kernel").manifest)
        self.torch: Any = None
        self.function: Any = None

    def work(self) -> None:
        """Check, then time, unless the author's inputs are refused. After a DriverError this process cannot use the device any
        more."""
        try:
            self._work()
        except InputsRefused as error:
            self.send({"inputs": [error.message, error.given, error.required]})

    def _work(self) -> None:
        self.send({"at": "kernel"})
        wrong = self.bench.problem("kernel")
        self.send({"checked": "kernel", "wrong": wrong})
        if wrong:
            return
        if self.job["baseline"]:
            try:
                self.torch = torch_here()
                self.function = load_baseline(Path(self.job["baseline"][0]), self.job["baseline"][1])
            except NoBaseline as error:
                self.send({"note": str(error)})
        self.send({"copy": self._copy(), "bytes": 8 * COPY_ELEMENTS})
        for values in self.job["launches"]:
            try:
                self.send({"launch": values, **self._launch(values)})
            except DriverError:
                raise
            except LaunchError as error:
                self.send({"launch": values, "us": {}, "wrong": "", "refused": str(error)})

    def _copy(self) -> Time:
        """The time of a copy: by `copy_kernel` if it was built, else by the driver."""
        if "copy" in self.bench.artifacts:
            return self.bench.times(["copy"], (("N", COPY_ELEMENTS),), lambda _: None)[0]["copy"]
        pair = [self.device.empty((COPY_ELEMENTS,), "i32") for _ in range(2)]
        pair[0].fill(POISON)
        return timed(self.device.driver, {"copy": [_DriverCopy(self.device, *pair)]}, lambda _: None)["copy"]

    def _launch(self, values: Mapping[str, float]) -> dict[str, Any]:
        sets = self.bench.sets(self.contract, dict(values))
        alternatives: dict[str, list[Any]] = {"kernel": [one.plan(self.bench.kernel("kernel")) for one in sets]}
        wrong = ""
        if self.function is not None:
            try:
                baselines = [Baseline(self.torch, self.function, self.contract, one, values) for one in sets]
                wrong = self._differs(alternatives["kernel"][0], baselines[0], sets[0].tensors)
                alternatives["baseline"] = baselines
            except NoBaseline as error:
                self.send({"note": str(error)})
            except (DriverError, InputsRefused):
                raise
            except Exception as error:  # the author's code can raise anything
                self.send({"note": f"the baseline fails: {type(error).__name__}: {error}"})
        times = timed(self.device.driver, alternatives, lambda _: None)
        return {"us": times, "wrong": wrong}

    def _differs(self, plan: Any, baseline: Baseline, tensors: Mapping[str, Any]) -> str:
        """The first difference between the results of the kernel and the baseline, at samples of each tensor. In-place results
        are not compared, since both have changed them."""
        outputs = [spec for spec in self.contract.tensors if spec.access not in ("in", "scratch")]
        plan.launch()
        self.device.driver.synchronize(0)
        results = baseline.results()
        self.torch.cuda.synchronize()
        if len(results) != len(outputs):
            raise NoBaseline(f"the baseline returns {len(results)} tensors; the kernel writes {len(outputs)}")
        for spec, result in zip(outputs, results, strict=True):
            if spec.access != "out":
                continue
            own = self.bench.sampled(spec, tensors[spec.name])
            flat = result.contiguous().reshape(-1)
            if tuple(result.shape) != tensors[spec.name].shape:
                raise NoBaseline(f"`{spec.name}` has shape {tensors[spec.name].shape}, the baseline's {tuple(result.shape)}")
            sample_ranges = self.bench.sample_ranges(spec, tensors[spec.name].nbytes)
            theirs = np.concatenate([flat[first : first + count].double().cpu().numpy() for first, count in sample_ranges])
            found = compared(spec, own, theirs, (None, None))
            if isinstance(found, str):
                return found
            if found.error is not None and found.error > 1:
                return f"`{spec.name}` has {found.found:g} where the baseline has {found.expected:g}"
        return ""


def main() -> int:
    """Run the process; returns the exit status."""
    return serve(lambda job, device, send: Run(job, device, send).work(), chip)


if __name__ == "__main__":
    sys.exit(main())
