"""Scopes of memory operations as a reach: a number of blocks, 0 for the whole launch and beyond.

PTX ISA, "Memory consistency model: Scope". A scope of reach n contains two threads if the launch-wide numbers of their blocks
agree when divided by n: 1 for `.cta`, the cluster's size for `.cluster` (the blocks of a cluster have adjacent numbers, and the
first of them is a multiple of its size), and the number of a device's blocks for `.gpu`, if several devices run. Two operations
are in each other's scope if the narrower one contains both threads.
"""

from __future__ import annotations


def reach_of(scope: str | None, cluster_size: int, device_blocks: int = 0) -> int:
    """The reach of `.cta`, `.cluster`, `.gpu`, or any wider scope (None: the widest). `device_blocks`: the blocks of each
    device, 0 if there is one."""
    if scope in ("gpu", "gl"):
        return device_blocks
    return 1 if scope == "cta" else cluster_size if scope == "cluster" else 0


def narrower(first: int, second: int) -> int:
    """The smaller of two reaches."""
    return min(first, second) if first and second else first or second


def within(reach: int, block: int, other: int) -> bool:
    """Whether a scope contains threads of two blocks, by their launch-wide numbers."""
    return not reach or block // reach == other // reach
