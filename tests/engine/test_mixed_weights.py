"""The weights of mixtures of experts with dense layers between: what files must have, how they are fused, what is quantised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import joined, write_sharded
from click.testing import CliRunner
from mixed_models import FIRST_AND_LAST, write_mixed

from engine.checkpoint.weights import WeightPlan, destinations
from engine.errors import ModelError, UsageError
from engine.models.families import read_config
from engine.tiny import command as tiny
from engine.tools.quantize.command import command as quantize
from engine.tools.tiny import write_tiny_model
from tilec.step.graph import ITEM_BYTES

EXPERTS = 8
DENSE = "model.layers.{}.mlp.{}_proj.weight"
EXPERT = "model.layers.{}.mlp.experts.{}.{}_proj.weight"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Layers 0, 3 and 4 are dense, 1 and 2 have experts."""
    path = tmp_path_factory.mktemp("mixed") / "model"
    write_mixed(path, **FIRST_AND_LAST)
    return path


def plan_of(folder: Path) -> WeightPlan:
    return WeightPlan.for_model(read_config(folder), folder, "bf16")


def test_each_tensor_of_the_files_is_in_one_destination(folder: Path) -> None:
    """Names and sizes are those of the files, and destinations have no byte more."""
    weights = plan_of(folder)
    names = weights.tensor_names
    of_layer = {layer: [name for name in names if name.startswith(f"model.layers.{layer}.mlp.")] for layer in range(5)}
    for layer in (0, 3, 4):
        assert {*of_layer[layer]} == {DENSE.format(layer, one) for one in ("gate", "up", "down")}
    for layer in (1, 2):
        experts = {EXPERT.format(layer, number, one) for number in range(EXPERTS) for one in ("gate", "up", "down")}
        assert {*of_layer[layer]} == {f"model.layers.{layer}.mlp.gate.weight", *experts}
    pieces = [piece for destination in weights.destinations for piece in destination.pieces]
    assert sorted(piece.name for piece in pieces) == sorted(names)
    assert sum(piece.elements * ITEM_BYTES[piece.dtype] for piece in pieces) == weights.bytes
    assert weights.bytes == sum(weights.tensor(name).nbytes for name in names)


def test_gate_and_up_are_fused(folder: Path) -> None:
    """As bytes that come in order, each once, so that no second copy is needed."""
    weights = plan_of(folder)
    for layer in (0, 3, 4):
        name = f"model.layers.{layer}.mlp.gate_up_proj.weight"
        expected = np.concatenate([weights.tensor(DENSE.format(layer, one)) for one in ("gate", "up")])
        assert weights[name].shape == expected.shape == (2 * 192, 64)
        assert joined(weights, name, 999) == expected.tobytes()
    stacked = weights["model.layers.2.mlp.experts.gate_up_proj.weight"]
    assert (stacked.shape, stacked.items) == ((EXPERTS, 2 * 128, 64), EXPERTS)


def rewritten(folder: Path, target: Path, changes: dict[str, Any]) -> Path:
    """A copy of a folder with other tensors; None leaves one out."""
    weights = plan_of(folder)
    tensors: dict[str, Any] = {name: weights.tensor(name) for name in weights.tensor_names}
    tensors = {name: value for name, value in {**tensors, **changes}.items() if value is not None}
    target.mkdir()
    for path in folder.iterdir():
        if path.suffix != ".safetensors":
            (target / path.name).write_bytes(path.read_bytes())
    write_sharded(target, tensors, 2)
    return target


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        (DENSE.format(3, "up"), None, '"model.layers.3.mlp.up_proj.weight" is in none of the safetensors files'),
        (EXPERT.format(1, 7, "down"), None, '"model.layers.1.mlp.experts.7.down_proj.weight" is in none'),
        ("model.layers.2.mlp.gate.weight", None, '"model.layers.2.mlp.gate.weight" is in none'),
        (DENSE.format(1, "up"), (192, 64), '"model.layers.1.mlp.up_proj.weight" is not one of a Qwen3 model of 5 layers'),
        ("model.layers.0.mlp.gate.weight", (8, 64), '"model.layers.0.mlp.gate.weight" is not one of'),
        (EXPERT.format(4, 0, "up"), (128, 64), '"model.layers.4.mlp.experts.0.up_proj.weight" is not one of'),
        (EXPERT.format(1, 8, "up"), (128, 64), '"model.layers.1.mlp.experts.8.up_proj.weight" is not one of'),
        (DENSE.format(0, "down"), (64, 128), '"model.layers.0.mlp.down_proj.weight" has shape [64, 128]'),
        (EXPERT.format(1, 0, "up"), (192, 64), '"model.layers.1.mlp.experts.0.up_proj.weight" has shape [192, 64]'),
    ],
)  # fmt: skip
def test_files_of_another_model_are_refused(
    folder: Path, tmp_path: Path, name: str, shape: tuple[int, int] | None, message: str
) -> None:
    dtype = plan_of(folder).tensor("model.norm.weight").dtype
    changed = rewritten(folder, tmp_path / "model", {name: None if shape is None else np.zeros(shape, dtype)})
    with pytest.raises(ModelError) as caught:
        plan_of(changed)
    assert message in str(caught.value), str(caught.value)


@pytest.mark.parametrize("keys", [{"mlp_only_layers": [0, 3]}, {"mlp_only_layers": []}, {"mlp_only_layers": [0, 1, 3, 4]}])
def test_a_config_with_other_dense_layers_does_not_fit_the_files(folder: Path, tmp_path: Path, keys: dict[str, Any]) -> None:
    target = tmp_path / "model"
    target.mkdir()
    for path in folder.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    config = json.loads((target / "config.json").read_text()) | keys
    (target / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="is in none of the safetensors files"):
        plan_of(target)


@pytest.mark.parametrize("form", ["fp8", "int4"])
def test_dense_layers_and_experts_are_quantised_and_routers_are_not(tmp_path: Path, form: str) -> None:
    write_mixed(tmp_path / "source", hidden_size=128, intermediate_size=256, **FIRST_AND_LAST)
    ended = CliRunner().invoke(quantize, [str(tmp_path / "source"), str(tmp_path / "model"), "--format", form])
    assert ended.exit_code == 0, ended.output
    keys = json.loads((tmp_path / "model" / "config.json").read_text())["quantization_config"]
    kept = ["lm_head", "model.layers.1.mlp.gate", "model.layers.2.mlp.gate"]
    assert keys["modules_to_not_convert" if form == "fp8" else "ignore"] == kept
    weights = plan_of(tmp_path / "model")
    assert weights.weight_format == form
    assert len(weights.quantised) == 5 * 4 + 3 * 3 + 2 * 3 * EXPERTS
    for suffix in ("", "_scales") if form == "fp8" else ("", "_scales", "_zeros"):
        name = f"model.layers.3.mlp.gate_up_proj.weight{suffix}"
        axis = 1 if suffix and form == "int4" else 0
        parts = [weights.tensor(f"{DENSE.format(3, one)}{suffix}") for one in ("gate", "up")]
        assert joined(weights, name, 999) == np.concatenate(parts, axis=axis).tobytes()


def test_a_mixture_with_dense_layers_is_not_calibrated(tmp_path: Path) -> None:
    write_mixed(tmp_path / "source", hidden_size=128, intermediate_size=256, **FIRST_AND_LAST)
    (tmp_path / "text").write_text("the sky is blue " * 400)
    arguments = [str(tmp_path / "source"), str(tmp_path / "model"), "--format", "int4", "--calibration", str(tmp_path / "text")]
    ended = CliRunner().invoke(quantize, arguments)
    assert isinstance(ended.exception, ModelError)
    assert "is a mixture of experts, which cannot be calibrated" in str(ended.exception)


def test_the_command_writes_dense_layers(tmp_path: Path) -> None:
    arguments = ["--family", "qwen3_moe", "--layers", "3", "--dense-layer", "2", "--dense-layer", "0"]
    assert CliRunner().invoke(tiny, [str(tmp_path / "model"), *arguments]).exit_code == 0
    config: Any = read_config(tmp_path / "model")
    assert (config.num_hidden_layers, config.dense_layers) == (3, "0,2")
    assert len(destinations(config, "bf16")) == len(plan_of(tmp_path / "model").destinations)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dense_layers": (0,)}, "all layers of `qwen3` are dense"),
        ({"dense_layers": (2,), "family": "qwen3_moe"}, "some of the layers 0 to 1, and not all"),
        ({"dense_layers": (-1,), "family": "qwen3_moe"}, "some of the layers 0 to 1, and not all"),
        ({"dense_layers": (0, 1), "family": "qwen3_moe"}, "some of the layers 0 to 1, and not all"),
        ({"layers": 0}, "0 layers are asked for, and a tiny model has 1 to 16"),
        ({"layers": 17}, "17 layers are asked for, and a tiny model has 1 to 16"),
    ],
)
def test_layers_that_no_tiny_model_has(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        write_tiny_model(tmp_path / "model", **options)
    assert message in str(caught.value)
    assert not (tmp_path / "model").exists()
