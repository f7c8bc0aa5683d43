"""The process that runs candidates. A wrong candidate can hang it or make its device unusable; then only this process ends.

It writes a greeting that describes its device, reads its job as one line of JSON, and writes results as lines of JSON:

    {"device": "NVIDIA H200", "driver": "580.159", "arch": "sm_90a", "multiprocessors": 132}     or {"failed": "..."}
    {"artifacts": {"NAME": "PATH"}, "reference": ["FILE", "FUNCTION"], "check": ["NAME"], "time": [[SHAPE, ["NAME"]]]}
    {"at": "NAME"}   before a candidate first runs at a shape or in a check; an empty name after all have run
    {"checked": "NAME", "wrong": ""}
    {"shape": SHAPE, "us": {"NAME": [54.1, 53.9, 54.6]}, "wrong": {"NAME": "..."}}
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tilec.runtime import Device, Driver, DriverError, LaunchError
from tilec.tuning.bench import Bench
from tilec.tuning.records import Shape

LOST: Final = 70
"""Exit status after a DriverError: the device is unusable in this process."""
VERSION: Final = Path("/proc/driver/nvidia/version")
Send = Callable[[dict[str, Any]], None]


Work = Callable[[dict[str, Any], Device, Send], None]


def greet(
    send: Send, driver: Driver | None = None, about: Callable[[Device], Mapping[str, Any]] = lambda _: {}
) -> Device | None:
    """Open the device and write the greeting, with what `about` adds to it. None if there is no device."""
    try:
        device = Device(driver)
    except LaunchError as error:
        send({"failed": str(error)})
        return None
    send(
        {
            "device": device.name,
            "driver": driver_version(),
            "arch": device.architecture,
            "multiprocessors": device.multiprocessors,
            **about(device),
        }
    )
    return device


def work(job: dict[str, Any], device: Device, send: Send) -> None:
    """Check and time the candidates of a job. After a DriverError this process cannot use the device any more."""
    reference = job["reference"]
    artifacts = {name: Path(path) for name, path in job["artifacts"].items()}
    bench = Bench(device, artifacts, (Path(reference[0]), reference[1]) if reference else None)
    out: set[str] = set()
    for name in job["check"]:
        send({"at": name})
        try:
            wrong = bench.problem(name)
        except DriverError:
            raise
        except LaunchError as error:
            wrong = str(error)
        out |= {name} if wrong else set()
        send({"checked": name, "wrong": wrong})
    for pairs, names in job["time"]:
        shape: Shape = tuple((str(name), int(value)) for name, value in pairs)
        remaining = [name for name in names if name not in out]
        try:
            times, differ = bench.times(remaining, shape, lambda name: send({"at": name})) if remaining else ({}, {})
        except DriverError:
            raise
        except LaunchError as error:
            send({"shape": pairs, "us": {}, "wrong": {}, "refused": str(error)})
        else:
            out |= differ.keys()
            send({"shape": pairs, "us": times, "wrong": differ})


def driver_version() -> str:
    """Version of NVIDIA's kernel module, such as 580.159.03; empty if unknown."""
    try:
        found = re.search(r"Kernel Module\s.*?(\d+\.\d+(?:\.\d+)?)", VERSION.read_text(encoding="utf-8"))
    except OSError:
        return ""
    return found[1] if found else ""


def serve(work: Work, about: Callable[[Device], Mapping[str, Any]] = lambda _: {}) -> int:
    """Greet, read the job, run `work`; returns the exit status. Output of a reference or a baseline goes to stderr, so that
    stdout has only answers."""
    stdout = sys.stdout

    def send(line: dict[str, Any]) -> None:
        print(json.dumps(line), file=stdout, flush=True)

    with contextlib.redirect_stdout(sys.stderr):
        device = greet(send, about=about)
        if device is None:
            return 1
        text = sys.stdin.readline()
        if not text:
            return 0
        try:
            work(json.loads(text), device, send)
        except DriverError as error:
            send({"lost": str(error)})
            return LOST
    return 0


if __name__ == "__main__":
    sys.exit(serve(work))
