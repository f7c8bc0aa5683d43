"""Operand readers of tcgen05: addresses in tensor memory and lanes of one thread in, rows, columns and blocks out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.instructions.operands import read
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.machine import Machine
from tilec.emulator.machine.registry import Decoder
from tilec.emulator.machine.sources import Source

Index = NDArray[np.int64]


def group(d: Decoder) -> bool:
    """Consumes `.cta_group::1` or `::2`; whether it is 2. Functions that mix them do not assemble."""
    found = d.need("cta_group::1", "cta_group::2")
    for other in d.machine.launch.function.instructions:
        if other.opcode == "tcgen05":
            named = [modifier for modifier in other.modifiers if modifier.startswith("cta_group::")]
            if named and named[0] != found:
                raise d.unsupported("two different .cta_group in one function")
    return found == "cta_group::2"


def warps_of(frame: Frame) -> Iterator[Index]:
    """Positions in the frame of the lanes of each warp."""
    _, starts = np.unique(frame.warp, return_index=True)
    yield from np.split(np.arange(frame.n), starts[1:])


def of_thread(source: Source, frame: Frame, at: int, subject: str, d: Decoder) -> int | None:
    """The value of an operand in one lane; None, and a fault, if it is poison."""
    values, poison = read(source, frame)
    if poison is not None and poison[at]:
        only = np.zeros(frame.n, np.uint8)
        only[at] = poison[at]
        d.machine.faults.poison(subject, d.instruction, frame, only)
        return None
    return int(values[at])


def of_warp(source: Source, frame: Frame, positions: Index, subject: str, d: Decoder) -> int | None:
    """The value of an operand that all lanes of a warp must agree on; None, and a fault, if it is poison or differs."""
    values, poison = read(source, frame)
    if poison is not None and poison[positions].any():
        only = np.zeros(frame.n, np.uint8)
        only[positions] = poison[positions]
        d.machine.faults.poison(subject, d.instruction, frame, only)
        return None
    if (values[positions] != values[positions[0]]).any():
        text = f"{subject} differs between the threads of a warp"
        d.machine.faults.add("divergent", text, d.instruction, int(frame.lanes[positions[0]]), distinct=text)
        return None
    return int(values[positions[0]])


def split_address(address: int) -> tuple[int, int]:
    """Lane and column of an address in tensor memory."""
    return address >> 16 & 0xFFFF, address & 0xFFFF


def blocks_of(machine: Machine, lane: int, pair: bool, d: Decoder) -> tuple[int, ...] | None:
    """The blocks of the wave whose memories an instruction of a lane touches, by rank; None, and a fault, if the lane's cluster
    has no pairs."""
    wave = machine.wave
    block = int(wave.block[lane])
    if not pair:
        return (block,)
    if wave.cluster_size % 2:
        text = f".cta_group::2 in clusters of {wave.cluster_size} blocks, which are no pairs"
        machine.faults.add("cluster", text, d.instruction, lane, distinct=text)
        return None
    even = block - int(wave.rank[block]) % 2
    cluster = machine.windows.cluster
    if cluster is not None and cluster.ended[even : even + 2].any():
        text = ".cta_group::2 after the other block of the pair has exited"
        machine.faults.add("cluster", text, d.instruction, lane, distinct=text)
        return None
    return even, even + 1
