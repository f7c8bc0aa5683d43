"""Prompts with FP8 weights and FP8 activations: logits of the engine, compared with a forward pass in float64 that quantises as
it does, and which prompts have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dense_reference
import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from engine.api import Engine
from engine.checkpoint.weights import WeightPlan
from engine.errors import ModelError
from engine.models.families import read_config
from engine.tools.quantize.command import command as quantize
from engine.tools.tiny import write_tiny_model

Matrix = NDArray[np.float64]
SHORT, LONG = list(range(40, 48)), [(7 * index) % 300 for index in range(90)]
"""Prompts of as many tokens as have activations of 16 bits without measurements (`UNMEASURED`), and of more."""


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of two layers with FP8 weights."""
    made = tmp_path_factory.mktemp("tiny")
    write_tiny_model(made / "source", family=request.param, hidden_size=128)
    ended = CliRunner().invoke(quantize, [str(made / "source"), str(made / "fp8"), "--format", "fp8"])
    assert ended.exit_code == 0, ended.output
    return made / "fp8"


def logits(folder: Path, weight_format: str | None, ids: list[int]) -> Matrix:
    with Engine.from_pretrained(folder, backend="interpreter", max_seq_len=128, weight_format=weight_format) as engine:
        return engine.logits(ids).astype(np.float64)


def quantised(x: Matrix) -> Matrix:
    """Activations of 16 bits as their codes give them: e4m3 with a scale for each 128 of a row, their largest over 448."""
    blocks = x.astype(ml_dtypes.bfloat16).astype(np.float32).reshape(len(x), -1, 128)
    top = np.maximum(np.abs(blocks).max(axis=2, keepdims=True), np.float32(1e-10))
    codes = (blocks * (np.float32(448) / top)).astype(ml_dtypes.float8_e4m3fn)
    return (codes.astype(np.float64) * (top / np.float32(448))).reshape(x.shape)


def expected(folder: Path, ids: list[int], inputs: Any) -> Matrix:
    config = read_config(folder)
    weights = WeightPlan.for_model(config, folder, weight_format="fp8")
    tensors: dict[str, Any] = {}
    for name in weights.tensor_names:
        scales = f"{name}_scales"
        if scales in weights.tensor_names:
            spread = np.kron(weights.tensor(scales), np.ones((128, 128)))
            tensors[name] = weights.tensor(name).astype(np.float64) * spread
        elif not name.endswith("_scales"):
            tensors[name] = weights.tensor(name).astype(np.float64)
    return dense_reference.logits(config, tensors, ids, inputs)[-1]


def distance(found: Matrix, wanted: Matrix) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def test_long_prompts_have_quantised_activations_and_nothing_else_changes(folder: Path) -> None:
    """After attention the last layer works for the last token alone, whose activations keep 16 bits."""
    last = read_config(folder).num_hidden_layers - 1

    def inputs(layer: int, name: str, x: Matrix) -> Matrix:
        return quantised(x) if layer < last or name == "norm" else x

    found, of_weights = logits(folder, "w8a8", LONG), logits(folder, "fp8", LONG)
    as_quantised, as_they_are = expected(folder, LONG, inputs), expected(folder, LONG, dense_reference.as_they_are)
    noise = distance(as_quantised, as_they_are)
    assert 0.01 < noise < 0.3
    assert distance(found, as_quantised) < 0.5 * noise < distance(found, as_they_are)
    assert distance(of_weights, as_they_are) < 0.5 * noise


def test_short_prompts_and_decode_steps_are_those_of_the_weights_alone(folder: Path) -> None:
    assert (logits(folder, "w8a8", SHORT) == logits(folder, "fp8", SHORT)).all()
    assert (logits(folder, "w8a8", [*SHORT, 7]) != logits(folder, "fp8", [*SHORT, 7])).any()
    found: list[list[int]] = []
    for weight_format in ("w8a8", "fp8"):
        with Engine.from_pretrained(folder, backend="interpreter", max_seq_len=64, weight_format=weight_format) as engine:
            found.append(list(engine.generate_ids(SHORT, 6)))
    assert found[0] == found[1] and len(found[0]) == 6


def test_a_folder_of_fp8_weights_fits_both_and_keeps_activations_by_default(folder: Path) -> None:
    config = read_config(folder)
    assert WeightPlan.for_model(config, folder).weight_format == "fp8"
    eight, of_weights = (WeightPlan.for_model(config, folder, weight_format=each) for each in ("w8a8", "fp8"))
    assert eight.weight_format == "w8a8" and eight.destinations == of_weights.destinations
    for destination in eight.destinations:
        assert eight.array(destination.name).tobytes() == of_weights.array(destination.name).tobytes()


def test_a_folder_of_16_bits_is_refused_with_the_format_of_the_weights(tmp_path: Path) -> None:
    config = write_tiny_model(tmp_path / "plain", hidden_size=128)
    with pytest.raises(ModelError, match="weights in `w8a8` are asked for, and the files do not have") as caught:
        WeightPlan.for_model(config, tmp_path / "plain", weight_format="w8a8")
    assert "quantize --to fp8" in str(caught.value)
