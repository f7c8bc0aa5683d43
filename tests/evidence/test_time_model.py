"""The recorded comparison of the model of time: no measured row is left out, and its summary is that of its rows."""

from __future__ import annotations

import json
import zlib
from typing import Any

from ci.bench.judges.time_model import GOAL, summary
from ci.bench.judges.time_model_page import page_of
from ci.bench.kernels.attention import LIBRARIES
from ci.bench.kernels.candidates import CUBLAS, TRITON
from ci.evidence import RESULTS
from tilec.cost_model.calibration import CALIBRATION, FITTED

DATA: dict[str, Any] = json.loads((RESULTS / "time_model.json").read_text(encoding="utf-8"))
ROWS: list[dict[str, Any]] = DATA["rows"]
MOST_CONSTANTS = 24
LEAST_WITHIN = 0.9
"""Share of rows whose error must stay within the goal, in each half."""


def recorded(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return data


def test_every_measured_product_and_attention_has_a_row() -> None:
    products = [
        (" x ".join(map(str, row["shape"])), name, round(us, 3))
        for row in recorded("products")["rows"]
        for name, us in row["us"].items()
        if name not in (CUBLAS, TRITON)
    ]
    attention = [
        (f"{row['tokens']} tokens", name, round(us, 3))
        for row in recorded("attention")["rows"]
        for name, us in row["us"].items()
        if name not in LIBRARIES
    ]
    for source, expected in (("products", products), ("attention", attention)):
        found = [(row["shape"], row["name"], row["measured_us"]) for row in ROWS if row["source"] == source]
        assert sorted(found) == sorted(expected)
    assert sum(row["source"] == "tuning" for row in ROWS) >= 288


def test_errors_and_halves_follow_from_the_rows() -> None:
    for row in ROWS:
        assert abs(row["predicted_us"] / row["measured_us"] - 1 - row["error"]) < 2e-3
        assert row["held_out"] is (zlib.crc32(row["shape"].encode()) % 2 == 1)
    for half in (False, True):
        (recorded_summary,) = [one for one in DATA["groups"] if one["source"] == "all" and one["held_out"] is half]
        assert recorded_summary == {"source": "all", "held_out": half} | summary(
            row for row in ROWS if row["held_out"] is half
        )  # fmt: skip
        assert recorded_summary["within"] >= LEAST_WITHIN
        assert recorded_summary["count"] >= 250


def test_the_page_is_that_of_the_data() -> None:
    assert (RESULTS / "time_model.md").read_text(encoding="utf-8") == page_of(DATA)
    assert DATA["goal"] == GOAL


def test_the_constants_are_those_of_the_model() -> None:
    assert DATA["constants"] == {name: getattr(CALIBRATION, name) for name in DATA["constants"]}
    assert DATA["fitted"] == [*FITTED]
    assert len(DATA["constants"]) <= MOST_CONSTANTS


def test_what_nobody_has_measured_is_predicted_and_says_so() -> None:
    assert {one["arch"] for one in DATA["predicted"]} == {"sm_100a", "sm_120a"}
    for one in (*DATA["predicted"], *DATA["decode"]["predicted"], *DATA["goals"]):
        assert not any("measured" in name for name in one)
    text = (RESULTS / "time_model.md").read_text(encoding="utf-8")
    assert text.count("*Predicted*") == 3


def test_goals_are_compared_with_their_predictions() -> None:
    kernels = {(one["card"], one["what"], one["shape"]): one["of_peak"] for one in DATA["predicted"]}
    steps = {(one["card"], one["model"]): one["predicted_tok_s"] for one in reversed(DATA["decode"]["predicted"])}
    for goal in DATA["goals"]:
        key = (goal["card"], goal["what"], goal["shape"])
        assert goal["met"] is (goal["predicted"] >= goal["goal"])
        assert goal["predicted"] <= (kernels[key] if key in kernels else steps[goal["card"], goal["shape"]])
        if key in kernels:
            limits = [goal[name]["of_peak"] for name in ("without_bound", "only_tensor_cores", "without_power_limit")]
            rising = [goal["predicted"], *limits]
            assert rising == sorted(rising), "each limit has less to wait for"
            assert goal["bound"] in goal["parts_us"]
    assert {goal["card"] for goal in DATA["goals"]} == {"B200", "RTX 5090"}
