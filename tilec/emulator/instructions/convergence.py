"""`converge` makes a step of a warp-wide instruction wait for all its member threads (PTX ISA, `.sync` and `membermask` of
shfl.sync, vote.sync, bar.warp.sync).

In: a step and its member masks, None for all threads of the warp. Out: a step that runs once they have come. Invariant: the
body sees, for each warp of the frame, every thread of the member mask that has not exited. Threads that name each other must
name one mask ("with the same membermask value"); others may execute the instruction in groups of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.instructions.warpgroup_state import GROUP
from tilec.emulator.machine.frame import RESCHEDULE, Frame
from tilec.emulator.machine.registry import Decoder
from tilec.emulator.machine.sources import Source, Step
from tilec.emulator.machine.wave import BLOCKED, EXITED, READY

ALL: Final = np.uint32(0xFFFFFFFF)
Body = Callable[[Frame], Any]


def converge(d: Decoder, body: Body, members: Source | None = None) -> Step:
    """Runs `body` once every member has arrived: all threads of the warp if `members` is None (or a literal of all ones)."""
    machine, instruction = d.machine, d.instruction
    everyone = members is None or (members.constant is not None and members.constant == ALL)

    def step(frame: Frame) -> Any:
        if everyone and frame.whole_warps:
            return body(frame)
        if members is None or everyone:
            wanted = np.full(frame.n, ALL, np.uint32)
        else:
            wanted = np.broadcast_to(members.value(frame), frame.n)
            poison = members.poison(frame)
            if poison is not None:
                machine.faults.poison("a member mask", instruction, frame, poison)
        return _gather(d, frame, wanted, body, strict=not everyone)

    return step


def converge_group(d: Decoder, body: Callable[[Frame], None]) -> Step:
    """Runs `body` on frames of whole warpgroups; warps that arrive early block at the instruction."""
    machine, wave = d.machine, d.machine.wave
    per_block = -(-wave.threads // GROUP)

    def groups_together(frame: Frame) -> Any:
        groups = frame.block * per_block + frame.thread // GROUP
        if (np.bincount(groups)[groups] == GROUP).all():
            return body(frame)
        frame.park(d.index, BLOCKED)
        waiting = np.flatnonzero((wave.status == BLOCKED) & (wave.pc == d.index))
        groups = wave.block[waiting] * per_block + wave.thread[waiting] // GROUP
        ready = waiting[np.bincount(groups)[groups] == GROUP]
        if len(ready):
            together = machine.frame(ready, d.index)
            body(together)
            together.park(d.index + 1)
        return RESCHEDULE

    return converge(d, groups_together)


def _bits(lane_in_warp: NDArray[Any]) -> NDArray[np.uint32]:
    return np.uint32(1) << lane_in_warp.astype(np.uint32)


def _gather(d: Decoder, frame: Frame, wanted: NDArray[np.uint32], body: Body, strict: bool) -> Any:
    machine, wave = d.machine, d.machine.wave
    warp, bit = frame.warp, _bits(frame.lane_in_warp)
    if strict:
        outside = (wanted & bit) == 0
        machine.faults.lanes("divergent", "a thread that its own member mask does not name", d.instruction, frame, outside)
        wanted = wanted | bit
    present = np.zeros(wave.warp_count, np.uint32)
    np.bitwise_or.at(present, warp, bit)
    live = np.zeros(wave.warp_count, np.uint32)
    alive = np.flatnonzero(wave.status != EXITED)
    np.bitwise_or.at(live, wave.warp[alive], _bits(wave.lane_in_warp[alive]))
    complete = (wanted & live[warp] & ~present[warp]) == 0
    # A warp continues only when all its lanes here are complete; other members may already be blocked at this instruction.
    halted = np.zeros(wave.warp_count, np.bool_)
    halted[warp[~complete]] = True
    go = ~halted[warp] if not strict else complete
    if strict:
        _check_masks(d, frame, wanted, warp, bit)
    if go.all():
        return body(frame)
    others = np.flatnonzero((wave.status == BLOCKED) & (wave.pc == d.index))
    mine = np.isin(wave.warp[others], warp)
    if mine.any():
        wave.status[others[mine]] = READY
        return frame.park(d.index)
    frame.park(d.index)
    wave.status[frame.lanes[~go]] = BLOCKED
    if go.any():
        rest = machine.frame(frame.lanes[go], d.index)
        signal = body(rest)
        if signal is None:
            return rest.park(d.index + 1)
        return signal if not isinstance(signal, int) else rest.park(signal)
    return frame.park(d.index, BLOCKED)


def _check_masks(
    d: Decoder, frame: Frame, wanted: NDArray[np.uint32], warp: NDArray[np.int64], bit: NDArray[np.uint32]
) -> None:
    """A thread whose mask names a thread of the frame that names another mask is a fault."""
    _, first, which = np.unique(warp, return_index=True, return_inverse=True)
    several = np.unique(warp[wanted != wanted[first][which]])
    bad = np.zeros(frame.n, np.bool_)
    for one in several:
        here = warp == one
        for mask in np.unique(wanted[here]):
            others = np.bitwise_or.reduce(bit[here & (wanted != mask)])
            bad |= here & (wanted == mask) & bool(mask & others)
    d.machine.faults.lanes("divergent", "threads that name each other name different masks", d.instruction, frame, bad)
