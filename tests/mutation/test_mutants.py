"""A sample of the mutants of every shipped kernel: none is accepted that the interpreter refutes.

The default run includes one of each kind and of each form of kernel; `ci/bench/judges.py mutations` checks all of them.
"""

from __future__ import annotations

import pytest

from ci.bench.judges.mender import RIGHT
from tests import campaign, shipped
from tests.mutation.generate import Mutant, mutants
from tests.mutation.judge import judge

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
    verdict = judge(mutant)
    assert verdict.outcome != "false accept", (verdict.problems, mutant.text)
