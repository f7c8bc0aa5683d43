"""Launches kept cases on this machine's GPU, in processes of their own (`device_child`).

In: pairs of an artifact and a case, as paths. Out: a `DeviceTrial` for each, whatever a kernel did: one that faults or hangs
ends its process, and the next process continues with the case after it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tilec.project.trial.device_launch import FAILED, DeviceTrial
from tilec.tuning.measure import CHILD, Hears, NoDevice, process

COMMAND: Final = (*CHILD[:-1], "tilec.project.trial.device_child")
SILENCE: Final = 20.0
"""Seconds without a line after which a launch counts as hung; loading, a launch and its comparison take less than one."""
Greeting = dict[str, Any]


def hears(heard: threading.Event) -> bool:
    """Wait until the process writes a line; False after `SILENCE` seconds without one."""
    return heard.wait(SILENCE)


def greeting(command: Sequence[str] = COMMAND, hears: Hears = hears) -> Greeting:
    """What the process says of this machine's device (`device`, `driver`, `arch`); NoDevice if there is none."""
    with process(command, hears) as (_, lines):
        return _greeted(next(lines, None))


def _greeted(line: Greeting | None) -> Greeting:
    if line is None or "failed" in line:
        raise NoDevice(line["failed"] if line else "the process that launches does not start")
    return line


def on_device(
    pairs: Sequence[tuple[Path, Path]], command: Sequence[str] = COMMAND, hears: Hears = hears
) -> list[DeviceTrial]:  # fmt: skip
    """The trial of each pair, in order. NoDevice if the device cannot be used."""
    found: list[DeviceTrial] = []
    while len(found) < len(pairs):
        before = len(found)
        reason = _process(pairs[before:], found, command, hears)
        if reason:
            found.append(DeviceTrial(FAILED, reason))
        elif len(found) == before:
            raise NoDevice("the process that launches ended before its first launch")
    return found


def _process(pairs: Sequence[tuple[Path, Path]], found: list[DeviceTrial], command: Sequence[str], hears: Hears) -> str:
    """Run one process until it ends; the reason why a launch ended it, empty if none did."""
    lost, launching = "", False
    with process(command, hears) as (child, lines):
        _greeted(next(lines, None))
        assert child.stdin is not None
        child.stdin.write(json.dumps({"cases": [[str(artifact), str(case)] for artifact, case in pairs]}) + "\n")
        child.stdin.flush()
        for line in lines:
            if "done" in line:
                found.append(DeviceTrial.from_json(line["trial"]))
                launching = False
            launching = launching or "at" in line
            lost = line.get("lost", lost)
        status = child.wait()
    if not status or not launching:
        return ""
    return lost or ("the launch hangs" if status < 0 else f"the process that launches ended with status {status}")
