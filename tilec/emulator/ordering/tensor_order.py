"""The order of tcgen05 operations on tensor memory: every use of cells that a later conflicting use must be ordered after.

Source: PTX ISA, "Memory consistency model" of tcgen05. mma, cp, shift, ld and st are asynchronous. An operation is complete
once a thread has observed it (the mbarrier of a commit, or `tcgen05.wait` of the issuing warp), and it happens before the uses
of threads that know what the observing thread did (`clocks`). Without completion only the pipelined pairs are ordered: in one
thread, or in two of which the second knows what the first did when it issued. In: operations and the rectangles that they read
and write. Out: a fault for each conflict without an order: `async` if the earlier operation is not complete, `race` if the
thread does not know of its completion; or a note (`NOTES`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.machine.faults import Recorder
from tilec.emulator.machine.wave import Wave
from tilec.emulator.matrices.tensor_layouts import LANES, Rect
from tilec.emulator.ordering.clocks import Clocks
from tilec.emulator.ordering.tensor_fences import TensorFences
from tilec.emulator.ptx.syntax import Instruction

Index = NDArray[np.int64]
PIPELINED: Final = {("cp", "mma"), ("shift", "mma"), ("mma", "shift"), ("shift", "cp.4x256b")}
"""Pairs that execute in the order of issue whatever their operands; two mma do so for one accumulator, shape and kind."""
RELIED_ON: Final = {("mma", "cp"), ("cp", "cp"), ("mma", "mma")}
"""Pairs of one thread in which the later overwrites what an mma reads or a cp wrote for it, and which programs expect to be
ordered: CUTLASS and DeepGEMM overwrite scale factors after the mma that reads them, FlashAttention overwrites A in tensor
memory."""


@dataclass(eq=False, slots=True)
class Operation:
    """An operation by `lanes` (of the wave) at `time`. `pipe`: what two mma must share to be pipelined. Complete since a lane
    in `seen_by` observed it, each at its time in `seen_at`."""

    name: str
    lanes: Index
    time: int
    instruction: Instruction
    pipe: tuple[object, ...] | None = None
    done: bool = False
    seen_by: Index = field(default_factory=lambda: np.zeros(0, np.int64))
    seen_at: Index = field(default_factory=lambda: np.zeros(0, np.int64))

    def observe(self, lanes: Index, time: int) -> None:
        """These lanes observe the completion now."""
        self.done, self.seen_by, self.seen_at = True, lanes, np.full(len(lanes), time)


@dataclass(slots=True)
class _Use:
    operation: Operation
    rects: tuple[Rect, ...]
    is_write: bool


class TensorOrder:
    """The uses of a wave, by block. Rows of rectangles count through the blocks of the wave, 128 for each."""

    def __init__(self, wave: Wave, clocks: Clocks, fences: TensorFences, faults: Recorder) -> None:
        self.wave, self.clocks, self.fences, self.faults = wave, clocks, fences, faults
        self._uses: dict[int, list[_Use]] = {}

    def clear(self) -> None:
        """A new wave starts."""
        self._uses.clear()

    def forget(self, block: int) -> None:
        """A block has exited."""
        self._uses.pop(block, None)

    def use(self, operation: Operation, reads: Iterable[Rect], writes: Iterable[Rect]) -> None:
        """Checks and records the cells that an operation reads and writes."""
        reads, writes = _by_block(reads), _by_block(writes)
        for block in sorted({rect[0] // LANES for rect in (*reads, *writes)}):
            here = self._uses.setdefault(block, [])
            mine, own = _in_block(reads, block), _in_block(writes, block)
            for use in here:
                if _overlap(own, use.rects) or (use.is_write and _overlap(mine, use.rects)):
                    self._check(operation, use, bool(own) and _overlap(own, use.rects))
            kept: list[_Use] = []
            for use in here:
                use.rects = _minus(use.rects, own)
                repeated = not use.is_write and use.rects == mine and np.array_equal(use.operation.lanes, operation.lanes)
                if use.rects and not repeated:
                    kept.append(use)
            if operation.name != "dealloc":  # whoever gets these columns comes after
                kept += [_Use(operation, rects, is_write) for rects, is_write in ((mine, False), (own, True)) if rects]
            self._uses[block] = kept

    def _check(self, new: Operation, use: _Use, writes: bool) -> None:
        old = use.operation
        same_thread = np.array_equal(old.lanes, new.lanes)
        pipelined = (old.name, new.name) in PIPELINED or (old.pipe is not None and old.pipe == new.pipe)
        if pipelined and (same_thread or self._knows(new, old.lanes, np.full(len(old.lanes), old.time))):
            if not same_thread:
                self.fences.check(new.lanes, old.lanes, np.full(len(old.lanes), old.time), new.instruction)
            return
        if not old.done:
            if same_thread and writes and (old.name, new.name) in RELIED_ON and use.is_write == (old.name == "cp"):
                text = f"overwrites what line {old.instruction.line} of the same thread uses, before its completion is observed"
                self._report("tensor-order", text, new)
            elif pipelined:
                self._report("race", f"is not ordered after line {old.instruction.line}, which another thread issued", new)
            else:
                does = "writes" if use.is_write else "reads"
                text = f"touches tensor memory that line {old.instruction.line} still {does}: its completion is not observed"
                self._report("async", text, new)
            return
        same_warp = np.array_equal(old.seen_by, new.lanes)
        observers = [slice(k, k + 1) for k in range(len(old.seen_by))] if old.name == "alloc" else [slice(None)]  # any will do
        if not same_warp and not any(self._knows(new, old.seen_by[some], old.seen_at[some]) for some in observers):
            does = "reads" if not use.is_write else "writes"
            text = f"touches tensor memory that line {old.instruction.line} of another thread {does}, without an order"
            self._report("race", text, new)
        elif old.name != "alloc" and new.name != "dealloc":
            by_commit = old.name not in ("ld", "st")
            if by_commit or not same_warp:
                self.fences.check(new.lanes, old.seen_by, old.seen_at, new.instruction, by_commit=by_commit)

    def _report(self, kind: str, text: str, operation: Operation) -> None:
        self.faults.add(kind, text, operation.instruction, int(operation.lanes[0]), distinct=text)

    def _knows(self, operation: Operation, others: Index, times: Index) -> bool:
        """Whether every thread of the operation is ordered after what `others` did."""
        lanes = np.repeat(operation.lanes, len(others))
        tiled = np.tile(others, len(operation.lanes)) + self.clocks.first_lane
        return bool(self.clocks.knows(lanes, tiled, np.tile(times, len(operation.lanes))).all())


def _by_block(rects: Iterable[Rect]) -> tuple[Rect, ...]:
    """Rectangles of which none lies in two blocks."""
    return tuple(
        (max(top, first), min(bottom, first + LANES), left, right)
        for top, bottom, left, right in rects
        for first in range(top // LANES * LANES, bottom, LANES)
    )


def _in_block(rects: tuple[Rect, ...], block: int) -> tuple[Rect, ...]:
    return tuple(rect for rect in rects if rect[0] // LANES == block)


def _overlap(first: tuple[Rect, ...], second: tuple[Rect, ...]) -> bool:
    return any(
        a[0] < b[1] and b[0] < a[1] and a[2] < b[3] and b[2] < a[3] for a in first for b in second
    )  # fmt: skip


def _minus(rects: tuple[Rect, ...], holes: tuple[Rect, ...]) -> tuple[Rect, ...]:
    for hole in holes:
        rects = tuple(part for rect in rects for part in _without(rect, hole))
    return rects


def _without(rect: Rect, hole: Rect) -> Iterator[Rect]:
    """The parts of a rectangle outside another."""
    top, bottom, left, right = rect
    if not _overlap((rect,), (hole,)):
        yield rect
        return
    if top < hole[0]:
        yield top, hole[0], left, right
    if hole[1] < bottom:
        yield hole[1], bottom, left, right
    top, bottom = max(top, hole[0]), min(bottom, hole[1])
    if left < hole[2]:
        yield top, bottom, left, hole[2]
    if hole[3] < right:
        yield top, bottom, hole[3], right
