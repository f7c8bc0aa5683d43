"""The families of matrix instructions, each as a value: what a schedule, an atom and a check need to know of one.

A family has an entry here, an atom in `tilec.atoms` that makes its layouts and instructions, and a rule in `tilec.lowering`.
Schedules and manifests name it by `Family.name`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

from tilec.target.dtypes import DType

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
    """Elements of one instruction: M (`rows`), the step and the maximum of N (`columns`, `most_columns`), and K of 16-bit
    elements (`depth`)."""

    rows: int
    columns: int
    most_columns: int
    depth: int

    def depth_of(self, bits: int) -> int:
        """K of elements of this width, in bits: an instruction always takes the same bytes of a row (PTX ISA, "Matrix Shape" of
        `mma`, `wgmma.mma_async` and `tcgen05.mma`)."""
        return self.depth * 16 // bits


class Work(Enum):
    """What one thread of a helper role does for the consumers; the value is for messages."""

    COPY = "copy"
    MULTIPLY = "multiply"


@dataclass(frozen=True, slots=True)
class Helper:
    """A role of `warps` warps, one thread of which does one kind of work for all consumers."""

    name: str
    warps: int
    work: Work


@dataclass(frozen=True, slots=True)
class Specialization:
    """The roles of a block: consumers of `consumer_warps` warps each, at most `most_consumers`, then the `helpers`, whose work
    the consumers do not do. `reallocation`: number of consumers to registers per consumer and per helper thread, which use up
    an SM's registers. With a number that is not listed, a thread has the maximum without reallocation."""

    consumer_warps: int
    helpers: tuple[Helper, ...]
    most_consumers: int
    reallocation: Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Family:
    """Matrix instructions of one kind. `copies`: how their operands may be loaded. `operands` and `accumulators`: where they
    are. `least_stages` and `most_stages`: of a pipeline that feeds them. `stage_alignment`: of a stage, in bytes. `row_bytes`:
    of a row of an operand in shared memory; 0 if any will do. `least_registers`: per thread, by number of columns.
    `few_columns`: up to which number the columns of integer products are in steps of 8. `specialization`: the roles of a block
    with a producer. `pattern`: matches its intrinsics and PTX; empty for a family that every target has."""

    name: str
    issuer: Issuer
    shape: Shape
    copies: tuple[str, ...]
    operands: MemorySpace
    accumulators: MemorySpace
    least_stages: int
    most_stages: int
    stage_alignment: int
    row_bytes: int
    least_registers: Callable[[int], int]
    few_columns: int = 0
    specialization: Specialization | None = None
    pattern: str = ""

    def takes(self, dtype: DType) -> bool:
        """Whether it has operands of a dtype. Elements of f32 must be rounded to tf32 first, which a thread does: an
        instruction that reads shared memory would ignore their lower bits."""
        return dtype.matrix is not None and not (dtype.bits == 32 and self.runs_ahead)

    def has_columns(self, columns: int, dtype: DType, blocks: int = 1) -> bool:
        """Whether an instruction on operands of `dtype`, with the rows of B in `blocks` blocks, has so many columns. Those of
        integers have fewer numbers of columns (PTX ISA, "Matrix Shape" of `wgmma.mma_async`, "Kind and shapes" of
        `tcgen05.mma`)."""
        step = self.shape.columns
        if dtype.is_integer and self.runs_ahead and columns > self.few_columns:
            step = max(step, 16 * blocks)
        return columns % step == 0 and 0 < columns <= self.shape.most_columns

    @property
    def in_tensor_memory(self) -> bool:
        """Whether its accumulators are in tensor memory."""
        return self.accumulators is MemorySpace.TENSOR

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


PRODUCER: Final = Helper("producer", 4, Work.COPY)
"""A whole warpgroup, because registers move between warpgroups."""
REALLOCATION: Final[Mapping[int, tuple[int, int]]] = MappingProxyType({2: (232, 40), 3: (160, 32)})
"""Registers of a consumer and of a helper thread for two and three consumers of a warpgroup each, and one helper
warpgroup."""
MMA_SYNC: Final = Family(
    "mma_sync", Issuer.WARP, Shape(16, 8, 8, 16), (LOAD, CP_ASYNC, TMA), MemorySpace.REGISTERS, MemorySpace.REGISTERS,
    least_stages=1, most_stages=4, stage_alignment=128, row_bytes=0, least_registers=lambda _: 0,
    # Warps multiply by themselves, but registers move between warpgroups, and so a consumer is one.
    specialization=Specialization(4, (PRODUCER,), 3, REALLOCATION),
)  # fmt: skip
"""`mma.sync` of a warp, from registers, to which `ldmatrix` brings what a copy has put into shared memory. Every target has
it; where there are tensor maps (`tilec.target.targets.Target.copies_boxes`) a producer can fill the stages."""
WGMMA: Final = Family(
    "wgmma", Issuer.WARPGROUP, Shape(64, 8, 256, 16), (CP_ASYNC, TMA), MemorySpace.SHARED, MemorySpace.REGISTERS,
    # Operands need no registers, so tiles may be small and latency-bound, which deeper pipelines hide.
    # Rows of an operand are of the widest swizzle span, and a stage is aligned to 8 of them.
    least_stages=3, most_stages=8, stage_alignment=1024, row_bytes=128,
    # ptxas (13.5) accepts no fewer for an instruction: its accumulators plus 26.
    least_registers=lambda columns: columns // 2 + 26,
    few_columns=32,
    specialization=Specialization(4, (PRODUCER,), 3, REALLOCATION),
    pattern=r"wgmma[.:]",
)  # fmt: skip
"""`wgmma.mma_async` of a warpgroup, from shared memory."""
LOADER: Final = Helper("producer", 1, Work.COPY)
MULTIPLIER: Final = Helper("multiplier", 1, Work.MULTIPLY)
TCGEN05: Final = Family(
    "tcgen05", Issuer.THREAD, Shape(64, 16, 256, 16), (TMA,), MemorySpace.SHARED, MemorySpace.TENSOR,
    least_stages=2, most_stages=8, stage_alignment=1024, row_bytes=128, least_registers=lambda _: 0,
    specialization=Specialization(4, (LOADER, MULTIPLIER), 2, {}),
    pattern=r"tcgen05[.:]",
)  # fmt: skip
"""`tcgen05.mma` of one thread, from shared into tensor memory. Consumers load the accumulators: four warps access all lanes,
and eight share the columns."""
FAMILIES: Final = (MMA_SYNC, WGMMA, TCGEN05)


def helper_named(name: str) -> Helper | None:
    """The helper role of that name; None if no family has one."""
    helpers = (helper for family in FAMILIES if family.specialization for helper in family.specialization.helpers)
    return next((helper for helper in helpers if helper.name == name), None)


def family_named(name: str | None) -> Family | None:
    """The family of that name; None if there is none."""
    return next((family for family in FAMILIES if family.name == name), None)


def fed_by(copy: str) -> tuple[Family, ...]:
    """The families whose operands may be copied so, the asynchronous ones first: a target that has one is fed best so."""
    return tuple(sorted((one for one in FAMILIES if copy in one.copies), key=lambda family: not family.runs_ahead))
