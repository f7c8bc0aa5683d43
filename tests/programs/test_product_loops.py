"""Products in loops at the edges of i32 sum the boxes that the source names, whichever role copies them and however early.

`ci/bench/judges.py product_loops` runs thousands.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import campaign
from tests.programs.copy_machine import Wrong, stored
from tests.programs.product_loops import examine
from tilec.frontend import load_kernel
from tilec.ir.core import Function, VerifyError
from tilec.ir.ops import Constant, For
from tilec.ir.ops.staging_ops import TensorCopy
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.passes.prover import prove
from tilec.passes.schedule import prepare
from tilec.passes.schedule.checks import ring_check, width_check
from tilec.passes.schedule.launch_overlap import prologue_stages
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A

KERNELS = Path(__file__).resolve().parents[1] / "soundness" / "corpus"
EDGES: dict[str, list[dict[str, int]]] = {
    "w1_step": [
        {"s0": 715827883, "M": 64, "N": 64, "K": 64},
        {"s0": 1 << 30, "M": 65, "N": 8, "K": 99992},
        {"s0": 3, "M": 1, "N": 64, "K": 1024},
    ],
    "w3_const_step": [{"M": 64, "N": 64, "K": 64}, {"M": 65, "N": 8, "K": 99992}],
    "late_beginning": [
        {"first": 2**31 - 1, "last": 2**31 - 1, "M": 8, "N": 8, "T": 1},
        {"first": 2**31 - 1, "last": -(2**31), "M": 8, "N": 8, "T": 1},
        {"first": 2**31 - 3, "last": 2**31 - 1, "M": 8, "N": 8, "T": 5},
        {"first": -2, "last": 7, "M": 8, "N": 8, "T": 5},
    ],
}
WANTED: tuple[dict[str, Any], ...] = (
    {"copy": "tma"},
    {"copy": "tma", "early": 4, "stages": 6},
    {"copy": "tma", "early": 0},
    {"copy": "tma", "mma": "mma_sync"},
    {"copy": "tma", "mma": "mma_sync", "early": 4, "stages": 6},
    {"stages": 4},
    {},
)


@pytest.mark.parametrize("number", campaign.first(4, (36, 132, *range(36))))
def test_every_schedule_sums_the_same_boxes(number: int, tmp_path: Path) -> None:
    """Number 36 has a far upper bound, 132 a step of the full range: the checker of rings once never ended on the first, and
    refused the second."""
    for outcome in examine(number, tmp_path, 3):
        assert outcome.kind in ("equal", "none", "refused") or "equally often" in outcome.detail, outcome


@pytest.mark.parametrize("name", EDGES)
def test_steps_and_bounds_at_the_ends_of_i32(name: str) -> None:
    path = KERNELS / f"{name}.py"
    function = load_kernel(path, {})
    prove(function)
    expected = [stored(function, sizes) for sizes in EDGES[name]]
    for overrides in WANTED:
        prepared = prepare(load_kernel(path, {}), SM_90A, Overrides(**overrides))
        assert [stored(prepared, sizes) for sizes in EDGES[name]] == expected


def has_room(function: Function, loop: For, count: int) -> bool:
    return bool(function and loop and count)


def silent(function: Function) -> None:
    assert function


@pytest.mark.parametrize("name", EDGES)
def test_iterations_issued_past_the_end_are_seen_by_each_check(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the checker of rings, by the checker of integer widths, and by this machine: each with the other two disabled."""
    overrides = Overrides(copy="tma", early=4, stages=6)
    monkeypatch.setattr(prologue_stages, "_fits_i32", has_room)
    with pytest.raises(VerifyError, match="nothing shows that it does not"):
        prepare(load_kernel(KERNELS / f"{name}.py", {}), SM_90A, overrides)
    monkeypatch.setattr(width_check, "check", silent)
    with pytest.raises(VerifyError):
        prepare(load_kernel(KERNELS / f"{name}.py", {}), SM_90A, overrides)
    monkeypatch.setattr(ring_check, "check", silent)
    prepared = prepare(load_kernel(KERNELS / f"{name}.py", {}), SM_90A, overrides)
    with pytest.raises(Wrong):
        for sizes in EDGES[name]:
            stored(prepared, sizes)


def test_other_boxes_are_seen() -> None:
    """Copies the slice after the named one: the number of copies and waits is unchanged."""
    path, sizes = KERNELS / "late_beginning.py", EDGES["late_beginning"][-1]
    expected = stored(load_kernel(path, {}), sizes)
    prepared = parse_function(print_function(prepare(load_kernel(path, {}), SM_90A, Overrides(copy="tma", early=0))))
    assert stored(prepared, sizes) == expected
    copy = next(op for op in prepared.body.walk() if isinstance(op, TensorCopy))
    other = next(
        op.result for op in prepared.body.walk() if isinstance(op, Constant) and op.value == 0 and op.result.tile.rank == 0
    )
    copy.operands[-3] = other
    assert stored(prepared, sizes) != expected
