"""Registers that groups of four warps pass on to each other (PTX ISA, `setmaxnreg`).

A kernel starts with equal shares; a group that needs few gives some back, and one that wants more waits until they are there.
Every warp of a group says so, in the same order. Exists on the targets of the family `setmaxnreg`; nvJitLink takes no notice of
it, ptxas does where the kernel says how many blocks share a multiprocessor.
"""

from __future__ import annotations

from tilec.mlir.builder import Builder


def take_registers(out: Builder, count: int, before: int) -> None:
    """From `before` registers a thread to `count`."""
    if count != before:
        direction = "inc" if count > before else "dec"
        out.inline_ptx(f"setmaxnreg.{direction}.sync.aligned.u32 {count};", "~{memory}", side_effects=True)
