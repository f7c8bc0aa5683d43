"""The families of matrix instructions, each as a value: what a schedule, an atom and a check need to know of one.

A family has an entry here, an atom in `tilec.atoms` that makes its layouts and instructions, and a rule in `tilec.lowering`.
Schedules and manifests name it by `Family.name`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

LOAD: Final = "load"
CP_ASYNC: Final = "cp_async"
TMA: Final = "tma"
"""How operands are copied: by each thread's loads, by asynchronous copies of 4 to 16 bytes per thread, or by copies of whole
boxes that one producer thread issues."""
REGISTER_REALLOCATION: Final = "setmaxnreg"
"""The instruction that moves registers between warpgroups; targets that have it list it with their families."""


class MemorySpace(Enum):
    """Where elements of a tile are; the value is how the tile IR's text writes it."""

    REGISTERS = "registers"
    SHARED = "shared"
    TENSOR = "tensor"


class Issuer(Enum):
    """The threads that execute one instruction together; the value is their number."""

    THREAD = 1
    WARP = 32
    WARPGROUP = 128

    @property
    def warps(self) -> int:
        """Warps that they belong to."""
        return max(1, self.value // 32)


@dataclass(frozen=True, slots=True)
class Shape:
    """Elements of one instruction: M (`rows`), the step and the maximum of N (`columns`, `most_columns`), and K (`depth`)."""

    rows: int
    columns: int
    most_columns: int
    depth: int


@dataclass(frozen=True, slots=True)
class Specialization:
    """The roles of a block whose operands one producer copies: warps of a consumer and of the producer, the maximum number of
    consumers, and register reallocation: number of consumers to registers per consumer and per producer thread, which use up
    an SM's registers. With a number that is not listed, a thread has the maximum without reallocation."""

    consumer_warps: int
    producer_warps: int
    most_consumers: int
    reallocation: Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Family:
    """Matrix instructions of one kind. `copies`: how their operands may be loaded. `operands` and `accumulators`: where they
    are. `least_stages` and `most_stages`: of a pipeline that feeds them. `stage_alignment`: of a stage, in bytes.
    `least_registers`: per thread, by number of columns. `specialization`: the roles of a block with a producer. `pattern`:
    matches its intrinsics and PTX; empty for a family that every target has."""

    name: str
    issuer: Issuer
    shape: Shape
    copies: tuple[str, ...]
    operands: MemorySpace
    accumulators: MemorySpace
    least_stages: int
    most_stages: int
    stage_alignment: int
    least_registers: Callable[[int], int]
    specialization: Specialization | None = None
    pattern: str = ""

    @property
    def runs_ahead(self) -> bool:
        """Whether an instruction is asynchronous and reads its stage until one iteration later."""
        return self.operands is MemorySpace.SHARED

    def issuers(self, warps: int) -> int:
        """Groups of threads that share the rows of a product on so many warps; 0 if the warps are no whole groups. A family
        that one thread issues has one."""
        if self.issuer is Issuer.THREAD:
            return 1
        return 0 if warps % self.issuer.warps else warps // self.issuer.warps


MMA_SYNC: Final = Family(
    "mma_sync", Issuer.WARP, Shape(16, 8, 8, 16), (LOAD, CP_ASYNC), MemorySpace.REGISTERS, MemorySpace.REGISTERS,
    least_stages=1, most_stages=4, stage_alignment=128, least_registers=lambda _: 0,
)  # fmt: skip
"""`mma.sync` of a warp, from registers. Every target has it."""
WGMMA: Final = Family(
    "wgmma", Issuer.WARPGROUP, Shape(64, 8, 256, 16), (CP_ASYNC, TMA), MemorySpace.SHARED, MemorySpace.REGISTERS,
    # Operands need no registers, so tiles may be small and latency-bound, which deeper pipelines hide.
    least_stages=3, most_stages=8, stage_alignment=1024,
    # ptxas (13.5) accepts no fewer for an instruction: its accumulators plus 26.
    least_registers=lambda columns: columns // 2 + 26,
    # The producer is a whole warpgroup, of which one thread works, because registers move between warpgroups.
    specialization=Specialization(4, 4, 3, {2: (232, 40), 3: (160, 32)}),
    pattern=r"wgmma[.:]",
)  # fmt: skip
"""`wgmma.mma_async` of a warpgroup, from shared memory."""
FAMILIES: Final = (MMA_SYNC, WGMMA)


def family_named(name: str | None) -> Family | None:
    """The family of that name; None if there is none."""
    return next((family for family in FAMILIES if family.name == name), None)


def fed_by(copy: str) -> tuple[Family, ...]:
    """The families whose operands may be copied so, when some target has none of them; empty if every target has one."""
    found = tuple(family for family in FAMILIES if copy in family.copies)
    return found if all(family.pattern for family in found) else ()
