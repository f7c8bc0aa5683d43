"""`ld.global.nc` and `ldu`, promises that nobody writes the data while the launch runs (PTX ISA, ld.global.nc, ldu): reads go
in, faults come out, at once where the launch before may still write, at the end where this one did. What a tensor is declared
as plays no part: a launch before may write one that this launch only reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tilec.emulator.access import Access
    from tilec.emulator.machine import Machine
    from tilec.emulator.syntax import Instruction


def watch(machine: Machine, access: Access, instruction: Instruction) -> None:
    """Keep a read for the end. What a launch before this one may still write when this one begins is not read so, not even
    behind the wait for it."""
    if machine.overlaps and any(one.space == "global" and not one.resident for one in access.allocations(machine)):
        text = "ld.global.nc of memory that the launch before may write while this one runs"
        machine.faults.add("non-coherent", text, instruction, int(access.lanes[0]), index=int(access.index[0]))
    if access.allocation is not None and not access.allocation.tracked:
        return  # a write of this launch is a fault by itself
    machine.extensions.setdefault("noncoherent", []).append(
        (np.unique(access.index), access.width, instruction, access.lanes[0])
    )


def report(machine: Machine) -> None:
    """Reads by ld.global.nc of bytes that somebody wrote."""
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
