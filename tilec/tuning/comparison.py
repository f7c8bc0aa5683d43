"""Times a kernel, a copy and a baseline in a separate process.

In: paths of the artifacts, the reference and the baseline, and launches. Out: `Compared`, plain data. If the process
(`bench_child`) hangs or its device becomes unusable, only that process ends. NoDevice if there is no GPU.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tilec.project.trial.inputs import OwnInputs
from tilec.tuning.child import LOST
from tilec.tuning.measure import CHILD, Hears, NoDevice, hears, process
from tilec.tuning.records import Time
from tilec.tuning.roofline import PRODUCTS, Rates, Work

COMMAND: Final = (*CHILD[:-1], "tilec.tuning.bench_child")


@dataclass(frozen=True, slots=True)
class Order:
    """What to run. `artifact` and `copy` are paths of manifests; without a `copy` kernel the driver copies. `inputs` makes
    inputs of the author's own; scalars in `given` keep the value that a launch has."""

    artifact: Path
    copy: Path | None
    reference: tuple[Path, str] | None
    baseline: tuple[Path, str] | None
    launches: tuple[Mapping[str, float], ...]
    inputs: OwnInputs | None = None
    given: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The job of `bench_child`."""
        pairs = {name: [str(one[0]), one[1]] if one else None for name, one in
                 (("reference", self.reference), ("baseline", self.baseline))}  # fmt: skip
        return {
            "artifact": str(self.artifact), "copy": str(self.copy) if self.copy else None, **pairs,
            "launches": [dict(one) for one in self.launches],
            "inputs": [str(self.inputs.path), self.inputs.name, str(self.inputs.root)] if self.inputs else None,
            "given": list(self.given),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """A launch: microseconds of the kernel and of the baseline, each as median, 10th and 90th percentile. `wrong` describes a
    wrong result, `refused` says why the kernel was not launched."""

    launch: Mapping[str, float]
    kernel: Time | None
    baseline: Time | None
    wrong: str = ""
    refused: str = ""


@dataclass(slots=True)
class Compared:
    """The measurements. `copy` is in bytes per second, the sum of those read and written; `nominal` are rates computed from the
    chip's clocks; either is None if unknown. `wrong` is the error found by the reference check, or why the process ended."""

    device: str = ""
    driver: str = ""
    arch: str = ""
    copy: float | None = None
    nominal: Rates | None = None
    wrong: str = ""
    rows: list[Row] = field(default_factory=list[Row])
    notes: list[str] = field(default_factory=list[str])

    def floor(self, work: Work) -> float | None:
        """Roofline bound of a launch in microseconds, from the measured copy rate and the chip's nominal MMA rate; None if
        either is unknown."""
        if self.copy is None or self.nominal is None:
            return None
        return work.floor(self.copy, self.nominal.products_per_second)


def greeting(command: Sequence[str] = COMMAND) -> dict[str, Any]:
    """The greeting of the process, which describes this machine's device; NoDevice if there is none."""
    with process(command, hears) as (_, lines):
        return _greeted(next(lines, None))


def _greeted(line: dict[str, Any] | None) -> dict[str, Any]:
    if line is None or "failed" in line:
        raise NoDevice(line["failed"] if line else "the process that measures does not start")
    return line


def compare(order: Order, command: Sequence[str] = COMMAND, hears: Hears = hears) -> Compared:
    """Run the process. If it ends early, `wrong` says why, and the results before that are kept. CompileError E0815 if the
    author's inputs do not satisfy the contract."""
    with process(command, hears) as (child, lines):
        found = _described(_greeted(next(lines, None)))
        assert child.stdin is not None
        child.stdin.write(json.dumps(order.to_json()) + "\n")
        child.stdin.flush()
        lost_reason = ""
        for line in lines:
            lost_reason = line.get("lost", lost_reason)
            if "inputs" in line and order.inputs is not None:
                raise order.inputs.refused(*line["inputs"])
            _heard(found, line)
        status = child.wait()
    if status:
        reason = "the kernel hangs" if status < 0 else f"the process that measures ended with status {status}"
        found.wrong = lost_reason if status == LOST and lost_reason else reason
    return found


def _described(line: Mapping[str, Any]) -> Compared:
    found = Compared(line["device"], line["driver"], line["arch"])
    clock, width, chip = (int(line.get(name, 0)) for name in ("memory_khz", "bus_bits", "clock_khz"))
    if clock and width and chip and found.arch in PRODUCTS:
        products = PRODUCTS[found.arch] * line["multiprocessors"] * chip * 1e3
        source = "the chip's clocks, bus and multiprocessors"
        found.nominal = Rates(found.device, found.arch, 2 * clock * 1e3 * width / 8, products, source)  # 2 transfers per clock
    return found


def _heard(found: Compared, line: Mapping[str, Any]) -> None:
    if "checked" in line:
        found.wrong = line["wrong"]
    elif "copy" in line:
        found.copy = line["bytes"] / line["copy"][0] * 1e6
    elif "note" in line and line["note"] not in found.notes:
        found.notes.append(line["note"])
    elif "launch" in line:
        times = {name: (float(one[0]), float(one[1]), float(one[2])) for name, one in line["us"].items()}
        found.rows.append(
            Row(line["launch"], times.get("kernel"), times.get("baseline"), line["wrong"], line.get("refused", ""))
        )
