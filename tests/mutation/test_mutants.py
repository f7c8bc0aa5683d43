"""A sample of the mutants of every shipped kernel: none is accepted that the interpreter refutes.

`ci/bench/mutations.py` judges all of them.
"""

from __future__ import annotations

import pytest

from tests import shipped
from tests.mutation.generate import Mutant, mutants
from tests.mutation.judge import judge

EVERY = 14


def _all() -> list[Mutant]:
    return [mutant for name in shipped.NAMES for mutant in mutants(shipped.ROOT / "kernels_src" / f"{name}.py")]


def test_every_kernel_has_mutants_of_several_kinds() -> None:
    found = _all()
    assert {mutant.kernel for mutant in found} == set(shipped.NAMES)
    assert {mutant.kind for mutant in found} == {
        "index", "index variable", "loop bound", "grid", "swapped indices", "swapped block ids", "dropped mask", "wrong dim",
        "wrong stride",
    }  # fmt: skip


@pytest.mark.parametrize("mutant", _all()[::EVERY], ids=str)
def test_no_mutant_is_accepted_that_the_interpreter_refutes(mutant: Mutant) -> None:
    verdict = judge(mutant)
    assert verdict.outcome != "false accept", (verdict.problems, mutant.text)
