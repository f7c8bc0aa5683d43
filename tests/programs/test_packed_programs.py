"""Random programs with packed tensors: all machines agree, and so does NumPy on elements as their author counts them."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests import campaign
from tests.programs.generate import Program
from tests.programs.launches import arrays
from tests.programs.machines import difference, load, reference
from tests.programs.packed_programs import BY_NUMPY, packed_program
from tests.programs.test_programs import all_equal
from tests.programs.workers import Job
from tests.soundness.authored import Launch
from tilec.frontend import packed
from tilec.frontend.arguments import Call
from tilec.ir.core import Value
from tilec.target.targets import MAIN_TARGETS

PARTS = 12
SHARE = 12


@pytest.mark.parametrize("part", campaign.first(1, range(PARTS)))
def test_all_machines_agree(part: int) -> None:
    """Architectures alternate; every third program is proven, and every fourth runs on the block machine too."""
    numbers = range(part * SHARE, (part + 1) * SHARE)
    targets = [MAIN_TARGETS[(n + part) % len(MAIN_TARGETS)].name for n in numbers]
    all_equal(
        [
            Job("packed program", n, (target,), (n % 4,), n % 3 == 0, n % 4 == 0)
            for n, target in zip(numbers, targets, strict=True)
        ]
    )


def by_numpy(program: Program) -> str:
    """Where the interpreter's results differ from those of the source text on NumPy; an empty string for nowhere."""
    function = load(program)
    found, _ = reference(function, program)
    launch = Launch(program.text, {**program.dims, **program.scalars}, arrays=arrays(function, program))
    assert launch.run() <= {"half"}, program.text
    return difference(function, found, launch.results(), None)


KNOWN = [number for number in range(400) if BY_NUMPY in packed_program(number).parts]


@pytest.mark.parametrize("part", campaign.first(2, range(8)))
def test_numpy_agrees_with_the_interpreter(part: int) -> None:
    for number in KNOWN[part::8]:
        assert not by_numpy(program := packed_program(number)), (number, program.text)


def test_a_frontend_that_reads_the_other_half_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter and machine code agree on it, since both run what the frontend emits."""
    some = [packed_program(number) for number in KNOWN[:12]]
    right = packed._low_bits  # pyright: ignore[reportPrivateUsage]

    def wrong(call: Call, value: Value, amount: Value) -> Value:
        four = call.emitter.constant(4, amount.tile, call.at)
        return right(call, value, call.emitter.binary_op("xor", amount, four, call.at))

    monkeypatch.setattr(packed, "_low_bits", wrong)
    assert sum(bool(by_numpy(program)) for program in some) >= 3


def test_programs_cover_packed_tensors() -> None:
    """Every dtype is loaded, stored and multiplied, at tiles and at offsets, with pads, masks, strides and loops."""
    made = [packed_program(number) for number in range(120)]
    parts = Counter(part for program in made for part in program.parts)
    wanted = {"at a tile", "strides", "loop", "scales", "packed mask", "read again", BY_NUMPY}
    wanted |= {
        f"{text}{dtype}{rest}"
        for dtype in ("u4", "i4", "f4e2m1")
        for text, rest in (("", ""), ("", " stored"), ("mma of ", ""))
    }
    assert wanted <= set(parts), wanted - set(parts)
    text = "\n".join(program.text for program in made)
    for pattern in (
        r"offset=\(b, p\d+\)",
        r"2 \* p\d",
        r"K - \d+ - b",
        r"3 \* b \+ 1",
        r"\bK - 1\)",
        "InOut\\[tilec",
        "Out\\[tilec",
    ):
        assert re.search(pattern, text), pattern


def test_a_number_gives_one_program() -> None:
    assert packed_program(7) == packed_program(7)
    assert packed_program(7).text != packed_program(9).text
