"""Kinds of layers of a step: what is launched in each layer, which weights a model then has, and what is refused."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from tilec.step.declaration import Declared
from tilec.step.expressions import StepError
from tilec.step.formats import in_format
from tilec.step.graph import Kind, StepGraph
from tilec.step.layers import LayerKinds, listed_layers
from tilec.step.ranks import shared_numbers
from tilec.step.reader import decode_declaration, read_declaration
from tilec.step.requests import requests
from tilec.step.step import ALL_KINDS, Step
from tilec.step.tuning import Tuning

TEXT = """
layer_kinds = {"dense": dense_layers}
formats = {"fp8": scaled(f8e4m3, [128, 128])}
weights = {
    "table": [size, size],
    "layers.*.gate": only(not dense, [experts, size]),
    "layers.*.norm": [size],
    "layers.*.up": only(dense, linear({"layers.*.first": [inner, size], "layers.*.second": [inner, size]})),
    "layers.*.down": linear(only(dense, [size, inner])),
    "head": [size],
}
shards = {"layers.*.up": rows(inner), "layers.*.gate": rows(experts)}
buffers = {"layers.*.x": activation(dtype, [tokens, size]), "layers.*.y": activation(dtype, [tokens, size])}


def decode():
    for layer in layers:
        if first_layer:
            begin = begin(w=table, out=x)
        elif previous.dense:
            begin = after_dense(w=previous.down, a=previous.y, out=x)
        else:
            begin = after_sparse(w=previous.gate, a=previous.y, out=x)
        if dense and not last_layer:
            middle = dense(w=up, b=dequantised(down), a=x, out=y)
        elif dense:
            middle = dense_last(w=up, b=down, a=x, out=y)
        else:
            middle = sparse(w=gate, n=norm, a=x, out=y)
    if previous.dense:
        end = end_dense(w=previous.down, h=head, a=previous.y)
    else:
        end = end_sparse(w=previous.gate, h=head, a=previous.y)


prefill = decode
"""
MISSING = r"`{}` uses `layers\.\*\.{}`, and layer {} has none"
SIZES = {"size": 256, "inner": 384, "experts": 6}


def model(dense: str | None, layers: int = 4, text: str = TEXT, **given: Any) -> Step:
    numbers: dict[str, Any] = {**SIZES, "num_hidden_layers": layers, **given.pop("numbers", {})}
    numbers |= {} if dense is None else {"dense_layers": dense}
    return Step(read_declaration(text), numbers, tied=False, dtype="bf16", max_seq_len=64, **given)


def launched(graph: StepGraph) -> list[str]:
    return [op.kernel for op in graph.ops]


def expected(dense: set[int], layers: int) -> list[str]:
    """The launches by the rule, without the text."""
    found: list[str] = []
    for layer in range(layers):
        found.append("begin" if layer == 0 else "after_dense" if layer - 1 in dense else "after_sparse")
        found.append(("dense_last" if layer == layers - 1 else "dense") if layer in dense else "sparse")
    return [*found, "end_dense" if layers - 1 in dense else "end_sparse"]


def subsets(layers: int) -> list[set[int]]:
    return [set(one) for size in range(layers + 1) for one in itertools.combinations(range(layers), size)]


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
def test_launches_and_weights_of_every_set_of_dense_layers(layers: int) -> None:
    for dense in subsets(layers):
        step = model(",".join(map(str, sorted(dense))), layers)
        graph = step.graph("decode")
        assert launched(graph) == expected(dense, layers)
        own = [["gate", "norm"] if layer not in dense else ["norm", "up", "down"] for layer in range(layers)]
        names = ["table", *(f"layers.{layer}.{name}" for layer in range(layers) for name in own[layer]), "head"]
        assert [weight.name for weight in step.weights()] == names
        used = {name for name, buffer in graph.buffers.items() if buffer.kind is Kind.WEIGHT}
        assert used == {*names} - {f"layers.{layer}.norm" for layer in dense}  # which dense layers of the text do not use


def test_every_request_is_launched_and_every_launch_requested() -> None:
    """Kernels that no pair of neighbours asks for are not built."""
    for dense in subsets(4):
        step = model(",".join(map(str, sorted(dense))))
        requested = {request.kernel for request in requests(step, Tuning())}
        assert requested == {*launched(step.graph("decode"))}


def test_a_model_that_lists_no_layers_has_none_of_the_kind() -> None:
    """Nor do its sizes matter: bundles of such models do not state them."""
    step = Step(
        read_declaration(TEXT), {"size": 256, "experts": 6, "num_hidden_layers": 3}, tied=False, dtype="bf16", max_seq_len=64,
        weight_format="fp8",
    )  # fmt: skip
    assert launched(step.graph("decode")) == expected(set(), 3)
    assert launched(step.graph("decode")) == launched(model("", 3).graph("decode"))
    assert not step.layer_kinds().several and step.few_layers(ALL_KINDS) == 3


def test_a_step_of_fewer_layers_leaves_no_kind_out() -> None:
    """With one kind of layers few stand for all, with several all are there."""
    for dense in (None, "", ",".join(map(str, range(9)))):
        step = model(dense, 9)
        assert step.few_layers(ALL_KINDS) == ALL_KINDS
        of_dense = {0, 1, 2} if dense else set[int]()
        assert launched(step.graph("decode", layers=ALL_KINDS)) == expected(of_dense, ALL_KINDS)
    for dense in ("0", "8", "0,2,4,6,8"):
        step = model(dense, 9)
        assert step.few_layers(ALL_KINDS) == 9
        with pytest.raises(StepError, match="a step of 3 layers is asked for, and the model has 9 of several kinds"):
            step.graph("decode", layers=ALL_KINDS)


def test_weights_in_a_format_are_in_the_same_layers() -> None:
    step = model("1,2", weight_format="fp8")
    names = [weight.name for weight in step.weights() if weight.name.startswith(("layers.0.", "layers.1."))]
    assert names == [
        "layers.0.gate", "layers.0.norm", "layers.1.norm", "layers.1.up", "layers.1.up_scales", "layers.1.down",
        "layers.1.down_scales",
    ]  # fmt: skip
    assert launched(step.graph("decode")).count("dequantise_fp8") == 2
    assert "layers.1.down.16bit" in step.graph("decode").buffers and "layers.0.down.16bit" not in step.graph("decode").buffers


def test_sizes_of_weights_that_no_layer_has_need_not_fit_a_format_or_ranks() -> None:
    with pytest.raises(StepError, match=r"`layers\.\*\.first` is \[100, 256\]"):
        model("1", weight_format="fp8", numbers={"inner": 100})
    model("", weight_format="fp8", numbers={"inner": 100})
    declaration = read_declaration(TEXT)
    numbers: dict[str, Any] = {**SIZES, "num_hidden_layers": 4, "inner": 101}
    assert shared_numbers(declaration, {**numbers, "dense_layers": ""}, 2) == {**numbers, "dense_layers": "", "experts": 3}
    with pytest.raises(StepError, match="`inner` is 101, which 2 ranks cannot share equally"):
        shared_numbers(declaration, {**numbers, "dense_layers": "3"}, 2)
    odd: dict[str, Any] = {**SIZES, "num_hidden_layers": 2, "experts": 7, "dense_layers": "0,1"}
    assert shared_numbers(declaration, odd, 2) == {**odd, "inner": 192}


def test_a_bundle_carries_kinds() -> None:
    declaration = read_declaration(TEXT)
    again = decode_declaration(json.loads(json.dumps(declaration.syntax)))
    assert again.kinds == declaration.kinds == {"dense": "dense_layers"}
    steps = [
        Step(one, {**SIZES, "num_hidden_layers": 4, "dense_layers": "0,3"}, tied=False, dtype="bf16", max_seq_len=64)
        for one in (declaration, again)
    ]
    assert launched(steps[0].graph("decode")) == launched(steps[1].graph("decode")) == expected({0, 3}, 4)
    assert [*steps[0].weights()] == [*steps[1].weights()]


@pytest.mark.parametrize(
    "listed",
    [
        "4", "0,4", "1,0", "1,1", "00", "+1", "-1", "0,", ",0", " 0", "0 ", "a", "0.0", "0;1", "1_0", "²", "٣", "9" * 5000, 0,
        True, [0],
    ],
)  # fmt: skip
def test_a_list_of_layers_has_one_spelling(listed: Any) -> None:
    with pytest.raises(StepError, match="`dense_layers` is not text that lists some of 4 layers"):
        listed_layers("dense_layers", {"dense_layers": listed}, 4)
    with pytest.raises(StepError, match="`dense_layers` is not text"):
        model(listed).graph("decode")


def test_what_conditions_may_ask_in_each_layer() -> None:
    kinds = LayerKinds(read_declaration(TEXT), {"num_hidden_layers": 3, "dense_layers": "1"})
    assert [kinds.flags(layer) for layer in range(3)] == [
        {"first_layer": True, "last_layer": False, "dense": False, "previous.dense": False},
        {"first_layer": False, "last_layer": False, "dense": True, "previous.dense": False},
        {"first_layer": False, "last_layer": True, "dense": False, "previous.dense": True},
    ]
    assert kinds.outside() == {"previous.dense": False}
    assert len([*LayerKinds(read_declaration(TEXT), {"num_hidden_layers": 4096, "dense_layers": "7"}).different()]) == 5


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("a=x, out=y)\n        elif dense:", "a=gate, out=y)\n        elif dense:", MISSING.format("middle", "gate", 0)),
        ("sparse(w=gate", "sparse(w=up", MISSING.format("middle", "up", 1)),
        ("after_dense(w=previous.down", "after_dense(w=previous.gate", MISSING.format("begin", "gate", 0)),
        ("begin(w=table", "begin(w=previous.down", MISSING.format("begin", "down", -1)),
        ("end_sparse(w=previous.gate", "end_sparse(w=previous.down", MISSING.format("end", "down", 3)),
        ("begin = after_dense(", "begin = after_dense(other=previous.up, ", None),
    ],
)  # fmt: skip
def test_a_weight_that_a_layer_lacks_is_refused(old: str, new: str, message: str | None) -> None:
    assert old in TEXT
    step = model("0,2", text=TEXT.replace(old, new))
    if message is None:
        step.graph("decode")
        return
    with pytest.raises(StepError, match=message):
        step.graph("decode")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('{"dense": dense_layers}', '{"dense": 3}', "is not the name of a list of layers"),
        ('{"dense": dense_layers}', '{"dense": tokens}', "is not the name of a list of layers"),
        ('{"dense": dense_layers}', '{"mode": dense_layers}', "`mode` is given"),
        ('{"dense": dense_layers}', '{"first_layer": dense_layers}', "`first_layer` is given"),
        ('{"dense": dense_layers}', '{"a.b": dense_layers}', "is not the name of a list of layers"),
        ("dense_layers}", "dense_layers, 'b': b, 'c': c, 'd': d, 'e': e}", "a step has more than 4 kinds of layers"),
        ("layer_kinds = ", "dense = 3\nlayer_kinds = ", "`dense` is given or a number of the step"),
        ("formats = ", "dense = 3\nformats = ", "`dense` is there twice"),
        ("shards = ", 'layer_kinds = {"other": others}\nshards = ', "`layer_kinds` are declared once, before"),
        ("formats = ", 'layer_kinds = {"other": others}\nformats = ', "`layer_kinds` are declared once"),
        ('"table": [size, size]', '"table": only(dense, [size, size])', "`table` is not a weight of layers of some kinds"),
        ("only(not dense, [experts, size])", "only(other, [experts, size])", "is not a weight of layers of some kinds"),
        ("only(not dense, [experts, size])", "only(last_layer, [experts, size])", "is not a weight of layers of some kinds"),
        ("only(not dense, [experts, size])", "only(1 == 1, [experts, size])", "is not a weight of layers of some kinds"),
        ("only(not dense, [experts, size])", "only(previous.dense, [experts, size])", "is not a weight of layers of some"),
        ("only(not dense, [experts, size])", "only(dense, only(dense, [experts, size]))", "is not a weight of layers of some"),
        ("    if previous.dense:\n        end", "    if dense:\n        end", "only a layer is of a kind"),
        ("begin(w=table", "begin(N=1 if dense else 2, w=table", "only a condition may ask for"),
        ("begin(w=table", "begin(n=1 if previous.dense else 2, w=table", "only a condition may ask for"),
        ("[tokens, size]), \"layers.*.y\"", "[2 if dense else 1, size]), \"layers.*.y\"", "only a condition may ask for"),
        ("elif previous.dense:", "elif previous.other:", "there is no number `previous.other`"),
        ("elif previous.dense:", "elif later.dense:", "`later.dense` is no expression"),
        ("elif previous.dense:", "elif previous.dense.size:", "is no expression"),
    ],
)  # fmt: skip
def test_texts_that_are_refused(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(StepError, match=message):
        model("0,2", text=TEXT.replace(old, new, 1)).graph("decode")


def test_a_format_keeps_what_only_some_layers_have() -> None:
    declaration = read_declaration(TEXT)
    form, _ = declaration.formats["fp8"]
    weights: dict[str, Declared] = dict(in_format(declaration, form).weights)
    assert {name for name, weight in weights.items() if weight.only is not None} == {
        "layers.*.gate", "layers.*.up", "layers.*.up_scales", "layers.*.down", "layers.*.down_scales",
    }  # fmt: skip
