"""What `tilec emulate` says of a launch: the emulator's report and the comparison go in, text or plain data comes out.

Unordered writes of one value to the same bytes are faults that changed nothing in this launch; values that are equal here may
differ in the next. They are listed apart from other faults.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tilec.project.trial.comparison import Written, written_json

if TYPE_CHECKING:
    from tilec.artifact.records import Manifest
    from tilec.emulator import Fault, Report

SAME_VALUE: Final = "race-same-value"
"""The kind of these faults (`tilec.emulator.KINDS`)."""


class Sources:
    """Maps lines of a kernel's tile IR to source locations."""

    def __init__(self, root: Path, spans: bytes) -> None:
        self.root, self.spans = root, spans

    def location_of(self, tir_line: int) -> str:
        """`file:line:column` and the source line; empty if the line of the tile IR has no source location."""
        from tilec.ir.text.lines import source_of

        span = source_of(self.spans, tir_line)
        if span is None:
            return ""
        try:
            line = (self.root / span.file).read_text(encoding="utf-8").split("\n")[span.line - 1].strip()
        except (OSError, IndexError):
            return str(span)
        return f"{span}: {line}"


@dataclass(frozen=True, slots=True)
class Emulated:
    """One emulated launch. `results` are its differences from the interpreter, None if they were not compared; `problem` says
    why, unless that was asked for. `unordered` are tensors that are not among them, as they depend on the order of threads.
    `other_lines` says how the printed lines differ from the interpreter's."""

    manifest: Manifest
    values: Mapping[str, float]
    seed: int
    report: Report
    results: tuple[Written, ...] | None = None
    problem: str = ""
    unordered: tuple[str, ...] = ()
    other_lines: str = ""

    @property
    def findings(self) -> list[Fault]:
        """Faults other than writes of one value."""
        return [one for one in self.report.faults if one.kind != SAME_VALUE]

    @property
    def same_values(self) -> list[Fault]:
        """Unordered writes of the same bytes with the same value, which change no result of this launch."""
        return [one for one in self.report.faults if one.kind == SAME_VALUE]

    @property
    def differs(self) -> bool:
        """Whether a result, or a printed line, is further from the interpreter's than rounding allows."""
        wrong = any(one.error is not None and not one.error <= 1 for one in self.results or ())
        return wrong or bool(self.other_lines)

    @property
    def clean(self) -> bool:
        """Whether there is neither a fault nor a difference."""
        return self.report.clean and not self.differs and not self.problem


def as_json(launch: Emulated, spans: bytes) -> dict[str, Any]:
    """The launch as plain data."""
    from tilec.ir.text.lines import source_of

    report = launch.report

    def located(found: list[Fault]) -> list[dict[str, Any]]:
        sources = [source_of(spans, one.tir_line) for one in found]
        return [
            {**asdict(one), "same_value": one.kind == SAME_VALUE, "source": None if source is None else str(source)}
            for one, source in zip(found, sources, strict=True)
        ]

    statistics = {key: report.statistics[key] for key in ("steps", "instruction_lanes", "seconds", "coverage")}
    results = launch.results
    return {
        "kernel": launch.manifest.kernel,
        "arch": launch.manifest.arch,
        "constants": launch.manifest.constants,
        "values": dict(launch.values),
        "seed": launch.seed,
        "faults": located(report.faults),
        "notes": located(report.notes),
        "results": None if results is None else [written_json(one) for one in results],
        "differs": launch.differs,
        "problem": launch.problem,
        "order_dependent": list(launch.unordered),
        "statistics": statistics,
    } | ({"printed": report.printed, "printed_differs": launch.other_lines} if report.printed or launch.other_lines else {})


def lines(launch: Emulated, sources: Sources) -> Iterator[str]:
    """The launch as text: its faults, then writes of one value, then notes, then how its results compare."""
    manifest, report = launch.manifest, launch.report
    launch_values = ", ".join(f"{name}={value}" for name, value in launch.values.items())
    counts = report.statistics
    yield f"{manifest.kernel} on {manifest.arch}, {launch_values}, schedule {launch.seed}"
    yield (
        f"  {counts['instruction_lanes']} instructions of threads in {counts['seconds']:.2f} s, "
        f"{counts['coverage']:.0%} of the PTX executed"
    )
    for label, found in (("", launch.findings), ("same value, ", launch.same_values), ("note, ", report.notes)):
        for one in found:
            yield f"  {label}{one}, {one.count} times"
            location = sources.location_of(one.tir_line)
            if location:
                yield f"    {location}"
    yield from (f"  {line}" for line in report.printed)
    yield from _result_lines(launch)
    yield f"  {_verdict(launch)}"


def _result_lines(launch: Emulated) -> Iterator[str]:
    if launch.problem:
        yield f"  not compared: {launch.problem}"
    if launch.other_lines:
        yield f"  DIFFERS: it prints {launch.other_lines}"
    for name in launch.unordered:
        yield f"  not compared: `{name}`, which depends on the order of atomics"
    for one in launch.results or ():
        element = f"`{one.name}[{', '.join(map(str, one.worst))}]`"
        if one.error is None:
            yield f"  `{one.name}` has no elements"
        elif one.not_finite:
            count = f"{one.not_finite} of {math.prod(one.shape)} results"
            yield f"  DIFFERS: `{one.name}` is not finite in {count}, first at {element}, {_sides(one)}"
        elif not one.error <= 1:
            yield f"  DIFFERS: {element}, {_sides(one)}: {one.error:.3g} times what rounding allows"
        else:
            largest = f"the largest difference takes {one.error:.3g} of what rounding allows, at {element}"
            yield f"  `{one.name}` is as the interpreter has it; {largest}"


def _sides(one: Written) -> str:
    return f"which is {one.found:g}; the interpreter has {one.expected:g}"


def _verdict(launch: Emulated) -> str:
    if launch.findings:
        return "FAULTS"
    if launch.differs:
        return "OTHER RESULTS than the interpreter's"
    if launch.same_values:
        return "SAME VALUES written without an order, and no other fault"
    if launch.problem:
        return "NOT COMPARED"
    return "notes, but no fault" if launch.report.notes else "nothing found"
