"""Mixtures of experts with weights of eight and four bits on the interpreter: what is kept, and logits in float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dense_reference
import numpy as np
import pytest
from checkpoints import joined
from one_sequence import OneSequence
from tiny_formats import tiny_in_format

from engine.backends.interpreter import InterpreterBackend
from engine.batch import Batch
from engine.checkpoint.weights import WeightPlan
from engine.models.families import read_config
from engine.tools.dummy_weights import dummy_weights
from engine.tools.tiny import write_tiny_model

IDS = np.random.default_rng(5).integers(0, 400, 40).tolist()
TOLERANCE = 0.004
"""Upper bound of the root mean square error in f16, over the deviation of the logits: twice the measured value."""
GATE = "model.layers.1.mlp.gate.weight"


@pytest.fixture(scope="module", params=["fp8", "int4"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A quantised tiny mixture, by the name of its format. With this seed the choices of all routers are clear."""
    root = tmp_path_factory.mktemp(request.param)
    return request.param, tiny_in_format(root, request.param, family="qwen3_moe", seed=1)


def test_the_router_keeps_16_bits(folder: tuple[str, Path]) -> None:
    name, path = folder
    config = json.loads((path / "config.json").read_text())["quantization_config"]
    assert config["modules_to_not_convert" if name == "fp8" else "ignore"] == [
        "lm_head", "model.layers.0.mlp.gate", "model.layers.1.mlp.gate",
    ]  # fmt: skip
    weights = WeightPlan.for_model(read_config(path), path, "bf16")
    assert (weights.weight_format, weights[GATE].dtype) == (name, "bf16")
    assert GATE not in weights.quantised
    assert len(weights.quantised) == 2 * (4 + 3 * 8)


def test_destinations_stack_what_files_have(folder: tuple[str, Path]) -> None:
    """Codes of four bits have their scales and zero points transposed, expert by expert."""
    name, path = folder
    weights = WeightPlan.for_model(read_config(path), path, "bf16")
    of = "model.layers.1.mlp.experts.{}.{}_proj.weight{}"
    for suffix in ("", "_scales") if name == "fp8" else ("", "_scales", "_zeros"):
        found = weights.array(f"model.layers.1.mlp.experts.gate_up_proj.weight{suffix}")
        axis = 1 if suffix and name == "int4" else 0
        for expert in range(8):
            own = [weights.tensor(of.format(expert, one, suffix)) for one in ("gate", "up")]
            expected = np.concatenate(own, axis=axis)
            assert found[expert].tobytes() == expected.tobytes()
        assert joined(weights, f"model.layers.1.mlp.experts.gate_up_proj.weight{suffix}", 999) == found.tobytes()


def test_logits(folder: tuple[str, Path]) -> None:
    """Prompts of each height of tiles, decode steps and a batch."""
    _, path = folder
    config = read_config(path)
    exact = WeightPlan.for_model(config, path, "f16", weight_format="16bit", convert=True)
    gaps: list[Any] = []
    expected = dense_reference.logits(config, {name: exact.tensor(name) for name in exact.tensor_names}, IDS, gaps=gaps)
    assert np.min(gaps) > 0.003
    weights = WeightPlan.for_model(config, path, "f16", convert=True)
    backend = OneSequence(InterpreterBackend())
    backend.load(config, weights, 64, "f16")

    def distance(found: Any, position: int) -> float:
        return float(np.sqrt(np.mean((found - expected[position]) ** 2)) / expected[position].std())

    for tokens in (1, 8, 17, 40):
        backend.reset()
        assert distance(backend.prompt_logits(IDS[:tokens]), tokens - 1) < TOLERANCE
    backend.reset()
    backend.prefill(IDS[:5])
    assert distance(backend.decode_logits(IDS[5]), 5) < TOLERANCE
    with Batch(backend.backend, 2) as batch:
        rows = {batch.add(IDS[:tokens])[0]: tokens for tokens in (3, 9)}
        found = batch.logits({row: IDS[tokens] for row, tokens in rows.items()})
        assert max(distance(found[row], tokens) for row, tokens in rows.items()) < TOLERANCE


@pytest.mark.parametrize("weight_format", ["fp8", "int4"])
def test_dummy_weights_have_the_format(tmp_path: Path, weight_format: str) -> None:
    config = write_tiny_model(tmp_path / "model", family="qwen3_moe", hidden_size=128)
    weights = dummy_weights(config, "bf16", weight_format=weight_format)
    backend = OneSequence(InterpreterBackend())
    backend.load(config, weights, 64)
    assert np.isfinite(backend.prompt_logits([1, 2, 3])).all()
