"""Builds the step of a model from its family's declaration: the bundle's, or the engine's own if there is no bundle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Protocol

from engine.errors import UsageError
from engine.models.families import family_of
from tilec.step.formats import SIXTEEN_BIT
from tilec.step.graph import StepGraph
from tilec.step.reader import Declaration
from tilec.step.step import OutputMode, Step

MOST_CODED_QUERIES: Final = 8
"""Query heads of a key head that attention to a cache of codes takes at most: the columns of its products."""


class Shape(Protocol):
    """What determines a step, with the numbers that the family names (`Family.numbers`); a `ModelConfig` has them."""

    model_type: ClassVar[str]

    @property
    def tie_word_embeddings(self) -> bool: ...


def model_step(
    config: Shape, max_seq_len: int, dtype: str = "bf16", declaration: Declaration | None = None,
    measured: Mapping[str, Any] | None = None, *, weight_format: str = SIXTEEN_BIT, cache_format: str = SIXTEEN_BIT,
) -> Step:  # fmt: skip
    """The step of a model with a cache of `max_seq_len` tokens, and its linear weights and its caches in a format each.
    StepError if the declaration needs what the model lacks, or lacks a format. UsageError as of `check_cache_format`."""
    family = family_of(config.model_type)
    numbers = family.numbers_of(config)
    check_cache_format(numbers, cache_format)
    numbers |= dict(family.unmeasured if measured is None else measured)
    return Step(
        family.declaration() if declaration is None else declaration, numbers, tied=config.tie_word_embeddings, dtype=dtype,
        max_seq_len=max_seq_len, weight_format=weight_format, cache_format=cache_format,
    )  # fmt: skip


def check_cache_format(numbers: Mapping[str, Any], cache_format: str) -> None:
    """UsageError if a model with these numbers has more query heads of a key head than kernels of the format take."""
    queries = numbers["num_attention_heads"] // numbers["num_key_value_heads"]
    if cache_format != SIXTEEN_BIT and queries > MOST_CODED_QUERIES:
        what = f"a cache in `{cache_format}` is for up to {MOST_CODED_QUERIES} query heads of a key head"
        raise UsageError(f"{what}, and the model has {queries}", fix=f"leave out `--cache {cache_format}`")


def step(
    config: Shape, tokens: int, max_seq_len: int, dtype: str = "bf16", *, past: int = 0, output_mode: OutputMode = "argmax",
    decode: bool | None = None, weight_format: str = SIXTEEN_BIT,
) -> StepGraph:  # fmt: skip
    """The graph of the engine's own step for `tokens` tokens after `past` tokens. `decode` selects the mode; None means decode
    for one token, otherwise prefill. StepError if the step or its sizes do not fit the format of linear weights."""
    mode = "decode" if (tokens == 1 if decode is None else decode) else "prefill"
    step_of_format = model_step(config, max_seq_len, dtype, weight_format=weight_format)
    return step_of_format.graph(mode, output_mode, tokens=tokens, past=past)
