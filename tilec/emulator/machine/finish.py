"""The report of a finished launch: tensors, poison and unwritten bytes of outputs, coverage and counts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.errors import STORED, UNINITIALISED, Report
from tilec.emulator.machine.faults import kind_of
from tilec.emulator.machine.machine import Machine
from tilec.emulator.machine.memory import Allocation
from tilec.emulator.machine.program import Program


def report(machine: Machine, program: Program, steps: int, seconds: float) -> Report:
    """The report of a launch that ended or was stopped early."""
    memory = machine.memory
    machine.ordering.noncoherent.report()
    tensors: dict[str, Any] = {}
    for allocation in memory.allocations:
        if allocation.is_tensor:
            tensors[allocation.name] = memory.contents(allocation)
            if allocation.writable:
                _check_output(machine, allocation)
    faults, notes = list(machine.faults.found.values()), list(machine.faults.notes.values())
    return Report(tensors, faults, notes, _statistics(program, steps, seconds), "".join(machine.printed).splitlines())


def _check_output(machine: Machine, found: Allocation) -> None:
    poison = machine.memory.poison[found.start : found.end]
    if not poison.any() and found.required is None:
        return
    for store in machine.accesses.poison_stores:
        index = store.index
        inside = np.flatnonzero((index >= found.start) & (index < found.end))
        bytes_: NDArray[np.int64] = np.add(index[inside][:, None], np.arange(store.width))
        bad = np.flatnonzero((machine.memory.poison[bytes_] & STORED).any(axis=1))
        if len(bad):
            at = int(bytes_[bad[0]][(machine.memory.poison[bytes_[bad[0]]] & STORED) != 0][0])
            kind, row = kind_of(int(machine.memory.poison[at])), int(inside[bad[0]])
            fault = machine.faults.add(
                kind, f"a byte of `{found.name}` is not defined", store.instruction, index=at, count=len(bad)
            )
            if fault is not None:
                fault.block, fault.thread = _three(store.blocks[row]), int(store.threads[row])
    if found.checked:
        missing = poison == UNINITIALISED
        if found.required is not None:
            between = np.flatnonzero(~missing & ~found.required)
            _gaps(machine, found, between, "bounds", "bytes between the elements of `{}` are written")
            missing &= found.required
        _gaps(machine, found, np.flatnonzero(missing), "unwritten", "bytes of `{}` are never written")


def _three(block: Any) -> tuple[int, int, int]:
    return int(block[0]), int(block[1]), int(block[2])


def _gaps(machine: Machine, found: Allocation, where: Any, kind: str, message: str) -> None:
    if len(where):
        text = f"{len(where)} {message.format(found.name)}"
        first = found.start + int(where[0])
        machine.faults.add(kind, text, None, index=first, count=len(where), distinct=found.name)


def _statistics(program: Program, steps: int, seconds: float) -> dict[str, Any]:
    counts = program.lanes_executed()
    instructions = program.instructions
    covered = {instructions[k].line for k in np.flatnonzero(counts > 0)}
    opcodes: dict[str, int] = {}
    for instruction, count in zip(instructions, counts, strict=True):
        if count:
            name = ".".join((instruction.opcode, *instruction.modifiers))
            opcodes[name] = opcodes.get(name, 0) + int(count)
    lanes = int(counts.sum())
    return {
        "steps": steps,
        "instruction_lanes": lanes,
        "seconds": seconds,
        "instruction_lanes_per_second": lanes / seconds if seconds else 0.0,
        "lines": covered,
        "coverage": float((counts > 0).mean()) if len(counts) else 1.0,
        "opcodes": opcodes,
        "lane_counts": {instructions[k].line: int(counts[k]) for k in range(len(instructions))},
    }
