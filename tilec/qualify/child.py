"""The process that launches. A wrong kernel can hang it or make its device unusable; then only this process ends.

It writes a greeting that describes its device, reads its job as one line of JSON, and writes results as lines of JSON:

    {"device": "NVIDIA H100", "driver": "580.159", "arch": "sm_90a", "capability": "9.0", "multiprocessors": 132}
    {"failed": "..."}   instead, if there is no device
    {"bundle": "PATH", "digest": "...", "side": "PATH", "side_digest": "...", "artifacts": ["NAME"], "repeats": 50,
     "times": true, "tune": [...]}
    {"rates": {"copy": 2.9e12, "products": 9.9e14}}
    {"at": "NAME", "launch": "smallest"}   before each launch
    {"done": "NAME", "verdict": "right", "launches": [...], "times": [...]}
    {"lost": "..."}   the device is unusable in this process
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tilec.artifact.records import Manifest
from tilec.qualify.arena import Staging
from tilec.qualify.side_file import Entry, Launch, Malformed, SideFile, read
from tilec.qualify.timing import copy_rate, floor, products_rate, times, untimed
from tilec.qualify.trial import FAILED, OUTSIDE, RIGHT, UNTRIED, VARIES, WRONG, Trial, refusal, tried
from tilec.qualify.tune import tuned
from tilec.runtime import Bundle, BundleError, Device, Driver, DriverError, Kernel, LaunchError, open_bundle
from tilec.runtime.driver import COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR
from tilec.runtime.trust_location import NO_POLICY
from tilec.tuning.child import driver_version

LOST: Final = 70
"""Exit status after a DriverError: the device is unusable in this process."""
WORST_FIRST: Final = (FAILED, OUTSIDE, WRONG, VARIES, UNTRIED, RIGHT)
Send = Callable[[dict[str, Any]], None]


def greet(send: Send, driver: Driver | None = None) -> Device | None:
    """Open the device and describe it; None, with the reason sent, if there is none."""
    try:
        device = Device(driver)
        capability = [
            device.driver.device_attribute(device.ordinal, name)
            for name in (COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR)
        ]
    except LaunchError as error:
        send({"failed": error.message})
        return None
    send({
        "device": device.name, "driver": driver_version(), "arch": device.architecture,
        "capability": ".".join(map(str, capability)), "multiprocessors": device.multiprocessors,
    })  # fmt: skip
    return device


class Work:
    """One job on a device."""

    def __init__(self, job: Mapping[str, Any], device: Device, send: Send) -> None:
        self.job, self.device, self.send = job, device, send
        # The parent has checked trust.
        self.bundle: Bundle = open_bundle(job["bundle"], digest=job["digest"], trust=NO_POLICY, proofs=False)
        self.side: SideFile = read(Path(job["side"]))
        if self.side.digest != job["side_digest"]:
            raise Malformed("changed while it was read")
        self.staging = Staging(device.driver)
        self.rates: tuple[float, float | None] | None = None

    def run(self) -> None:
        """Go through the artifacts. DriverError if the device is lost."""
        if self.job["times"]:
            self.send({"at": "", "launch": "a copy on the device"})
            self.rates = copy_rate(self.device, self.staging), products_rate(self.device)
            self.send({"rates": {"copy": self.rates[0], "products": self.rates[1]}})
        for name in self.job["artifacts"]:
            self._artifact(name)
        for group in self.job.get("tune", ()):
            self.send({"at": "", "launch": f"tuning of {group['kernel']}"})
            self.send({"tuned": group, "us": tuned(self.bundle, self.device, self.staging, self.side, group)})

    def _artifact(self, name: str) -> None:
        self.send({"at": name, "launch": "loading"})
        bundled, entry = self.bundle.kernel(name), self.side.entries[name]
        try:
            kernel = self.bundle.load(bundled, self.device)
        except DriverError as error:
            self.send(done(name, [Trial("loading", FAILED, error.message)]))
            return
        except LaunchError as error:
            self.send(done(name, [Trial("loading", UNTRIED, error.message)]))
            return
        trials = [self._trial(kernel, name, launch) for launch in entry.launches]
        rows, reason = list[dict[str, Any]](), ""
        if self.rates is not None and all(trial.verdict == RIGHT for trial in trials):
            reason = untimed(bundled.manifest)
            rows = [] if reason else self._times(kernel, bundled.manifest, entry, name)
        kernel.close()
        self.send({**done(name, trials), "times": rows, "untimed": reason})

    def _trial(self, kernel: Kernel, name: str, launch: Launch) -> Trial:
        self.send({"at": name, "launch": launch.name})
        return tried(kernel, self.staging, launch, self.job["repeats"])

    def _times(self, kernel: Kernel, manifest: Manifest, entry: Entry, name: str) -> list[dict[str, Any]]:
        """The time and the floor of each launch at a shape of the model."""
        assert self.rates is not None
        rows: list[dict[str, Any]] = []
        for launch in entry.launches:
            if launch.timed and not refusal(manifest, self.device.driver, launch):
                self.send({"at": name, "launch": f"timing of {launch.name}"})
                (found,) = times([kernel], self.staging, [launch])
                least = floor(launch, *self.rates)
                rows.append({
                    "launch": launch.name, "values": dict(launch.values), "us": [round(one, 4) for one in found],
                    "floor_us": round(least, 4), "share": round(least / found[0], 4),
                })  # fmt: skip
        return rows


def done(name: str, trials: list[Trial]) -> dict[str, Any]:
    """The result of an artifact: the worst of its launches decides."""
    verdicts = {trial.verdict for trial in trials}
    verdict = next((one for one in WORST_FIRST if one in verdicts), UNTRIED)
    return {"done": name, "verdict": verdict, "launches": [asdict(trial) for trial in trials], "times": [], "untimed": ""}


def serve(driver: Driver | None = None) -> int:
    """Greet, read the job, work; returns the exit status. stdout has only answers."""
    stdout = sys.stdout

    def send(line: dict[str, Any]) -> None:
        print(json.dumps(line), file=stdout, flush=True)

    with redirect_stdout(sys.stderr):
        device = greet(send, driver)
        text = sys.stdin.readline() if device is not None else ""
        if device is None or not text:
            return 1 if device is None else 0
        try:
            Work(json.loads(text), device, send).run()
        except DriverError as error:
            send({"lost": error.message})
            return LOST
        except (BundleError, Malformed, OSError) as error:
            send({"failed": str(error)})
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(serve())
