"""Results of an emulation: an unsupported construct (an exception), or faults of the program (data).

This module does not depend on registers or memory. A `Fault` is one kind of misbehaviour at one instruction; later ones of
the same kind at the same instruction only raise its `count`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

KINDS: Final = {
    "bounds": "an access outside every allocation, or across the end of one",
    "alignment": "an address that is not a multiple of the access's bytes",
    "space": "an address of another state space than the instruction names",
    "read-only": "a write to a tensor that the launch only reads",
    "non-coherent": "ld.global.nc of a tensor that the launch writes, or that the one before may still write",
    "poison": "a value that nobody defined decides an address, a branch, a store or a byte of an output",
    "uninitialised": "the same, where the value comes from memory that nobody wrote",
    "undefined": "the same, where the value is a result that the PTX ISA leaves open (a division by zero)",
    "unwritten": "bytes of an output tensor that no thread wrote",
    "race": "two unordered accesses of the same bytes, one of them a write",
    "race-same-value": "unordered writes of the same bytes with the same value, by a store that is not known to replicate",
    "async": "an access to bytes that an asynchronous copy or tensor operation still reads or writes",
    "proxy": "an access through another proxy without the fence that the PTX ISA demands",
    "divergent": "a warp-wide operation, or a branch marked uniform, that some of the threads it names did not execute",
    "barrier": "a barrier used outside its rules (count, id, a thread that left before it)",
    "deadlock": "threads that wait for each other for ever",
    "registers": "setmaxnreg with a count outside its rules",
    "mbarrier": "an mbarrier used outside its rules",
    "peer": "memory of another device, read without a release there that happens before",
    "dependency": "global memory touched before griddepcontrol.wait in a launch that may overlap the one before it",
    "descriptor": "a descriptor (matrix or tensor map) with fields that the instruction cannot use",
    "cluster": "a block of the cluster that does not exist or may have exited, or a request for its launch that is undefined",
    "tensor-memory": "tensor memory allocated, freed or addressed outside its rules (sizes, lanes of another warp)",
    "launch": "a launch that the module or its target forbids (block shape, shared memory, clusters)",
    "trap": "the program executed trap",
    "limit": "the launch took more instructions than it was given",
}
"""Every kind of fault, with its meaning."""
NOTES: Final = {
    "tensor-fence": "tcgen05 instructions of two threads that a signal orders, without the tcgen05.fence of the PTX ISA",
    "tensor-wait": "a register that tcgen05.ld writes, used before tcgen05.wait::ld",
    "tensor-order": "tcgen05 instructions of one thread that the PTX ISA does not order, but that chips are relied on to order",
}
"""Departures from the text of the PTX ISA that programs in use make and that change no result here. They are not faults."""
POISON: Final = 1
UNINITIALISED: Final = 2
UNDEFINED: Final = 4
STORED: Final = 128
IN_FLIGHT: Final = 16
"""Bits of the poison byte of a register lane or a byte of memory. STORED marks a byte that a store wrote, IN_FLIGHT a
register that an unfinished wgmma writes."""


class UnsupportedPtx(Exception):
    """A directive, opcode, modifier, operand or special register that the emulator does not support."""

    def __init__(self, reason: str, line: int = 0, text: str = "") -> None:
        super().__init__(f"PTX line {line}: {reason}: {text}" if text else f"PTX line {line}: {reason}")
        self.reason, self.line, self.text = reason, line, text


class StopLaunch(Exception):
    """Ends a launch early, after its fault was recorded."""


@dataclass(slots=True)
class Fault:
    """One misbehaviour. `block` is (x, y, z), `thread` the linear index in the block, `element` (flat index, byte in it) of
    `tensor`, `tir_line` the line of the last `.loc` before the instruction (0: none); `count` is the number of faulting lanes
    over all executions."""

    kind: str
    message: str
    ptx_line: int = 0
    instruction: str = ""
    block: tuple[int, int, int] | None = None
    thread: int | None = None
    address: int | None = None
    tensor: str | None = None
    element: tuple[int, int] | None = None
    seed: int = 0
    tir_line: int = 0
    count: int = 1

    def __str__(self) -> str:
        where = [f"PTX line {self.ptx_line}: {self.instruction}"] if self.ptx_line else []
        where += [f"block {self.block}"] if self.block is not None else []
        where += [f"thread {self.thread}"] if self.thread is not None else []
        where += [f"address {self.address:#x}"] if self.address is not None else []
        where += [f"`{self.tensor}`"] if self.tensor else []
        where += [f"element {self.element[0]} byte {self.element[1]}"] if self.element else []
        return f"{self.kind}: {self.message}" + (f" ({', '.join(where)})" if where else "")


@dataclass(slots=True)
class Limits:
    """Limits of one launch. `instructions` counts vectorised steps, `resident_lanes` the threads resident at a time (further
    blocks run in later waves), `faults` the distinct faults kept."""

    instructions: int = 20_000_000
    resident_lanes: int = 16384
    faults: int = 100
    memory_bytes: int = 1 << 31


@dataclass(slots=True)
class Report:
    """The result of a launch: tensors by name (dtype and shape as given), faults, notes (of the kinds in `NOTES`),
    execution counts, and the lines that it printed, in the order of execution."""

    tensors: dict[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])
    faults: list[Fault] = field(default_factory=list[Fault])
    notes: list[Fault] = field(default_factory=list[Fault])
    statistics: dict[str, Any] = field(default_factory=dict[str, Any])
    printed: list[str] = field(default_factory=list[str])

    @property
    def clean(self) -> bool:
        return not self.faults


Lanes = NDArray[Any]
"""One entry per lane of a frame."""
Poison = NDArray[np.uint8]
"""Poison bits, one byte per lane."""
