"""What tests of weights that stay on the device as they are stored share: plans, and generations to compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from engine.api import Engine
from engine.checkpoint.weights import WeightPlan
from engine.models.families import read_config

SHORT, LONG = list(range(40, 60)), [(7 * index) % 300 for index in range(90)]
"""Prompts of both forms of a prefill: up to 64 tokens and more."""


def plan(folder: Path, weight_format: str | None = None) -> WeightPlan:
    return WeightPlan.for_model(read_config(folder), folder, weight_format=weight_format)


def generations(folder: Path, weight_format: str | None = None) -> list[Any]:
    """Logits of two prompts, and the tokens that follow each."""
    with Engine.from_pretrained(folder, backend="interpreter", max_seq_len=128, weight_format=weight_format) as engine:
        return [(engine.logits(ids), list(engine.generate_ids(ids, 8))) for ids in (SHORT, LONG)]


def assert_alike(found: list[Any], expected: list[Any]) -> None:
    """Equal tokens, and logits that differ by the rounding of weights and activations to bf16."""
    for (logits, tokens), (wanted, others) in zip(found, expected, strict=True):
        assert np.isfinite(logits).all()
        assert np.abs(logits - wanted).max() <= 0.02 * np.abs(wanted).max()
        assert tokens == others
