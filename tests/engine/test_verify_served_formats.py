"""The verifier on steps over pages of mixtures of experts, and of weights of eight and four bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from step_contracts import TINY, contract, shape_of

from engine.backends.paged_steps import check_replay
from engine.graph.integers import GraphError
from engine.graph.invariance import verify_invariance
from engine.graph.plan import plan_memory
from engine.graph.verify import verify
from engine.models.steps import model_step
from tests.campaign import first
from tilec.step.graph import Op, StepGraph, View
from tilec.step.step import BUCKETS

MIXTURE: Any = shape_of("qwen3-30b-a3b")
WIDE: Any = shape_of("qwen3-235b-a22b")
CASES = [
    (MIXTURE, "16bit"), (WIDE, "int4"), (TINY, "w8a8"), (TINY, "fp8"), (TINY, "int4"), (MIXTURE, "fp8"), (MIXTURE, "int4"),
    (WIDE, "16bit"), (WIDE, "fp8"),
]  # fmt: skip
SHAPES = first(3, CASES)


def serve(tokens: int, shape: Any = MIXTURE, form: str = "16bit", head: Any = "argmax") -> StepGraph:
    return model_step(shape, 2048, weight_format=form).with_pages(50).graph("serve", head, tokens=tokens, layers=2)


def chunk(tokens: int, shape: Any = MIXTURE, form: str = "16bit", past: int = 70, head: Any = "argmax") -> StepGraph:
    step = model_step(shape, 2048, weight_format=form).with_pages(50)
    return step.graph("chunk", head, tokens=tokens, past=past, layers=2)


@pytest.mark.parametrize(("shape", "form"), SHAPES)
def test_real_steps_are_verified(shape: Any, form: str) -> None:
    for tokens, head in ((16, "sample"), (256, "argmax")):
        graph = serve(tokens, shape, form, head)
        check_replay(verify(graph, plan_memory(graph), contract))
    graph = chunk(70, shape, form)
    verify(graph, plan_memory(graph), contract)


def constants(op: Op) -> Any:
    return op.constants


@pytest.mark.parametrize(("shape", "form"), CASES)
def test_rows_of_all_buckets_and_tokens_of_all_chunks_are_invariant(shape: Any, form: str) -> None:
    verify_invariance([serve(tokens, shape, form) for tokens in BUCKETS], constants)
    lengths = ((1, 0), (7, 64), (200, 3), (2048, 0))
    verify_invariance([chunk(tokens, shape, form, past) for tokens, past in lengths], constants)


def test_experts_of_rows_have_one_height_of_tiles_and_those_of_chunks_another() -> None:
    for graphs, height in (([serve(tokens) for tokens in BUCKETS], 16), ([chunk(tokens) for tokens in (1, 64, 1500)], 64)):
        tiles = {op.constants["BM"] for graph in graphs for op in graph.ops if op.kernel.startswith("experts_matmul")}
        assert tiles == {height}


@pytest.mark.parametrize("form", ["fp8", "int4"])
def test_tiles_of_codes_hold_the_rows_of_a_bucket(form: str) -> None:
    """Up to the most tokens of a tile; experts' tiles have the height by which rows are sorted."""
    dense, mixture = ({rows: serve(rows, shape, form) for rows in BUCKETS} for shape in (TINY, MIXTURE))
    for name in ("matmul_few", "matmul_split", "matmul_silu_mul_few"):
        tiles = {
            rows: {op.constants["BM"] for op in graph.ops if op.kernel == f"{name}_{form}"} for rows, graph in dense.items()
        }
        assert tiles == {8: {8}, 16: {16}, 32: {32}, 64: {32}, 128: {32}, 256: {32}}
    for graph in mixture.values():
        heights = {op.constants["BM"] for op in graph.ops if op.kernel.startswith("experts_matmul") and form in op.kernel}
        assert heights == {16}


def changed(graph: StepGraph, kernel: str, **others: Any) -> StepGraph:
    """Gives the first operation of a kernel other constants or views, by name."""
    position, op = next((position, op) for position, op in enumerate(graph.ops) if op.kernel == kernel)
    tensors = {name: others.get(name, view) for name, view in op.tensors.items()}
    more = {name: value for name, value in others.items() if name not in op.tensors}
    graph.ops[position] = replace(op, tensors=tensors, constants={**op.constants, **more})
    return graph


EXPERTS = "model.layers.0.mlp.experts"
SHAPING: list[tuple[str, str, dict[str, Any], str]] = [
    ("16bit", "experts_matmul_few", {"BM": 32}, "`BM` = 16, or 32"),
    ("16bit", "experts_tiles", {"BM": 64}, "`BM` = 16, or 64"),
    ("16bit", "experts_combine", {"C": 4}, "`C` = 8, or 4"),
    ("16bit", "experts_matmul_few", {"BK": 128}, "`BK` = None, or 128"),
    ("16bit", "experts_matmul_few", {"b": View(f"{EXPERTS}.down_proj.weight", (64, 2048, 768))}, "axis 0 of `b`"),
    ("16bit", "experts_combine", {"places": View("layers.0.few_places", (128, 8))}, "extent 32, or 128, on axis 0 of `places`"),
    ("16bit", "experts_combine", {"y": View("layers.1.few_sorted_down", (1024, 2048))}, "has another `y`"),
    ("fp8", "matmul_few_fp8", {"SPLIT": 2}, "`SPLIT` = None, or 2"),
    ("int4", "matmul_split_int4", {"S": 8}, "`S` = 4, or 8"),
    ("int4", "experts_matmul_silu_mul_few_int4", {"SPLIT": 2}, "`SPLIT` = None, or 2"),
    ("fp8", "experts_matmul_few_fp8", {"BM": 32}, "`BM` = 16, or 32"),
]


@pytest.mark.parametrize(("form", "kernel", "others", "match"), SHAPING)
def test_what_shapes_a_sum_may_not_follow_the_number_of_rows(
    form: str, kernel: str, others: dict[str, Any], match: str
) -> None:
    with pytest.raises(GraphError, match=match):
        verify_invariance([serve(32, form=form), changed(serve(64, form=form), kernel, **others)], constants)


def test_rows_of_an_expert_may_not_be_wider_in_another_bucket() -> None:
    """Only the axis that has room for rows may differ."""
    first_step, other = serve(32), serve(64)
    view = next(op for op in other.ops if op.kernel == "experts_matmul_few").tensors["out"]
    with pytest.raises(GraphError, match="on axis 0 of `out`, which does not count rows"):
        wider = replace(view, shape=(view.shape[0] // 2, 2 * view.shape[1]))
        verify_invariance([first_step, changed(other, "experts_matmul_few", out=wider)], constants)


def test_activations_of_eight_bits_follow_no_length() -> None:
    """The chunk of one token multiplies codes too, where a prefill of one token would not, and so do rows that share a step."""
    kernels = [[op.kernel for op in chunk(tokens, TINY, "w8a8").ops] for tokens in (1, 2000)]
    rows = [[op.kernel for op in serve(tokens, TINY, "w8a8").ops] for tokens in (16, 256)]
    assert kernels[0] == kernels[1] and rows[0] == rows[1]
    for found in (kernels[0], rows[0]):
        assert not {"dequantise_fp8", "matmul_few_fp8", "matmul_split_fp8"} & {*found}
        assert found.count("matmul_silu_mul_fp8") == found.count("quantise_rows") // 4
    assert rows[0].count("quantise_rows") == 8 and rows[0].count("matmul_fp8") == 6


def test_rows_with_experts_keep_activations_of_16_bits() -> None:
    assert "quantise_rows" not in [op.kernel for op in serve(256, form="w8a8").ops]
