"""Random weights and prompts for the models of build.toml, and the models' configs."""

from __future__ import annotations

import tomllib
import zlib
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from ci.evidence import ROOT
from engine.checkpoint.weights import NUMPY_TYPES, destinations
from engine.models.config import ModelConfig
from engine.models.llama.config import LlamaConfig, RopeScaling
from engine.models.qwen3.config import Qwen3Config
from engine.models.qwen3_moe.config import Qwen3MoeConfig
from tilec.step.formats import SIXTEEN_BIT

TIED: Final = ("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b")
BLOCK: Final = 1 << 24
STACKED: Final = ".mlp.experts."
"""In the names of the weights of experts."""


class BlockWeights:
    """Weights cut from one block of normal numbers, at an offset derived from the tensor's name: fast, and no two rows are
    equal. The standard deviation of a projection is `1 / sqrt(inputs)`, which preserves the scale of activations."""

    def __init__(self, config: ModelConfig, dtype: str) -> None:
        self.destinations, self.weight_format = destinations(config, dtype), SIXTEEN_BIT
        self.dtype = NUMPY_TYPES[dtype]
        self.normal = np.random.default_rng(7).standard_normal(BLOCK, dtype=np.float32)
        self.bytes = sum(destination.bytes for destination in self.destinations)
        self._scaled: dict[tuple[float, float], Any] = {}

    def values(self, name: str, shape: tuple[int, ...], begin: int, count: int) -> Any:
        """Elements `begin .. begin + count` of a destination."""
        if len(shape) == 1:
            scaled = self._block(0.1, 1.0)
        else:
            scaled = self._block(1.0 if "embed" in name else shape[-1] ** -0.5, 0.0)
        return cut(scaled, name, begin, count)

    def _block(self, scale: float, shift: float) -> Any:
        key = (scale, shift)
        if key not in self._scaled:
            self._scaled[key] = (self.normal * scale + shift).astype(self.dtype)
        return self._scaled[key]

    def chunks(self, name: str, limit_bytes: int) -> Iterator[tuple[int, memoryview]]:
        """As `engine.checkpoint.weights.Weights.chunks`."""
        destination = next(d for d in self.destinations if d.name == name)
        count, step = destination.bytes // 2, limit_bytes // 2
        for begin in range(0, count, step):
            part = self.values(name, destination.shape, begin, min(step, count - begin))
            yield 2 * begin, part.view(np.uint8).data

    def tensors(self, stacked: bool = False) -> Iterator[tuple[str, Any]]:
        """Tensors by the names in files of Hugging Face. `stacked`: those of a layer's experts in one, (experts, rows,
        columns), by the name that transformers has in memory."""
        for destination in self.destinations:
            block = self.values(destination.name, destination.shape, 0, destination.bytes // 2)
            if stacked and STACKED in destination.name:
                experts = {piece.name.split(STACKED)[1].split(".")[0] for piece in destination.pieces}
                yield destination.name.removesuffix(".weight"), block.reshape(len(experts), -1, destination.shape[-1])
                continue
            for piece in destination.pieces:
                begin = piece.offset // 2
                yield piece.name, block[begin : begin + piece.elements].reshape(piece.shape)


def cut(block: Any, name: str, begin: int, count: int) -> Any:
    """Elements `begin .. begin + count` of a tensor: those of a block from an offset of the tensor's name on; the block
    repeats."""
    first = (zlib.crc32(name.encode()) + begin) % len(block)
    parts, left = list[Any](), count
    while left:
        part = block[first : first + left]
        parts.append(part)
        left -= len(part)
        first = 0
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def config_of(name: str) -> ModelConfig:
    """The config of a model in build.toml. What the build does not depend on is as the model was published: Qwen3, or Llama 3.1
    with scaled positions."""
    models = tomllib.loads((ROOT / "build.toml").read_text(encoding="utf-8"))["model"]
    model = next(model for model in models if model["name"] == name)
    given: dict[str, Any] = {**model["config"], "tie_word_embeddings": name in TIED, "torch_dtype": "bfloat16"}
    if model["family"] == LlamaConfig.model_type:
        scaling = RopeScaling(8.0, 1.0, 4.0, 8192)
        return LlamaConfig(**given, rms_norm_eps=1e-5, rope_theta=5e5, max_position_embeddings=131072, rope_scaling=scaling)
    if model["family"] == Qwen3MoeConfig.model_type:
        given.setdefault("intermediate_size", 3 * given["hidden_size"])  # of no layer
        return Qwen3MoeConfig(**given, rms_norm_eps=1e-6, rope_theta=1e6, max_position_embeddings=40960)
    return Qwen3Config(**given, rms_norm_eps=1e-6, rope_theta=1e6, max_position_embeddings=40960)


def prompt_of(length: int, config: ModelConfig) -> list[int]:
    """Random tokens."""
    return [int(i) for i in np.random.default_rng(length).integers(0, config.vocab_size, length)]
