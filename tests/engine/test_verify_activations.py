"""Steps that quantise activations: those of every model pass the verifier, mistakes about codes and scales and races are
refused; and launches of dequantised weights, which overlap where their kernels read nothing early."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from step_contracts import DENSE, MODELS, TINY, contract
from test_verify import Mutation, swapped, with_buffer, with_offset, with_op, with_view, without
from test_verify_formats import MEASURED, graph_of, view_of

from engine.graph.contract import Contract
from engine.graph.plan import plan_memory
from engine.graph.verify import GraphError, may_overlap, verify
from tests.campaign import chosen
from tilec.step.graph import Op, StepGraph
from tilec.step.step import OUTPUT_MODES

CASES: list[tuple[Any, int]] = [
    ("prefill", 65),
    ("prefill", 129),
    ("prefill", 2048),
    ("prefill", 64),
    ("decode", 1),
    ("batch", 2),
]
NORMED, CODES, SCALES = "layers.0.normed", "layers.0.normed.f8e4m3", "layers.0.normed.f8e4m3_scales"
QUANTISE, PRODUCT = "layers.0.qkv_proj_quantise_a", "layers.0.qkv_proj"
AGAIN = "layers.0.normed_again.f8e4m3"


def is_sampled(case: tuple[str, tuple[Any, int]]) -> bool:
    return DENSE.index(case[0]) == CASES.index(case[1]) % len(DENSE)


def test_prompts_quantise_from_the_first_length_that_is_not_few() -> None:
    assert "w8a8_tokens" not in MEASURED and MEASURED["few_tokens"] == 64
    for tokens, kernel, count in ((64, "matmul_split_fp8", 2), (65, "quantise_rows", 5)):
        kernels = [op.kernel for op in graph_of(TINY, "prefill", tokens, weight_format="w8a8").ops]
        assert kernels.count(kernel) == count and "dequantise_fp8" not in kernels
        assert ("quantise_rows" in kernels) == (tokens > 64)


@pytest.mark.parametrize(
    ("name", "case"), chosen([(name, case) for name in DENSE for case in CASES], is_sampled), ids=str
)  # fmt: skip
def test_real_steps_are_verified(name: str, case: tuple[Any, int]) -> None:
    family = "llama" if name.startswith("llama") else "qwen3"
    shape = SimpleNamespace(**MODELS[name], rms_norm_eps=1e-6, tie_word_embeddings=False, model_type=family)
    for output_mode in OUTPUT_MODES:
        if output_mode != "none" or case[0] == "prefill":
            graph = graph_of(shape, *case, output_mode, weight_format="w8a8")
            verify(graph, plan_memory(graph), contract)


def refused(mutate: Mutation, of: Any = contract) -> str:
    graph = graph_of(TINY, "prefill", 500, weight_format="w8a8")
    memory = plan_memory(graph)
    verify(graph, memory, contract)
    with pytest.raises(GraphError) as caught:
        verify(*mutate(graph, memory), of)
    return str(caught.value)


@pytest.mark.parametrize(
    ("mutate", "message"),
    [
        (without(QUANTISE), f"operation `{PRODUCT}`: buffer `{CODES}` is read before it is written"),
        (swapped(QUANTISE, PRODUCT), f"operation `{PRODUCT}`: buffer `{CODES}` is read before it is written"),
        (swapped(QUANTISE, "layers.0.input_layernorm"), f"operation `{QUANTISE}`: buffer `{NORMED}` is read before it is"),
        (with_view(PRODUCT, "a", view_of(buffer=AGAIN)), f"buffer `{AGAIN}` is read before it is written"),
        (with_view(PRODUCT, "a_scales", view_of(buffer=f"{AGAIN}_scales")), f"`{AGAIN}_scales` is read before it is written"),
        (with_view("layers.0.gate_up_proj", "a_scales", view_of(buffer=SCALES)),
         f"operation `layers.0.gate_up_proj_quantise_a`: buffer `{AGAIN}_scales` is written for nothing"),
        (with_view(PRODUCT, "a", view_of(buffer=NORMED)), f"buffer `{NORMED}` is bf16 of rank 2, and `a` takes f8e4m3"),
        (with_view(PRODUCT, "a_scales", view_of(shape=(500, 8))), f"`{SCALES}` has extent 500 on axis 0 of `a_scales`"),
        (with_view(PRODUCT, "a_scales", view_of(shape=(8, 499))), f"buffer `{SCALES}` has extent 499 on axis 1 of `a_scales`"),
        (with_view(PRODUCT, "b_scales", view_of(shape=(8, 32))), "has extent 8 on axis 0 of `b_scales`"),
        (with_view(PRODUCT, "a_scales", view_of(offset=8)), f"buffer `{SCALES}` has 4000 elements"),
        (with_view(QUANTISE, "scales", view_of(buffer=NORMED)), f"buffer `{NORMED}` is bf16 of rank 2, and `scales` takes f32"),
        (with_view(QUANTISE, "codes", view_of(buffer="model.layers.0.self_attn.qkv_proj.weight", shape=(500, 1024))),
         "buffer `model.layers.0.self_attn.qkv_proj.weight` is a weight, and is written"),
        (with_view(QUANTISE, "x", view_of(shape=(499, 1024))), "has extent 500 on axis 0 of `codes`"),
        (with_buffer(CODES, dtype="bf16"), f"buffer `{CODES}` is bf16 of rank 2, and `codes` takes f8e4m3"),
        (with_op(PRODUCT, lambda op: replace(op, kernel="matmul")), "parameter `a_scales` of `matmul` is unknown to"),
        (with_offset(CODES, lambda memory: memory.offsets[NORMED]), f"`{NORMED}`"),
        (with_offset(CODES, lambda memory: memory.offsets[SCALES]), f"`{SCALES}`"),
    ],
)  # fmt: skip
def test_mistakes_about_codes_and_scales_are_refused(mutate: Mutation, message: str) -> None:
    assert message in refused(mutate)


@pytest.mark.parametrize("parameter", ["a", "a_scales"])
def test_a_product_that_reads_activations_before_its_wait_is_a_race(parameter: str) -> None:
    """It overlaps the launch that writes them."""

    def early(op: Op) -> Contract:
        return reading_early(op, "matmul_fp8", parameter)

    def unchanged(graph: StepGraph, memory: Any) -> Any:
        return graph, memory

    assert f"is `{parameter}`, which `matmul_fp8` reads before earlier operations are complete" in refused(unchanged, early)


def reading_early(op: Op, kernel: str, parameter: str) -> Contract:
    """The contract of an operation, and of a kernel as it would be if it read a tensor before its wait."""
    known = contract(op)
    changed = op.kernel == kernel
    tensors = tuple(replace(spec, resident=spec.resident or (changed and spec.name == parameter)) for spec in known.tensors)
    return replace(known, tensors=tensors)


def overlapping(graph: StepGraph, of: Any = contract) -> dict[str, set[bool]]:
    """Whether launches of each kernel of products may overlap the launch in front."""
    found: dict[str, set[bool]] = {}
    for op in graph.ops:
        found.setdefault(op.kernel, set()).add(may_overlap(graph, op, of(op)))
    return found


def test_every_launch_of_a_prompt_overlaps() -> None:
    long, few = (overlapping(graph_of(TINY, "prefill", tokens)) for tokens in (500, 17))
    assert set.union(*long.values(), *few.values()) == {True}
    assert {"matmul", "matmul_silu_mul", "dequantise_fp8"} <= long.keys()
    assert {"matmul_few_fp8", "matmul_split_fp8", "matmul_silu_mul_few_fp8"} <= few.keys()


def test_a_kernel_that_starts_to_read_weights_early_does_not_overlap() -> None:
    """And the step is accepted without the overlap, refused with it."""
    graph = graph_of(TINY, "prefill", 500)

    def early(op: Op) -> Contract:
        return reading_early(op, "matmul", "b")

    found = overlapping(graph, early)
    assert found["matmul"] == {False} and found["matmul_silu_mul"] == {True}
    verify(graph, plan_memory(graph), early)
    forced = replace(graph, ops=[replace(op, overlaps=True) for op in graph.ops])
    with pytest.raises(GraphError, match="is `b`, which `matmul` reads before earlier operations are complete"):
        verify(forced, plan_memory(forced), early)


@pytest.mark.parametrize("kind", ["cache", "input", "output", "activation"])
def test_only_kinds_that_no_step_writes_are_read_early(kind: Any) -> None:
    graph = graph_of(TINY, "prefill", 500)
    op = next(op for op in graph.ops if op.kernel == "matmul")
    buffer = graph.buffers[op.tensors["b"].buffer]
    graph.buffers[buffer.name] = replace(buffer, kind=type(buffer.kind)(kind))
    assert not may_overlap(graph, op, reading_early(op, "matmul", "b"))
    graph.buffers[buffer.name] = replace(buffer, kind=type(buffer.kind)("weight"))
    assert may_overlap(graph, op, reading_early(op, "matmul", "b"))
