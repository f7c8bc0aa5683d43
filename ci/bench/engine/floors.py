"""What a decode step has to read and to compute at least, and how long that takes on an H200."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ci.bench.engine.weights import STACKED
from engine.checkpoint.weights import Destination, destinations

BANDWIDTH: Final = 4.8e12
"""Bytes per second of an H200's memory (NVIDIA H200 data sheet)."""
OPERATIONS: Final = 989e12
"""Operations per second of its tensor cores in bf16, dense (the same)."""
REACHED_BANDWIDTH: Final = 4.33e12
REACHED_OPERATIONS: Final = 700e12
"""Rates that reads of memory and large products in bf16 reach on an H200."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a step has to do at least: bytes of weights and of caches to read, and operations of products."""

    weights: float
    caches: float
    operations: float

    @property
    def floor(self) -> float:
        """Seconds at the rates of the data sheet, reads and operations at the same time."""
        return max((self.weights + self.caches) / BANDWIDTH, self.operations / OPERATIONS)

    @property
    def roofline(self) -> float:
        """Seconds at rates that are reached: products, then the caches."""
        return max(self.weights / REACHED_BANDWIDTH, self.operations / REACHED_OPERATIONS) + self.caches / REACHED_BANDWIDTH


def step_of(config: Any, stored: Iterable[Destination], many: int, tokens: float, *, coded: bool = False) -> Work:
    """The work of a step of `many` rows with `tokens` cached tokens each; `stored` are the weights as they are kept. `coded`:
    caches have a byte for an element, and four for each row of a head. Of experts those weights count that so many rows choose
    in the mean, if they choose at random."""
    of_head = config.head_dim + 4 if coded else 2 * config.head_dim
    of_token = 2 * config.num_hidden_layers * config.num_key_value_heads * of_head
    embedding = 0 if config.tie_word_embeddings else 2 * config.vocab_size * config.hidden_size
    of_row = config.num_experts_per_tok / config.num_experts if hasattr(config, "num_experts") else 1.0

    def of(weights: Mapping[str, int], share: float) -> float:
        """Bytes of weights but the embedding, of experts this share."""
        return sum(size * (share if STACKED in name else 1) for name, size in weights.items()) - embedding

    sizes = {one.name: one.bytes for one in stored}
    in_16_bits = {one.name: one.bytes for one in destinations(config, "bf16")}  # as many as operations of a row
    caches = many * tokens * of_token
    return Work(of(sizes, 1 - (1 - of_row) ** many), caches, many * of(in_16_bits, of_row))
