"""What a launch is: its program, shape and limits. Nothing here changes while it runs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from tilec.emulator.errors import Limits
from tilec.emulator.ptx.syntax import Function, Module

Shape = tuple[int, int, int]


@dataclass(eq=False, slots=True)
class LaunchState:
    """A launch of `function` on `grid` blocks of `block_shape` threads, in clusters of `cluster_shape` blocks. `overlaps`: the
    preceding launch may still run when this one begins; `replicating`: PTX lines of stores that replicate by design;
    `explicit_cluster`: the kernel or the launch names a cluster shape; `devices`: how many devices run the launch at once, each
    with arguments of its own."""

    module: Module
    function: Function
    grid: Shape
    block_shape: Shape
    cluster_shape: Shape = (1, 1, 1)
    dynamic_shared_bytes: int = 0
    seed: int = 0
    limits: Limits = field(default_factory=Limits)
    overlaps: bool = False
    replicating: Collection[int] = ()
    explicit_cluster: bool = False
    devices: int = 1
    threads: int = field(init=False)
    cluster_size: int = field(init=False)

    def __post_init__(self) -> None:
        self.threads = self.block_shape[0] * self.block_shape[1] * self.block_shape[2]
        self.cluster_size = self.cluster_shape[0] * self.cluster_shape[1] * self.cluster_shape[2]
