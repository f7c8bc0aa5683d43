"""Builds the step of a model from its family's declaration: the bundle's, or the engine's own if there is no bundle."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Final, Protocol

from tilec.step.graph import StepGraph
from tilec.step.reader import Declaration, read_declaration
from tilec.step.step import OutputMode, Step

FAMILY: Final = "qwen3"

SIZES: Final = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "num_hidden_layers",
    "vocab_size",
)  # fmt: skip
"""Numbers of config.json that determine which kernels a step needs."""

NUMBERS: Final = (*SIZES, "rms_norm_eps")
"""Numbers of config.json that determine a step."""

UNMEASURED: Final[Mapping[str, int]] = {"parts": 33, "head_parts": 8, "short_slots": 64, "few_tokens": 8, "few_blocks": 132}
"""Values for the measured numbers of a bundle if there is no bundle: any that the kernels support will do."""


class Shape(Protocol):
    """The sizes that determine a step; `engine.models.config.ModelConfig` has them."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_attention_heads(self) -> int: ...
    @property
    def num_key_value_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def num_hidden_layers(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def rms_norm_eps(self) -> float: ...
    @property
    def tie_word_embeddings(self) -> bool: ...


@cache
def own_declaration() -> Declaration:
    """The step declaration that is part of the engine; the build reads it too."""
    return read_declaration(resources.files(__package__ or "").joinpath(f"{FAMILY}.step").read_text(encoding="utf-8"))


def model_step(
    config: Shape, max_seq_len: int, dtype: str = "bf16", declaration: Declaration | None = None,
    measured: Mapping[str, Any] = UNMEASURED,
) -> Step:  # fmt: skip
    """The step of a model with a cache of `max_seq_len` tokens. StepError if the declaration needs what the model lacks."""
    numbers = {name: getattr(config, name) for name in NUMBERS} | dict(measured)
    return Step(
        own_declaration() if declaration is None else declaration, numbers, tied=config.tie_word_embeddings, dtype=dtype,
        max_seq_len=max_seq_len,
    )  # fmt: skip


def step(
    config: Shape, tokens: int, max_seq_len: int, dtype: str = "bf16", *, past: int = 0, output_mode: OutputMode = "argmax",
    decode: bool | None = None,
) -> StepGraph:  # fmt: skip
    """The graph of the engine's own step for `tokens` tokens after `past` tokens. `decode` selects the mode; None means decode
    for one token, otherwise prefill."""
    mode = "decode" if (tokens == 1 if decode is None else decode) else "prefill"
    return model_step(config, max_seq_len, dtype).graph(mode, output_mode, tokens=tokens, past=past)
