"""Tiny models on one rank and on several ranks of the interpreter, and what they compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.backends.backend import Backend
from engine.backends.interpreter import InterpreterBackend
from engine.checkpoint.weights import WeightPlan
from engine.models.families import read_config
from engine.ranks.interpreter import InterpreterRanks
from engine.ranks.weights import rank_weights

MAX_SEQ_LEN = 128
IDS = np.random.default_rng(5).integers(0, 400, 80).tolist()

TOLERANCE = 0.02
"""Upper bound of the root mean square error of bf16 logits, over their deviation, as of one rank against float64."""


def one_rank(folder: Path, **formats: Any) -> InterpreterBackend:
    config, cache = read_config(folder), formats.pop("cache_format", None)
    backend, weights = InterpreterBackend(), WeightPlan.for_model(config, folder, **formats)
    backend.load(config, weights, MAX_SEQ_LEN, weights.dtype, cache_format=cache)
    return backend


def two_ranks(folder: Path, ranks: int = 2, **formats: Any) -> InterpreterRanks:
    config, cache = read_config(folder), formats.pop("cache_format", None)
    backend = InterpreterRanks(ranks)
    weights = [rank_weights(config, folder, rank, ranks, **formats) for rank in range(ranks)]
    backend.load(config, weights, MAX_SEQ_LEN, weights[0].dtype, cache_format=cache)
    return backend


def distance(found: NDArray[Any], expected: NDArray[Any]) -> float:
    return float(np.sqrt(np.mean((found - expected) ** 2)) / expected.std())


def prompt_logits(backend: Backend, ids: list[int]) -> NDArray[np.float32]:
    return backend.prompt_logits(backend.begin(), ids).copy()


def decode_logits(backend: Backend, prompt: list[int], following: list[int]) -> list[NDArray[np.float32]]:
    sequence = backend.begin()
    backend.prompt_logits(sequence, prompt)
    return [backend.decode_logits(sequence, token).copy() for token in following]


def greedy(backend: Backend, prompt: list[int], tokens: int) -> list[int]:
    sequence = backend.begin()
    backend.prefill(sequence, prompt)
    token = backend.token()
    return [token, *backend.stream_tokens(sequence, token, tokens)]


def bits_of_ranks(backend: InterpreterRanks) -> list[bytes]:
    """The logits of the last step of a single sequence in each rank."""
    return [buffers.arrays["logits"].tobytes() for buffers in backend.own.buffers.of_ranks]  # pyright: ignore
