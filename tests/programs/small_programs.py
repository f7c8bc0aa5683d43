"""Small programs of tests compared on all machines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tests.programs.machines import LOWERING_TESTS, manifest
from tilec.codegen import ptx
from tilec.emulator import emulate
from tilec.interpreter import run
from tilec.ir.core import Function
from tilec.lowering import lower
from tilec.passes.prover import prove
from tilec.passes.schedule import prepare
from tilec.target.schedule import Overrides
from tilec.target.targets import MAIN_TARGETS

sys.path.insert(0, LOWERING_TESTS)
from block_machine import launch  # pyright: ignore

Array = np.ndarray[Any, Any]


class SmallProgram(Protocol):
    """A kernel as text, with launches of it."""

    @property
    def text(self) -> str: ...

    @property
    def dims(self) -> dict[str, int]: ...

    @property
    def warps(self) -> int: ...

    def function(self, folder: Path) -> Function:
        """The kernel, written to `folder` and read anew."""
        ...

    def arrays(self, seed: int) -> dict[str, Array]:
        """Tensors of a launch."""
        ...


def agreed(program: SmallProgram, folder: Path, name: str) -> tuple[Array, dict[str, Array]]:
    """Prove a program; AssertionError unless the block machine and the emulator of each main target, without a fault or a note,
    compute the tensor `name` as the interpreter does. Returns that tensor, and the tensors before the launch."""
    function = program.function(folder)
    prove(function)
    before = program.arrays(len(program.text))
    expected = {key: array.copy() for key, array in before.items()}
    run(function, expected)
    for number, target in enumerate(MAIN_TARGETS):
        code = lower(prepare(program.function(folder), target, Overrides(warps=program.warps)), target)
        if not number:
            found = {key: array.copy() for key, array in before.items()}
            launch(function, code, found, program.dims)
            np.testing.assert_array_equal(found[name], expected[name])
        arrays = {key: array.copy() for key, array in before.items()}
        report = emulate(ptx.to_ptx(code.mlir, target), manifest(function, code, target), arrays, program.dims, seed=number)
        assert report.clean and not report.notes, (report.faults or report.notes)[0]
        written = report.tensors[name].view(before[name].dtype).reshape(before[name].shape)
        np.testing.assert_array_equal(written, expected[name])
    return expected[name], before
