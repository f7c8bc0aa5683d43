"""Weights that stack the items of a layer: one tensor on the device, from which a launch chooses items by number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from checkpoints import joined

from engine.checkpoint import weights as checkpoint
from engine.checkpoint.weights import Weights
from engine.models.qwen3_moe.config import Qwen3MoeConfig
from engine.tools.dummy_weights import dummy_weights
from tilec.step.expressions import StepError
from tilec.step.graph import Kind
from tilec.step.reader import decode_declaration, read_declaration
from tilec.step.step import Step

TEXT = """
count = num_experts
formats = {"fp8": scaled(f8e4m3, [128, 128]), "int4": grouped(u4, 128, scales=dtype, zeros=u8, rows=16)}
weights = {
    "model.layers.*.mlp.gate.weight": [4, hidden_size],
    "model.layers.*.mlp.experts.gate_up_proj.weight": linear(each(count, {
        "model.layers.*.mlp.experts.*.gate_proj.weight": [moe_size, hidden_size],
        "model.layers.*.mlp.experts.*.up_proj.weight": [moe_size, hidden_size],
    })),
    "model.layers.*.mlp.experts.down_proj.weight": linear(each(count, {
        "model.layers.*.mlp.experts.*.down_proj.weight": [hidden_size, moe_size],
    })),
}
buffers = {
    "x": input(i32, [tokens, hidden_size], low=0, high=2),
    "layers.*.act": activation(dtype, [tokens, moe_size]),
    "token": output(i32, [1]),
}


def decode():
    for layer in layers:
        product = choose_silu_mul(K=hidden_size, ROWS=4, x=x, w=mlp.experts.gate_up_proj, out=act)
        down = choose(K=moe_size, x=act, w=mlp.experts.down_proj[1, count * hidden_size, moe_size], out=token)


def prefill():
    for layer in layers:
        product = tiles_silu_mul(a=x, b=dequantised(mlp.experts.gate_up_proj[count, 2, moe_size, hidden_size]), out=act)
"""
NUMBERS = {"num_experts": 3, "num_hidden_layers": 2, "hidden_size": 256, "moe_size": 128}


def step(text: str = TEXT, weight_format: str = "16bit", **numbers: Any) -> Step:
    return Step(read_declaration(text), NUMBERS | numbers, tied=False, dtype="f16", max_seq_len=64, weight_format=weight_format)


def test_a_weight_has_the_rows_of_each_item_after_the_other() -> None:
    weights = {weight.name: weight for weight in step().weights()}
    assert list(weights) == [
        f"model.layers.{layer}.mlp.{name}.weight"
        for layer in range(2)
        for name in ("gate", "experts.gate_up_proj", "experts.down_proj")
    ]
    merged = weights["model.layers.1.mlp.experts.gate_up_proj.weight"]
    assert (merged.shape, merged.items) == ((3, 256, 256), 3)
    assert [name for name, _ in merged.rows] == [
        f"model.layers.1.mlp.experts.{expert}.{name}_proj.weight" for expert in range(3) for name in ("gate", "up")
    ]
    assert {shape for _, shape in merged.rows} == {(128, 256)}
    assert weights["model.layers.0.mlp.experts.down_proj.weight"].shape == (3, 256, 128)
    assert weights["model.layers.0.mlp.gate.weight"].items == 0


def test_launches_take_it_whole_or_in_another_shape() -> None:
    ops = step().graph("decode", "none").ops
    assert ops[2].tensors["w"].buffer == "model.layers.1.mlp.experts.gate_up_proj.weight"
    assert ops[2].tensors["w"].shape == (3, 256, 256)
    assert ops[3].tensors["w"].shape == (1, 768, 128)
    assert step().graph("prefill", "none", tokens=4).ops[0].tensors["b"].shape == (3, 2, 128, 256)


def test_a_bundle_has_the_same_step() -> None:
    again = Step(decode_declaration(read_declaration(TEXT).syntax), NUMBERS, tied=False, dtype="f16", max_seq_len=64)
    assert [*again.weights()] == [*step().weights()]
    assert again.graph("decode", "none").ops == step().graph("decode", "none").ops


def test_its_parts_in_a_format_have_the_item_first() -> None:
    fp8 = {weight.name: weight for weight in step(weight_format="fp8").weights()}
    name = "model.layers.0.mlp.experts.gate_up_proj.weight"
    assert [(fp8[each].dtype, fp8[each].shape) for each in (name, f"{name}_scales")] == [
        ("f8e4m3", (3, 256, 256)), ("f32", (3, 2, 2)),
    ]  # fmt: skip
    int4 = {weight.name: weight for weight in step(weight_format="int4").weights()}
    assert [(int4[each].dtype, int4[each].shape) for each in (name, f"{name}_scales", f"{name}_zeros")] == [
        ("u32", (3, 256, 32)), ("f16", (3, 2, 256)), ("u8", (3, 2, 256)),
    ]  # fmt: skip
    assert int4[f"{name}_scales"].rows[3] == ("model.layers.0.mlp.experts.1.up_proj.weight_scales", (2, 128))
    assert int4["model.layers.0.mlp.gate.weight"].dtype == "f16"


def test_launches_of_a_format_take_its_parts() -> None:
    op = step(weight_format="int4").graph("decode", "none").ops[0]
    assert (op.kernel, op.constants["ROWS"]) == ("choose_silu_mul_int4", 16)
    assert {name: op.tensors[name].shape for name in ("w", "w_scales", "w_zeros")} == {
        "w": (3, 256, 32), "w_scales": (3, 2, 256), "w_zeros": (3, 2, 256),
    }  # fmt: skip
    graph = step(weight_format="fp8").graph("prefill", "none", tokens=4)
    dequantise, product = graph.ops[:2]
    assert (dequantise.kernel, product.kernel) == ("dequantise_each_fp8", "tiles_silu_mul")
    assert {name: view.shape for name, view in dequantise.tensors.items()} == {
        "w": (3, 256, 256), "w_scales": (3, 2, 2), "out": (3, 256, 256),
    }  # fmt: skip
    assert (product.tensors["b"].buffer, product.tensors["b"].shape) == (dequantise.tensors["out"].buffer, (3, 2, 128, 256))
    assert graph.buffers[product.tensors["b"].buffer].kind is Kind.ACTIVATION


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"model.layers.*.mlp.experts.*.down_proj', '"model.layers.*.mlp.down_proj', "rows of .* are not in the same loops"),
        ('"model.layers.*.mlp.experts.down_proj', '"model.experts.down_proj', "does not stack the items of a layer"),
        ('"model.layers.*.mlp.experts.down_proj', '"model.layers.*.mlp.*.down_proj', "does not stack the items of a layer"),
        ("down_proj.weight\": linear(each(count,", "down_proj.weight\": linear(each(tokens,", "does not stack the items"),
        ("down_proj.weight\": linear(each(count,", "down_proj.weight\": linear(each(layers,", "does not stack the items"),
        ("down_proj.weight\": linear(each(count,", "down_proj.weight\": linear(each(3,", "not a shape"),
        ("down_proj.weight\": linear(each(count,", "down_proj.weight\": linear(some(count,", "not a shape"),
        (".down_proj.weight\": [hidden_size, moe_size]", ".down_proj.weight\": [hidden_size]", "are not matrices"),
        (".down_proj.weight\": [hidden_size, moe_size]", ".down_proj.weight\": each(count, {})", "not a shape"),
        (".up_proj.weight\": [moe_size, hidden_size]", ".up_proj.weight\": [moe_size, moe_size]", "are not as long"),
        ("w=mlp.experts.down_proj[", "w=dequantised(mlp.gate)[", "is no expression"),
        ("b=dequantised(mlp.experts.gate_up_proj[count", "b=dequantised(mlp.gate[count", "not a weight of a linear layer"),
    ],
)  # fmt: skip
def test_what_stacks_nothing_is_refused(old: str, new: str, message: str) -> None:
    assert TEXT.count(old) == 1
    with pytest.raises(StepError, match=message):
        list(step(TEXT.replace(old, new)).weights())


@pytest.mark.parametrize("count", [-1, 0, True, 2.0, 1 << 20])
def test_a_number_of_items_is_one(count: Any) -> None:
    with pytest.raises(StepError, match="items"):
        list(step(num_experts=count).weights())
    with pytest.raises(StepError, match="items"):
        step(num_experts=count).graph("decode", "none")


def test_a_stack_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StepError, match="which are no tensor"):
        list(step(num_experts=1000, hidden_size=1 << 23, moe_size=1 << 16).weights())
    monkeypatch.setattr("tilec.step.step.MAX_WEIGHTS", 1000)
    assert sum(len(weight.rows) for weight in step(num_experts=100).weights()) == 602
    with pytest.raises(StepError, match="more than 1000 weights"):
        list(step(num_experts=300).weights())


CONFIG = Qwen3MoeConfig(
    hidden_size=256, intermediate_size=12, num_attention_heads=8, num_key_value_heads=4, head_dim=32, num_hidden_layers=2,
    vocab_size=11, rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=False, max_position_embeddings=64,
    torch_dtype="bfloat16", num_experts=3, num_experts_per_tok=2, moe_intermediate_size=128, norm_topk_prob=True,
)  # fmt: skip


def stacked(weights: Weights, name: str, suffix: str = "", axis: int = 0) -> Any:
    """A destination as its definition has it, from tensors by their own names."""
    of = f"model.layers.1.mlp.experts.{{}}.{name}_proj.weight{suffix}"
    names = ("gate", "up") if name == "gate_up" else (name,)
    return np.stack([
        np.concatenate([weights.tensor(of.replace(name, one).format(expert)) for one in names], axis=axis)
        for expert in range(CONFIG.num_experts)
    ])  # fmt: skip


@pytest.mark.parametrize("limit", [100, 4096, 1 << 20])
@pytest.mark.parametrize("small", [0, 1 << 30])
def test_a_destination_is_the_stack_of_its_tensors(monkeypatch: pytest.MonkeyPatch, small: int, limit: int) -> None:
    """Read piece by piece, and joined."""
    monkeypatch.setattr(checkpoint, "SMALL", small)
    weights = dummy_weights(CONFIG, "bf16")
    for name in ("gate_up", "down"):
        destination = f"model.layers.1.mlp.experts.{name}_proj.weight"
        expected = stacked(weights, name)
        assert weights[destination].shape == expected.shape == weights.array(destination).shape
        assert np.array_equal(weights.array(destination).view(np.uint16), expected.view(np.uint16))
        assert joined(weights, destination, limit) == expected.tobytes()
        for piece in weights[destination].pieces:
            own = weights.tensor(piece.name).tobytes()
            assert expected.tobytes()[piece.offset : piece.offset + len(own)] == own
