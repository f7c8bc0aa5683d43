"""A loop over items of a layer: each expert has its weights, and a step of two loops computes what its definition says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.backends.interpreter import InterpreterBackend
from engine.graph.verify import GraphError
from tilec.step.expressions import StepError
from tilec.step.graph import Kind, StepGraph
from tilec.step.reader import decode_declaration, read_declaration
from tilec.step.requests import requests
from tilec.step.step import Step
from tilec.step.tuning import Tuning

TEXT = """
experts = num_experts
weights = {
    "model.embed_tokens.weight": [vocab_size, hidden_size],
    "model.layers.*.input_layernorm.weight": [hidden_size],
    "model.layers.*.mlp.gate_up_proj.weight": [2 * intermediate_size, hidden_size],  # of no expert
    "model.layers.*.mlp.experts.*.gate_up_proj.weight": {
        "model.layers.*.mlp.experts.*.gate_proj.weight": [intermediate_size, hidden_size],
        "model.layers.*.mlp.experts.*.up_proj.weight": [intermediate_size, hidden_size],
    },
    "model.layers.*.mlp.experts.*.down_proj.weight": [hidden_size, intermediate_size],
}
buffers = {
    "ids": input(i32, [tokens], low=0, high=vocab_size),
    "hidden": activation(dtype, [tokens, hidden_size]),
    "layers.*.normed": activation(dtype, [tokens, hidden_size]),
    "layers.*.experts.*.act": activation(dtype, [tokens, intermediate_size]),
    "logits": output(dtype, [tokens, vocab_size]),
}


def decode():
    embed_tokens = embedding(E=dtype, H=hidden_size, ids=ids, table=model.embed_tokens, out=hidden)
    for layer in layers:
        norm = rms_norm(E=dtype, H=hidden_size, x=hidden, weight=input_layernorm, out=normed, eps=eps)
        for expert in experts:
            gate_up_proj = matmul_silu_mul(
                E=dtype, a=normed, b=mlp.experts.gate_up_proj[2, intermediate_size, hidden_size], out=experts.act
            )
            down_proj = matvec_add(E=dtype, B=1, K=intermediate_size, x=experts.act, w=mlp.experts.down_proj, residual=hidden)
    lm_head = matvec(E=dtype, B=1, K=hidden_size, x=hidden, w=model.embed_tokens, out=logits)


def prefill():
    pass
"""
NUMBERS = {
    "num_experts": 3, "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 32, "vocab_size": 96, "eps": 1e-6,
}  # fmt: skip


def step(text: str = TEXT, **numbers: int) -> Step:
    """The step of a tiny mixture of experts."""
    return Step(read_declaration(text), NUMBERS | numbers, tied=False, dtype="f16", max_seq_len=64)


def test_each_item_has_its_weights_and_launches() -> None:
    weights = {weight.name: weight for weight in step().weights()}
    assert [name for name in weights if ".1.mlp.experts.2." in name] == [
        "model.layers.1.mlp.experts.2.gate_up_proj.weight", "model.layers.1.mlp.experts.2.down_proj.weight",
    ]  # fmt: skip
    merged = weights["model.layers.1.mlp.experts.2.gate_up_proj.weight"]
    assert merged.shape == (64, 64)
    assert [name for name, _ in merged.rows] == [
        "model.layers.1.mlp.experts.2.gate_proj.weight", "model.layers.1.mlp.experts.2.up_proj.weight",
    ]  # fmt: skip
    assert len(weights) == 1 + 2 * (2 + 3 * 2)
    ops = step().graph("decode", "logits").ops
    assert [op.name for op in ops[:6]] == [
        "embed_tokens", "layers.0.norm", "layers.0.expert.0.gate_up_proj", "layers.0.expert.0.down_proj",
        "layers.0.expert.1.gate_up_proj", "layers.0.expert.1.down_proj",
    ]  # fmt: skip
    assert ops[4].tensors["b"].buffer == "model.layers.0.mlp.experts.1.gate_up_proj.weight"
    assert ops[4].tensors["out"].buffer == "layers.0.experts.1.act"
    assert [request.kernel for request in requests(step(), Tuning({}, {}))] == [
        "embedding", "rms_norm", "matmul_silu_mul", "matvec_add", "matvec",
    ]  # fmt: skip
    assert [request.kernel for request in requests(step(num_experts=0), Tuning({}, {}))] == ["embedding", "rms_norm", "matvec"]


def test_a_bundle_has_the_same_step() -> None:
    again = Step(decode_declaration(read_declaration(TEXT).syntax), NUMBERS, tied=False, dtype="f16", max_seq_len=64)
    assert again.graph("decode", "logits").ops == step().graph("decode", "logits").ops
    assert [*again.weights()] == [*step().weights()]


def made(graph: StepGraph) -> dict[str, Any]:
    """Random weights, an input, room for the output."""
    random = np.random.default_rng(3)
    arrays: dict[str, Any] = {
        buffer.name: (random.normal(size=buffer.shape) / np.sqrt(buffer.shape[-1])).astype(np.float16)
        for buffer in graph.of_kind(Kind.WEIGHT)
    }
    arrays |= {buffer.name: np.zeros(buffer.shape, np.float16) for buffer in graph.of_kind(Kind.OUTPUT)}
    return arrays | {"ids": np.array([7], np.int32)}


def test_a_mixture_computes_its_definition() -> None:
    graph = step().graph("decode", "logits")
    arrays, backend = made(graph), InterpreterBackend()
    backend.run_step(backend.planned(graph, arrays))
    w = {name: array.astype(np.float64) for name, array in arrays.items()}
    x = w["model.embed_tokens.weight"][7]
    for layer in range(2):
        normed = x / np.sqrt(np.mean(x * x) + 1e-6) * w[f"model.layers.{layer}.input_layernorm.weight"]
        for expert in range(3):
            name = f"model.layers.{layer}.mlp.experts.{expert}."
            gate, up = np.split(w[f"{name}gate_up_proj.weight"] @ normed, 2)
            x = x + w[f"{name}down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * up)
    np.testing.assert_allclose(arrays["logits"][0], w["model.embed_tokens.weight"] @ x, atol=4e-3)


def test_an_item_that_reads_what_no_item_wrote_is_refused() -> None:
    text = TEXT.replace("x=experts.act, w=mlp.experts.down_proj", "x=logits[1, intermediate_size], w=mlp.experts.down_proj")
    graph = step(text).graph("decode", "logits")
    with pytest.raises(GraphError, match=r"layers\.0\.expert\.0\.down_proj"):
        InterpreterBackend().planned(graph, made(graph))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("        for expert in experts:\n", "        for expert in layers:\n", "or a loop in it"),
        ("        for expert in experts:\n", "        for expert in tokens:\n", "or a loop in it"),
        ("        for expert in experts:\n", "        for layer in experts:\n", "or a loop in it"),
        ("for expert in experts:\n", "for expert in experts:\n          for other in experts:\n", "or a loop in it"),
        ("    for layer in layers:\n", "    for layer in experts:\n", "not a launch"),
        ("b=mlp.experts.gate_up_proj[", "b=mlp.experts.nothing[", "no buffer or weight `mlp.exp"),
        ("x=hidden, w=model.embed_tokens", "x=hidden, w=mlp.experts.down_proj", "item of a loop in a layer, and is not"),
        ("mlp.experts.*.gate_proj", "mlp.experts.gate_proj", "the rows of .* are not in the same loops"),
        ("model.layers.*.mlp.experts.*.down", "model.layers.*.mlp.*.experts.*.down", "more than two `[*]`"),
        ("            down_proj =", "        for other in num_experts:\n            down_proj =", "`experts` items in another"),
    ],
)  # fmt: skip
def test_what_is_no_loop_over_items_is_refused(old: str, new: str, message: str) -> None:
    assert TEXT.count(old) == 1
    with pytest.raises(StepError, match=message):
        step(TEXT.replace(old, new))


def test_a_weight_of_items_is_in_a_loop() -> None:
    with pytest.raises(StepError, match=r"`other\.[*]\.[*]\.weight` has an item of a loop, and no loop uses it"):
        step(TEXT.replace("weights = {", 'weights = {\n    "other.*.*.weight": [vocab_size, hidden_size],'))


@pytest.mark.parametrize("count", [-1, 1 << 20, True, 2.0])
def test_a_number_of_items_has_a_limit(count: Any) -> None:
    with pytest.raises(StepError, match="`experts` is not a number of items from 0 to 1024"):
        step(num_experts=count).graph("decode", "logits")
    with pytest.raises(StepError, match="`experts` is not a number of items"):
        list(step(num_experts=count).weights())


def test_weights_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilec.step.step.MAX_WEIGHTS", 1000)
    assert len(list(step(num_experts=100).weights())) == 405
    with pytest.raises(StepError, match="more than 1000 weights"):
        list(step(num_experts=300).weights())
