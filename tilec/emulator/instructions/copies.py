"""`cp.async` and its groups: copies from global to shared memory that become visible after a wait on their group.

PTX ISA, "Data movement and conversion instructions: cp.async", "cp.async.commit_group", "cp.async.wait_group". The value of a
copy is that of its source when it is issued. Source and destination are in flight until the thread's wait completes its group;
that thread reads the one and writes the other then, through the generic proxy. `cp.async.bulk` is in `bulk_copies`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.errors import Poison
from tilec.emulator.instructions import bulk_copies, mbarriers
from tilec.emulator.instructions.copy_groups import CopyGroups
from tilec.emulator.instructions.operands import active, read
from tilec.emulator.machine import access
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.machine import Machine
from tilec.emulator.machine.registry import Decoder, Source, Step, lanewise
from tilec.emulator.ordering.in_flight import SHIFT, Operation, granules

Index = NDArray[np.int64]


@dataclass(slots=True)
class _Copy:
    """The copies that one instruction started: for each lane its group, destination index, granules of its source (-1: nothing
    is read, or nobody may write it), bytes and their poison."""

    lanes: Index
    group: Index
    index: Index
    sources: Index
    rows: NDArray[np.uint8]
    poison: Poison | None
    step: Decoder
    operation: Operation

    def part(self, chosen: NDArray[np.bool_], operation: Operation) -> _Copy:
        poison = None if self.poison is None else self.poison[chosen]
        return _Copy(
            self.lanes[chosen], self.group[chosen], self.index[chosen], self.sources[chosen], self.rows[chosen], poison,
            self.step, operation,
        )  # fmt: skip

    def granules(self, chosen: NDArray[np.bool_]) -> tuple[Index, Index]:
        """The granules that the copies of some lanes read and write."""
        sources = self.sources[chosen]
        return sources[sources >= 0], granules(self.index[chosen], self.rows.shape[1]).reshape(-1)


class Copies(CopyGroups[_Copy]):
    def finish(self, lanes: Index, allowed: int, *, write: bool = True) -> None:
        """Completes all but the last `allowed` groups of these lanes (-1: uncommitted copies too). Without `write` their
        records are only dropped, and their bytes stay in flight."""
        bound = np.full(self.machine.lane_count, -1, np.int64)
        bound[lanes] = self.committed[lanes] - allowed
        left: list[_Copy] = []
        for copy in self.waiting:
            done = copy.group < bound[copy.lanes]
            if not done.any():
                left.append(copy)
                continue
            finished = copy
            if not done.all():
                finished, rest = self._divide(copy, done)
                left.append(rest)
            if write:
                self.machine.pending.end(finished.operation)
                self._write_copy(finished)
        self.waiting = left

    def _divide(self, copy: _Copy, done: NDArray[np.bool_]) -> tuple[_Copy, _Copy]:
        """The copies of the lanes in `done` and those of the others, which end apart."""
        first, second = self.machine.pending.split(copy.operation, [copy.granules(done), copy.granules(~done)])
        return copy.part(done, first), copy.part(~done, second)

    def _write_copy(self, copy: _Copy) -> None:
        machine, instruction = self.machine, copy.step.instruction
        rows, columns = np.nonzero(copy.sources >= 0)
        if len(rows):
            machine.shadow.read(copy.sources[rows, columns] << SHIFT, 1 << SHIFT, copy.lanes[rows])
        found = access.Access(None, copy.index, None, copy.rows.shape[1], copy.lanes)
        access.watch_write(machine, found, instruction)
        machine.memory.write_rows(copy.index, copy.rows, copy.poison)

    def leave(self, frame: Frame) -> None:
        """Lanes exit: the copies that they did not wait for stay in flight for good, so any access to those bytes is a
        fault."""
        if self.waiting:
            self.finish(frame.lanes, -1, write=False)


def copies(machine: Machine) -> Copies:
    """The launch's copies."""
    found = machine.extensions.get("copies")
    if found is None:
        found = machine.extensions["copies"] = Copies(machine)
    return found


@lanewise("cp")
def cp(d: Decoder) -> Step:
    """`cp.async` in all its forms; `cp.async.bulk` is decoded by `bulk_copies`."""
    d.need("async")
    if d.flag("bulk"):
        return bulk_copies.decode(d)
    state = copies(d.machine)
    form = d.need("ca", "cg", "commit_group", "wait_group", "wait_all", "mbarrier")
    if form == "commit_group":
        return state.commit(d)
    if form in ("wait_group", "wait_all"):
        d.finish(int(form == "wait_group"))
        allowed = int(d.source(0, "u32").constant) if form == "wait_group" else -1
        return lambda frame: state.finish(active(frame), allowed)
    if form == "mbarrier":
        return _arrive(d, state)
    return _copy(d, state, form)


def _copy(d: Decoder, state: Copies, form: str) -> Step:
    d.need("shared", "shared::cta")
    d.need("global")
    while d.take("L2::64B", "L2::128B", "L2::256B") is not None:
        pass
    d.finish(3, 4)
    size = int(d.source(2, "u32").constant)
    if size not in ((16,) if form == "cg" else (4, 8, 16)):
        raise d.unsupported(f"cp.async.{form} of {size} bytes")
    to, source = d.address_source(d.address(0)), d.address_source(d.address(1))
    wanted = _amount(d, size)

    def step(frame: Frame) -> None:
        machine = frame.machine
        amounts = wanted(frame)
        place = access.locate(frame, to.value(frame), to.poison(frame), "shared", size, d.instruction, write=True, align=size)
        rows = np.zeros((frame.n, size), np.uint8)
        poison_rows = np.zeros((frame.n, size), np.uint8)
        sources = np.full((frame.n, size >> SHIFT), -1, np.int64)
        for amount in np.unique(amounts):
            if amount:
                mask = None if (amounts == amount).all() else amounts == amount
                _read(frame, source, int(amount), size, d, mask, rows, poison_rows, sources)
        if not len(place.index):
            return
        access.watch_write(machine, place, d.instruction)
        chosen = slice(None) if place.positions is None else place.positions
        poison = poison_rows[chosen] if poison_rows.any() else None
        sources = sources[chosen]
        operation = machine.pending.begin(sources[sources >= 0], granules(place.index, size).reshape(-1))
        group = state.committed[place.lanes]
        state.waiting.append(_Copy(place.lanes, group, place.index, sources, rows[chosen], poison, d, operation))

    return step


def _amount(d: Decoder, size: int) -> Callable[[Frame], Any]:
    """A reader of the number of bytes to copy; the rest is zero-filled. The optional fourth operand is a size, or a predicate
    that ignores the source."""
    if len(d.operands) == 3:
        whole: Callable[[Frame], Any] = lambda frame: np.full(frame.n, size)  # noqa: E731
        return whole
    operand: Any = d.operands[3]
    is_predicate = getattr(operand, "type", getattr(getattr(operand, "register", None), "type", "")) == "pred"
    source = d.source(3, "pred" if is_predicate else "u32")

    def amount(frame: Frame) -> Any:
        value, poison = read(source, frame)
        if poison is not None:
            frame.machine.faults.poison("the size of a copy", d.instruction, frame, poison)
        found = np.where(value, 0, size) if is_predicate else np.minimum(value, size)
        return found if frame.mask is None else np.where(frame.mask, found, 0)

    return amount


def _read(
    frame: Frame, source: Source, amount: int, size: int, d: Decoder, mask: NDArray[np.bool_] | None, rows: Any,
    poison_rows: Any, sources: Index,
) -> None:  # fmt: skip
    found = access.locate(
        frame, source.value(frame), source.poison(frame), "global", amount, d.instruction, write=False, align=size, mask=mask
    )
    access.watch_read(frame.machine, found, d.instruction)
    places = np.arange(frame.n) if found.positions is None else found.positions
    where = found.index[:, None] + np.arange(amount)
    rows[places, :amount] = frame.machine.memory.data[where]
    if found.allocation is None or found.allocation.poisonous:
        poison_rows[places, :amount] = frame.machine.memory.poison[where]
    if found.allocation is None or found.allocation.tracked:
        sources[places, : -(-amount >> SHIFT)] = granules(found.index, -(-amount >> SHIFT) << SHIFT)


def _arrive(d: Decoder, state: Copies) -> Step:
    """`cp.async.mbarrier.arrive[.noinc].shared.b64 [barrier]`: arrives when the thread's copies are complete, which here is
    immediately. Without `.noinc` the pending count is incremented first, so the arrival does not change it."""
    d.need("arrive")
    counts = d.flag("noinc")
    d.take("shared", "shared::cta")
    d.need("b64")
    d.finish(1)
    address = d.address_source(d.address(0))
    barriers = mbarriers.mbarriers(d.machine)

    def step(frame: Frame) -> None:
        state.finish(active(frame), -1)
        for record, lanes in barriers.find(frame, address, d):
            if not counts:
                record.state.pending += len(lanes)
            barriers.arrive(record, lanes, [1] * len(lanes), d)

    return step
