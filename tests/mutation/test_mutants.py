"""A sample of the mutants of every shipped kernel and of the library's: none is accepted that the interpreter refutes.

The default run includes one of each kind and of each form of kernel; `ci/bench/judges.py mutations` and `library_mutations`
check all of them.
"""

from __future__ import annotations

import numpy as np
import pytest

from ci.bench.judges.mender import RIGHT
from tests import campaign, shipped
from tests.mutation.generate import Mutant, mutants
from tests.mutation.library_kernels import LAUNCHES, LibraryKernels
from tests.mutation.library_kernels import NAMES as LIBRARY
from tests.mutation.shipped_kernels import ShippedKernels
from tests.mutation.verdict import examine
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.passes.prover import prove

EVERY = 14


ALL = [mutant for name in shipped.NAMES for mutant in mutants(shipped.ROOT / "kernels_src" / f"{name}.py")]


SAMPLE = sorted(ALL[::EVERY], key=lambda one: one.kernel in shipped.LIKE)


def test_every_kernel_has_mutants_of_several_kinds() -> None:
    assert {mutant.kernel for mutant in ALL} == set(shipped.NAMES)
    assert {mutant.kind for mutant in ALL} == {
        "index", "index variable", "loop bound", "grid", "swapped indices", "swapped block ids", "dropped mask", "wrong dim",
        "wrong stride",
    }  # fmt: skip


@pytest.mark.parametrize("kernel", RIGHT)
def test_every_kernel_that_mender_breaks_has_mutants(kernel: str) -> None:
    folder, _ = RIGHT[kernel]
    assert mutants(folder / f"{kernel}.py")


@pytest.mark.parametrize(
    "mutant", campaign.one_of_each(SAMPLE, lambda one: one.kind, lambda one: shipped.form(one.kernel)), ids=str
)
def test_no_mutant_is_accepted_that_the_interpreter_refutes(mutant: Mutant) -> None:
    verdict = examine(mutant, ShippedKernels())
    assert verdict.outcome != "false accept", (verdict.problems, mutant.text)


OF_LIBRARY = [mutant for name in LIBRARY for mutant in mutants(LibraryKernels.folder / f"{name}.py")]


def test_the_unchanged_library_is_right_at_the_launches_of_its_mutants() -> None:
    kernels = LibraryKernels()
    for name in ("softmax", "layer_norm_backward"):
        (constants, *_) = kernels.specialisations(name)
        function = load_kernel(kernels.folder / f"{name}.py", constants, root=kernels.folder)
        launches = list(kernels.launches(function, prove(function), 0))
        assert len(launches) == LAUNCHES
        for launch in launches:
            run(function, launch.arrays, launch.scalars, dims=launch.dims)
            assert launch.expected()
            for tensor, values in launch.expected().items():
                np.testing.assert_allclose(launch.arrays[tensor].astype(np.float64), values, 0.05, 0.05)


@pytest.mark.parametrize(
    "mutant", campaign.one_of_each(OF_LIBRARY[:: 7 * EVERY], lambda one: one.kind), ids=lambda one: f"library-{one}"
)
def test_no_mutant_of_the_library_is_accepted_that_the_interpreter_refutes(mutant: Mutant) -> None:
    verdict = examine(mutant, LibraryKernels())
    assert verdict.outcome != "false accept", (verdict.problems, mutant.text)
