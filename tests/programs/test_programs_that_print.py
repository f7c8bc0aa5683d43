"""Random programs print the same lines from PTX as on the interpreter, each once, and every block in the order of its text."""

from __future__ import annotations

import pytest

from tests.programs.printing_programs import emulated_lines, expected_lines, order, printing
from tilec.diagnostics.diagnostic import CompileError
from tilec.target.targets import MAIN_TARGETS

QUICK, CAMPAIGN = range(12), range(12, 400)


def check(number: int) -> bool:
    """Whether program `number` prints, and then that it prints what it should."""
    made = printing(number)
    if made is None:
        return False
    expected = expected_lines(made)
    for index, target in enumerate(MAIN_TARGETS):
        try:
            found = emulated_lines(made, target, number + index)
        except CompileError as error:
            assert error.diagnostics[0].code == "E0531", error  # too long a text
            continue
        assert sorted(found) == sorted(expected), (number, target)
        assert all(order(found, block) == order(expected, block) for block in range(made.dims["N"]))
    return bool(expected)


def test_programs_print_what_the_interpreter_prints() -> None:
    assert sum(map(check, QUICK)) >= 4


@pytest.mark.campaign
def test_many_programs_print_what_the_interpreter_prints() -> None:
    assert sum(map(check, CAMPAIGN)) >= 100
