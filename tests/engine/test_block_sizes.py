"""Block sizes of the interpreter: within the contract of every kernel, for every model at its real sizes."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from engine.backends.block_sizes import largest_divisor
from engine.backends.interpreter import InterpreterBackend
from engine.checkpoint.weights import destinations
from engine.models.config import ModelConfig
from engine.models.qwen3.config import Qwen3Config
from engine.models.qwen3_moe.config import Qwen3MoeConfig
from tests import shipped
from tilec.step.formats import SIXTEEN_BIT


class UnwrittenWeights:
    """Weights of a real size whose memory is never written, so that no pages are allocated."""

    def __init__(self, config: ModelConfig) -> None:
        self.destinations, self.weight_format = destinations(config, "bf16"), SIXTEEN_BIT
        self.bytes = sum(item.bytes for item in self.destinations)
        self._shapes = {item.name: item.shape for item in self.destinations}

    def array(self, name: str) -> Any:
        return np.empty(self._shapes[name], ml_dtypes.bfloat16)


MODELS: list[dict[str, Any]] = tomllib.loads((shipped.ROOT / "build.toml").read_text(encoding="utf-8"))["model"]


@pytest.mark.parametrize("model", MODELS, ids=[model["name"] for model in MODELS])
def test_block_sizes_are_within_every_kernels_contract(model: dict[str, Any]) -> None:
    """Loading specializes every kernel of both kinds of steps and checks each launch's contract, here at real sizes."""
    tied = model["name"] in {"qwen3-0.6b", "qwen3-1.7b", "qwen3-4b"}
    other_fields = {"rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": tied, "max_position_embeddings": 40960}
    if model["family"] == "qwen3_moe":
        other_fields |= {"intermediate_size": 1}  # of no layer
    kind: Any = Qwen3MoeConfig if model["family"] == "qwen3_moe" else Qwen3Config
    config = replace(kind(**model["config"], **other_fields, torch_dtype="bfloat16"), num_hidden_layers=1)
    backend = InterpreterBackend()
    weights: Any = UnwrittenWeights(config)
    backend.load(config, weights, 300)
    assert backend.kernel_seconds > 0
    backend.close()


def test_the_largest_divisor() -> None:
    assert [largest_divisor(number, limit) for number, limit in [(12, 100), (12, 5), (25600, 4096), (7, 6)]] == [12, 4, 3200, 1]
