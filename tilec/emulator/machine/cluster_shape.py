"""The clusters of a launch: their shape by the kernel's directives and the launch, and what forbids the launch.

Sources: PTX ISA, "Cluster dimension directives" (.reqnctapercluster, .explicitcluster, .maxclusterrank) and "Cluster of
cooperative thread arrays". Ranks within a cluster and the order of its blocks follow %cluster_ctarank: x varies fastest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from tilec.emulator.errors import UnsupportedPtx
from tilec.emulator.machine.launch_state import LaunchState, Shape
from tilec.emulator.ptx.syntax import Function

MOST_BLOCKS: Final = 16
"""Blocks of the largest cluster, which needs the non-portable attribute (CUDA programming guide; 8 are portable)."""
FIRST_TARGET: Final = 90
"""The first compute capability that has clusters."""


def cluster_shape(function: Function, given: Sequence[int] | None) -> Shape:
    """The blocks of a cluster along each axis: `given` by the launch, else by the kernel, else one block."""
    sizes = given if given is not None else function.directives.get("reqnctapercluster", ())
    x, y, z = (*(int(size) for size in sizes), 1, 1, 1)[:3]
    if min(x, y, z) < 1:
        raise ValueError(f"clusters of {tuple(sizes)} blocks")
    if x * y * z > 1 and "blocksareclusters" in function.directives:
        raise UnsupportedPtx(".blocksareclusters with clusters of several blocks", function.line)
    return x, y, z


def problems(launch: LaunchState) -> Iterator[str]:
    """What forbids the launch, as clauses about it."""
    directives, shape = launch.function.directives, launch.cluster_shape
    required = directives.get("reqnctapercluster")
    if required is not None and (*required, 1, 1)[:3] != shape:
        yield f"clusters of {shape} blocks where the kernel demands {required}"
    if "explicitcluster" in directives and not launch.explicit_cluster:
        yield "no cluster shape where the kernel demands one with .explicitcluster"
    most = directives.get("maxclusterrank", (MOST_BLOCKS,))[0]
    if launch.cluster_size > most:
        yield f"clusters of {launch.cluster_size} blocks, more than {most}"
    number = re.match(r"sm_(\d+)", launch.module.target)
    if launch.cluster_size > 1 and number and int(number[1]) < FIRST_TARGET:
        yield f"clusters of several blocks on {launch.module.target}"
    if any(blocks % size for blocks, size in zip(launch.grid, shape, strict=True)):
        yield f"a grid of {launch.grid} blocks, which is no multiple of the cluster {shape}"


def clusters(launch: LaunchState, blocks: Sequence[Shape] | None = None) -> list[list[Shape]]:
    """The blocks of each cluster by rank, clusters in the order of `blocks` (default: the whole grid, x fastest). ValueError
    if `blocks` has only a part of a cluster."""
    shape = launch.cluster_shape
    if blocks is None:
        counts = [size // each for size, each in zip(launch.grid, shape, strict=True)]
        firsts = [
            (x * shape[0], y * shape[1], z * shape[2])
            for z in range(counts[2])
            for y in range(counts[1])
            for x in range(counts[0])
        ]
        return [members(first, shape) for first in firsts]
    found = {members(block, shape)[0]: members(block, shape) for block in blocks}
    missing = {block for cluster in found.values() for block in cluster} - set(blocks)
    if missing:
        raise ValueError(f"blocks of a part of a cluster: {sorted(missing)} are missing")
    return list(found.values())


def members(block: Shape, shape: Shape) -> list[Shape]:
    """The blocks of the cluster that contains `block`, by rank."""
    x, y, z = (at - at % size for at, size in zip(block, shape, strict=True))
    return [(x + i, y + j, z + k) for k in range(shape[2]) for j in range(shape[1]) for i in range(shape[0])]
