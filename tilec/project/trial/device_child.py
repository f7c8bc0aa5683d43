"""The process of `tilec test --gpu` that launches. A wrong kernel can hang it or make its device unusable; then only this
process ends.

It sends the greeting of `tilec.tuning.child`, reads one line, and answers in lines:

    {"cases": [["ARTIFACT", "CASE"], ...]}   paths of a manifest and of a case
    {"at": 0}, {"done": 0, "trial": {...}}   the number of a case, and its `DeviceTrial`
    {"lost": "..."}                          the device is unusable in this process
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from tilec.project.trial.cases import read_case
from tilec.project.trial.device_launch import UNTRIED, DeviceTrial, launched
from tilec.qualify.arena import Staging
from tilec.runtime import Device, Driver, DriverError, Kernel, LaunchError, load
from tilec.tuning.child import LOST, greet

Send = Callable[[dict[str, Any]], None]


def work(pairs: list[tuple[str, str]], device: Device, send: Send) -> None:
    """Launch the cases in order. DriverError if the device is lost."""
    staging = Staging(device.driver)
    path, kernel = "", None
    for number, (artifact, case) in enumerate(pairs):
        send({"at": number})
        if artifact != path:
            path, kernel = artifact, _loaded(artifact, device)
        trial = launched(kernel, staging, read_case(Path(case))) if isinstance(kernel, Kernel) else kernel
        assert trial is not None
        send({"done": number, "trial": trial.to_json()})
    staging.close()


def _loaded(artifact: str, device: Device) -> Kernel | DeviceTrial:
    """The kernel, or why it cannot be launched."""
    try:
        return load(artifact, device)
    except LaunchError as error:
        return DeviceTrial(UNTRIED, f"it cannot be loaded: {error.message}")


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
            work([(one[0], one[1]) for one in json.loads(text)["cases"]], device, send)
        except DriverError as error:
            send({"lost": error.message})
            return LOST
    return 0


def keep_answers_apart() -> None:
    """Send what native code writes to stdout, such as the lines that a kernel prints, to stderr instead: the driver writes them
    in pieces, which would end up within answers."""
    answers = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(answers, "w", encoding="utf-8")


if __name__ == "__main__":
    keep_answers_apart()
    sys.exit(serve())
