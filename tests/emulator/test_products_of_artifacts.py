"""The check of all artifacts with a product says what is wrong with one: a fault, a note, or another result.

`ci/bench/judges.py emulator_products` runs every artifact.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from ml_dtypes import float8_e4m3fn

from ci.bench.judges import emulator_products as checker
from ci.bench.judges.emulator_cases import larger_sizes, launches, stored
from ci.evidence.verdicts import Verdicts
from tests import campaign, shipped
from tests.programs.machines import manifest
from tilec.artifact.records import Manifest
from tilec.codegen import to_ptx
from tilec.ir.ops import Mma
from tilec.lowering import lower
from tilec.passes.schedule import choose
from tilec.target.schedule import merged
from tilec.target.targets import SM_100A, SM_120A, Target


@cache
def artifact(name: str, target: Target) -> tuple[str, Manifest]:
    """PTX and manifest of a kernel's first specialisation."""
    entry, constants = shipped.specialisation(name, {}, target)
    schedule = choose(shipped.load(name, constants), target, merged(entry.overrides(constants), target))
    lowered = lower(shipped.prepared(name, target, constants), target, min_blocks=schedule.blocks)
    found = manifest(shipped.load(name, constants), lowered, target, schedule)
    return to_ptx(lowered.mlir, target), replace(found, constants=constants)


@pytest.mark.parametrize("target", campaign.first(1, (SM_100A, SM_120A)), ids=str)
def test_a_right_artifact_agrees_in_all_launches(target: Target) -> None:
    ptx, found = artifact("matmul_few", target)
    word, detail = checker.verdict("matmul_few", ptx, found)
    assert (word, detail["launches"], detail["fed"]) == ("agrees", 9, True)
    assert detail["products"] == [checker.PRODUCT.search(ptx).group(1)]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("pattern", "replacement", "word"),
    campaign.first(1, [
        (r"tcgen05\.fence::after_thread_sync;", "", "note"),
        (r"tcgen05\.dealloc[^;]*;", "", "fault"),
        (r"(add\.s64 b, %rd\d+, )2;", r"\g<1>4;", "differs"),
    ]),
)  # fmt: skip
def test_a_mistake_has_its_word(pattern: str, replacement: str, word: str) -> None:
    ptx, found = artifact("matmul_few", SM_100A)
    wrong = re.sub(pattern, replacement, ptx)
    assert wrong != ptx
    verdict = checker.verdict("matmul_few", wrong, found)
    assert verdict.word == word and verdict.detail["noted"]


def test_what_only_the_kernels_own_roundings_explain_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    """No output is within a thousandth of a rounding of float64, but all equal the interpreter's, unless something is wrong."""
    monkeypatch.setattr(checker, "ROUNDINGS", 1e-3)
    ptx, found = artifact("matmul_few", SM_100A)
    assert checker.verdict("matmul_few", ptx, found).word == "agrees"
    monkeypatch.setattr(checker, "interpreted", lambda case, arrays: arrays)  # pyright: ignore
    assert checker.verdict("matmul_few", ptx, found).word == "differs"


def test_every_kernel_with_a_product_is_checked(tmp_path: Path) -> None:
    """All specialisations for both targets of each kernel whose tile IR has a product."""
    options = argparse.Namespace(only="", arch="")
    tasks = list(checker.tasks(options, "", Verdicts("emulator_products", tmp_path)))
    found = {(task.entry.name, task.target) for task in tasks}
    assert len({task.name for task in tasks}) == len(tasks)
    for name, entry in shipped.entries().items():
        for constants in list(entry.specialisations())[:1]:
            if any(isinstance(op, Mma) for op in shipped.load(name, constants).body.walk()):
                assert {(name, SM_100A), (name, SM_120A)} <= found
    assert {(task.target, task.constants) for task in tasks if task.entry.name == "flash_attention"} == {
        (target, tuple(constants.items()))
        for entry in shipped.all_entries()
        if entry.name == "flash_attention"
        for target in set(entry.targets) & {SM_100A, SM_120A}
        for constants in entry.specialisations()
    }


def test_attention_has_five_larger_launches_of_odd_sizes() -> None:
    _, found = artifact("flash_attention", SM_100A)
    cases = list(launches("flash_attention", found, b"", larger_sizes(found)))
    rows = int(found.constants["BM"])
    assert len(cases) == 5 and len({tuple(case.dims.items()) for case in cases}) == 5
    assert any(case.dims["T"] > 2 * rows for case in cases) and any(case.dims["T"] == 1 for case in cases)
    assert all(case.dims["T"] % 16 for case in cases)
    assert larger_sizes(artifact("matmul_few", SM_100A)[1]) == []


def test_inputs_of_eight_bits_are_rounded_to_nearest_even() -> None:
    """All finite codes, and the middles between those that follow one another."""
    codes = np.asarray([*range(127), *range(128, 255)], np.uint8)
    exact = codes.view(float8_e4m3fn).astype(np.float64)
    assert (stored(exact, "f8e4m3") == codes).all()
    middles = (exact[:126] + exact[1:127]) / 2
    even = np.asarray([code + code % 2 for code in range(126)], np.uint8)
    assert (stored(middles, "f8e4m3") == even).all() and (stored(-middles, "f8e4m3") == even + 128).all()
