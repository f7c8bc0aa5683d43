"""Register reallocation between warpgroups (PTX ISA, `setmaxnreg`).

A kernel starts with equal register counts. `dec` releases registers, and `inc` blocks until enough are free. Every warp of a
warpgroup must execute the same sequence of `setmaxnreg`. Available on the targets of the family `setmaxnreg`. nvJitLink ignores
the instruction; ptxas honors it if the kernel specifies its blocks per SM.
"""

from __future__ import annotations

from tilec.mlir.builder import Builder


def reallocate_registers(out: Builder, count: int, current: int) -> None:
    """Change the registers per thread from `current` to `count`."""
    if count != current:
        direction = "inc" if count > current else "dec"
        out.inline_ptx(f"setmaxnreg.{direction}.sync.aligned.u32 {count};", "~{memory}", side_effects=True)
