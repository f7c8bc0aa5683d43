"""Random programs with words along an axis: interpreter, block machine and, on every main architecture, the emulator agree."""

from __future__ import annotations

import pytest

from tests.campaign import first
from tests.programs.machines import examine
from tests.words.random_moves import WORDS, program
from tilec.target.targets import MAIN_TARGETS, SM_80

TARGETS = (SM_80, *MAIN_TARGETS)
COUNT = 16


def test_programs_have_every_word() -> None:
    text = "\n".join(program(number).text for number in range(3 * COUNT))
    assert [word for word in WORDS if word not in text] == []


@pytest.mark.parametrize("number", first(COUNT, range(200)))
def test_all_machines_agree(number: int) -> None:
    target = TARGETS[number % len(TARGETS)]
    waits = target != SM_80  # the block machine requires the grid dependency wait, which 8.0 lacks
    found = examine(program(number), (target,), seeds=(number % 3,), block_machine=waits)
    assert found.kind == "equal", f"{found.kind}: {found.detail}\n{program(number).text}"
