"""Writes results stamped with what they rest on, and checks whether a result is still fresh.

The digests are computed before the work and again after it. A result whose sources were edited meanwhile belongs to neither
version and is not written.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ci.evidence.digests import SOURCES, Digests, UnknownDigest
from ci.evidence.registry import FOLDER, RESULTS, ROOT, Entry, read_registry

STAMP: Final = ("rests_on", "renamed_since", "measured_on", "device", "command", "exit_status")


def gpu_name() -> str:
    """The name of this machine's GPU; empty if there is none."""
    try:
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[0]
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found.strip()


class Changed(Exception):
    """What a result rests on changed while it was made."""


class Result:
    """A result in progress. `name` is that of the registry; `device` is what it was measured on, by default the processors."""

    def __init__(self, name: str, device: str = "", *, root: Path = ROOT, entry: Entry | None = None) -> None:
        self.entry = entry or read_registry()[name]
        self.root, self.device = root, device
        self.rests_on = Digests(root).all_of(self.entry.rests_on)

    def stamped(self, data: Any, *, exit_status: int) -> dict[str, Any]:
        """The data with its stamp; a list becomes `rows`. Raises Changed if the sources changed since the start."""
        now = Digests(self.root).all_of(self.entry.rests_on)
        moved = [name for name in now if name != SOURCES and now[name] != self.rests_on[name]]
        if moved:
            raise Changed(f"{', '.join(moved)} changed while `{self.entry.name}` was made: make it again")
        fields: dict[str, Any] = {"rows": data} if isinstance(data, list) else {k: v for k, v in data.items() if k not in STAMP}
        device = self.device or str(fields.get("gpu") or f"{os.cpu_count()} processors")
        stamp: dict[str, Any] = {
            "rests_on": self.rests_on, "measured_on": datetime.datetime.now(datetime.UTC).date().isoformat(), "device": device,
            "command": self.entry.command,
        }  # fmt: skip
        return stamp | ({"exit_status": exit_status} if exit_status else {}) | fields

    def write(self, data: Any, folder: Path = RESULTS, *, exit_status: int) -> Path:
        """Write `NAME.json` to `folder`; returns the path. A nonzero `exit_status` of the command makes the result `failed`."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.entry.name}.json"
        path.write_text(json.dumps(self.stamped(data, exit_status=exit_status), indent=1) + "\n", encoding="utf-8")
        return path


@dataclass(frozen=True, slots=True)
class Status:
    """Whether a result is valid today: `state` is fresh, stale, or failed (its last run was unsuccessful); `reasons` list what
    changed; `age` is the day it was measured, if recorded."""

    entry: Entry
    state: str
    reasons: tuple[str, ...] = ()
    age: str = ""


def status(entry: Entry, data: Any, digests: Digests) -> Status:
    """The status of a result with this JSON."""
    fields: dict[str, Any] = data if isinstance(data, dict) else {}  # pyright: ignore[reportUnknownVariableType]
    recorded: dict[str, str] = fields.get("rests_on", {})
    age = str(fields.get("measured_on", ""))
    if not recorded:
        return Status(entry, "stale", ("it does not say what it rests on",), age)
    reasons: list[str] = []
    for name in _to_compare(entry, recorded, digests):
        try:
            if name not in recorded:
                reasons.append(f"{name} is not recorded")
            elif recorded[name] != digests.of(name):
                reasons.append(f"{name} changed")
        except UnknownDigest as error:
            reasons.append(str(error))
    if reasons:
        return Status(entry, "stale", tuple(dict.fromkeys(reasons)), age)
    tried = {name: len(value) if isinstance(value, list) else value for name, value in fields.items()}  # pyright: ignore
    small = [
        f"`{name}` is {tried.get(name, 0)} of {least}" for name, least in entry.at_least.items() if tried.get(name, 0) < least
    ]
    if small:
        return Status(entry, "stale", tuple(small), age)
    if fields.get("exit_status"):
        return Status(entry, "failed", (f"its command ended with status {fields['exit_status']}",), age)
    return Status(entry, "fresh", age=age)


def _to_compare(entry: Entry, recorded: Mapping[str, str], digests: Digests) -> list[str]:
    """The names to compare: without single sources if the digest of all sources together is unchanged."""
    try:
        is_same = recorded.get(SOURCES) == digests.all_of(name for name in entry.rests_on if is_source(name)).get(SOURCES)
    except UnknownDigest:
        is_same = False
    return [name for name in entry.rests_on if not (is_same and is_source(name))]


def is_source(name: str) -> bool:
    """Whether a name is that of a source digest."""
    return name.startswith("source:")


def states_of(root: Path, entries: Mapping[str, Entry]) -> dict[str, Status]:
    """The status of every result of a repository."""
    digests, found = Digests(root), dict[str, Status]()
    for name, entry in entries.items():
        path = root / FOLDER / f"{name}.json"
        found[name] = status(entry, json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}, digests)
    return found
