"""The windows of a launch in memory: shared, local and parameter space, and the variables of its module.

In: addresses of a state space, or names of variables. Out: indices into memory, or addresses. A window belongs to a block
(shared), a thread (local) or the launch (parameters); an address in it is an offset (`memory`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.errors import UnsupportedPtx
from tilec.emulator.machine.cluster_windows import ClusterWindows
from tilec.emulator.machine.launch_state import LaunchState
from tilec.emulator.machine.memory import (
    GLOBAL_BASE,
    LOCAL_BASE,
    PARAM_BASE,
    PARAM_START,
    SHARED_BASE,
    SHARED_START,
    Allocation,
    Memory,
)
from tilec.emulator.machine.wave import Wave
from tilec.emulator.ptx.syntax import Function, Module, Symbol, Variable

Index = NDArray[np.int64]
WINDOW: Final = 1 << 32


class Windows:
    """`shared`: the window of each block of the wave; `shared_base` [lanes]: the index in memory of the block's shared window,
    less the window's first offset. `parameters`, those of each device, is empty until the launch stores them; `cluster` is None
    in a launch without clusters of several blocks."""

    def __init__(self, launch: LaunchState, memory: Memory, wave: Wave) -> None:
        self.launch, self.memory, self.wave = launch, memory, wave
        self.shared_offsets, self.shared_size = shared_layout(launch.module, launch.function, launch.dynamic_shared_bytes)
        self.local_offsets, self.local_size = local_layout(launch.function)
        self.globals = module_variables(launch.module, memory)
        self.shared: list[Allocation] = []
        self.cluster = ClusterWindows(wave, self.shared_size) if launch.cluster_size > 1 else None
        self.shared_base: Index = np.zeros(0, np.int64)
        self.local: Allocation | None = None
        self.parameters: list[Allocation] = []

    def start(self, wave: Wave, blocks: Sequence[tuple[int, int, int]]) -> None:
        """Allocates the windows of a new wave."""
        self.shared = [
            self.memory.reserve(f"shared memory of block {tuple(b)}", "shared", self.shared_size, align=1024)
            for b in [*blocks] * wave.devices
        ]
        bases = np.array([allocation.start for allocation in self.shared], np.int64) - SHARED_START
        self.shared_base = bases[wave.block]
        if self.cluster is not None:
            self.cluster.start(bases)
        if self.local_size:
            self.local = self.memory.reserve(
                "local memory", "local", self.local_size * wave.lane_count, align=1024, tracked=False
            )

    def resolve(self, lanes: Index, address: Index, space: str) -> Index:
        """Indices into memory; -1 for an address outside every window."""
        if space == "shared" or space == "shared::cluster":
            if self.cluster is not None:
                return self.cluster.resolve(lanes, address, space == "shared::cluster")
            inside = (address >= SHARED_START) & (address < SHARED_START + self.shared_size)
            index = self.shared_base[lanes] + address
            return index if inside.all() else np.where(inside, index, -1)
        if space == "local":
            inside = (address >= 16) & (address < self.local_size)
            start = self.local.start if self.local else 0
            return np.where(inside, start + lanes * self.local_size + address, -1)
        if space == "param":
            if not self.parameters:
                return np.full(len(address), -1, np.int64)
            first = self.parameters[0]
            inside = (address >= PARAM_START) & (address < PARAM_START + (first.end - first.start))
            starts = np.array([one.start for one in self.parameters], np.int64)
            return np.where(inside, address - PARAM_START + starts[self.wave.device[self.wave.block[lanes]]], -1)
        index = address - GLOBAL_BASE
        if space == "generic" and (index < 0).any():
            for base, window in ((SHARED_BASE, "shared::cluster"), (LOCAL_BASE, "local"), (PARAM_BASE, "param")):
                inside = (address >= base) & (address < base + WINDOW)
                index = np.where(inside, self.resolve(lanes, address - base, window), index)
        return index

    def symbol_address(self, symbol: Symbol) -> int | None:
        """The address of a variable as `mov` returns it: an offset in the window for shared and local variables and
        parameters, otherwise generic. None for an unknown name."""
        name = symbol.name
        if name in self.shared_offsets:
            return SHARED_START + self.shared_offsets[name] + symbol.offset
        if name in self.local_offsets:
            return self.local_offsets[name] + symbol.offset
        if name in self.globals:
            return self.globals[name].address + symbol.offset
        for parameter in self.launch.function.parameters:
            if parameter.name == name and self.parameters:
                return PARAM_START + parameter.offset + symbol.offset
        return None


def _assign_offsets(variables: list[Variable]) -> tuple[dict[str, int], int]:
    offsets: dict[str, int] = {}
    end = 0
    for variable in variables:
        end = -(-end // variable.align) * variable.align
        offsets[variable.name] = end
        end += variable.size
    return offsets, end


def shared_layout(module: Module, function: Function, dynamic_bytes: int) -> tuple[dict[str, int], int]:
    """Offsets of shared variables in the block's window (dynamic ones last), and its size in bytes."""
    variables = [v for v in (*module.variables.values(), *function.variables.values()) if v.space == "shared"]
    offsets, end = _assign_offsets([v for v in variables if not v.external])
    dynamic = [v for v in variables if v.external]
    if dynamic:
        align = max(v.align for v in dynamic)
        end = -(-end // align) * align
        offsets |= {v.name: end for v in dynamic}
    return offsets, end + dynamic_bytes


def local_layout(function: Function) -> tuple[dict[str, int], int]:
    """Offsets of a thread's local variables (from 16, so that no address is 0), and the size of its window in bytes."""
    offsets, end = _assign_offsets([v for v in function.variables.values() if v.space == "local"])
    if not offsets:
        return {}, 0
    return {name: offset + 16 for name, offset in offsets.items()}, -(-(end + 16) // 16) * 16


def module_variables(module: Module, memory: Memory) -> dict[str, Allocation]:
    """Allocates the global and constant variables of a module with their initial contents."""
    found: dict[str, Allocation] = {}
    for variable in module.variables.values():
        if variable.space not in ("global", "const"):
            continue
        if variable.external:
            raise UnsupportedPtx(f"external variable {variable.name}")
        writable = variable.space == "global"
        data = np.frombuffer((variable.initial or b"").ljust(variable.size, b"\0"), np.uint8)
        allocation = memory.allocate(variable.name, data, writable=writable, align=max(variable.align, 16))
        allocation.space, allocation.is_tensor = variable.space, False
        found[variable.name] = allocation
    return found
