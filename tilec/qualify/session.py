"""A qualification: starts the processes that launch, and collects what they find about each artifact.

In: an open bundle and its side file. Out: a record for each artifact, whatever a kernel did: one that faults or hangs ends its
process, is named, and the next process continues with the artifact after it. No artifact is started after the time limit.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tilec.artifact.records import Manifest
from tilec.qualify.child import done
from tilec.qualify.side_file import SideFile
from tilec.qualify.trial import FAILED, UNTRIED, Trial
from tilec.runtime import Bundle
from tilec.target.chips import running_on
from tilec.tuning.measure import Clock, Hears, NoDevice, process

CHILD: Final = (sys.executable, "-P", "-m", "tilec.qualify.child")
SILENCE: Final = 20.0
"""Seconds without a line after which a launch counts as hung; one with its repetitions takes less than one."""
GREETING: Final = "the process that launches does not start"
Record = dict[str, Any]


def hears(heard: threading.Event) -> bool:
    """Wait until the process writes a line; False after `SILENCE` seconds without one."""
    return heard.wait(SILENCE)


@dataclass(slots=True)
class Session:
    """One run. `side_path` is the file that `side` was read from. `records` are by artifact; `rates` are those of the
    device, in bytes and operations per second; `tuned` are the times of `--tune`."""

    bundle: Bundle
    side: SideFile
    side_path: str
    names: Sequence[str]
    repeats: int
    time_limit: float
    times: bool = True
    tune: Sequence[Record] = ()
    notify: Callable[[str], None] = lambda _: None
    command: Sequence[str] = CHILD
    hears: Hears = hears
    clock: Clock = time.monotonic
    device: Record = field(default_factory=dict[str, Any])
    rates: Record = field(default_factory=dict[str, Any])
    records: dict[str, Record] = field(default_factory=dict[str, Record])
    tuned: list[Record] = field(default_factory=list[Record])
    problems: list[str] = field(default_factory=list[str])

    def run(self) -> None:
        """Go through all artifacts. NoDevice if there is no GPU, or one of another architecture."""
        deadline = self.clock() + self.time_limit
        waiting = [name for name in self.names if self._triable(name)]
        tune = list(self.tune)
        while waiting or tune:
            if self.clock() >= deadline:
                break
            before = len(self.records), len(tune)
            self._process(waiting, tune, deadline)
            waiting = [name for name in waiting if name not in self.records]
            tune = [one for one in tune if all(one != row["tuned"] for row in self.tuned)]
            if (len(self.records), len(tune)) == before:
                break
        for name in waiting:
            reason = self.problems[-1] if self.problems and self.clock() < deadline else "the time limit was reached"
            self.records[name] = done(name, [Trial("all", UNTRIED, reason)])

    def _triable(self, name: str) -> bool:
        """Whether the side file has launches for an artifact; if not, its record says why."""
        manifest: Manifest = self.bundle.kernel(name).manifest
        entry = self.side.entries.get(name)
        reason = ""
        if entry is None:
            reason = "the side file has no launches of it"
        elif entry.tir != manifest.digests.get("tir", ""):
            reason = "the side file was prepared for other tile IR"
        elif not entry.launches:
            reason = "; ".join(entry.left_out) or "the side file has no launches of it"
        if reason:
            self.records[name] = done(name, [Trial("all", UNTRIED, reason)])
        return not reason

    def _process(self, waiting: list[str], tune: list[Record], deadline: float) -> None:
        """Run one process until it ends or time is up; a failure is the artifact's that it was at."""
        job = {
            "bundle": str(self.bundle.path), "digest": self.bundle.digest, "side": self.side_path,
            "side_digest": self.side.digest, "artifacts": waiting, "repeats": self.repeats, "times": self.times, "tune": tune,
        }  # fmt: skip
        at, launch, lost, stopped = "", "", "", False
        with process(self.command, self.hears) as (child, lines):
            self._greeted(next(lines, None))
            assert child.stdin is not None
            child.stdin.write(json.dumps(job) + "\n")
            child.stdin.flush()
            for line in lines:
                if "at" in line:
                    at, launch = line["at"], line["launch"]
                    if self.clock() >= deadline:
                        stopped = True
                        child.kill()
                        break
                elif "done" in line:
                    self._keep(line)
                    at = ""
                else:
                    lost = self._heard(line, lost)
            status = 0 if stopped else child.wait()
        if not status:
            return
        reason = lost or ("it hung" if status < 0 else f"its process ended with status {status}")
        if at:
            self._keep(done(at, [Trial(launch, FAILED, reason)]))
        else:
            self.problems.append(f"{launch or 'the process that launches'}: {reason}")

    def _greeted(self, line: Record | None) -> None:
        if line is None or "failed" in line:
            raise NoDevice(line["failed"] if line else GREETING)
        if self.bundle.arch not in running_on(line["arch"]):
            raise NoDevice(f"the bundle is for `{self.bundle.arch}`, and this machine has {line['device']} (`{line['arch']}`)")
        self.device = line

    def _heard(self, line: Record, lost: str) -> str:
        """Keep rates and tuning; the reason why the process ends, if that is what the line says."""
        if "rates" in line:
            self.rates = self.rates or line["rates"]
        elif "tuned" in line:
            self.tuned.append(line)
        elif "failed" in line:
            raise NoDevice(line["failed"])
        return line.get("lost", lost)

    def _keep(self, line: Record) -> None:
        self.records[line["done"]] = line
        self.notify(f"{len(self.records)}/{len(self.names)}  {line['verdict']}  {line['done']}")
