"""The case that compares shipped kernels with unchecked ones: what is taken out of a text, what is timed, what fails."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from ci.bench.kernels.pair_times import longer
from ci.bench.kernels.unchecked import ALLOWED, DIVIDED, TILES, outcome, unmasked
from tests.files import ROOT


@pytest.mark.parametrize("kernel", DIVIDED)
def test_every_mask_is_taken_out_and_a_condition_put_in(kernel: str) -> None:
    text = (ROOT / "kernels_src" / f"{kernel}.py").read_text(encoding="utf-8")
    found = unmasked(text, DIVIDED[kernel])
    assert "pad=" in text and "pad=" not in found and "mask=" not in found
    assert found.count(DIVIDED[kernel]) == 1 and len(found.splitlines()) == len(text.splitlines()) + 1
    for old in (text.replace("mask=True", "mask=False"), text.replace("tl.grid", "tl.gird"), found):
        with pytest.raises(ValueError, match="grids in the text"):
            unmasked(old, DIVIDED[kernel])


def test_tiles_are_those_that_are_shipped_for_prompts() -> None:
    """With the schedule of build.toml for sm_90, all of them of 128 rows."""
    shipped: set[tuple[Any, ...]] = set()
    for kernel in tomllib.loads((ROOT / "build.toml").read_text(encoding="utf-8"))["kernel"]:
        schedules: Any = kernel.get("schedule", {})
        if kernel["name"] not in DIVIDED or kernel["constants"]["BM"] != 128:
            continue
        several: list[dict[str, Any]] = [schedules] if isinstance(schedules, dict) else schedules
        for one in several:
            if "sm_90" in one.get("arch", kernel.get("arch", ())):
                constants = {**kernel["constants"], "E": "bf16"}
                shipped.add(
                    (kernel["name"], frozenset(constants.items()), frozenset((k, v) for k, v in one.items() if k != "arch"))
                )
    ours: set[tuple[Any, ...]] = set()
    for tile in TILES:
        table = tomllib.loads(tile.part.table)["kernel"][0]
        ours.add((tile.kernel, frozenset(table["constants"].items()), frozenset(table["schedule"].items())))
    assert ours == shipped


def test_how_much_longer_does_not_depend_on_who_is_second() -> None:
    assert longer([(1.01, 1.1), (1.11, 1.0)] * 3) == pytest.approx((1.01 * 1.11 / 1.1) ** 0.5 - 1)
    assert longer([(2.0, 2.0)] * 4) == 0.0


def rows_of(*codes: float, equal: bool = True, tile: str = "a") -> list[dict[str, Any]]:
    more = {"dims": {"M": 128, "N": 256}, "us": 2.0, "unchecked_us": 1.0, "launched": 0.1, "equal": equal}
    return [{"tile": tile, "code": code, **more} for code in codes]


@pytest.mark.parametrize(
    ("rows", "status", "text"),
    [
        (rows_of(ALLOWED, -0.01), 0, "longer; 2 of 2 within 0.5 %"),
        (rows_of(0.02, 0.0, 0.001), 0, "longer; 2 of 3 within 0.5 %"),
        (rows_of(0.006, 0.007) + rows_of(0.0, 0.0, 0.0, tile="b"), 1, "median of its sizes: a."),
        (rows_of(0.0, equal=False), 1, "not the same bits: a at {'M': 128, 'N': 256}"),
        ([], 1, "nothing longer"),
    ],
)
def test_slow_or_different_results_fail(rows: list[dict[str, Any]], status: int, text: str) -> None:
    found = outcome({"gpu": "none", "rows": rows}, "unchecked")
    assert found.status == status and text in found.pages["unchecked.md"]
