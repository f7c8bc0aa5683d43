"""Runs a launch of `foreign_cases` in the emulator: arrays become tensors in memory, and tensor maps are encoded as by the
driver."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.emulator import foreign_cases
from tilec.emulator import launch
from tilec.emulator.errors import Limits, Report
from tilec.emulator.machine.memory import Allocation, Memory
from tilec.emulator.matrices.tensor_maps import TensorMap
from tilec.emulator.ptx.parser import parse

SWIZZLES = {0: 0, 1: 32, 2: 64, 3: 128}
SCRATCH = (0, 0)
"""Triton's last two parameters: scratch memory that no kernel here uses."""


def emulate(
    name: str, foreign_launch: foreign_cases.Launch, *, seed: int = 0, text: str | None = None, limits: Limits | None = None
) -> Report:
    """The report of a launch; `text` replaces the stored PTX."""
    case = foreign_cases.CASES[name]
    memory = Memory()
    arguments: list[Any] = []
    described = iter(case["tensor_maps"])
    for key in case["signature"]:
        value = foreign_launch.arguments[key]
        if isinstance(value, tuple):
            array, box = value
            arguments += _tensor_map(
                memory, key, array, box, SWIZZLES[next(described)["swizzle"]], key in foreign_launch.expected
            )
        elif isinstance(value, np.ndarray):
            arguments.append(_tensor(memory, key, value, key in foreign_launch.expected))
        else:
            arguments.append(value)
    module = parse(foreign_cases.text(name) if text is None else text)
    return launch.run(
        module, case["entry"], foreign_launch.grid, (case["threads"], 1, 1), [*arguments, *SCRATCH], memory,
        dynamic_shared_bytes=case["shared"], seed=seed, limits=limits,
        replicating=foreign_cases.REPLICATING.get(name, ()),
    )  # fmt: skip


def _tensor(memory: Memory, name: str, array: Any, written: bool) -> Allocation:
    return memory.allocate(name, array, writable=written, initialised=not written)


def _tensor_map(memory: Memory, name: str, array: Any, box: tuple[int, int], swizzle: int, written: bool) -> list[Any]:
    """A map, then shape and strides, as Triton passes a tensor descriptor."""
    allocation = _tensor(memory, name, array, written)
    rows, columns = array.shape
    size = array.itemsize
    tensor = TensorMap(allocation.address, size, (columns, rows), (columns * size,), (box[1], box[0]), swizzle)
    return [tensor.encode(), rows, columns, columns, 1]
