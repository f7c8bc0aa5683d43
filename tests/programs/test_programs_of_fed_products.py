"""Random programs whose products a producer feeds: the emulator agrees with the interpreter, finds no fault and makes no note.

`ci/bench/judges.py fed_products` runs thousands.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ci.bench.judges import fed_products as checker
from tests import campaign
from tests.programs import machines
from tests.programs.fed_products import LOOPS, fed_program, target_of
from tests.programs.workers import Job, examined
from tilec.frontend import load_kernel
from tilec.interpreter.error_bounds import run_bounded
from tilec.target.targets import SM_100A, SM_120A, Target

SHARE = 8
"""Programs of a part, half of them for each target."""


@pytest.mark.parametrize("part", campaign.first(1, range(25)))
def test_fed_products_are_those_of_the_interpreter(part: int) -> None:
    """All are equal, and all but a few (7 of the first 2000) have a schedule with a producer."""
    fed = 0
    for number in range(part * SHARE, (part + 1) * SHARE):
        job = checker.job(number)
        outcome = examined(job)
        assert outcome.kind == "equal", f"{number}: {outcome.kind}, {outcome.detail}\n{job.make().text}"
        fed += checker.is_fed(job, outcome)
    assert fed >= SHARE - 1


@pytest.mark.parametrize("number", [173, 1325])
def test_an_operand_may_have_rows_that_fill_no_alignment(number: int) -> None:
    """24 rows of 64 bytes in three stages: what follows them begins at the next multiple of the alignment."""
    job = checker.job(number)
    outcome = examined(job)
    assert checker.is_fed(job, outcome), f"{outcome.kind}, {outcome.detail}"


def test_the_first_hundreds_have_every_part() -> None:
    programs = [fed_program(number) for number in range(400)]
    parts = {SM_100A: set[str](), SM_120A: set[str]()}
    for program in programs:
        parts[target_of(program.number)].update(program.parts)
    common = {
        "one product", "backwards", "gated", "attention", "causal", "SiLU", "bias", "branch", "scale", "residual",
        "residual in place", "rounded between", "mask by position", "maximum of rows", "sums of rows", "several stores",
        "stored by columns", "one of several matrices", "every second step", "loop from a scalar", "loop to a scalar",
        "resident",
    }  # fmt: skip
    assert parts[SM_100A] == common
    assert parts[SM_120A] == common | set(LOOPS) | {"left by columns", "right by rows"}
    given = [one.schedules[0].given() for one in programs]
    assert {name for one in given for name in one} == {
        "copy", "persistent", "stages", "consumers", "store", "early", "next", "order",
    }  # fmt: skip
    assert 150 < sum(one.exact for one in programs) < 350


def test_a_number_gives_one_program() -> None:
    assert fed_program(7) == fed_program(7) and fed_program(7).text != fed_program(9).text
    assert Job("fed product", 7, ("sm_120a",)).key("ptx") != Job("fed product", 9, ("sm_120a",)).key("ptx")


PLANTED = {
    "no wait for loads from tensor memory": (0, r"tcgen05\.wait::ld[^;]*;", ""),
    "no fence after a wait": (0, r"tcgen05\.fence::after_thread_sync;", ""),
    "no free of tensor memory": (0, r"tcgen05\.dealloc[^;]*;", ""),
    "no barrier of a warp before it releases a stage": (1, r"bar\.warp\.sync[^;]*;", ""),
    "operands of another dtype": (1, r"f32\.f16\.f16\.f32", "f32.bf16.bf16.f32"),
}
"""The first of the programs, which are every second one, and a change of their PTX."""


@pytest.mark.parametrize("name", PLANTED)
def test_a_mistake_in_the_text_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, pattern, other = PLANTED[name]
    real = machines.ptx.to_ptx
    texts: list[tuple[str, str]] = []

    def to_ptx(mlir: Any, target: Target) -> str:
        text = real(mlir, target)
        texts.append((text, re.sub(pattern, other, text)))
        return texts[-1][1]

    monkeypatch.setattr(machines.ptx, "to_ptx", to_ptx)
    kinds = [examined(checker.job(number)).kind for number in range(first, first + 4, 2)]
    changed = [kind for kind, (before, after) in zip(kinds, texts, strict=True) if before != after]
    assert set(changed) & {"fault", "different"}, kinds  # a barrier before a stage that nothing fills again orders nothing


def test_an_infinity_that_is_certain_has_no_error(tmp_path: Path) -> None:
    """A score that nobody sees is minus infinity, and its exponential zero, whatever the errors of the others."""
    text = """import tilec
from tilec import In, Out, exp2, f32, grid, load, store, where, arange

@tilec.kernel
def k(x: In[f32, 64], out: Out[f32, 64], both: Out[f32, 64]):
    grid(1)
    value = exp2(load(x, 0, shape=64))
    seen = where(arange(64) < 32, value, -tilec.inf)
    store(out, 0, exp2(seen - value * 2.0))
    store(both, 0, seen - seen)
"""
    path = tmp_path / "k.py"
    path.write_text(text)
    function = load_kernel(path, {}, root=tmp_path)
    arrays: dict[str, Any] = {name: np.ones(64, np.float32) for name in ("x", "out", "both")}
    bounds = run_bounded(function, arrays, {})
    assert np.isfinite(bounds["out"]).all() and (bounds["out"][32:] < 1e-30).all()
    assert (bounds["out"][:32] > 1e-7).all() and not np.isfinite(bounds["both"][32:]).any()
