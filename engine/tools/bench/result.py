"""Results of a measurement, and their JSON, from which the table and the plot are made.

Every sample is kept. Rates and shares are derived from the samples only here. The JSON repeats them for readers without this
module, and `Report.from_json` derives them again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np

FORMAT: Final = "engine.bench 1"

MIN_NUMBER: Final = 1e-9
MAX_NUMBER: Final = 1e18
"""Bounds of every number that is read back, in seconds, bytes or bytes per second: far beyond any machine."""

MAX_TOKENS: Final = 1 << 24
TEXT_LIMIT: Final = 500
"""Maximum characters of a line of text that is read back."""


@dataclass(frozen=True, slots=True)
class Statistic:
    """Samples in the order of measurement. Quartiles are linearly interpolated, as in NumPy's percentiles."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return self._percentile(50)

    @property
    def q1(self) -> float:
        return self._percentile(25)

    @property
    def q3(self) -> float:
        return self._percentile(75)

    def _percentile(self, percent: float) -> float:
        return float(np.percentile(self.samples, percent))

    def map(self, change: Callable[[float], float]) -> Statistic:
        """A function applied to each sample."""
        return Statistic(tuple(change(sample) for sample in self.samples))

    def to_json(self) -> dict[str, Any]:
        """Median, quartiles, number and all samples."""
        spread = {"median": self.median, "q1": self.q1, "q3": self.q3}
        return {**spread, "n": len(self.samples), "samples": list(self.samples)}


@dataclass(frozen=True, slots=True)
class CellResult:
    """Seconds of each repetition of a cell, by the host's clock.

    `seconds` is the time from the call until the last token is on the host, `prefill_seconds` until the first one is;
    `step_bytes` is what a decode step must move, the mean over the cell's steps; `repeatable` is whether all repetitions gave
    the same tokens. `batch` sequences are generated at once; rates are totals over all of them.
    """

    pp: int
    tg: int
    step_bytes: float
    seconds: Statistic
    prefill_seconds: Statistic
    repeatable: bool
    batch: int = 1

    @property
    def decode_seconds(self) -> Statistic:
        """From the first token on the host to the last."""
        pairs = zip(self.seconds.samples, self.prefill_seconds.samples, strict=True)
        return Statistic(tuple(total - prefill for total, prefill in pairs))

    @property
    def rate(self) -> Statistic:
        """Tokens per second, prefill included."""
        return self.seconds.map(lambda seconds: self.batch * self.tg / seconds)

    @property
    def decode_rate(self) -> Statistic:
        """Tokens per second after the first token."""
        return self.decode_seconds.map(lambda seconds: self.batch * (self.tg - 1) / seconds)

    def roofline(self, bytes_per_second: float) -> float:
        """Tokens per second at which the decode steps' bytes use the whole bandwidth."""
        return self.batch * bytes_per_second / self.step_bytes


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Read bandwidth in bytes per second, measured in the same run on the same GPU; `what` describes how, for readers."""

    what: str
    bytes_per_second: Statistic


@dataclass(frozen=True, slots=True)
class Report:
    """A measurement: free-form facts about machine, model and policy; bandwidths in bytes per second; the cells."""

    date: str
    machine: Mapping[str, Any]
    model: Mapping[str, Any]
    policy: Mapping[str, Any]
    nominal: float
    cells: tuple[CellResult, ...]
    bandwidth: Bandwidth | None = None

    def shares(self, cell: CellResult) -> dict[str, float]:
        """Percent of the rooflines that a cell's medians reach."""
        nominal = cell.roofline(self.nominal)
        found = {
            "end_to_end_of_nominal": 100 * cell.rate.median / nominal,
            "decode_of_nominal": 100 * cell.decode_rate.median / nominal,
        }
        if self.bandwidth is not None:
            measured = cell.roofline(self.bandwidth.bytes_per_second.median)
            found["end_to_end_of_measured"] = 100 * cell.rate.median / measured
            found["decode_of_measured"] = 100 * cell.decode_rate.median / measured
        return found

    def to_json(self) -> dict[str, Any]:
        """The whole report; numbers in seconds, bytes, tokens per second and percent."""
        measured: dict[str, Any] | None = None
        if self.bandwidth is not None:
            measured = {"what": self.bandwidth.what, "bytes_per_second": self.bandwidth.bytes_per_second.to_json()}
        return {
            "format": FORMAT, "date": self.date, "machine": dict(self.machine), "model": dict(self.model),
            "policy": dict(self.policy), "nominal_bytes_per_second": self.nominal, "measured_bandwidth": measured,
            "cells": [self._cell_json(cell) for cell in self.cells],
        }  # fmt: skip

    def _cell_json(self, cell: CellResult) -> dict[str, Any]:
        rooflines = {"nominal_roofline_tokens_per_second": cell.roofline(self.nominal)}
        if self.bandwidth is not None:
            rooflines["measured_roofline_tokens_per_second"] = cell.roofline(self.bandwidth.bytes_per_second.median)
        return {
            "pp": cell.pp, "tg": cell.tg, "batch": cell.batch, "bytes_per_decode_step": cell.step_bytes,
            "repeatable": cell.repeatable,
            "end_to_end_tokens_per_second": cell.rate.to_json(), "decode_tokens_per_second": cell.decode_rate.to_json(),
            "end_to_end_seconds": cell.seconds.to_json(), "prefill_seconds": cell.prefill_seconds.to_json(),
            "decode_seconds": cell.decode_seconds.to_json(), **rooflines, "percent": self.shares(cell),
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Report:
        """Inverse of `to_json` for untrusted input: ValueError names the first invalid field."""
        if data.get("format") != FORMAT:
            raise ValueError(f"`format` is not {FORMAT!r}")
        date = _text(data, "date")
        measured = data.get("measured_bandwidth")
        bandwidth: Bandwidth | None = None
        if measured is not None:
            record = _object(measured, "measured_bandwidth")
            bandwidth = Bandwidth(_text(record, "what"), _statistic(record, "bytes_per_second"))
        found = data.get("cells")
        if not isinstance(found, list) or not found:
            raise ValueError("`cells` is not a list, or empty")
        cells = [_cell(_object(entry, f"cells[{number}]")) for number, entry in enumerate(cast("list[object]", found))]
        machine, model, policy = (_object(data.get(name), name) for name in ("machine", "model", "policy"))
        for record, name in ((machine, "gpu"), (model, "name"), (model, "dtype"), (policy, "what")):
            _text(record, name)
        return cls(date, machine, model, policy, _positive(data, "nominal_bytes_per_second"), tuple(cells), bandwidth)


def _object(value: object, name: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"`{name}` is not an object")
    return cast("dict[str, object]", value)


def _text(record: Mapping[str, object], name: str) -> str:
    value = record.get(name)
    if not isinstance(value, str) or len(value) > TEXT_LIMIT or not value.isprintable():
        raise ValueError(f"`{name}` is not a line of text")
    return value


def _positive(record: Mapping[str, object], name: str) -> float:
    value = record.get(name)
    if type(value) not in (int, float) or not MIN_NUMBER <= cast("float", value) <= MAX_NUMBER:
        raise ValueError(f"`{name}` is not a number from {MIN_NUMBER:g} to {MAX_NUMBER:g}")
    return float(cast("float", value))


def _statistic(record: Mapping[str, object], name: str) -> Statistic:
    samples = _object(record.get(name), name).get("samples")
    if not isinstance(samples, list) or not samples:
        raise ValueError(f"`{name}.samples` is not a list, or empty")
    numbers = cast("list[object]", samples)
    return Statistic(tuple(_positive({f"{name}.samples": number}, f"{name}.samples") for number in numbers))


def _cell(record: Mapping[str, object]) -> CellResult:
    pp, tg = record.get("pp"), record.get("tg")
    if type(pp) is not int or type(tg) is not int or not (1 <= pp <= MAX_TOKENS and 2 <= tg <= MAX_TOKENS):
        raise ValueError("`pp` and `tg` are not numbers of tokens")
    seconds, prefill = _statistic(record, "end_to_end_seconds"), _statistic(record, "prefill_seconds")
    if len(seconds.samples) != len(prefill.samples):
        raise ValueError("`prefill_seconds.samples` are not as many as `end_to_end_seconds.samples`")
    if not all(p < s for s, p in zip(seconds.samples, prefill.samples, strict=True)):
        raise ValueError("`prefill_seconds.samples` are not below `end_to_end_seconds.samples`")
    batch = record.get("batch", 1)
    if type(batch) is not int or not 1 <= batch <= MAX_TOKENS:
        raise ValueError("`batch` is not a number of sequences")
    size = _positive(record, "bytes_per_decode_step")
    return CellResult(pp, tg, size, seconds, prefill, record.get("repeatable") is True, batch)
