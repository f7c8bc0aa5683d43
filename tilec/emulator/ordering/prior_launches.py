"""Accesses before a thread's grid dependency wait, while preceding launches may still run (PTX ISA, `griddepcontrol`).

In: an access. Out: a fault if it reads global memory that those launches may still write, or writes any global memory, which
they may still read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.machine.memory import Allocation
from tilec.emulator.ptx.syntax import Instruction

if TYPE_CHECKING:
    from tilec.emulator.machine.machine import Machine

BEFORE_WAIT: Final = "global memory before griddepcontrol.wait, while the launch before may still run"


def check(
    machine: Machine,
    lanes: NDArray[np.int64],
    index: NDArray[np.int64],
    allocations: Iterable[Allocation | None],
    instruction: Instruction,
    *,
    write: bool,
) -> None:
    """Checks accesses of `lanes`, each at its `index` in memory; `allocations` are the allocations accessed."""
    if machine.before_dependency_wait is None:
        return
    early = machine.before_dependency_wait[lanes] & any(
        allocation is not None and _may_change(allocation, write) for allocation in allocations
    )
    if early.any():
        at = int(np.flatnonzero(early)[0])
        machine.faults.add("dependency", BEFORE_WAIT, instruction, int(lanes[at]), index=int(index[at]), count=int(early.sum()))


def _may_change(allocation: Allocation, write: bool) -> bool:
    return allocation.space == "global" and (write or not allocation.resident)
