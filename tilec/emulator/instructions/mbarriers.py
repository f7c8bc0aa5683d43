"""`mbarrier`: barriers in shared memory that count arrivals and bytes, and the order that their phases establish.

PTX ISA, "Parallel synchronization and communication instructions: mbarrier". An arrival releases, a successful wait acquires.
A thread that waits for an unfinished phase blocks until its completion; under a seed, `try_wait` sometimes returns false
instead. If the phase never completes, the launch deadlocks. Bulk copies that count bytes on a barrier complete when a thread
tests it, or when no thread can run.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.errors import UNINITIALISED
from tilec.emulator.instructions.mbarrier_state import BYTES, Mbarriers, Record
from tilec.emulator.instructions.memory import state_space
from tilec.emulator.instructions.operands import read
from tilec.emulator.machine.frame import RESCHEDULE, Frame
from tilec.emulator.machine.registry import Decoder, control
from tilec.emulator.machine.sources import Step
from tilec.emulator.machine.wave import BLOCKED
from tilec.emulator.ordering.transaction_barrier import BarrierMisuse, TransactionBarrier
from tilec.emulator.ptx.syntax import Address, Sink

Index = NDArray[np.int64]
TIMEOUT_PROBABILITY: Final = 0.2
"""Probability, under a seed, that `try_wait` returns before the phase completes; its time limit is implementation-defined."""


@control("mbarrier")
def mbarrier(d: Decoder) -> Step:
    """Decodes `mbarrier.OPERATION...`."""
    barriers = d.machine.mbarriers
    operation = d.need("init", "inval", "arrive", "arrive_drop", "expect_tx", "complete_tx", "test_wait", "try_wait")
    if operation in ("init", "inval"):
        return _lifetime(d, barriers, operation)
    if operation in ("test_wait", "try_wait"):
        return _wait(d, barriers, operation)
    return _arrive(d, barriers, operation)


def _how(d: Decoder, default: str, *others: str, peers: bool) -> tuple[tuple[str, str], str]:
    """(order and scope, state space) of an operation; its order is `default` or one of `others`. `peers`: the barrier may be
    that of a peer. Only a relaxed operation must name its scope."""
    order = d.take(default, *others)
    scope = d.need("cta", "cluster") if order == "relaxed" else d.take("cta", "cluster")
    space = state_space(d.take("shared", "shared::cta", *(("shared::cluster",) if peers else ())))
    d.need("b64")
    return (order or default, scope or "cta"), space


def _lifetime(d: Decoder, barriers: Mbarriers, operation: str) -> Step:
    space = state_space(d.take("shared", "shared::cta"))
    d.need("b64")
    d.finish(2 if operation == "init" else 1)
    address = d.address_source(d.address(0))
    count = d.source(1, "u32") if operation == "init" else None
    machine = d.machine

    def step(frame: Frame) -> None:
        checked = machine.locator.locate(
            frame, address.value(frame), address.poison(frame), space, BYTES, d.instruction, write=True
        )
        if checked.space(machine.memory) not in ("", "shared"):
            text = "an mbarrier outside shared memory"
            machine.faults.add("space", text, d.instruction, int(checked.lanes[0]), index=int(checked.index[0]))
            return
        if count is None:
            for index in np.unique(checked.index):
                if barriers.live.pop(int(index), None) is None:
                    lane = int(checked.lanes[0])
                    text = "inval of memory that holds no mbarrier"
                    machine.faults.add("mbarrier", text, d.instruction, lane, index=int(index))
                machine.ordering.in_flight.mark_barrier(int(index), False)
        machine.accesses.watch_write(checked, d.instruction)
        machine.memory.write_rows(
            checked.index, np.zeros((len(checked.index), BYTES), np.uint8),
            np.full(len(checked.index), UNINITIALISED if count is None else 0, np.uint8),
        )  # fmt: skip
        if count is not None:
            poison = count.poison(frame)
            if poison is not None:
                machine.faults.poison("the count of an mbarrier", d.instruction, frame, poison)
            values = np.broadcast_to(count.value(frame), (frame.n,))
            positions = np.arange(frame.n) if checked.positions is None else checked.positions
            for index, lane, value in zip(checked.index, checked.lanes, values[positions], strict=True):
                try:
                    state, block = TransactionBarrier(int(value)), int(machine.wave.block[lane])
                    barriers.live[int(index)] = Record(int(index), state, block, int(lane))
                except BarrierMisuse as misuse:
                    machine.faults.add("mbarrier", f"an mbarrier {misuse}", d.instruction, int(lane), index=int(index))
                machine.ordering.in_flight.mark_barrier(int(index), True)

    return step


def _arrive(d: Decoder, barriers: Mbarriers, operation: str) -> Step:
    expects = operation == "expect_tx" or (operation in ("arrive", "arrive_drop") and d.flag("expect_tx"))
    if operation.startswith("arrive"):
        d.take("noComplete")
    orders = ("release", "relaxed") if operation.startswith("arrive") else ("relaxed",)
    how, space = _how(d, *orders, peers=True)
    returns = operation.startswith("arrive") and not isinstance(d.operands[0], Address)
    if space == "shared::cluster" and returns and not isinstance(d.operands[0], Sink):
        raise d.unsupported("the state of a barrier that may be a peer's")
    operands = d.operands[1:] if returns else d.operands
    d.finish(len(d.operands))
    address = d.address_source(d.address(int(returns)))
    amount = d.source(operands[1], "u32") if len(operands) > 1 else None
    target = d.target(0, "b64") if returns else None

    def step(frame: Frame) -> None:
        phases = np.zeros(frame.n, np.uint64)
        amounts = np.ones(frame.n, np.int64) if amount is None else np.broadcast_to(amount.value(frame), (frame.n,))
        for record, lanes in barriers.find(frame, address, d.instruction, space):
            positions = np.searchsorted(frame.lanes, lanes)
            chosen = [int(x) for x in amounts[positions]]
            for lane, value in zip(lanes, chosen, strict=True):
                if expects:
                    barriers.attempt(
                        record, int(lane), d.instruction, lambda value=value, record=record: record.state.expect(value)
                    )
                elif operation == "complete_tx":
                    barriers.attempt(
                        record, int(lane), d.instruction, lambda value=value, record=record: record.state.complete(value)
                    )
            if operation.startswith("arrive"):
                if operation == "arrive_drop":
                    record.state.expected -= sum([1] * len(chosen) if expects else chosen)
                counts = [1] * len(chosen) if expects else chosen
                phases[positions] = barriers.arrive(record, lanes, counts, d.instruction, how)
        if target is not None:
            target(frame, phases, None)

    return step


def _wait(d: Decoder, barriers: Mbarriers, operation: str) -> Step:
    by_parity = d.flag("parity")
    how, space = _how(d, "acquire", "relaxed", peers=False)
    d.finish(3, 4)
    target, address = d.target(0, "pred"), d.address_source(d.address(1))
    phase = d.source(2, "u32" if by_parity else "u64")
    machine = d.machine

    def step(frame: Frame) -> Any:
        phases, poison = read(phase, frame)
        if poison is not None:
            machine.faults.poison("the phase that is waited for", d.instruction, frame, poison)
        passed = np.ones(frame.n, np.bool_)
        blocked: list[tuple[Record, Index]] = []
        for record, lanes in barriers.find(frame, address, d.instruction, space):
            positions = np.searchsorted(frame.lanes, lanes)
            awaited = phases[positions]
            complete = _passed(barriers, record, awaited, by_parity, lanes, d)
            # as late as possible: without a wait, no thread sees the bytes
            if not complete.all() and barriers.complete_copies(record):
                complete = _passed(barriers, record, awaited, by_parity, lanes, d)
            passed[positions] = complete
            if complete.any():
                barriers.observe(record, lanes[complete], how)
            if not complete.all():
                blocked.append((record, lanes[~complete]))
        if not blocked:
            target(frame, passed, None)
            return None
        if operation == "test_wait" or (machine.launch.seed and machine.random.random() < TIMEOUT_PROBABILITY):
            target(frame, passed, None)
            machine.scheduler.yield_frame()
            return frame.park(d.index + 1)
        target(frame, passed, None)  # a lane that blocks executes this instruction again
        frame.park(np.where(passed, d.index + 1, d.index))
        for record, lanes in blocked:
            record.blocked_lanes = np.concatenate([record.blocked_lanes, lanes])
            machine.wave.status[lanes] = BLOCKED
        return RESCHEDULE

    return step


def _passed(barriers: Mbarriers, record: Record, phases: Index, by_parity: bool, lanes: Index, d: Decoder) -> Any:
    """Whether the phase that each lane waits for is complete."""
    if by_parity:
        return np.array([record.state.passed_parity(int(phase)) for phase in phases])
    return np.array(
        [
            bool(barriers.attempt(record, int(lane), d.instruction, lambda phase=phase: record.state.passed(int(phase))))
            for phase, lane in zip(phases, lanes, strict=True)
        ]
    )
