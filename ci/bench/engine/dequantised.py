"""Dense models of few bits as transformers takes them: tensors in float32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from ci.bench.engine.low_bit_weights import LowBitWeights
from engine.models.config import ModelConfig


class Dequantised:
    """Weights of few bits with the tensors that `transformers_model` asks for: it has those of experts stacked, and these
    models have none."""

    def __init__(self, config: ModelConfig, weight_format: str) -> None:
        self._weights = LowBitWeights(config, "bf16", weight_format)

    def tensors(self, stacked: bool = False) -> Iterator[tuple[str, NDArray[Any]]]:
        """Tensors in float32 by the names in files of Hugging Face."""
        assert not stacked or not any(one.items for one in self._weights.destinations), "a mixture"
        return self._weights.tensors()
