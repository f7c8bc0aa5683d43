"""Random programs that read and write one tensor through tiles of many shapes: no race, and the interpreter's values.

The block machine records the threads that accessed each byte of shared and global memory since the last barrier, so a missing
barrier fails an assertion whatever the values are. Without the barrier pass, the same machine finds races in most programs, and
the pass' own checker refuses each of these.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from block_machine import launch
from mlir_steps import Array
from random_accesses import COLUMNS, LENGTH, ROWS, source

from tests.campaign import first
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Function, VerifyError
from tilec.lowering import lower
from tilec.passes.schedule import prepare
from tilec.passes.schedule.checks import barrier_check
from tilec.passes.schedule.sync import barrier_insertion
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A

PROGRAMS = 200
BATCHES = 10


def kernel(folder: Path, seed: int) -> Function:
    path = folder / "k.py"
    path.write_text(source(seed))
    return load_kernel(path, {}, root=folder)


def arrays_of(seed: int) -> tuple[dict[str, Array], dict[str, int]]:
    random = np.random.default_rng(seed)
    shapes = {"x": (ROWS, COLUMNS), "a": (ROWS, COLUMNS), "b": (LENGTH,), "s": (LENGTH,)}
    arrays = {name: random.integers(0, 9, shape).astype(np.float32) for name, shape in shapes.items()}
    return arrays, {"turns": int(random.integers(0, 4)), "flag": int(random.integers(0, 2))}


def warps_of(seed: int) -> int:
    return (1, 2, 4, 3)[seed % 4]


@pytest.mark.parametrize("batch", first(3, range(BATCHES)))
def test_no_program_races(batch: int, tmp_path: Path) -> None:
    for seed in range(batch, PROGRAMS, BATCHES):
        arrays, scalars = arrays_of(seed)
        expected = {name: array.copy() for name, array in arrays.items()}
        run(kernel(tmp_path, seed), expected, scalars)
        function = prepare(kernel(tmp_path, seed), SM_90A, Overrides(warps=warps_of(seed)))
        try:
            launch(function, lower(function, SM_90A), arrays, dict(scalars))
        except AssertionError as error:
            pytest.fail(f"seed {seed}: {error}\n{source(seed)}")
        for name, array in arrays.items():
            assert (array == expected[name]).all(), f"seed {seed}: {name}\n{source(seed)}"


def test_without_the_pass_there_are_races(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = barrier_check.check
    monkeypatch.setattr(barrier_insertion, "insert", lambda function: function)
    monkeypatch.setattr(barrier_check, "check", lambda function: None)
    races, refused, seeds = 0, 0, range(1000, 1040)
    for seed in seeds:
        arrays, scalars = arrays_of(seed)
        function = prepare(kernel(tmp_path, seed), SM_90A, Overrides(warps=warps_of(seed)))
        try:
            check(function)
            is_refused = False
        except VerifyError:
            is_refused = True
        try:
            launch(function, lower(function, SM_90A), arrays, dict(scalars))
        except AssertionError as error:
            assert "without a barrier" in str(error), f"seed {seed}: {error}"
            assert is_refused, f"seed {seed}: a race that the check does not see\n{source(seed)}"
            races += 1
        refused += is_refused
    assert races > len(seeds) // 2 and refused < len(seeds)
