"""A launch of a kernel by several ranks at once, each on a device of its own.

In: PTX text, its manifest, and for each rank its tensors and launch values. The devices run interleaved, as the seed says, on
one memory, and know of each other only what acquires of system scope tell them (`ordering.scopes`). A tensor with access `peer`
or `signal` is the same memory in all ranks; one with any other access is a rank's own, and called `NAME@RANK` in the report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from numpy.typing import NDArray

from tilec.artifact.records import OF_RANKS, Manifest
from tilec.emulator.errors import Limits, Report
from tilec.emulator.launch import Argument, Block, argument_of, run
from tilec.emulator.machine.memory import Allocation, Memory
from tilec.emulator.ptx.parser import parse
from tilec.emulator.ptx.syntax import Module

PEER: Final = "peer"


def emulate_ranks(
    ptx: str | Module,
    manifest: Manifest,
    tensors: Sequence[Mapping[str, NDArray[Any]]],
    values: Sequence[Mapping[str, int | float]],
    *,
    seed: int = 0,
    blocks: Sequence[Block] | None = None,
    limits: Limits | None = None,
) -> Report:
    """Launches the kernel once in each rank; the grid, without clusters, is that of the first. `blocks`: those that run, in
    every rank. Tensors that ranks share are taken from the first. The given arrays are not modified. Raises UnsupportedPtx, and
    ValueError for missing or ill-sized arguments."""
    memory = Memory((limits or Limits()).memory_bytes)
    shared = {
        spec.name: _allocated(memory, manifest, spec.name, spec.name, tensors[0])
        for spec in manifest.tensors
        if spec.access in OF_RANKS
    }
    dtypes = {spec.name: spec.dtype for spec in manifest.scalars}
    arguments: list[list[Argument]] = []
    for rank, (own, launch_values) in enumerate(zip(tensors, values, strict=True)):
        pointers = shared | {
            spec.name: _allocated(memory, manifest, spec.name, f"{spec.name}@{rank}", own)
            for spec in manifest.tensors
            if spec.access not in OF_RANKS
        }
        arguments.append([argument_of(slot, pointers, launch_values, dtypes) for slot in manifest.abi])
    env = {name: int(value) for name, value in values[0].items() if not isinstance(value, float)}
    return run(
        parse(ptx) if isinstance(ptx, str) else ptx,
        manifest.entry,
        [axis.evaluate(env) for axis in manifest.grid],
        (manifest.block,),
        arguments[0],
        memory,
        dynamic_shared_bytes=manifest.resources.dynamic_shared_bytes,
        overlaps=manifest.dependent_launch,
        seed=seed,
        limits=limits,
        blocks=blocks,
        others=arguments[1:],
    )


def _allocated(memory: Memory, manifest: Manifest, name: str, shown: str, tensors: Mapping[str, NDArray[Any]]) -> Allocation:
    """The memory of a tensor. That of a `peer` belongs to the device that its place among the peers of its parameter says."""
    spec = next(one for one in manifest.tensors if one.name == name)
    if name not in tensors:
        raise ValueError(f"no array for tensor `{name}`")
    found = memory.allocate(
        shown,
        tensors[name],
        writable=spec.access not in ("in", PEER),
        initialised=spec.access not in ("out", "scratch"),
        align=spec.align,
        checked=spec.access == "out",
        resident=spec.resident,
    )
    if spec.access == PEER:
        found.device = int(name.rpartition("_")[2])
    return found
