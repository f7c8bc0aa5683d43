"""Steps whose weights are in FP8: those of every model pass the verifier, and mistakes about codes, scales and dequantised
weights are refused; and what such steps read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from step_contracts import DENSE, TINY, contract, shape_of
from test_traffic import FOUR_BILLION, TOKEN_BYTES
from test_verify import Mutation, swapped, with_buffer, with_op, with_view, without

from engine.graph.plan import plan_memory
from engine.graph.traffic import streamed
from engine.graph.verify import GraphError, verify
from engine.models.steps import model_step
from tests.campaign import chosen
from tilec.step.graph import StepGraph
from tilec.step.step import BATCHES, OUTPUT_MODES

LENGTHS = (1, 17, 500)
CASES: list[tuple[Any, int]] = [
    ("decode", 1), *(("batch", count) for count in BATCHES), *(("prefill", tokens) for tokens in LENGTHS),
]  # fmt: skip


def graph_of(shape: Any, mode: Any, tokens: int, output_mode: Any = "argmax", weight_format: str = "fp8") -> StepGraph:
    step = model_step(shape, 2048, measured=MEASURED, weight_format=weight_format)
    return step.graph(mode, output_mode, tokens=tokens)


MEASURED = {"parts": 33, "head_parts": 660, "short_slots": 256, "few_tokens": 64, "few_blocks": 132}


def is_sampled(case: tuple[str, tuple[Any, int]]) -> bool:
    return DENSE.index(case[0]) == CASES.index(case[1]) % len(DENSE)


@pytest.mark.parametrize(
    ("name", "case"), chosen([(name, case) for name in DENSE for case in CASES], is_sampled), ids=str
)  # fmt: skip
def test_real_steps_are_verified(name: str, case: tuple[Any, int]) -> None:
    shape = shape_of(name)
    for output_mode in OUTPUT_MODES:
        if output_mode != "none" or case[0] == "prefill":
            graph = graph_of(shape, *case, output_mode)
            verify(graph, plan_memory(graph), contract)
            assert any(op.kernel.endswith("_fp8") for op in graph.ops)


QKV, SCALES = "model.layers.0.self_attn.qkv_proj.weight", "model.layers.0.self_attn.qkv_proj.weight_scales"
BUFFER, GATE_UP = f"{QKV}.16bit", "model.layers.0.mlp.gate_up_proj.weight"


def refused(mode: Any, tokens: int, mutate: Mutation) -> str:
    graph = graph_of(TINY, mode, tokens)
    memory = plan_memory(graph)
    verify(graph, memory, contract)
    with pytest.raises(GraphError) as caught:
        verify(*mutate(graph, memory), contract)
    return str(caught.value)


def without_scales(name: str) -> Mutation:
    return with_op(name, lambda op: replace(op, tensors={key: view for key, view in op.tensors.items() if key != "w_scales"}))


def view_of(**changes: Any) -> Callable[..., Any]:
    return lambda view: replace(view, **changes)


@pytest.mark.parametrize(
    ("mutate", "message"),
    [
        (without_scales("layers.0.qkv_proj"),
         "operation `layers.0.qkv_proj`: parameter `w_scales` of `scaled_matvec_fp8` is not given"),
        (with_buffer(SCALES, shape=(8, 31)), f"buffer `{SCALES}` has 248 elements, and `w_scales` is 256"),
        (with_view("layers.0.qkv_proj", "w_scales", view_of(shape=(8, 32))),
         f"operation `layers.0.qkv_proj`: buffer `{SCALES}` has extent 8 on axis 0 of `w_scales`"),
        (with_view("layers.0.qkv_proj", "w_scales", view_of(shape=(31, 8))), "has extent 31 on axis 0 of `w_scales`"),
        (with_view("layers.0.qkv_proj", "w_scales", view_of(offset=8)), f"buffer `{SCALES}` has 256 elements"),
        (with_view("layers.0.qkv_proj", "w_scales", view_of(buffer="model.layers.0.self_attn.o_proj.weight_scales")),
         "`model.layers.0.self_attn.o_proj.weight_scales` has 128 elements"),
        (with_view("layers.0.qkv_proj", "w", view_of(buffer=SCALES)), f"buffer `{SCALES}` is f32 of rank 2, and `w` takes f8"),
        (with_buffer(QKV, dtype="bf16"), f"buffer `{QKV}` is bf16 of rank 2, and `w` takes f8e4m3"),
        (with_buffer(SCALES, dtype="bf16"), f"buffer `{SCALES}` is bf16 of rank 2, and `w_scales` takes f32"),
        (with_op("layers.0.qkv_proj", lambda op: replace(op, kernel="scaled_matvec")),
         "operation `layers.0.qkv_proj`: parameter `w_scales` of `scaled_matvec` is unknown to the kernel"),
    ],
)  # fmt: skip
def test_mistakes_about_codes_and_scales_are_refused(mutate: Mutation, message: str) -> None:
    assert message in refused("decode", 1, mutate)


@pytest.mark.parametrize("tokens", [65, 500])
@pytest.mark.parametrize(
    ("mutate", "message"),
    [
        (without("layers.0.qkv_proj_dequantise_b"), f"operation `layers.0.qkv_proj`: buffer `{BUFFER}` is read before it is"),
        (swapped("layers.0.qkv_proj_dequantise_b", "layers.0.qkv_proj"), f"buffer `{BUFFER}` is read before it is written"),
        (with_view("layers.0.qkv_proj_dequantise_b", "out", view_of(buffer=f"{GATE_UP}.16bit")),
         f"operation `layers.0.qkv_proj`: buffer `{BUFFER}` is read before it is written"),
        (with_view("layers.0.qkv_proj_dequantise_b", "out", view_of(shape=(2048, 1024))), "has extent 2048 on axis 0 of `out`"),
        (with_view("layers.0.qkv_proj_dequantise_b", "w_scales", view_of(shape=(8, 32))), f"buffer `{SCALES}` has extent 8"),
        (with_view("layers.0.qkv_proj_dequantise_b", "out", view_of(buffer="model.layers.1.self_attn.qkv_proj.weight")),
         "buffer `model.layers.1.self_attn.qkv_proj.weight` is f8e4m3 of rank 2"),
        (with_view("layers.0.qkv_proj", "b", view_of(buffer=QKV)), f"buffer `{QKV}` is f8e4m3 of rank 2, and `b` takes bf16"),
        (with_view("layers.0.qkv_proj", "b", view_of(buffer="model.layers.1.self_attn.qkv_proj.weight.16bit")),
         "buffer `model.layers.1.self_attn.qkv_proj.weight.16bit` is read before it is written"),
        (with_buffer(BUFFER, dtype="f16"), f"buffer `{BUFFER}` is f16 of rank 2, and `out` takes bf16"),
    ],
)  # fmt: skip
def test_mistakes_about_dequantised_weights_are_refused(mutate: Mutation, message: str, tokens: int) -> None:
    assert message in refused("prefill", tokens, mutate)


def test_half_a_dequantised_weight_is_read_before_it_is_written() -> None:
    def halved(graph: StepGraph, memory: Any) -> Any:
        for name in ("w", "out"):
            with_view("layers.0.qkv_proj_dequantise_b", name, view_of(shape=(2048, 1024)))(graph, memory)
        return with_view("layers.0.qkv_proj_dequantise_b", "w_scales", view_of(shape=(16, 8)))(graph, memory)

    message = f"operation `layers.0.qkv_proj`: buffer `{BUFFER}` is read before it is written"
    assert message in refused("prefill", 500, halved)


def test_dequantised_weights_share_memory_and_none_overlaps_live_buffers() -> None:
    graph = graph_of(TINY, "prefill", 500)
    memory = plan_memory(graph)
    buffers = [buffer for buffer in graph.buffers.values() if buffer.name.endswith(".16bit")]
    assert len(buffers) == 4 * 1 + 1  # of the last layer's weights tensor cores multiply by one
    assert memory.size < 2 * max(buffer.bytes for buffer in buffers)
    verify(graph, memory, contract)
    moved = replace(memory, offsets={**memory.offsets, "layers.0.normed": memory.offsets[BUFFER]})
    with pytest.raises(GraphError) as caught:
        verify(graph, moved, contract)
    assert BUFFER in str(caught.value) and "layers.0.normed" in str(caught.value)


@pytest.mark.parametrize("filled", [1, 4096])
def test_a_decode_step_reads_a_byte_of_each_linear_weight_and_a_scale_of_each_block(filled: int) -> None:
    graph = model_step(FOUR_BILLION, 4096, weight_format="fp8").graph("decode")
    linear = 36 * (2 * 2560 * 4096 + 2 * 2560 * 1024 + 3 * 2560 * 9728)
    other = 4_022_468_096 - linear
    row, norms_and_tables = 2560 * 2, 36 * (128 * 2 + 2 * 128 * 4)
    read, written = streamed(graph, filled, contract)
    assert read == linear + 4 * linear // 128**2 + 2 * other + row + norms_and_tables + filled * TOKEN_BYTES
    assert written == TOKEN_BYTES
