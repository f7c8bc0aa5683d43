"""Checks and times candidates in separate processes, and records every result at once.

In: candidates, shapes, and earlier records. Out: the records with the missing measurements added. If a process ends or stops
responding during the first run of a candidate, that candidate is rejected; if this happens later, the current shape is skipped.
No shape is started after `budget` seconds; the rest is left to another run.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import tilec
from tilec.tuning.records import MeasuredOn, Records, Shape, shape_of

SILENCE: Final = 60.0
"""Seconds without output after which a process counts as hung: loading, a check against NumPy and one shape each take less."""
CHILD: Final = (sys.executable, "-P", "-m", "tilec.tuning.child")
Clock = Callable[[], float]
Hears = Callable[[threading.Event], bool]


def hears(heard: threading.Event) -> bool:
    """Wait until the process writes a line, which sets the event; False after `SILENCE` seconds without one."""
    return heard.wait(SILENCE)


class NoDevice(Exception):
    """There is no usable GPU, or none of the right architecture."""


@dataclass(frozen=True, slots=True)
class Device:
    """The GPU that measures: its name, driver version, architecture and number of multiprocessors."""

    name: str
    driver: str
    arch: str
    multiprocessors: int


@dataclass(frozen=True, slots=True)
class Job:
    """`artifacts` are manifest paths and `names` the candidates as text, both by the digest of the machine code; `reference` is
    the kernel's, if it has one; `shapes` maps each shape to its text."""

    artifacts: Mapping[str, Path]
    names: Mapping[str, str]
    reference: tuple[Path, str] | None
    shapes: Mapping[Shape, str]


@dataclass(slots=True)
class Progress:
    """What a run did. `left` counts shapes not measured yet; `refused` are shapes that violate the contract or at which a
    process failed, with the reason."""

    checked: int = 0
    timed: int = 0
    left: int = 0
    refused: dict[Shape, str] = field(default_factory=dict[Shape, str])


def todo(job: Job, records: Records) -> tuple[list[str], list[tuple[Shape, list[str]]]]:
    """Unchecked candidates, and for each shape the candidates still to be timed, without those known to be wrong."""
    unchecked = [name for name in job.artifacts if name not in records.wrong]
    right = [name for name in job.artifacts if not records.wrong.get(name)]
    shapes = [(shape, [name for name in right if name not in records.times.get(shape, {})]) for shape in job.shapes]
    return unchecked, [(shape, names) for shape, names in shapes if names]


@dataclass(slots=True)
class Session:
    """One run over the candidates."""

    job: Job
    records: Records
    device: Device
    date: str
    budget: float
    notify: Callable[[str], None]
    command: Sequence[str] = CHILD
    hears: Hears = hears
    clock: Clock = time.monotonic
    done: Progress = field(default_factory=Progress)

    def run(self) -> Progress:
        """Check and time what is missing, with a new process after each one that ends early."""
        end = self.clock() + self.budget
        while True:
            check, shapes = todo(self.job, self.records)
            shapes = [one for one in shapes if one[0] not in self.done.refused]
            if not (check or shapes) or self.clock() >= end:
                break
            if not self._process(check, shapes, end):
                break
        self.done.left = len([one for one in todo(self.job, self.records)[1] if one[0] not in self.done.refused])
        return self.done

    def _process(self, check: list[str], shapes: list[tuple[Shape, list[str]]], end: float) -> bool:
        """Run one process on the remaining work until it ends; False if the budget is spent."""
        running, current = "", shapes[0][0] if shapes else None
        measured_on = MeasuredOn(self.device.name, self.device.driver, self.device.multiprocessors, self.date)
        order = {
            "artifacts": {name: str(path) for name, path in self.job.artifacts.items()},
            "reference": [str(self.job.reference[0]), self.job.reference[1]] if self.job.reference else None,
            "check": check,
            "time": shapes,
        }
        lost = ""
        with process(self.command, self.hears) as (child, lines):
            if next(lines, None) is None:  # its greeting
                raise NoDevice("the process that measures does not start")
            assert child.stdin is not None
            child.stdin.write(json.dumps(order) + "\n")
            child.stdin.flush()
            for line in lines:
                if "at" in line:
                    running = line["at"]
                elif "checked" in line:
                    self._verdict(line["checked"], line["wrong"], measured_on)
                    running = ""
                elif "shape" in line:
                    self._times(line, measured_on)
                    following = [shape for shape, _ in shapes]
                    at = following.index(shape_of(dict(line["shape"]))) + 1
                    running, current = "", following[at] if at < len(following) else None
                    if self.clock() >= end:
                        child.kill()
                        return False
                elif "lost" in line:
                    lost = line["lost"]
            status = child.wait()
        if status == 0:
            return True
        why = lost or ("it hung" if status < 0 else f"its process ended with status {status}")
        if running:
            self._verdict(running, why, measured_on)
        elif current is not None:
            self.done.refused[current] = why
            self.notify(f"left out: {self.job.shapes[current]}: {why}")
        else:
            raise NoDevice(f"the process that measures failed: {why}")
        return True

    def _verdict(self, name: str, wrong: str, measured_on: MeasuredOn) -> None:
        self.records.checked(name, wrong, measured_on)
        self.done.checked += 1
        if wrong:
            self.notify(f"left out: {self.job.names[name]}: {wrong}")

    def _times(self, line: dict[str, Any], measured_on: MeasuredOn) -> None:
        shape = shape_of(dict(line["shape"]))
        for name, wrong in line["wrong"].items():
            self._verdict(name, f"at {self.job.shapes[shape]}: {wrong}", measured_on)
        if "refused" in line:
            self.done.refused[shape] = line["refused"]
            self.notify(f"left out: {self.job.shapes[shape]}: {line['refused']}")
            return
        times = {name: tuple(time) for name, time in line["us"].items()}
        if times:
            self.records.timed(shape, times, measured_on)
            self.done.timed += 1
            best = min(times, key=lambda name: times[name][0])
            self.notify(f"{self.job.shapes[shape]}: {times[best][0]:.2f} us, {self.job.names[best]}")


def device_here(command: Sequence[str] = CHILD) -> Device:
    """The device of this machine; NoDevice if there is none."""
    with process(command, hears) as (_, lines):
        try:
            line: dict[str, Any] = next(lines)
        except StopIteration:
            line = {"failed": "the process that measures does not start"}
    if "failed" in line:
        raise NoDevice(line["failed"])
    return Device(line["device"], line["driver"], line["arch"], line["multiprocessors"])


@contextlib.contextmanager
def process(
    command: Sequence[str], hears: Hears
) -> Generator[tuple[subprocess.Popen[str], Generator[dict[str, Any]]]]:  # fmt: skip
    """A process and its output lines. It is killed when `hears` returns False, and at the end."""
    path = os.pathsep.join([str(Path(tilec.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    child = subprocess.Popen(
        list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    heard, over = threading.Event(), threading.Event()

    def watch() -> None:
        while hears(heard) and not over.is_set():
            heard.clear()
        if not over.is_set():
            child.kill()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    assert child.stdout is not None
    try:
        yield child, _lines(child.stdout, heard)
    finally:
        over.set()
        heard.set()
        child.kill()
        with contextlib.suppress(OSError):  # the job may not be written completely
            child.stdin.close() if child.stdin else None
        child.stdout.close()
        child.wait()
        watcher.join()


def _lines(stream: IO[str], heard: threading.Event) -> Generator[dict[str, Any]]:
    for text in stream:
        heard.set()
        with contextlib.suppress(ValueError):
            line: Any = json.loads(text)
            if isinstance(line, dict):
                yield line  # pyright: ignore[reportUnknownVariableType]
