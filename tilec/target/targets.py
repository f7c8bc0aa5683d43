"""The GPU architectures that tilec builds for, with their limits and instruction families.

A target is a row. An architecture-specific one (`a` suffix) has every instruction of its chip, and its CUBIN runs on that
compute capability only; a CUBIN of a family (`f` suffix), or of a target without a suffix, runs on several
(`tilec.target.chips`). The launcher refuses any other. Limits of shared memory, warps and blocks are from the CUDA programming
guide, table "Technical Specifications per Compute Capability"
(https://docs.nvidia.com/cuda/cuda-c-programming-guide/#features-and-technical-specifications). Those of a family are of the
least member.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.target.chips import DEPENDENT_LAUNCH_SINCE, RUNS_ON, Capability, spelled
from tilec.target.dtypes import DType
from tilec.target.families import REGISTER_REALLOCATION, TCGEN05, TMA, WGMMA, Family


@dataclass(frozen=True, slots=True)
class Target:
    """One architecture: `name` as ptxas spells it, compute `capability`, PTX version as an LLVM feature, maximum bytes of
    shared memory per block, maximum resident warps and blocks per SM, and the instruction families that not every target
    has."""

    name: str
    capability: Capability
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
    def capabilities(self) -> tuple[Capability, ...]:
        """The compute capabilities that its machine code runs on."""
        return RUNS_ON[self.name]

    @property
    def copies_boxes(self) -> bool:
        """Whether tensor maps describe copies of boxes (PTX ISA, `cp.async.bulk.tensor`: compute capability 9.0 and later)."""
        return self.capability >= (9, 0)

    @property
    def copies_into_own_block(self) -> bool:
        """Whether a copy of a box names the shared memory of its own block (`.shared::cta`). Compute capability 12 has no
        multicast to a cluster, and ptxas (13.5) makes a call of a copy with `.shared::cluster` there."""
        return self.capability >= (12, 0)

    @property
    def multiplies_f8(self) -> bool:
        """Whether machine code has `mma.sync` of 8-bit floats. For 9.0 and 10.x, ptxas (13.5) makes conversions to f16 of it.
        8.9 has it, but PTX for 8.9 is of an earlier version here than 8.4 (PTX ISA, `mma`)."""
        return self.capability >= (12, 0)

    def multiplies(self, family: Family, dtypes: Sequence[DType]) -> bool:
        """Whether it has instructions of a family on operands of these dtypes. Those of integers with sums in tensor memory are
        of `sm_100a` alone (PTX ISA, target notes of `tcgen05.mma`, `.kind::i8`)."""
        if not self.has(family) or not all(family.takes(dtype) for dtype in dtypes):
            return False
        if family.in_tensor_memory and any(dtype.is_integer for dtype in dtypes):
            return self.name == SM_100A.name
        return True

    def feeds(self, family: Family, copy: str) -> bool:
        """Whether operands of a family, which it has, may be copied so."""
        return self.has(family) and copy in family.copies and (copy != TMA or self.copies_boxes)

    @property
    def widest_load(self) -> int:
        """Maximum bytes that one thread loads from global memory at once (PTX ISA, `ld`: `.v8` of 32-bit types)."""
        return 32 if self.capability >= LOADS_32_BYTES_SINCE else 16

    @property
    def computes_pairs(self) -> bool:
        """Whether threads add and multiply pairs of f32 at once (PTX ISA, `add`, `mul`, `fma` of `.f32x2`)."""
        return self.capability >= PAIRS_SINCE

    @property
    def adds_vectors(self) -> bool:
        """Whether `red` adds vectors of floats to global memory (PTX ISA, `red`, target notes)."""
        return self.capability >= VECTOR_SUMS_SINCE

    @property
    def waits_for_exponentials(self) -> bool:
        """Whether a multiprocessor computes the products of an attention in the time of its exponentials, 16 a clock. Compute
        capability 10.3 makes 32 a clock."""
        return self.has(TCGEN05) and self.capability == (10, 0)

    @property
    def reallocates_registers(self) -> bool:
        """Whether registers can move between warpgroups."""
        return REGISTER_REALLOCATION in self.families

    @property
    def overlaps_launches(self) -> bool:
        """Whether a kernel may start before the previous one has ended (PTX ISA, `griddepcontrol`)."""
        return self.capability >= DEPENDENT_LAUNCH_SINCE

    @property
    def converts_f8(self) -> bool:
        """Whether `cvt` has floats of 8 bits (PTX ISA, `cvt`)."""
        return self.capability >= F8_SINCE

    @staticmethod
    def parse(text: str) -> Target:
        """The target for `sm_90`, `sm_90a` or `90`, `sm_100f` or `100f`; CompileError E0603 for an unknown architecture."""
        key = text.strip().lower().removeprefix("sm_")
        for target in TARGETS:
            if key in (target.name.removeprefix("sm_"), spelled(target.name).removeprefix("sm_")):
                return target
        known = ", ".join(f"`{spelled(target.name)}`" for target in TARGETS)
        raise CompileError(Diagnostic("E0603", f"unknown architecture `{text}`", hint=f"choose among {known}"))


F8_SINCE: Final = (8, 9)
LOADS_32_BYTES_SINCE: Final = (10, 0)
PAIRS_SINCE: Final = (10, 0)
VECTOR_SUMS_SINCE: Final = (9, 0)
SM_90A: Final = Target("sm_90a", (9, 0), "+ptx86", 232448, 64, 32, frozenset({WGMMA.name, REGISTER_REALLOCATION}))
SM_100A: Final = Target(
    "sm_100a", (10, 0), "+ptx88", 232448, 64, 32, frozenset({TCGEN05.name, REGISTER_REALLOCATION, "clusterlaunchcontrol"})
)
SM_120A: Final = Target(
    "sm_120a", (12, 0), "+ptx88", 101376, 48, 24, frozenset({"block_scale", REGISTER_REALLOCATION, "clusterlaunchcontrol"})
)
MAIN_TARGETS: Final = (SM_90A, SM_100A, SM_120A)
"""What a single kernel file is checked and built for if nothing is named: one chip of each kind."""
_OLDER: Final[frozenset[str]] = frozenset()
"""Families of 8.x: `mma.sync` and `cp.async`, which every target has."""
SM_80: Final = Target("sm_80", (8, 0), "+ptx78", 166912, 64, 32, _OLDER)
SM_86: Final = Target("sm_86", (8, 6), "+ptx78", 101376, 48, 16, _OLDER)
SM_89: Final = Target("sm_89", (8, 9), "+ptx81", 101376, 48, 24, _OLDER)
# A family has what its members share: all families of instructions here exist with the suffix `f` too (PTX ISA, target notes of
# `tcgen05`, `setmaxnreg` and `mma` with block scaling).
SM_103A: Final = replace(SM_100A, name="sm_103a", capability=(10, 3))
SM_100F: Final = replace(SM_100A, name="sm_100f")
SM_121A: Final = replace(SM_120A, name="sm_121a", capability=(12, 1))
SM_120F: Final = replace(SM_120A, name="sm_120f")
TARGETS: Final = (*MAIN_TARGETS, SM_80, SM_86, SM_89, SM_100F, SM_103A, SM_120F, SM_121A)
