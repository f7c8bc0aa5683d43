"""The records of measurements: lines of JSON, appended at once, so that a run that ends early loses nothing.

    {"candidate": "CUBIN", "constants": {...}, "schedule": {...}, "source": "...", "toolchain": {...}}
    {"checked": "CUBIN", "wrong": "", "device": "NVIDIA H200", "driver": "580.159", "multiprocessors": 132, "date": "..."}
    {"shape": {"M": 512, "N": 2560, "K": 9728}, "us": {"CUBIN": [54.1, 53.9, 54.6]}, "device": ..., ...}

A candidate is identified by the sha256 of its machine code. A different kernel, schedule, compiler or toolchain that makes the
same code is the same candidate; different code is a new candidate. Times are microseconds per launch: median, 10th and 90th
percentile of the rounds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from tilec.untrusted.output import Output
from tilec.untrusted.strict_json import parse

MAX_RECORDS: Final = 64 << 20
MAX_LINE: Final = 1 << 18
Shape = tuple[tuple[str, int], ...]
"""Launch values by name, sorted by name."""
Time = tuple[float, float, float]


def shape_of(values: Mapping[str, int]) -> Shape:
    """A shape as a key."""
    return tuple(sorted(values.items()))


@dataclass(frozen=True, slots=True)
class MeasuredOn:
    """Where and when something was measured: name of the device and its multiprocessors, version of its driver, day."""

    device: str
    driver: str
    multiprocessors: int
    date: str


@dataclass(slots=True)
class Records:
    """The records of one device in the file `path`. `wrong` are errors of checked candidates (empty: none) and `times` those at
    each shape, both by digest of the machine code. `lost` counts malformed lines. `root` is that of `Output`. `last` describes
    the latest timing, `dates` are the days of all timings."""

    path: Path
    device: str
    last: MeasuredOn | None = None
    wrong: dict[str, str] = field(default_factory=dict[str, str])
    times: dict[Shape, dict[str, Time]] = field(default_factory=dict[Shape, dict[str, Time]])
    described: set[str] = field(default_factory=set[str])
    dates: set[str] = field(default_factory=set[str])
    lost: int = 0
    root: Path | None = None

    def describe(self, cubin: str, facts: Mapping[str, Any]) -> None:
        """Record the description of a candidate, once."""
        if cubin not in self.described:
            self.described.add(cubin)
            self._append({"candidate": cubin, **facts})

    def checked(self, cubin: str, wrong: str, measured_on: MeasuredOn) -> None:
        """Record the result of a check."""
        self.wrong[cubin] = wrong
        self._append({"checked": cubin, "wrong": wrong[:500], **asdict(measured_on)})

    def timed(self, shape: Shape, times: Mapping[str, Time], measured_on: MeasuredOn) -> None:
        """Record the times of candidates at a shape, rounded, so that a table made now equals one made from the file."""
        kept = {cubin: (rounded(median), rounded(low), rounded(high)) for cubin, (median, low, high) in times.items()}
        self.times.setdefault(shape, {}).update(kept)
        self.note(measured_on)
        self._append({"shape": dict(shape), "us": kept, **asdict(measured_on)})

    def note(self, measured_on: MeasuredOn) -> None:
        """Update `last` and `dates`."""
        self.last = measured_on
        self.dates.add(measured_on.date)

    def _append(self, line: Mapping[str, Any]) -> None:
        """Append a line to the file; CompileError E0702."""
        text = json.dumps(line, separators=(",", ":"), ensure_ascii=False)
        Output(self.path.parent, self.root).append_line(self.path.name, text.encode())


def rounded(time: float) -> float:
    """A time to the six digits that records and tables keep."""
    return float(f"{time:.6g}")


def read_records(path: Path, device: str = "", root: Path | None = None) -> Records:
    """The records of `device`, or of the device measured last if it is empty; empty records if there is no file. `root` is that
    of `Output`. OSError if the file cannot be read or is too large."""
    try:
        data = Output(path.parent, root).read(path.name, MAX_RECORDS)
    except FileNotFoundError:
        return Records(path, device, root=root)
    lines: list[dict[str, Any]] = []
    lost = 0
    for text in data.split(b"\n"):
        if text.strip():
            try:
                lines.append(_line(parse(text, limit=MAX_LINE)))
            except ValueError:
                lost += 1
    measured_on = [line["device"] for line in lines if "us" in line]
    found = Records(path, device or (measured_on[-1] if measured_on else ""), lost=lost, root=root)
    for line in lines:
        if "candidate" in line:
            found.described.add(line["candidate"])
        elif line["device"] == found.device and "checked" in line:
            found.wrong[line["checked"]] = line["wrong"]
        elif line["device"] == found.device:
            found.times.setdefault(shape_of(line["shape"]), {}).update(line["us"])
            found.note(MeasuredOn(found.device, line["driver"], line["multiprocessors"], line["date"]))
    return found


def _line(data: Any) -> dict[str, Any]:
    """Checks that a line is of one of the three kinds; ValueError if not."""
    line: dict[str, Any] = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    if type(line.get("candidate")) is str:
        return line
    if (
        any(type(line.get(name)) is not str for name in ("device", "driver", "date"))
        or type(line.get("multiprocessors")) is not int
    ):
        raise ValueError("the device, its driver or the day is missing")
    if type(line.get("checked")) is str and type(line.get("wrong")) is str:
        return line
    shape, times = line.get("shape"), line.get("us")
    if not isinstance(shape, dict) or not isinstance(times, dict):
        raise ValueError("no shape")
    if any(type(value) is not int for value in cast("dict[str, Any]", shape).values()):
        raise ValueError("no shape")
    return line | {"us": {name: _time(time) for name, time in cast("dict[str, Any]", times).items()}}


def _time(data: Any) -> Time:
    values: Sequence[Any] = cast("list[Any]", data) if isinstance(data, list) else ()
    if len(values) != 3 or not all(type(value) in (int, float) and 0 < value < 1e12 for value in values):
        raise ValueError("no time")
    return float(values[0]), float(values[1]), float(values[2])
