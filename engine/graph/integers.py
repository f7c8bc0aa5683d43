"""Bounds of the integers in a step's buffers: an index that a kernel uses is in range, at the first step and at every replay.

A buffer may have bounds (`low`, `high`, `distinct`, `distinct_in_rows`). They are satisfied whenever a kernel reads it, by
induction:

- The host sets inputs, settings and tables within their bounds: `check_values` refuses others where they are written.
- Every kernel that writes a buffer with bounds promises (`ensures`, proven with the kernel) that what it writes is within them.
  A kernel that promises an increment, such as a position one larger than before, stays within them only for some inputs. The
  host tracks those: it knows what it set, and what each step adds. So a step records what it writes to its inputs
  (`WrittenValues`), and `InputValues` refuses to enqueue a step whose inputs could be out of bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import EngineError
from tilec.artifact.records import ValueCheck, ValuePromise
from tilec.step.graph import Buffer, Kind, Op, StepGraph, View

Interval = tuple[int, int]
"""Least and greatest integer, both inclusive."""

Promised = tuple[ValuePromise, int | None, int | None]
"""A promise and its bounds [low, high) for the shapes of an operation; None if the shapes do not determine them."""


class GraphError(EngineError):
    """A step that breaks a rule: an internal error, or a bundle of another engine version. No user input can cause it."""


@dataclass(frozen=True, slots=True)
class WrittenValues:
    """What a step writes to an input, elementwise: the sum of the inputs `above` before the step, plus an integer in
    [`low`, `high`)."""

    buffer: str
    above: tuple[str, ...]
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Replay:
    """What the host tracks of a replayed step: its inputs that have bounds, and what it writes to them."""

    name: str
    inputs: tuple[Buffer, ...] = ()
    written_values: tuple[WrittenValues, ...] = ()


def bounds_violation(op: Op, buffer: Buffer, check: ValueCheck, low: int | None, high: int | None) -> str | None:
    """Why a buffer's bounds do not satisfy a kernel's check of a tensor, which requires [`low`, `high`) for the shapes of the
    operation; None if they do."""
    if buffer.kind in (Kind.CACHE, Kind.POOL) or (buffer.kind in (Kind.ACTIVATION, Kind.OUTPUT) and buffer.low is None):
        return f"is computed, so nothing bounds it, and is `{check.tensor}` of `{op.kernel}`"
    if check.sorted or check.ends:
        return f"is not known to be sorted, as `{check.tensor}` of `{op.kernel}`"
    if buffer.low is None or buffer.high is None or (check.distinct and not buffer.distinct):
        return f"must have known bounds, as `{check.tensor}` of `{op.kernel}`"
    if check.distinct_in_rows and not (buffer.distinct or has_distinct_rows(buffer, op.tensors[check.tensor])):
        return (
            f"is not known to hold distinct integers in each row of {op.tensors[check.tensor].shape[-1]}, as "
            f"`{check.tensor}` of `{op.kernel}`"
        )
    if low is None or high is None:
        return f"is `{check.tensor}` from {check.low} to below {check.high}, which no shape of `{op.kernel}` gives"
    if buffer.low < low or buffer.high > high:
        return f"holds {buffer.low} to {buffer.high - 1}, and `{check.tensor}` of `{op.kernel}` takes {low} to {high - 1}"
    return None


def has_distinct_rows(buffer: Buffer, view: View) -> bool:
    """Whether no two integers of a row of a view are equal: one that kernels of the step write, and promise."""
    return buffer.distinct_in_rows and buffer.kind in (Kind.ACTIVATION, Kind.OUTPUT) and has_same_rows(buffer, view)


def has_same_rows(buffer: Buffer, view: View) -> bool:
    """Whether each row of a view is a row of its buffer."""
    return view.shape[-1] == buffer.shape[-1] and view.offset % buffer.shape[-1] == 0


def written_values(
    graph: StepGraph, op: Op, parameter: str, promises: Sequence[Promised], refuse: Callable[[str], GraphError]
) -> WrittenValues | None:  # fmt: skip
    """What an operation writes to the buffer of `parameter`; None if that has no bounds. `refuse` makes the error for a buffer
    that could end up out of bounds."""
    view = op.tensors[parameter]
    buffer = graph.buffers[view.buffer]
    if buffer.low is None and buffer.high is None:
        return None
    if buffer.low is None or buffer.high is None:
        raise refuse(f"has one bound, and `{op.kernel}` writes it")
    if not promises:
        raise refuse(
            f"holds {buffer.low} to {buffer.high - 1}, and `{op.kernel}` writes it as `{parameter}` and promises nothing: it "
            f"has no `ensures({parameter}, ...)`"
        )
    is_whole = _is_whole(graph, op, parameter)
    if buffer.distinct and prod(buffer.shape) > 1 and not (is_whole and any(promise.distinct for promise, _, _ in promises)):
        raise refuse(f"holds distinct integers, and `{op.kernel}` does not promise that `{parameter}` does")
    has_rows = has_same_rows(buffer, view) and any(promise.distinct or promise.distinct_in_rows for promise, _, _ in promises)
    if buffer.distinct_in_rows and buffer.shape[-1] > 1 and not has_rows:
        rows = f"holds distinct integers in each row of {buffer.shape[-1]}"
        raise refuse(f"{rows}, and `{op.kernel}` does not promise that `{parameter}` does")
    bounded = [candidate for candidate in promises if candidate[1] is not None and candidate[2] is not None]
    ranges = [_range(graph, op, promise, low, high) for promise, low, high in bounded if low is not None and high is not None]
    if any(candidate is not None and buffer.low <= candidate[0] and candidate[1] < buffer.high for candidate in ranges):
        return WrittenValues(buffer.name, (), buffer.low, buffer.high)
    relative = [candidate for candidate in bounded if candidate[0].above and is_whole and _of_inputs(graph, op, candidate[0])]
    if buffer.kind is not Kind.INPUT or not relative:
        allowed_ranges = [f"{candidate[0]} to {candidate[1]}" for candidate in ranges if candidate is not None]
        what = (
            f"leaves {allowed_ranges[0]}"
            if allowed_ranges
            else "promises what no shape gives, or what is above integers without bounds"
        )
        raise refuse(f"holds {buffer.low} to {buffer.high - 1}, and `{op.kernel}` writes it as `{parameter}` and {what}")
    promise, low, high = relative[0]
    assert low is not None
    assert high is not None
    return WrittenValues(buffer.name, tuple(op.tensors[name].buffer for name in promise.above), low, high)


def _range(graph: StepGraph, op: Op, promise: ValuePromise, low: int, high: int) -> Interval | None:
    """The least and the greatest integer that a promise allows; None if it is relative to a buffer without bounds."""
    least, greatest = low, high - 1
    for name in promise.above:
        base = graph.buffers[op.tensors[name].buffer]
        if base.low is None or base.high is None or base.kind is Kind.CACHE:
            return None
        least, greatest = least + base.low, greatest + base.high - 1
    return least, greatest


def _of_inputs(graph: StepGraph, op: Op, promise: ValuePromise) -> bool:
    """Whether a promise is relative to whole inputs with bounds, which the host tracks. It does not track inputs without
    bounds, because any kernel may write those."""
    bases = [graph.buffers[op.tensors[name].buffer] for name in promise.above]
    tracked = all(base.kind is Kind.INPUT and base.low is not None and base.high is not None for base in bases)
    return tracked and all(_is_whole(graph, op, name) for name in promise.above)


def _is_whole(graph: StepGraph, op: Op, parameter: str) -> bool:
    view = op.tensors[parameter]
    return not view.offset and view.shape == graph.buffers[view.buffer].shape


class InputValues:
    """What the host knows about the integers in the inputs of steps: what it set, and what later steps wrote."""

    def __init__(self) -> None:
        self._intervals: dict[str, list[Interval]] = {}

    def sent(self, values: Mapping[str, Any]) -> None:
        """Record that the host set inputs, each to one integer or to one per element."""
        for name, value in values.items():
            elements: Iterable[Any] = value if hasattr(value, "__len__") else (value,)
            self._intervals[name] = [(int(element), int(element)) for element in elements]

    def enqueue(self, step: Replay) -> None:
        """Record that a step is enqueued on the current inputs. GraphError if an input could be out of bounds."""
        intervals = self._intervals
        for buffer in step.inputs:
            current = intervals.get(buffer.name)
            if current is None:
                raise _refuse(step, buffer, "was never set")
            assert buffer.low is not None
            assert buffer.high is not None
            least, greatest = min(written[0] for written in current), max(written[1] for written in current)
            if least < buffer.low or greatest >= buffer.high:
                raise _refuse(
                    step, buffer, f"holds {_text(least, greatest)}, and the step takes {_text(buffer.low, buffer.high - 1)}"
                )
            if buffer.distinct and any(later[0] <= earlier[1] for earlier, later in pairwise(sorted(current))):
                raise _refuse(step, buffer, "may hold an integer twice, and the step takes distinct ones")
        after = {
            written.buffer: [
                (sum(each[0] for each in below) + written.low, sum(each[1] for each in below) + written.high - 1)
                for below in zip(*(intervals[name] for name in written.above), strict=True)
            ]
            if written.above
            else [(written.low, written.high - 1)] * len(intervals[written.buffer])
            for written in step.written_values
        }
        intervals.update(after)


def repeats(values: NDArray[np.integer[Any]]) -> bool:
    """Whether an integer is there twice. `np.unique` would import `numpy.ma` at its first call, some 10 ms of a server's first
    prompt."""
    ordered = np.sort(values)
    return bool((ordered[1:] == ordered[:-1]).any())


def check_values(buffer: Buffer, values: Any) -> None:
    """GraphError unless what the host is about to write to a buffer is within its bounds, which the proofs of a step assume."""
    if buffer.low is None and buffer.high is None:
        return
    given = np.ravel(values)
    if not given.size:
        return
    least, greatest = int(given.min()), int(given.max())
    if (buffer.low is not None and least < buffer.low) or (buffer.high is not None and greatest >= buffer.high):
        limits = " ".join(
            text
            for text, bound in ((f"from {buffer.low}", buffer.low), (f"below {buffer.high}", buffer.high))
            if bound is not None
        )
        raise GraphError(f"would hold {_text(least, greatest)}, and holds integers {limits}", where=f"buffer `{buffer.name}`")
    if buffer.distinct and given.size > 1 and not (np.diff(given) > 0).all() and repeats(given):
        raise GraphError("would hold an integer twice, and holds distinct ones", where=f"buffer `{buffer.name}`")


def _text(least: int, greatest: int) -> str:
    return f"{least}" if least == greatest else f"{least} to {greatest}"


def _refuse(step: Replay, buffer: Buffer, what: str) -> GraphError:
    return GraphError(f"input `{buffer.name}` {what}", where=f"step `{step.name}`")
