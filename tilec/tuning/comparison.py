"""A kernel timed beside a copy and a baseline by a process of its own, and what the times are worth.

In: where the artifacts lie, the reference and the baseline, launches, and the work of each. Out: `Compared`, plain data. The
process (`bench_child`) may hang or lose its device, and then it alone ends. NoDevice where there is no GPU.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tilec.tuning.child import LOST
from tilec.tuning.measure import CHILD, Hears, NoDevice, hears, process
from tilec.tuning.records import Time
from tilec.tuning.roofline import PRODUCTS, Rates, Work

COMMAND: Final = (*CHILD[:-1], "tilec.tuning.bench_child")


@dataclass(frozen=True, slots=True)
class Order:
    """What to run; paths of manifests. `copy` is None where it is not built: then the driver copies."""

    artifact: Path
    copy: Path | None
    reference: tuple[Path, str] | None
    baseline: tuple[Path, str] | None
    launches: tuple[Mapping[str, float], ...]

    def to_json(self) -> dict[str, Any]:
        """One line of work."""
        pairs = {name: [str(one[0]), one[1]] if one else None for name, one in
                 (("reference", self.reference), ("baseline", self.baseline))}  # fmt: skip
        return {
            "artifact": str(self.artifact), "copy": str(self.copy) if self.copy else None, **pairs,
            "launches": [dict(one) for one in self.launches],
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """A launch: microseconds of the kernel and of the baseline, each median, 10th and 90th percentile; what is wrong with a
    result, or why it was not launched."""

    launch: Mapping[str, float]
    kernel: Time | None
    baseline: Time | None
    wrong: str = ""
    refused: str = ""


@dataclass(slots=True)
class Compared:
    """What was measured. `copy` is in bytes per second, read and written ones together, and `nominal` what the chip's data say;
    None where it is not known. `wrong` is what the check beside the reference found, or why the process ended."""

    device: str = ""
    driver: str = ""
    arch: str = ""
    copy: float | None = None
    nominal: Rates | None = None
    wrong: str = ""
    rows: list[Row] = field(default_factory=list[Row])
    notes: list[str] = field(default_factory=list[str])

    def floor(self, work: Work) -> float | None:
        """Microseconds of a launch by the measured rate of copies, and the chip's data for products; None without a copy."""
        if self.copy is None or self.nominal is None:
            return None
        return work.floor(self.copy, self.nominal.products_per_second)


def greeting(command: Sequence[str] = COMMAND) -> dict[str, Any]:
    """What the process says of the device of this machine; NoDevice."""
    with process(command, hears) as (_, lines):
        return _greeted(next(lines, None))


def _greeted(line: dict[str, Any] | None) -> dict[str, Any]:
    if line is None or "failed" in line:
        raise NoDevice(line["failed"] if line else "the process that measures does not start")
    return line


def compare(order: Order, command: Sequence[str] = COMMAND, hears: Hears = hears) -> Compared:
    """Have the process do it; a process that ends early is told in `wrong`, with what came before it."""
    with process(command, hears) as (child, lines):
        found = _described(_greeted(next(lines, None)))
        assert child.stdin is not None
        child.stdin.write(json.dumps(order.to_json()) + "\n")
        child.stdin.flush()
        lost = ""
        for line in lines:
            lost = line.get("lost", lost)
            _heard(found, line)
        status = child.wait()
    if status:
        why = "the kernel hangs" if status < 0 else f"the process that measures ended with status {status}"
        found.wrong = lost if status == LOST and lost else why
    return found


def _described(line: Mapping[str, Any]) -> Compared:
    found = Compared(line["device"], line["driver"], line["arch"])
    clock, width, chip = (int(line.get(name, 0)) for name in ("memory_khz", "bus_bits", "clock_khz"))
    if clock and width and chip and found.arch in PRODUCTS:
        products = PRODUCTS[found.arch] * line["multiprocessors"] * chip * 1e3
        source = "the chip's clocks, bus and multiprocessors"
        found.nominal = Rates(found.device, found.arch, 2 * clock * 1e3 * width / 8, products, source)  # two transfers a clock
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
