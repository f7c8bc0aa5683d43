"""What the checks of FP8, INT4 and mixtures write: shares of the floor, and greedy tokens next to those of float32."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ci.bench.engine.experts_check import agreement
from ci.bench.engine.experts_check import report as experts_page
from ci.bench.engine.floors import BANDWIDTH, step_of
from ci.bench.engine.low_bit_check import report, shares_of_floor
from ci.bench.engine.low_bit_weights import LowBitWeights
from ci.bench.engine.weights import BlockWeights, config_of


@pytest.mark.parametrize(("form", "least"), [("fp8", 1.0), ("int4", 0.5)])
def test_a_rate_at_the_bandwidth_has_a_share_of_one(form: str, least: float) -> None:
    """The floor counts the weights as they are stored: about a byte for each, or half of one, and two in the head."""
    config = config_of("qwen3-4b")
    weights = LowBitWeights(config, "bf16", form)
    linear = 36 * (2560 * (4096 + 2 * 1024) + 4096 * 2560 + 3 * 2560 * 9728)
    one = step_of(config, weights.destinations, 1, 0)
    assert one.weights == pytest.approx(least * linear + 2 * 151_936 * 2560, rel=0.04)
    rate = BANDWIDTH / (one.weights + 82 * 36 * 2 * 8 * 128 * 2)
    shares = shares_of_floor(config, weights, {"decode_at_18_tok_s": rate, "load_s": 1.0, "sampled_at_18_tok_s": rate})
    assert shares == {"decode_at_18_tok_s_share": pytest.approx(1.0)}
    eight = shares_of_floor(config, weights, {"eight_at_18_tok_s": 8 * rate})["eight_at_18_tok_s_share"]
    assert 1.0 < eight < 1.1, "caches of eight are read too"


@pytest.mark.parametrize("form", ["fp8", "int4"])
def test_transformers_gets_tensors_in_float32(form: str) -> None:
    """Under the names of a dense model's files, the same whether those of experts are to be stacked or not."""
    config = replace(config_of("qwen3-0.6b"), num_hidden_layers=1)
    found = {name: (value.shape, value.dtype) for name, value in LowBitWeights(config, "bf16", form).tensors(stacked=True)}
    plain = {name: (value.shape, value.dtype) for name, value in BlockWeights(config, "bf16").tensors(stacked=True)}
    assert {name: shape for name, (shape, _) in found.items()} == {name: shape for name, (shape, _) in plain.items()}
    assert {dtype for _, dtype in found.values()} == {np.dtype(np.float32)}


def test_the_page_of_a_format() -> None:
    speed = {"load_s": 2.0, "bytes": 4e9, "decode_at_18_tok_s": 700.0, "decode_at_18_tok_s_share": 0.625}
    wide = {"load_s": 4.0, "bytes": 8e9, "decode_at_18_tok_s": 350.0, "decode_at_18_tok_s_share": 0.75}
    decoded = [
        {"model": "qwen3-32b", "weights": "fp8", "bytes": 33e9, "decode_at_18_tok_s": 120.0, "decode_at_18_tok_s_share": 0.9}
    ]
    page = report([], [{"model": "qwen3-4b", "fp8": speed, "16bit": wide}], decoded, "fp8")
    assert "| load_s | 2.0 | 4.0 | 2.00 |  |  |" in page
    assert "| decode_at_18_tok_s | 700.0 | 350.0 | 2.00 | 0.62 | 0.75 |" in page
    assert "| qwen3-32b | fp8 | 33.00 | decode_at_18_tok_s | 120.0 | 0.90 |" in page


def test_greedy_tokens_are_compared_with_float32() -> None:
    """Of three tokens of ours the second is the runner-up in float32, and transformers in bf16 misses the third."""
    exact = np.array([[3.0, 1.0, 2.0], [1.0, 2.0, 3.0], [0.0, 5.0, 1.0]], np.float32)
    theirs = np.array([[3.0, 1.0, 2.0], [1.0, 2.0, 3.0], [9.0, 5.0, 1.0]], np.float32)
    found = agreement(np.array([0, 1, 1]), theirs, exact)
    assert found == {"tokens": 3, "equal": 2, "transformers_equal": 2, "below": pytest.approx(1 / exact[1].std())}


def test_the_page_of_mixtures() -> None:
    row = {"length": 17, "prefill": 0.02, "transformers_prefill": 0.04, "decode": 0.03, "transformers_decode": 0.03}
    greedy: dict[str, Any] = {"tokens": 200, "equal": 198, "transformers_equal": 197, "below": 0.0123}
    speed = {"16bit": {"2_at_18_tok_s": 640.0, "2_at_18_tok_s_share": 0.67, "step_us": 1900.0}}
    page = experts_page({"m": {"layers": 8, "errors": [row], "greedy": greedy, "speed": speed, "step": {}}})
    assert "| 2_at_18_tok_s | 640.0 | 0.67 |" in page and "| step_us | 1900.0 |  |" in page
    assert any("float32 chooses 198" in line and "0.0123 deviations" in line for line in page)
