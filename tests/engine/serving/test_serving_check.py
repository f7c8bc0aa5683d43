"""The program that checks and times rows over pages: its limits, and its table next to vLLM's rates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ci.bench.engine.floors import Work, step_of
from ci.bench.engine.serving_check import CONTEXT, STEPS, rates_of_vllm, report, speeds
from ci.bench.engine.weights import config_of
from engine.checkpoint.weights import destinations


def work_of(model: str, many: int, *, coded: bool = False) -> Work:
    config = config_of(model)
    return step_of(config, destinations(config, "bf16"), many, CONTEXT + STEPS // 2, coded=coded)


def test_the_work_of_a_step_is_that_of_the_config() -> None:
    """4B: 36 layers of 2560 with 9728 columns, 32 heads and 8 of keys of 128; its head is its embedding."""
    layer = 2560 * (4096 + 2 * 1024) + 4096 * 2560 + 3 * 2560 * 9728
    norms = 36 * (2 * 2560 + 2 * 128) + 2560
    parameters = 36 * layer + 151_936 * 2560 + norms
    one, many = work_of("qwen3-4b", 1), work_of("qwen3-4b", 256)
    assert one.weights == many.weights == pytest.approx(2 * parameters, rel=1e-4)
    assert one.operations == one.weights and many.operations == 256 * one.operations
    assert many.caches == 256 * one.caches == 256 * (512 + 64) * 36 * 2 * 8 * 128 * 2
    codes = work_of("qwen3-4b", 256, coded=True)
    assert codes.caches * 256 == many.caches * 132 and codes.weights == many.weights
    eight = work_of("qwen3-8b", 8)
    assert eight.weights == pytest.approx(2 * (8.19e9 - 151_936 * 4096), rel=0.01), "an embedding that is only looked up"


def test_limits() -> None:
    memory, products = Work(4.8e12, 4.8e12, 1.0), Work(1.0, 4.33e12, 700e12)
    assert memory.floor == 2.0 and memory.roofline == pytest.approx(2 * 4.8 / 4.33)
    assert products.floor == pytest.approx(4.33 / 4.8) and products.roofline == pytest.approx(2.0)
    assert 8 / work_of("qwen3-4b", 8).roofline == pytest.approx(3970, rel=0.01)
    assert 256 / work_of("qwen3-4b", 256).roofline == pytest.approx(32_190, rel=0.01)


def record(vllm: float | None = None) -> dict[str, Any]:
    rates = {"greedy": 3000.0, "sampled": 2900.0, "floor": 4000.0, "roofline": 3750.0}
    rates |= {} if vllm is None else {"vllm": vllm}
    kinds = ("pages", "pages, first", "pages, unprepared", "contiguous", "contiguous, first")
    prefills = {18: {kind: float(number) for number, kind in enumerate(kinds)}}
    return {"equal": {"8": True}, "from_contiguous": 0.0123, "tok_s": {8: rates}, "prefill_ms": prefills}


def test_the_table_has_ratios_where_vllm_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "vllm.json"
    path.write_text(json.dumps({"model": "qwen3-4b", "decode": {"8": {"tok_s": 2000.0, "runs": []}}}))
    assert rates_of_vllm([path]) == {"qwen3-4b": {8: 2000.0}}
    assert speeds({"qwen3-4b": record()})[-1] == "| qwen3-4b | 8 | 3000 | 2900 | 0.75 | 0.80 | 0.80 |"
    table = speeds({"qwen3-4b": record(2000.0), "qwen3-8b": record()})
    assert table[-2] == "| qwen3-4b | 8 | 3000 | 2900 | 0.75 | 0.80 | 0.80 | 2000 | 1.50 | 1.35 |"
    assert table[-1] == "| qwen3-8b | 8 | 3000 | 2900 | 0.75 | 0.80 | 0.80 |  |  |  |"
    page = report({"qwen3-4b": record() | {"preparing_ms": {"all": 251.3, "longest": 0.876}}, "qwen3-8b": record()})
    assert page.count("| 18 | 0.00 | 1.00 | 2.00 | 3.00 | 4.00 |") == 2
    assert page.count("What is prepared: 251 ms, at most 0.88 at once.") == 1, "only of a record that has it"
    assert "## qwen3-8b" in page and "from logits in the contiguous cache: 0.0123 of their deviation" in page
