"""The GPU architectures that tilec builds for, with their limits and instruction families.

Every target is an architecture-specific one (`a` suffix): its CUBIN runs on that compute capability only, and the launcher
refuses any other. Limits of shared memory, warps and blocks are from the CUDA programming guide, table "Technical
Specifications per Compute Capability"
(https://docs.nvidia.com/cuda/cuda-c-programming-guide/#features-and-technical-specifications).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.target.families import REGISTER_REALLOCATION, TCGEN05, TMA, WGMMA, Family


@dataclass(frozen=True, slots=True)
class Target:
    """One architecture: `name` as ptxas spells it, compute `capability`, PTX version as an LLVM feature, maximum bytes of
    shared memory per block, maximum resident warps and blocks per SM, and the instruction families that not every target
    has."""

    name: str
    capability: tuple[int, int]
    ptx_feature: str
    max_shared_bytes: int
    max_warps: int
    max_blocks: int
    families: frozenset[str]

    def __str__(self) -> str:
        return self.name

    def has(self, family: Family) -> bool:
        """Whether it has the instructions of a family."""
        return not family.pattern or family.name in self.families

    @property
    def copies_boxes(self) -> bool:
        """Whether tensor maps describe copies of boxes (PTX ISA, `cp.async.bulk.tensor`: compute capability 9.0 and later)."""
        return self.capability >= (9, 0)

    @property
    def copies_into_own_block(self) -> bool:
        """Whether a copy of a box names the shared memory of its own block (`.shared::cta`). Compute capability 12 has no
        multicast to a cluster, and ptxas (13.5) makes a call of a copy with `.shared::cluster` there."""
        return self.capability >= (12, 0)

    def feeds(self, family: Family, copy: str) -> bool:
        """Whether operands of a family, which it has, may be copied so."""
        return self.has(family) and copy in family.copies and (copy != TMA or self.copies_boxes)

    @property
    def reallocates_registers(self) -> bool:
        """Whether registers can move between warpgroups."""
        return REGISTER_REALLOCATION in self.families

    @staticmethod
    def parse(text: str) -> Target:
        """The target for `sm_90`, `sm_90a` or `90`; CompileError E0603 for an unknown architecture."""
        key = text.strip().lower().removeprefix("sm_").removesuffix("a")
        for target in TARGETS:
            if key == target.name.removeprefix("sm_").removesuffix("a"):
                return target
        known = ", ".join(f"`{target.name.removesuffix('a')}`" for target in TARGETS)
        raise CompileError(Diagnostic("E0603", f"unknown architecture `{text}`", hint=f"choose among {known}"))


SM_90A: Final = Target("sm_90a", (9, 0), "+ptx86", 232448, 64, 32, frozenset({WGMMA.name, REGISTER_REALLOCATION}))
SM_100A: Final = Target(
    "sm_100a", (10, 0), "+ptx88", 232448, 64, 32, frozenset({TCGEN05.name, REGISTER_REALLOCATION, "clusterlaunchcontrol"})
)
SM_120A: Final = Target(
    "sm_120a", (12, 0), "+ptx88", 101376, 48, 24, frozenset({"block_scale", REGISTER_REALLOCATION, "clusterlaunchcontrol"})
)
TARGETS: Final = (SM_90A, SM_100A, SM_120A)
