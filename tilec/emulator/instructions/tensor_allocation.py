"""`tcgen05.alloc`, `.dealloc` and `.relinquish_alloc_permit`.

PTX ISA, "Tensor memory allocation". A warp allocates a power of two of columns, 32 to 512, with all their lanes. It blocks
while its block lacks free columns. With `.cta_group::2` one warp of each block of the pair executes the instruction, and the
first blocks until the second comes; both blocks get the same columns. No text says through which proxy the address is written;
no fence is demanded here before the async proxy overwrites it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.instructions.convergence import converge
from tilec.emulator.instructions.memory import state_space
from tilec.emulator.instructions.tensor_memory_state import Allocated
from tilec.emulator.instructions.tensor_operands import blocks_of, group, of_warp, warps_of
from tilec.emulator.machine.access import Access
from tilec.emulator.machine.frame import RESCHEDULE, Frame
from tilec.emulator.machine.registry import Decoder
from tilec.emulator.machine.sources import Source, Step
from tilec.emulator.machine.wave import BLOCKED
from tilec.emulator.matrices.tensor_layouts import COLUMNS, LANES
from tilec.emulator.ordering.tensor_order import Operation

Index = NDArray[np.int64]


@dataclass(slots=True)
class _Request:
    """An alloc or dealloc by the warp of `lanes` in `block`: the number of columns, and the first (dealloc) or where its
    address is written (alloc)."""

    block: int
    lanes: Index
    count: int
    first: int = 0
    target: Access | None = None


def _sync(d: Decoder) -> bool:
    pair = group(d)
    d.need("sync")
    d.need("aligned")
    return pair


def alloc(d: Decoder) -> Step:
    """`tcgen05.alloc.cta_group::G.sync.aligned{.shared::cta}.b32 [address], columns`."""
    pair = _sync(d)
    space = state_space(d.take("shared", "shared::cta"))
    d.need("b32")
    d.finish(2)
    address, count = d.address_source(d.address(0)), d.source(1, "u32")

    def request(frame: Frame, positions: Index) -> _Request | None:
        only = np.zeros(frame.n, np.bool_)
        only[positions[0]] = True
        target = d.machine.locator.locate(
            frame, address.value(frame), address.poison(frame), space, 4, d.instruction, write=True, mask=only
        )
        found = _columns(d, count, frame, positions)
        lanes = frame.lanes[positions]
        return None if found is None else _Request(int(d.machine.wave.block[lanes[0]]), lanes, found, target=target)

    return _together(d, pair, request, lambda requests: _allocate(d, pair, requests))


def dealloc(d: Decoder) -> Step:
    """`tcgen05.dealloc.cta_group::G.sync.aligned.b32 address, columns`."""
    pair = _sync(d)
    d.need("b32")
    d.finish(2)
    address, count = d.source(0, "b32"), d.source(1, "u32")

    def request(frame: Frame, positions: Index) -> _Request | None:
        first = of_warp(address, frame, positions, "an address in tensor memory", d)
        found = of_warp(count, frame, positions, "a number of columns", d)
        lanes = frame.lanes[positions]
        if first is None or found is None:
            return None
        return _Request(int(d.machine.wave.block[lanes[0]]), lanes, found, first)

    return _together(d, pair, request, lambda requests: _free(d, pair, requests))


def relinquish(d: Decoder) -> Step:
    """`tcgen05.relinquish_alloc_permit.cta_group::G.sync.aligned`: the block does not allocate any more."""
    _sync(d)
    d.finish(0)
    memory = d.machine.tensor_memory

    def body(frame: Frame) -> None:
        for block in np.unique(frame.block).tolist():
            memory.relinquished.setdefault(block, d.instruction)

    return converge(d, body)


def _together(
    d: Decoder, pair: bool, make: Callable[[Frame, Index], _Request | None], act: Callable[[list[_Request]], bool]
) -> Step:
    """Runs `act` on the request of each warp, or on those of both blocks of a pair; blocks the warps until it succeeds."""
    wave, waiting = d.machine.wave, d.machine.tensor_memory.waiting

    def body(frame: Frame) -> Any:
        parked: dict[int, Index] = {}
        for positions in warps_of(frame):
            request = make(frame, positions)
            if request is None:
                continue
            blocks = blocks_of(d.machine, int(request.lanes[0]), pair, d)
            if blocks is None:
                continue
            queue = waiting.setdefault((d.index, blocks[0]), [])
            queue.append(request)
            if pair and len({one.block for one in queue}) < len(blocks):
                parked[id(request)] = positions
                continue
            requests = [next(one for one in queue if one.block == block) for block in blocks]
            if act(requests):
                for one in requests:
                    queue.remove(one)
                    if one is not request and parked.pop(id(one), None) is None:
                        wave.wake(one.lanes)
            else:
                queue.remove(request)  # it executes the instruction again
                parked[id(request)] = positions
        if not parked:
            return None
        stay = np.zeros(frame.n, np.bool_)
        stay[np.concatenate(list(parked.values()))] = True
        frame.park(np.where(stay, d.index, d.index + 1))
        wave.status[frame.lanes[stay]] = BLOCKED
        return RESCHEDULE

    return converge(d, body)


def _columns(d: Decoder, source: Source, frame: Frame, positions: Index) -> int | None:
    """A legal number of columns: a fault, and the next legal one, if the operand is not."""
    found = of_warp(source, frame, positions, "a number of columns", d)
    if found is None or (32 <= found <= COLUMNS and found & (found - 1) == 0):
        return found
    text = f"tcgen05.alloc of {found} columns, which is no power of two from 32 to {COLUMNS}"
    d.machine.faults.add("tensor-memory", text, d.instruction, int(frame.lanes[positions[0]]), distinct=text)
    return min(max(32, 1 << (found - 1).bit_length()), COLUMNS)


def _allocate(d: Decoder, pair: bool, requests: list[_Request]) -> bool:
    """Allocates the columns of one warp, or of both blocks of a pair; whether there were enough."""
    machine, memory = d.machine, d.machine.tensor_memory
    count = requests[0].count
    if len({one.count for one in requests}) > 1:
        text = "tcgen05.alloc with different numbers of columns in the blocks of a pair"
        machine.faults.add("tensor-memory", text, d.instruction, int(requests[-1].lanes[0]), distinct=text)
    first = memory.free_columns([one.block for one in requests], count)
    if first is None:
        return False
    for one in requests:
        lane = int(one.lanes[0])
        if one.block in memory.relinquished:
            text = f"tcgen05.alloc after line {memory.relinquished[one.block].line} gave up the right to allocate"
            machine.faults.add("tensor-memory", text, d.instruction, lane, distinct=text)
        if count > memory.smallest.setdefault(one.block, count):
            text = f"tcgen05.alloc of {count} columns after one of {memory.smallest[one.block]}: sizes must not grow"
            machine.faults.add("tensor-memory", text, d.instruction, lane, distinct=text)
        memory.smallest[one.block] = min(memory.smallest[one.block], count)
        memory.allocate(one.block, Allocated(first, count, lane, pair, d.instruction))
        _use(d, "alloc", one, first, np.concatenate([other.lanes for other in requests]))
        if one.target is not None and len(one.target.index):
            machine.accesses.watch_write(one.target, d.instruction)
            index = int(one.target.index[0])
            machine.ordering.proxies.record_async_write(machine.ordering.shadow.granules(np.array([index]), 4)[0])
            machine.memory.views[4][index >> 2] = first
            machine.memory.poison[index : index + 4] = 0
    return True


def _free(d: Decoder, pair: bool, requests: list[_Request]) -> bool:
    machine, memory, wave = d.machine, d.machine.tensor_memory, d.machine.wave
    for one in requests:
        found = memory.free(one.block, one.first, one.count)
        if found is None:
            text = f"tcgen05.dealloc of {one.count} columns at {one.first}, which no alloc of the block returned"
            machine.faults.add("tensor-memory", text, d.instruction, int(one.lanes[0]), distinct=text)
            continue
        if found.pair != pair:
            text = "tcgen05.dealloc with another .cta_group than the alloc"
            machine.faults.add("tensor-memory", text, d.instruction, int(one.lanes[0]), distinct=text)
        _use(d, "dealloc", one, one.first, one.lanes)
        for (index, _), queue in list(memory.waiting.items()):
            if not queue:  # an alloc that found too few columns
                blocked = np.flatnonzero((wave.status == BLOCKED) & (wave.pc == index) & (wave.block == one.block))
                wave.wake(blocked, advance=False)
    return True


def _use(d: Decoder, name: str, one: _Request, first: int, observers: Index) -> None:
    """All cells of the columns are written by the warp, now; whoever knows one of the observers' instruction comes after."""
    clocks = d.machine.ordering.clocks
    operation = Operation(name, one.lanes, clocks.now, d.instruction)
    operation.observe(observers, clocks.now)
    top = LANES * one.block
    d.machine.tensor_memory.order.use(operation, (), ((top, top + LANES, first, first + one.count),))
