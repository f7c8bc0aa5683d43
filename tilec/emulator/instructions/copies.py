"""`cp.async` and its groups: copies from global to shared memory that become visible after a wait on their group.

PTX ISA, "Data movement and conversion instructions: cp.async", "cp.async.commit_group", "cp.async.wait_group". The value of a
copy is that of its source when it is issued. Source and destination are in flight until the thread's wait completes its group;
that thread reads the one and writes the other then, through the generic proxy. `cp.async.bulk` is in `bulk_copies`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.instructions import bulk_copies
from tilec.emulator.instructions.async_copy_state import Copies, Copy
from tilec.emulator.instructions.operands import read
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.registry import Decoder, lanewise
from tilec.emulator.machine.sources import Source, Step
from tilec.emulator.ordering.in_flight import SHIFT, granules
from tilec.emulator.ptx.syntax import Negated, Register

Index = NDArray[np.int64]


@lanewise("cp")
def cp(d: Decoder) -> Step:
    """`cp.async` in all its forms; `cp.async.bulk` is decoded by `bulk_copies`."""
    d.need("async")
    if d.flag("bulk"):
        return bulk_copies.decode(d)
    state = d.machine.copies
    form = d.need("ca", "cg", "commit_group", "wait_group", "wait_all", "mbarrier")
    if form == "commit_group":
        d.finish(0)
        return state.commit
    if form in ("wait_group", "wait_all"):
        d.finish(int(form == "wait_group"))
        allowed = int(d.source(0, "u32").constant) if form == "wait_group" else -1
        return lambda frame: state.finish(frame.active_lanes(), allowed)
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

    machine = d.machine

    def step(frame: Frame) -> None:
        amounts = wanted(frame)
        located = machine.locator.locate(
            frame, to.value(frame), to.poison(frame), "shared", size, d.instruction, write=True, align=size
        )
        rows = np.zeros((frame.n, size), np.uint8)
        poison_rows = np.zeros((frame.n, size), np.uint8)
        sources = np.full((frame.n, size >> SHIFT), -1, np.int64)
        for amount in np.unique(amounts):
            if amount:
                mask = None if (amounts == amount).all() else amounts == amount
                _read(frame, source, int(amount), size, d, mask, rows, poison_rows, sources)
        if not len(located.index):
            return
        machine.accesses.watch_write(located, d.instruction)
        chosen = slice(None) if located.positions is None else located.positions
        poison = poison_rows[chosen] if poison_rows.any() else None
        sources = sources[chosen]
        operation = machine.ordering.in_flight.begin(sources[sources >= 0], granules(located.index, size).reshape(-1))
        group = state.committed[located.lanes]
        state.waiting.append(Copy(located.lanes, group, located.index, sources, rows[chosen], poison, d.instruction, operation))

    return step


def _amount(d: Decoder, size: int) -> Callable[[Frame], Any]:
    """A reader of the number of bytes to copy; the rest is zero-filled. The optional fourth operand is a size, or a predicate
    that ignores the source."""
    if len(d.operands) == 3:
        whole: Callable[[Frame], Any] = lambda frame: np.full(frame.n, size)  # noqa: E731
        return whole
    operand = d.operands[3]
    register = operand.register if isinstance(operand, Negated) else operand
    is_predicate = isinstance(register, Register) and register.type == "pred"
    source = d.source(3, "pred" if is_predicate else "u32")

    def amount(frame: Frame) -> Any:
        value, poison = read(source, frame)
        if poison is not None:
            d.machine.faults.poison("the size of a copy", d.instruction, frame, poison)
        found = np.where(value, 0, size) if is_predicate else np.minimum(value, size)
        return found if frame.mask is None else np.where(frame.mask, found, 0)

    return amount


def _read(
    frame: Frame, source: Source, amount: int, size: int, d: Decoder, mask: NDArray[np.bool_] | None, rows: Any,
    poison_rows: Any, sources: Index,
) -> None:  # fmt: skip
    machine = d.machine
    found = machine.locator.locate(
        frame, source.value(frame), source.poison(frame), "global", amount, d.instruction, write=False, align=size, mask=mask
    )
    machine.accesses.watch_read(found, d.instruction)
    written = np.arange(frame.n) if found.positions is None else found.positions
    where = found.index[:, None] + np.arange(amount)
    rows[written, :amount] = machine.memory.data[where]
    if found.allocation is None or found.allocation.poisonous:
        poison_rows[written, :amount] = machine.memory.poison[where]
    if found.allocation is None or found.allocation.tracked:
        sources[written, : -(-amount >> SHIFT)] = granules(found.index, -(-amount >> SHIFT) << SHIFT)


def _arrive(d: Decoder, state: Copies) -> Step:
    """`cp.async.mbarrier.arrive[.noinc].shared.b64 [barrier]`: arrives when the thread's copies are complete, which here is
    immediately. Without `.noinc` the pending count is incremented first, so the arrival does not change it."""
    d.need("arrive")
    counts = d.flag("noinc")
    d.take("shared", "shared::cta")
    d.need("b64")
    d.finish(1)
    address = d.address_source(d.address(0))
    barriers = d.machine.mbarriers

    def step(frame: Frame) -> None:
        state.finish(frame.active_lanes(), -1)
        for record, lanes in barriers.find(frame, address, d.instruction):
            if not counts:
                record.state.pending += len(lanes)
            barriers.arrive(record, lanes, [1] * len(lanes), d.instruction)

    return step
