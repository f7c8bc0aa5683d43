"""The PTX of shipped kernels, made as the build makes it, and its launches in the emulator."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from tests import shipped, shipped_launches
from tilec.codegen import to_ptx
from tilec.emulator import launch
from tilec.emulator.errors import Report
from tilec.emulator.memory import Memory
from tilec.emulator.parser import parse
from tilec.ir.core import Access, Function
from tilec.lowering import Lowered, lower
from tilec.schedule import merged
from tilec.target import TARGETS, Target


@dataclass(frozen=True)
class Compiled:
    """A kernel at one size: the function as written, what lowering says of its launch, and its PTX."""

    function: Function
    lowered: Lowered
    ptx: str
    env: dict[str, float]


def target_named(name: str) -> Target:
    """The target of an architecture's name."""
    return next(target for target in TARGETS if target.name == name)


@cache
def compiled(name: str, number: int, arch: str) -> Compiled:
    """A shipped kernel at size `number` of `shipped_launches.SIZES`."""
    size = shipped_launches.SIZES[name][number]
    target = target_named(arch)
    entry, constants = shipped.specialisation(name, size)
    blocks = merged(entry.overrides(constants), target).blocks
    lowered = lower(shipped.prepared(name, target, size), target, min_blocks=blocks)
    function = shipped.load(name, size)
    return Compiled(function, lowered, to_ptx(lowered.mlir, target), shipped_launches.launch_values(function, size))


def emulate(made: Compiled, arrays: dict[str, Any], *, seed: int = 0, text: str | None = None, **more: Any) -> Report:
    """A launch; `text` in place of the PTX."""
    memory = Memory()
    access = {p.name: p.access for p in made.function.parameters}
    places = {
        name: memory.allocate(
            name, array, writable=access[name] is not Access.IN, initialised=access[name] is not Access.OUT,
            checked=access[name] is Access.OUT,
        )
        for name, array in arrays.items()
    }  # fmt: skip
    types = {p.name: p.value.tile.dtype.name for p in made.function.parameters if p.access is None}
    arguments: list[Any] = []
    for slot in made.lowered.abi:
        if slot.kind == "pointer":
            arguments.append(places[slot.name])
        else:
            value = made.env[slot.name]
            arguments.append(float(value) if types.get(slot.name) == "f32" else int(value))
    integers = {key: int(value) for key, value in made.env.items()}
    grid = [axis.evaluate(integers) for axis in made.function.grid]
    return launch.run(
        parse(made.ptx if text is None else text), made.lowered.entry, grid, (made.lowered.num_threads,), arguments, memory,
        dynamic_shared_bytes=made.lowered.dynamic_shared_bytes, seed=seed, overlaps=made.lowered.dependent_launch, **more,
    )  # fmt: skip


def tolerance(function: Function, array: Any) -> float:
    """Error allowed relative to the largest value: some roundings to the kernel's element type (f32 outputs of `mma` have those
    of its operands)."""
    return {"float32": 2.0**-18, "f16": 2.0**-9, "bf16": 2.0**-6}[str(function.constants.get("E", array.dtype.name))]
