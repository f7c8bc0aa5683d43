"""`ld.global.nc` and `ldu` promise that the data is read-only while the launch runs (PTX ISA, ld.global.nc, ldu).

In: such reads. Out: faults, immediately if the preceding launch may still write the bytes, at the end if this launch wrote
them. The declared access of a tensor is irrelevant: a preceding launch may write a tensor that this one only reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tilec.emulator.machine.access import Access
    from tilec.emulator.machine.machine import Machine
    from tilec.emulator.ptx.syntax import Instruction


def watch(machine: Machine, access: Access, instruction: Instruction) -> None:
    """Keeps a read for `report`. Bytes that a preceding launch may still write when this one begins must not be read this
    way, even after the grid dependency wait."""
    if machine.overlaps and any(
        allocation.space == "global" and not allocation.resident for allocation in access.allocations(machine)
    ):
        text = "ld.global.nc of memory that the launch before may write while this one runs"
        machine.faults.add("non-coherent", text, instruction, int(access.lanes[0]), index=int(access.index[0]))
    if access.allocation is not None and not access.allocation.tracked:
        return  # a write by this launch is already a fault
    machine.extensions.setdefault("noncoherent", []).append(
        (np.unique(access.index), access.width, instruction, access.lanes[0])
    )


def report(machine: Machine) -> None:
    """Reports reads by ld.global.nc of bytes that this launch wrote."""
    shadow = machine.shadow
    for index, width, instruction, lane in machine.extensions.get("noncoherent", ()):
        written = shadow.writes[shadow.granules(index, width)].any(axis=1)
        if written.any():
            at = int(index[np.flatnonzero(written)[0]])
            machine.faults.add(
                "non-coherent",
                "ld.global.nc of bytes that the launch writes",
                instruction,
                int(lane),
                index=at,
                count=int(written.sum()),
            )
