"""Formats whose prompts have activations of eight bits: what a step launches for them, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tilec.step.expressions import StepError
from tilec.step.graph import Kind, Op, StepGraph, View
from tilec.step.reader import decode_declaration, read_declaration
from tilec.step.requests import requests
from tilec.step.step import Step
from tilec.step.tuning import Tuning, read_tuning

TEXT = """
variants = {"few": at_most(tokens, few_tokens)}
formats = {"fp8": scaled(f8e4m3, [64, 128]), "w8a8": activations(fp8, f8e4m3, [1, 128], above=w8a8_tokens)}
weights = {
    "model.layers.*.up.weight": linear([2 * width, width]),
    "model.layers.*.gate.weight": linear([2 * width, width]),
    "model.layers.*.down.weight": linear([width, 2 * width]),
}
buffers = {
    "hidden": activation(dtype, [tokens, width]),
    "layers.*.heads": activation(dtype, [tokens, 2, width]),
    "layers.*.y": activation(dtype, [tokens, 2 * width]),
}


def decode():
    for layer in layers:
        up = product(x=hidden, w=up, out=y)


def prefill():
    for layer in layers:
        first = norm(out=hidden)
        if few:
            up = product_few(a=hidden, b=dequantised(up), out=heads[tokens, 2 * width])
        else:
            up = matmul(E=dtype, a=quantised(hidden), b=dequantised(up[2, width, width]), out=heads[tokens, 2 * width])
            gate = matmul(E=dtype, a=quantised(hidden), b=dequantised(gate), out=y)
            down = matmul(E=dtype, a=quantised(heads[tokens, 2 * width]), b=dequantised(down), out=hidden)
"""
NUMBERS = {"width": 128, "num_hidden_layers": 2, "few_tokens": 4, "w8a8_tokens": 16}
FP8, W8A8 = "fp8", "w8a8"


def model(text: str = TEXT, weight_format: str = W8A8, **numbers: Any) -> Step:
    return Step(
        read_declaration(text), NUMBERS | numbers, tied=False, dtype="f16", max_seq_len=64, weight_format=weight_format
    )  # fmt: skip


def prefill(tokens: int, text: str = TEXT, **numbers: Any) -> StepGraph:
    return model(text, **numbers).graph("prefill", tokens=tokens)


def kernels(graph: StepGraph, layer: int = 0) -> list[str]:
    return [op.kernel for op in graph.ops if op.name.startswith(f"layers.{layer}.")]


def by_name(graph: StepGraph) -> dict[str, Op]:
    return {op.name: op for op in graph.ops}


def test_a_long_prompt_multiplies_codes_by_codes_and_quantises_each_tensor_once() -> None:
    graph = prefill(17)
    assert kernels(graph) == ["norm", "quantise_rows", "matmul_fp8", "matmul_fp8", "quantise_rows", "matmul_fp8"]
    ops = by_name(graph)
    write, first, second = (ops[f"layers.1.{name}"] for name in ("up_quantise_a", "up", "gate"))
    codes, scales = View("hidden.f8e4m3", (17, 128)), View("hidden.f8e4m3_scales", (1, 17))
    assert write.tensors == {"x": View("hidden", (17, 128)), "codes": codes, "scales": scales}
    assert write.constants == first.constants == {"E": "f16"}
    up = "model.layers.1.up.weight"
    assert first.tensors == {
        "a": codes, "a_scales": scales, "b": View(up, (2, 128, 128)), "b_scales": View(f"{up}_scales", (2, 2, 1)),
        "out": View("layers.1.heads", (17, 256)),
    }  # fmt: skip
    assert (second.tensors["a"], second.tensors["a_scales"]) == (codes, scales)
    assert second.tensors["b_scales"] == View("model.layers.1.gate.weight_scales", (4, 1))
    down = ops["layers.1.down"]
    assert down.tensors["a"] == View("layers.1.heads.f8e4m3", (17, 256))
    assert down.tensors["a_scales"] == View("layers.1.heads.f8e4m3_scales", (2, 17))
    assert all(op.overlaps for op in graph.ops)
    for name, dtype in (("hidden.f8e4m3", "f8e4m3"), ("layers.0.heads.f8e4m3_scales", "f32")):
        assert (graph.buffers[name].kind, graph.buffers[name].dtype) == (Kind.ACTIVATION, dtype)
    assert (
        graph.buffers["hidden.f8e4m3"].bytes == 17 * 128 and graph.buffers["layers.0.heads.f8e4m3_scales"].bytes == 2 * 17 * 4
    )


@pytest.mark.parametrize("tokens", [1, 4, 5, 16])
def test_shorter_prompts_and_decode_are_those_of_the_format_of_the_weights(tokens: int) -> None:
    eight, of_weights = model(), model(weight_format=FP8)
    assert eight.graph("prefill", tokens=tokens).ops == of_weights.graph("prefill", tokens=tokens).ops
    assert eight.graph("decode").ops == of_weights.graph("decode").ops
    assert list(eight.weights()) == list(of_weights.weights())
    assert of_weights.graph("prefill", tokens=17).ops != eight.graph("prefill", tokens=17).ops


def test_a_number_that_was_not_measured_quantises_every_prompt_but_the_few() -> None:
    step = model(w8a8_tokens=0)
    assert step.prefills(64) == (4, 64)
    assert "quantise_rows" in kernels(step.graph("prefill", tokens=5))
    assert "quantise_rows" not in kernels(step.graph("prefill", tokens=4))


def test_other_formats_have_neither_the_launches_nor_the_variant() -> None:
    for weight_format in ("16bit", FP8):
        step = model(weight_format=weight_format)
        assert step.prefills(64) == (4, 64)
        graph = step.graph("prefill", tokens=17)
        assert not any("f8e4m3" in name for name in graph.buffers) and "quantise_rows" not in kernels(graph)
        assert by_name(graph)["layers.0.up"].tensors["a"] == View("hidden", (17, 128))
    assert model().prefills(64) == (4, 16, 64)


@pytest.mark.parametrize(
    "between",
    [
        "again = norm(out=hidden)",
        "again = norm(x=hidden, out=y)",  # what a launch does with a tensor is not known here
        "if first_layer:\n                again = norm(out=hidden)",
        "for item in items:\n                again = norm(out=hidden)",
    ],
)
def test_a_tensor_that_may_have_changed_is_quantised_again(between: str) -> None:
    gate = "            gate = matmul"
    text = TEXT.replace(gate, f"            {between}\n{gate}")
    found = kernels(prefill(17, text, items=1))
    assert found[-5:] == ["norm", *2 * ["quantise_rows", "matmul_fp8"]] and found.count("quantise_rows") == 3


def test_the_same_tensor_of_the_previous_layer_is_another() -> None:
    text = TEXT.replace("a=quantised(hidden), b=dequantised(gate)", "a=quantised(previous.y), b=dequantised(previous.down)")
    text = text.replace("            gate = matmul", "            if not first_layer:\n                gate = matmul")
    ops = by_name(prefill(17, text))
    assert ops["layers.1.gate_quantise_a"].tensors["x"] == View("layers.0.y", (17, 256))
    assert ops["layers.1.gate"].tensors["a"] == View("layers.0.y.f8e4m3", (17, 256))


def test_a_bundle_gives_the_same_format() -> None:
    declaration = read_declaration(TEXT)
    again = decode_declaration(json.loads(json.dumps(declaration.syntax)))
    assert again.formats[W8A8][0] == declaration.formats[W8A8][0]
    step = Step(again, NUMBERS, tied=False, dtype="f16", max_seq_len=64, weight_format=W8A8)
    assert step.graph("prefill", tokens=17).ops == prefill(17).ops


def test_requests_are_those_of_the_graphs() -> None:
    cost = {"kernel": "matmul_fp8", "cost": "cdiv(out[0], BM) * a[1]", "choices": [{"BM": 8}, {"BM": 64}], "measured": "no"}
    step, tuning = model(num_hidden_layers=3), read_tuning([cost])
    requested = {(one.kernel, repr(sorted(one.constants.items()))) for one in requests(step, tuning)}
    graphs = [step.graph("decode"), *(step.graph("prefill", tokens=tokens) for tokens in (1, 4, 5, 16, 17, 65, 2048))]
    shapes = [({name: view.shape for name, view in op.tensors.items()}, op) for graph in graphs for op in graph.ops]
    found = {(op.kernel, repr(sorted({**tuning.constants(op.kernel, of), **op.constants}.items()))) for of, op in shapes}
    assert requested == found
    assert {"quantise_rows", "matmul_fp8", "matmul", "dequantise_fp8", "product_few", "product_fp8"} <= {
        one for one, _ in found
    }
    # With no prompt between `few` and `above`, products of 16 bits are not asked for.
    assert "matmul" not in {one.kernel for one in requests(model(w8a8_tokens=4), Tuning())}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("activations(fp8,", "activations(fp9,", "`fp9` is no earlier format of weights alone"),
        ("[1, 128], above", "[1, 64], above",
         "`fp8` is no earlier format of weights alone, of f8e4m3 with scales of 64 columns"),
        ("[1, 128], above", "[2, 128], above", "`w8a8` is not a format, as `scaled(f8e4m3, [128, 128])`, "),
        ("activations(fp8, f8e4m3", "activations(fp8, bf16", "`w8a8` is not a format"),
        (", above=w8a8_tokens)", ")", "`w8a8` is not a format"),
        ("above=w8a8_tokens", "above=16", "`w8a8` is not a format"),
        ("above=w8a8_tokens", "above=w8a8_tokens, serve=False", "`w8a8` is not a format"),
        ("above=w8a8_tokens", "above=w8a8_tokens, serve=1", "`w8a8` is not a format"),
        ("above=w8a8_tokens", "above=w8a8_tokens, chunk=True", "`w8a8` is not a format"),
        ("above=w8a8_tokens", "above=tokens", "`w8a8` is not a format"),
        ("above=w8a8_tokens)", "above=w8a8_tokens), \"w\": activations(w8a8, f8e4m3, [1, 128], above=w8a8_tokens)",
         "`w8a8` is no earlier format of weights alone"),
        ("quantised(heads[tokens, 2 * width])", "quantised(heads)", "`heads` is not a matrix of activations of 16 bits"),
        ("a=quantised(hidden), b=dequantised(gate)", "a=quantised(gate), b=dequantised(gate)", "`gate` is not a matrix of act"),
        ("a=quantised(hidden), b=dequantised(gate)", "a=quantised(3), b=dequantised(gate)", "`3` is not a matrix of act"),
        ("a=quantised(hidden), b=dequantised(gate)", "a=quantised(hidden), b=gate", "only a product with `dequantised(...)`"),
        ("a=quantised(hidden), b=dequantised(gate)", "a=quantised(hidden)", "only a product with `dequantised(...)` weights"),
        ("hidden\": activation(dtype", "hidden\": activation(f32", "`hidden` is not a matrix of activations of 16 bits"),
        ("hidden\": activation(dtype, ", "hidden\": cache(dtype, ", "`hidden` is not a matrix of activations of 16 bits"),
        ("quantised(heads[tokens, 2 * width])", "quantised(hidden[2 * tokens, width // 2])",
         "`hidden.f8e4m3` is there, and is the name of what `hidden` needs in `w8a8`"),
        ("\"hidden\": ", "\"hidden.f8e4m3_scales\": activation(f32, [1]), \"hidden\": ",
         "`hidden.f8e4m3_scales` is there, and is the name of what `hidden` needs in `w8a8`"),
    ],
)  # fmt: skip
def test_texts_that_declare_no_such_format_are_refused(old: str, new: str, expected: str) -> None:
    assert old in TEXT
    with pytest.raises(StepError) as caught:
        read_declaration(TEXT.replace(old, new, 1))
    assert expected in str(caught.value) and caught.value.line


def test_the_bound_must_be_a_number_of_tokens() -> None:
    with pytest.raises(StepError, match="`w8a8_tokens` is not a number from 0"):
        prefill(17, w8a8_tokens=1.5)
