"""The step of a model, from the text of its family: the one that a bundle carries, or the engine's own where no bundle is."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Final, Protocol

from tilec.step.graph import StepGraph
from tilec.step.reader import Declaration, read_declaration
from tilec.step.step import Head, Step

FAMILY: Final = "qwen3"

SIZES: Final = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "num_hidden_layers",
    "vocab_size",
)  # fmt: skip
"""Numbers of config.json that decide which kernels a step asks for."""

NUMBERS: Final = (*SIZES, "rms_norm_eps")
"""Numbers of config.json that decide a step."""

UNMEASURED: Final[Mapping[str, int]] = {"parts": 33, "head_parts": 8, "short_slots": 64, "few_tokens": 8, "few_blocks": 132}
"""What stands for measured numbers where no bundle says them: any that the kernels take will do."""


class Shape(Protocol):
    """What decides a step; `engine.models.config.ModelConfig` has these."""

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
    """The step that the engine comes with, and that the build reads."""
    return read_declaration(resources.files(__package__ or "").joinpath(f"{FAMILY}.step").read_text(encoding="utf-8"))


def model_step(
    config: Shape, max_seq_len: int, dtype: str = "bf16", declaration: Declaration | None = None,
    measured: Mapping[str, Any] = UNMEASURED,
) -> Step:  # fmt: skip
    """The step of a model that holds `max_seq_len` tokens. StepError where the text asks for what the model has not."""
    numbers = {name: getattr(config, name) for name in NUMBERS} | dict(measured)
    return Step(
        own_declaration() if declaration is None else declaration, numbers, tied=config.tie_word_embeddings, dtype=dtype,
        max_seq_len=max_seq_len,
    )  # fmt: skip


def step(
    config: Shape, tokens: int, max_seq_len: int, dtype: str = "bf16", *, past: int = 0, head: Head = "argmax",
    decode: bool | None = None,
) -> StepGraph:  # fmt: skip
    """The graph of the engine's own step that takes in `tokens` tokens behind `past`; `decode` chooses the form for one token
    (None: decode)."""
    mode = "decode" if (tokens == 1 if decode is None else decode) else "prefill"
    return model_step(config, max_seq_len, dtype).graph(mode, head, tokens=tokens, past=past)
