"""bar and barrier: sync, arrive and red, with ids and counts; bar.warp.sync (PTX ISA, section 9.7.13.1 and 9.7.13.2).

`barrier_state` says when a barrier completes.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tilec.emulator.instructions.barrier_votes import Ballot
from tilec.emulator.instructions.cluster_barriers import cluster_barrier
from tilec.emulator.instructions.convergence import converge
from tilec.emulator.instructions.operands import read
from tilec.emulator.instructions.warp import warp_barrier
from tilec.emulator.machine.frame import RESCHEDULE, Frame
from tilec.emulator.machine.registry import Decoder, control
from tilec.emulator.machine.sources import Source, Step
from tilec.emulator.machine.wave import BLOCKED, READY
from tilec.emulator.ptx.syntax import Immediate

IDS: Final = 16


@control("bar", "barrier")
def bar(d: Decoder) -> Step:
    if d.instruction.opcode == "bar" and d.flag("warp"):
        d.need("sync")
        return warp_barrier(d)
    if d.instruction.opcode == "barrier" and d.flag("cluster"):
        return cluster_barrier(d)
    d.flag("cta")
    mode = d.need("sync", "arrive", "red")
    operation = d.need("popc", "and", "or") if mode == "red" else ""
    aligned = d.flag("aligned") or d.instruction.opcode == "bar"
    if operation:
        d.need("u32" if operation == "popc" else "pred")
    first = 1 if operation else 0
    d.finish(*((3, 4) if operation else (2,) if mode == "arrive" else (1, 2)))
    operands = d.operands[first : -1 if operation else None]
    number = d.source(first, "u32")
    count = d.source(operands[1], "u32") if len(operands) > 1 else None
    if count is not None and count.constant is not None and (int(count.constant) % 32 or not int(count.constant)):
        raise d.unsupported("a thread count that is no multiple of 32")
    if operation:
        step = _reduce(d, operation, number, count)
        return converge(d, step) if aligned else step
    simple = isinstance(d.operands[first], Immediate) and count is None
    step = _step(d, number, count, mode == "sync", simple)
    return converge(d, step) if aligned else step


def _step(d: Decoder, number: Source, count: Source | None, waits: bool, simple: bool) -> Step:
    machine, barriers, threads = d.machine, d.machine.barriers, d.machine.launch.threads

    def step(frame: Frame) -> Any:
        if simple and waits and not barriers.waiting and not barriers.arrived and frame.n % threads == 0:
            blocks, counts = np.unique(frame.block, return_counts=True)
            if (counts == threads).all():
                machine.ordering.clocks.block_barrier(blocks)
                return None
        return _arrive(d, frame, number, count, waits)

    return step


def _arrive(
    d: Decoder, frame: Frame, number: Source, count: Source | None, waits: bool, ballot: Ballot | None = None,
) -> Any:  # fmt: skip
    machine, barriers = d.machine, d.machine.barriers
    ids = np.broadcast_to(number.value(frame), frame.n).astype(np.int64)
    counts = None if count is None else np.broadcast_to(count.value(frame), frame.n).astype(np.int64)
    for source in (number, count):
        poison = None if source is None else source.poison(frame)
        if poison is not None:
            machine.faults.poison("the operand of a barrier", d.instruction, frame, poison)
    machine.faults.lanes("barrier", "a barrier past number 15", d.instruction, frame, ids >= IDS)
    blocks = frame.block
    frame.park(d.index if waits else d.index + 1, BLOCKED if waits else READY)
    done: list[tuple[int, int]] = []
    for block in np.unique(blocks):
        for each in np.unique(ids[blocks == block]):
            here = (blocks == block) & (ids == each)
            key = int(block), int(each)
            for wanted in [machine.launch.threads] if counts is None else np.unique(counts[here]).tolist():
                if done and done[-1] == key:
                    machine.wave.wake(barriers.release([done.pop()]))
                lanes = frame.lanes[here if counts is None else here & (counts == wanted)]
                done += barriers.arrive_in_step(d.instruction, key, wanted, lanes, waits, ballot)
    if done:
        machine.wave.wake(barriers.release(done))
    return RESCHEDULE


def _reduce(d: Decoder, operation: str, number: Source, count: Source | None) -> Step:
    """bar.red: a barrier that also reduces a predicate over its threads."""
    kind = "u32" if operation == "popc" else "pred"
    source, write = d.source(len(d.operands) - 1, "pred"), d.target(0, kind)

    def step(frame: Frame) -> Any:
        votes, poison = read(source, frame)
        ballot = Ballot(frame.lanes, votes, poison, operation, write, d.index)
        return _arrive(d, frame, number, count, True, ballot)

    return step
