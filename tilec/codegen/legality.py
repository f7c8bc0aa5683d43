"""Rejects, with a diagnostic, instructions that the target lacks: LLVM would abort on them, or ptxas would reject them later.

The check reads translated LLVM IR, in which every hardware operation is an `llvm.nvvm.*` intrinsic or inline PTX, whichever
dialect it came from. Families follow the "Target ISA Notes" of the PTX ISA
(https://docs.nvidia.com/cuda/parallel-thread-execution/).
"""

from __future__ import annotations

import re
from typing import Final

from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.target.families import FAMILIES, REGISTER_REALLOCATION
from tilec.target.targets import TARGETS, Target

_FAMILIES: Final = {
    **{family.name: re.compile(family.pattern) for family in FAMILIES if family.pattern},
    REGISTER_REALLOCATION: re.compile(r"setmaxnreg\b|setmaxnreg\."),
    "clusterlaunchcontrol": re.compile(r"clusterlaunchcontrol\."),
    "block_scale": re.compile(r"block[._]scale"),
}
SINCE: Final = (
    (re.compile(r"griddepcontrol"), (9, 0), "programmatic dependent launch"),
    (re.compile(r"mbarrier"), (9, 0), "copies that arrive at mbarriers"),
    (re.compile(r"cp[.]async[.]bulk"), (9, 0), "copies of whole boxes"),
    (re.compile(r"stmatrix"), (9, 0), "stmatrix"),
    (re.compile(r"fence[.]proxy[.]async"), (9, 0), "proxy fences"),
    (re.compile(r"barrier[.]cluster|mapa[.]|cluster[.]"), (9, 0), "clusters"),
    (re.compile(r"(?:red|atom)[.].*noftz[.]bf16"), (9, 0), "atomic sums of bf16"),
    (re.compile(r"red[.].*[.]v[248][.]"), (9, 0), "sums of vectors in memory"),
    (re.compile(r"e(?:4m3|5m2)x2"), (8, 9), "conversions of 8-bit floats"),
)
"""Instructions that every later chip has too: pattern, the first capability with them, and what they are for. An older chip has
some `mbarrier` instructions, but none of those that lowering emits."""
_INTRINSIC: Final = re.compile(r"@llvm\.nvvm\.([\w.]+)")
_INLINE_PTX: Final = re.compile(r'\basm\b[^"\n]*"((?:[^"\\]|\\.)*)"')


def operations(llvm_ir: str) -> list[str]:
    """Names of the hardware intrinsics used (without `llvm.nvvm.`) and the texts of inline PTX, sorted, each once."""
    inline_texts = (text for line in llvm_ir.split("\n") if "asm" in line for text in _INLINE_PTX.findall(line))
    return sorted({*_INTRINSIC.findall(llvm_ir), *inline_texts})


def check(llvm_ir: str, target: Target) -> None:
    """Raises CompileError E0503, one diagnostic per operation, if `target` lacks an instruction that the code uses."""
    diagnostics: list[Diagnostic] = []
    for operation in operations(llvm_ir):
        reason = _reason(operation, target)
        if reason:
            diagnostics.append(
                Diagnostic(
                    "E0503",
                    f"`{operation.split(' ')[0]}` does not exist on {target}",
                    notes=(reason,),
                    hint="build this kernel for an architecture that has them",
                )
            )
    if diagnostics:
        raise CompileError(diagnostics)


def _reason(operation: str, target: Target) -> str:
    """Where the instructions of an operation exist; empty if `target` has them."""
    for family, pattern in _FAMILIES.items():
        if pattern.search(operation) and family not in target.families:
            supporting = ", ".join(t.name for t in TARGETS if family in t.families)
            return f"the {family} instructions exist on {supporting}"
    for pattern, (major, minor), name in SINCE:
        if pattern.search(operation) and target.capability < (major, minor):
            return f"instructions for {name} exist from compute capability {major}.{minor} on"
    return ""
