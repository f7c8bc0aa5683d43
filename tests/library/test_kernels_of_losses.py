"""The kernels of losses, activations, positions, optimizers and dropout: right at odd and even sizes on the interpreter, and at
one size each as PTX on the emulator; whole vectors where rows allow them; no spills.

The default run assembles the kernels that come nearest to their limit of registers, the campaign the others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.campaign import first
from tests.library.emulated import check_emulated
from tests.library.prebuilt import FOLDER, check_built, entries, request, specialisations
from tilec.cli import commands
from tilec.project.trial.trial import trials

HALF = 1 << 31
WORDS = {"threshold": HALF, "scale": 2.0, "seed_low": 0xFFFFFFFF, "seed_high": 5, "offset_low": 7, "offset_high": 0xDEADBEEF}
STEP = {"weight1": 0.1, "weight2": 0.001, "keep": 0.99, "step_size": 0.25, "scale": 3.0, "eps": 0.5}
ODD_AND_EVEN: dict[str, list[dict[str, float]]] = {
    "cross_entropy": [{"T": 3, "V": 4104, "ignore_index": 3}, {"T": 4, "V": 96, "ignore_index": -100}],
    "cross_entropy_backward": [{"T": 3, "V": 4104, "ignore_index": 3}, {"T": 4, "V": 96, "ignore_index": -100}],
    "swiglu": [{"N": 2049}, {"N": 2048}],
    "swiglu_backward": [{"N": 2049}, {"N": 2048}],
    "gelu": [{"N": 4099}, {"N": 4096}],
    "gelu_backward": [{"N": 2049}, {"N": 2048}],
    "rope": [{"B": 1, "P": 5, "H": 9, "sign": -1.0}, {"B": 2, "P": 4, "H": 2, "sign": 1.0}],
    "adamw": [{"N": 2049, **STEP}, {"N": 2048, **STEP}],
    "dropout": [{"N": 4099, **WORDS}, {"N": 8192, **WORDS}],
}
CASES = specialisations(*ODD_AND_EVEN)
EMULATED = [next(case for case in CASES if case[0].name == name) for name in ODD_AND_EVEN] + [
    next(case for case in CASES if case[0].name == name and wanted.items() <= case[1].items())
    for name, wanted in {
        "cross_entropy": {"E": "f16", "L": "i64", "MULTIPLE": 8},
        "cross_entropy_backward": {"E": "f16", "L": "i64", "MULTIPLE": 8},
        "rope": {"E": "f32", "D": 96, "HEADS": 32},
    }.items()
]
"""Of each kernel the first specialisation; of those that differ in more than the dtype another."""
NEAR_THE_LIMIT = ("adamw", "dropout", "gelu_backward", "swiglu_backward")
NARROW = 1
"""The `MULTIPLE` of rows that begin anywhere."""


def _id(case: Any) -> str:
    return "-".join(map(str, (case[0].name, *case[1].values()))) if isinstance(case, tuple) else str(case)


@pytest.mark.parametrize("kernel", ODD_AND_EVEN)
def test_results_are_those_of_the_reference(kernel: str) -> None:
    """Both sizes at the first specialisation, and alternately one at each of the others."""
    for number, (_, constants) in enumerate(case for case in CASES if case[0].name == kernel):
        sizes = ODD_AND_EVEN[kernel] if number == 0 else [ODD_AND_EVEN[kernel][number % 2]]
        for dims in sizes:
            odd = {"V": dims["V"] - 1} if constants.get("MULTIPLE") == NARROW else {}
            (trial,) = trials(request(kernel, constants, {**dims, **odd}, seed=number))
            assert trial.right, (constants, trial)
            assert all(one.error is not None for one in trial.written)


@pytest.mark.parametrize("case", EMULATED, ids=_id)
def test_the_emulator_agrees_with_the_interpreter(case: Any) -> None:
    entry, constants = case
    values = dict(ODD_AND_EVEN[entry.name][0])
    if constants.get("MULTIPLE") == NARROW:
        values["V"] -= 1
    if "D" in constants:
        values["D"] = constants["D"]
    check_emulated(entry, constants, values)


def test_rows_of_whole_vectors_are_moved_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    """No note on a narrow access, except of rows that begin anywhere."""
    rows = [name for name in ODD_AND_EVEN if "MULTIPLE" in entries(name)[0].constants]
    others = [name for name in ODD_AND_EVEN if name not in rows]
    options = ["--project", str(FOLDER), "--arch", "sm_90", "--jobs", "1", "--deny", "notes"]
    assert commands.run(["check", *others, *options]) == 0
    assert commands.run(["check", *rows, "-c", "MULTIPLE=8", *options]) == 0
    assert commands.run(["check", rows[0], "-c", "MULTIPLE=1", *options]) == 1
    assert "N0101" in capsys.readouterr().err


@pytest.mark.parametrize(
    "kernels",
    first(1, [[NEAR_THE_LIMIT], [[name for name in ODD_AND_EVEN if name not in NEAR_THE_LIMIT]]]),
    ids=["near", "others"],
)
def test_one_architecture_is_built_without_spills(kernels: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    check_built(kernels, tmp_path)


def test_every_entry_forbids_spills_and_the_set_stays_small() -> None:
    assert all(entry.budget == {"spill_bytes": 0} for entry in entries(*ODD_AND_EVEN))
    assert len(CASES) <= 100
