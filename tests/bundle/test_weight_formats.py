"""Formats of linear weights: what a step launches for each, what is requested and packed for it, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tilec.step.expressions import StepError
from tilec.step.formats import SIXTEEN_BIT
from tilec.step.graph import Kind, View
from tilec.step.reader import decode_declaration, read_declaration
from tilec.step.requests import requests
from tilec.step.step import Step
from tilec.step.tuning import Tuning

TEXT = """
formats = {"fp8": scaled(f8e4m3, [128, 64])}
weights = {
    "model.embed.weight": [vocab, width],
    "model.layers.*.both.weight": linear({
        "model.layers.*.left.weight": [width, 2 * width],
        "model.layers.*.right.weight": [2 * width, 2 * width],
    }),
    "model.layers.*.up.weight": linear([width, width]),
    "model.layers.*.norm.weight": [width],
    "lm_head.weight": [vocab, width],
}
tied = {"lm_head.weight": "model.embed.weight"}
buffers = {"x": input(dtype, [tokens, width]), "layers.*.y": activation(dtype, [tokens, width])}


def decode():
    for layer in layers:
        if not first_layer:
            before = add(K=width, x=x, w=previous.up)
        up = product(E=dtype, K=width, x=x, w=up, weight=norm, y=y)
    both = twice(a=previous.both, b=previous.up)
    lm_head = product(x=x, w=lm_head)


def prefill():
    for layer in layers:
        up = matmul(E=dtype, a=x, b=dequantised(up), out=y)
        both = grouped(a=y, b=dequantised(both[3, width, 2 * width]))
        mixed = mix(a=up, b=dequantised(both), c=norm)
"""
NUMBERS = {"vocab": 10, "width": 128, "num_hidden_layers": 2}
UP, BOTH = "model.layers.0.up.weight", "model.layers.0.both.weight"


def model(text: str = TEXT, weight_format: str = "fp8", tied: bool = False, **numbers: Any) -> Step:
    return Step(
        read_declaration(text), NUMBERS | numbers, tied=tied, dtype="f16", max_seq_len=64, weight_format=weight_format
    )  # fmt: skip


def refusal(text: str = TEXT, **numbers: Any) -> str:
    with pytest.raises(StepError) as caught:
        model(text, **numbers)
    return str(caught.value)


def test_a_linear_weight_is_codes_and_scales() -> None:
    found = {weight.name: weight for weight in model().weights()}
    assert (found[UP].dtype, found[UP].shape) == ("f8e4m3", (128, 128))
    scales = found[f"{UP}_scales"]
    assert (scales.dtype, scales.shape, scales.rows) == ("f32", (1, 2), ((f"{UP}_scales", (1, 2)),))
    merged = found[f"{BOTH}_scales"]
    assert (found[BOTH].shape, merged.shape) == ((384, 256), (3, 4))
    assert merged.rows == (("model.layers.0.left.weight_scales", (1, 4)), ("model.layers.0.right.weight_scales", (2, 4)))
    assert (found["model.embed.weight"].dtype, found["model.layers.1.norm.weight"].dtype) == ("f16", "f16")
    of_16 = {weight.name: weight.shape for weight in model(weight_format=SIXTEEN_BIT).weights()}
    assert of_16 == {name: weight.shape for name, weight in found.items() if not name.endswith("_scales")}
    assert {weight.dtype for weight in model(weight_format=SIXTEEN_BIT).weights()} == {"f16"}


def test_a_launch_takes_the_kernel_of_the_format_and_the_scales() -> None:
    graph = model().graph("decode")
    ops = {op.name: op for op in graph.ops}
    up = ops["layers.1.up"]
    assert up.kernel == "product_fp8" and up.constants == {"E": "f16", "K": 128} and up.overlaps
    assert list(up.tensors) == ["x", "w", "w_scales", "weight", "y"]
    assert up.tensors["w_scales"] == View("model.layers.1.up.weight_scales", (1, 2))
    before = ops["layers.1.before"]
    assert (before.kernel, before.tensors["w_scales"].buffer) == ("add_fp8", "model.layers.0.up.weight_scales")
    assert list(ops["both"].tensors) == ["a", "a_scales", "b", "b_scales"] and ops["both"].kernel == "twice_fp8"
    assert ops["lm_head"].kernel == "product"
    assert graph.buffers[UP].dtype == "f8e4m3" and graph.buffers[UP].bytes == 128 * 128
    assert graph.buffers[f"{UP}_scales"].bytes == 8
    of_16 = {op.name: op for op in model(weight_format=SIXTEEN_BIT).graph("decode").ops}
    assert of_16.keys() == ops.keys() and of_16["layers.1.up"].kernel == "product"
    assert list(of_16["layers.1.up"].tensors) == ["x", "w", "weight", "y"]


def test_a_dequantised_weight_is_written_before_the_launch_that_reads_it() -> None:
    graph = model().graph("prefill", tokens=5)
    assert [op.name for op in graph.ops[:6]] == [
        "layers.0.up_dequantise_b", "layers.0.up", "layers.0.both_dequantise_b", "layers.0.both", "layers.0.mixed_dequantise_b",
        "layers.0.mixed",
    ]  # fmt: skip
    write, read = graph.ops[2:4]
    assert (write.kernel, write.constants) == ("dequantise_fp8", {"E": "f16"})
    buffer = graph.buffers[f"{BOTH}.16bit"]
    assert (buffer.kind, buffer.dtype, buffer.shape) == (Kind.ACTIVATION, "f16", (384, 256))
    assert write.tensors == {
        "w": View(BOTH, (384, 256)), "w_scales": View(f"{BOTH}_scales", (3, 4)), "out": View(buffer.name, (384, 256)),
    }  # fmt: skip
    assert read.kernel == "grouped" and read.tensors["b"] == View(buffer.name, (3, 128, 256))
    assert write.overlaps and not read.overlaps
    of_16 = model(weight_format=SIXTEEN_BIT).graph("prefill", tokens=5)
    assert [op.name for op in of_16.ops] == [op.name for op in graph.ops if "dequantise" not in op.name]
    assert all(op.overlaps for op in of_16.ops)
    assert of_16.ops[1].tensors["b"] == View(BOTH, (3, 128, 256))


def test_a_bundle_gives_the_same_formats() -> None:
    declaration = read_declaration(TEXT)
    again = decode_declaration(json.loads(json.dumps(declaration.syntax)))
    assert again.formats["fp8"][0] == declaration.formats["fp8"][0]
    step = Step(again, NUMBERS, tied=True, dtype="f16", max_seq_len=64, weight_format="fp8")
    for mode in ("decode", "prefill"):
        assert step.graph(mode, tokens=1).ops == model(tied=True).graph(mode, tokens=1).ops


GROUPED = TEXT.replace(
    "scaled(f8e4m3, [128, 64])", 'scaled(f8e4m3, [128, 64]), "int4": grouped(u4, 64, scales=dtype, zeros=u8, rows=16)'
)


def test_a_weight_of_four_bits_is_words_scales_and_zero_points_with_rows_along_the_last_axis() -> None:
    found = {weight.name: weight for weight in model(GROUPED, "int4").weights()}
    left, right = "model.layers.0.left.weight", "model.layers.0.right.weight"
    for suffix, dtype, shapes, whole, axis in (
        ("", "u32", ((128, 32), (256, 32)), (384, 32), 0),
        ("_scales", "f16", ((4, 128), (4, 256)), (4, 384), 1),
        ("_zeros", "u8", ((4, 128), (4, 256)), (4, 384), 1),
    ):
        weight = found[BOTH + suffix]
        assert (weight.dtype, weight.shape, weight.axis) == (dtype, whole, axis)
        assert weight.rows == ((left + suffix, shapes[0]), (right + suffix, shapes[1]))
    assert (found["model.embed.weight"].dtype, found["model.embed.weight"].shape) == ("f16", (10, 128))
    always = {weight.name: weight.dtype for weight in model(GROUPED.replace("scales=dtype", "scales=bf16"), "int4").weights()}
    assert always[f"{UP}_scales"] == "bf16" and always["model.embed.weight"] == "f16"


def test_a_launch_of_four_bits_takes_all_parts_and_the_dtype_of_scales() -> None:
    step = model(GROUPED, "int4")
    graph, prefill = step.graph("decode"), step.graph("prefill", tokens=5)
    up = next(op for op in graph.ops if op.name == "layers.1.up")
    assert (up.kernel, up.constants) == ("product_int4", {"E": "f16", "K": 128, "F": "f16"})
    assert list(up.tensors) == ["x", "w", "w_scales", "w_zeros", "weight", "y"]
    assert up.tensors["w_zeros"] == View("model.layers.1.up.weight_zeros", (2, 128))
    merged = BOTH.replace("layers.0", "layers.1")
    assert (graph.buffers[merged].bytes, graph.buffers[f"{merged}_scales"].bytes) == (384 * 128, 4 * 384 * 2)
    write = next(op for op in prefill.ops if op.name == "layers.0.both_dequantise_b")
    assert (write.kernel, write.constants) == ("dequantise_int4", {"E": "f16", "F": "f16"})
    assert write.tensors == {
        "w": View(BOTH, (384, 32)), "w_scales": View(f"{BOTH}_scales", (4, 384)), "w_zeros": View(f"{BOTH}_zeros", (4, 384)),
        "out": View(f"{BOTH}.16bit", (384, 256)),
    }  # fmt: skip
    others = model(GROUPED.replace("scales=dtype", "scales=bf16"), "int4").graph("decode").ops
    assert next(op for op in others if op.name == "layers.1.up").constants == {"E": "f16", "K": 128, "F": "bf16"}
    # An op without a linear weight has no constant of the format.
    assert next(op for op in graph.ops if op.name == "lm_head").constants == {}
    text = GROUPED.replace("product(E=dtype, K=width", "product(E=dtype, K=width, ROWS=4")
    ups = {
        each: next(op for op in model(text, each).graph("decode").ops if op.name == "layers.1.up") for each in ("fp8", "int4")
    }
    assert (ups["fp8"].constants["ROWS"], ups["int4"].constants["ROWS"]) == (4, 16)
    # What FP8 launches is what it launches alone.
    assert model(GROUPED).graph("decode").ops == model().graph("decode").ops


def test_requests_are_those_of_the_graphs_of_a_format() -> None:
    for weight_format in (SIXTEEN_BIT, "fp8", "int4"):
        step = model(GROUPED, weight_format, num_hidden_layers=3)
        requested = {(request.kernel, repr(sorted(request.constants.items()))) for request in requests(step, Tuning())}
        graphs = [step.graph("decode"), step.graph("prefill", tokens=7)]
        assert requested == {(op.kernel, repr(sorted(op.constants.items()))) for graph in graphs for op in graph.ops}
    assert "prefill_up_dequantise_b" in {request.op for request in requests(step, Tuning())}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"fp8"', ", ".join(f'"f{n}": scaled(f8e4m3, [1, 1])' for n in range(8)) + ', "fp8"', "more than 8 formats"),
        ("scaled(f8e4m3, [128, 64])", "scaled(bf16, [128, 64])", "`fp8` is not a format, as `scaled(f8e4m3, [128, 128])`"),
        ("scaled(f8e4m3, [128, 64])", "grouped(u4, 128)", "`grouped(u4, 128, scales=dtype, zeros=u8, rows=16)`, "),
        ("scaled(f8e4m3, [128, 64])", "grouped(u4, 12, scales=dtype, zeros=u8, rows=16)", "is not a format"),
        ("scaled(f8e4m3, [128, 64])", "grouped(u4, 128, scales=dtype, zeros=u8, rows=0)", "is not a format"),
        ("scaled(f8e4m3, [128, 64])", "grouped(u8, 128, scales=dtype, zeros=u8, rows=16)", "is not a format"),
        ("scaled(f8e4m3, [128, 64])", "grouped(u4, 128, scales=f8e4m3, zeros=u8, rows=16)", "is not a format"),
        ("scaled(f8e4m3, [128, 64])", "grouped(u4, 128, zeros=u8, scales=dtype, rows=16)", "is not a format"),
        ("scaled(f8e4m3, [128, 64])", "scaled(f8e4m3, [128])", "is not a format"),
        ("scaled(f8e4m3, [128, 64])", "scaled(f8e4m3, [128, 0])", "is not a format"),
        ("scaled(f8e4m3, [128, 64])", "scaled(f8e4m3, [True, 64])", "is not a format"),
        ('"fp8"', '"16bit"', "is not a format"),
        ("linear([width, width])", "linear([width])", "is not a matrix, as the weight of a linear layer is"),
        ("linear([width, width])", "linear(linear([width, width]))", "is not a matrix"),
        ("linear([width, width])", "linear([width, width], 3)", "not a shape"),
        ("dequantised(up)", "dequantised(x)", "`x` is not a weight of a linear layer"),
        ("dequantised(up)", "dequantised(norm)", "`norm` is not a weight of a linear layer"),
        ("dequantised(up)", "dequantised(3)", "`3` is not a weight of a linear layer"),
        ("dequantised(up)", "dequantised(dequantised(up))", "is not a weight of a linear layer"),
        ('"lm_head.weight": [vocab, width]', '"lm_head.weight": linear([vocab, width])', "tied weights have 16 bits"),
    ],
)  # fmt: skip
def test_texts_that_declare_no_format_are_refused(old: str, new: str, expected: str) -> None:
    assert old in TEXT
    with pytest.raises(StepError) as caught:
        read_declaration(TEXT.replace(old, new, 1))
    assert expected in str(caught.value) and caught.value.line


def test_the_name_of_zero_points_is_not_to_be_taken() -> None:
    name = "model.layers.*.up.weight_zeros"
    with pytest.raises(StepError) as caught:
        read_declaration(GROUPED.replace('"layers.*.y": ', f'"{name}": activation(u8, [tokens]), "layers.*.y": '))
    assert str(caught.value) == f"`{name}` is there, and is the name of what `model.layers.*.up.weight` needs in `int4`"


@pytest.mark.parametrize("name", ["model.layers.*.up.weight_scales", "model.layers.*.up.weight.16bit"])
def test_a_name_that_a_format_needs_is_not_to_be_taken(name: str) -> None:
    with pytest.raises(StepError) as caught:
        read_declaration(TEXT.replace('"layers.*.y": ', f'"{name}": activation(dtype, [tokens]), "layers.*.y": '))
    assert str(caught.value) == f"`{name}` is there, and is the name of what `model.layers.*.up.weight` needs in `fp8`"


def test_a_format_that_the_step_lacks_and_sizes_that_cut_a_block_are_refused() -> None:
    assert refusal(weight_format="int4") == "the step has no weights in `int4`, only in `16bit`, `fp8`"
    assert refusal(TEXT.replace('formats = {"fp8": scaled(f8e4m3, [128, 64])}', "")).endswith("only in `16bit`")
    found = refusal(width=64)
    assert found.startswith("`model.layers.*.left.weight` is [64, 128], and weights in `fp8` have a scale for each 128 x 64")
    assert model(width=64, weight_format=SIXTEEN_BIT)
    groups = refusal(GROUPED.replace("u4, 64", "u4, 96"), weight_format="int4")
    assert groups.startswith("`model.layers.*.left.weight` is [128, 256], and weights in `int4` have a scale for each 1 x 96")
    # The whole has blocks, but not each of its parts: scales could not be put one after the other.
    parts = TEXT.replace("[width, 2 * width],", "[width - 64, 2 * width],").replace("[2 * width, 2", "[2 * width + 64, 2")
    assert "left.weight` is [64, 256]" in refusal(parts)
