"""The random programs that the tests run: a small selection that has every feature of the first few hundred.

Features are each operation with each dtype, the larger constructs of kernels, and the generator's parts. `python -m
tests.programs.chosen` prints a new selection, after a change of the generator.
"""

from __future__ import annotations

from typing import Final

from tests.programs.machines import load
from tests.programs.workers import MAKE
from tests.soundness.features import features, operations

FIRST: Final = {"program": 200, "traffic": 200, "odd program": 150, "odd traffic": 150}
"""Number of programs of each kind to select from."""
CHOSEN: Final = {
    "program": [
        7, 8, 9, 11, 12, 13, 14, 15, 21, 22, 23, 24, 31, 44, 46, 53, 58, 60, 62, 72, 74, 76, 79, 83, 84, 85, 86, 98, 101,
        103, 104, 108, 109, 111, 114, 117, 123, 126, 128, 133, 139, 147, 152, 153, 158, 159, 164, 165, 167, 172, 174, 175,
        191, 193, 195, 197, 199,
    ],
    "traffic": [
        0, 10, 16, 22, 26, 27, 32, 35, 40, 42, 51, 60, 66, 83, 107, 130, 138, 140, 175, 179, 182, 184, 195, 197, 198,
    ],
    "odd program": [
        0, 5, 8, 11, 13, 15, 20, 22, 27, 28, 36, 37, 39, 45, 47, 52, 53, 54, 57, 60, 61, 66, 67, 70, 81, 88, 93, 98, 100,
        105, 108, 110, 114, 115, 121, 122, 132, 138, 144,
    ],
    "odd traffic": [
        0, 7, 8, 11, 20, 26, 29, 40, 43, 49, 54, 57, 60, 75, 80, 86, 88, 95, 102, 112, 118, 131, 142,
    ],
}  # fmt: skip
"""Program numbers by kind."""
COUNT: Final = 901
"""Number of distinct features of the selection, which equals that of the first hundreds."""


def parts(kind: str, number: int) -> set[str]:
    """All features of a program."""
    program = MAKE[kind](number)
    function = load(program)
    names = {" ".join(pair) for pair in operations(function)} | {f"part {part}" for part in program.parts}
    return names | features(function) | {f"{program.warps} warps"}


def choose() -> dict[str, list[int]]:
    """Selects numbers by kind greedily: repeatedly the program that adds most features."""
    features_of = {(kind, number): parts(kind, number) for kind, count in FIRST.items() for number in range(count)}
    missing = set[str]().union(*features_of.values())
    selection: dict[str, list[int]] = {kind: [] for kind in FIRST}
    while missing:
        kind, number = max(features_of, key=lambda key: len(features_of[key] & missing))
        selection[kind].append(number)
        missing -= features_of[kind, number]
    return {kind: sorted(numbers) for kind, numbers in selection.items()}


if __name__ == "__main__":
    print(choose())
