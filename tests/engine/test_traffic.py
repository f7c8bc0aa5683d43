"""Bytes of a step against numbers computed by hand for Qwen3 4B, using the traffic that kernels declare."""

from __future__ import annotations

from dataclasses import replace

import pytest
from step_contracts import contract, shape_of

from engine.graph.traffic import moves, streamed, traffic
from engine.models.dense import UNMEASURED
from engine.models.qwen3.config import Qwen3Config
from engine.models.steps import model_step, step
from tilec.step.graph import Kind, StepGraph
from tilec.step.step import OUTPUT_MODES

FOUR_BILLION = Qwen3Config(
    hidden_size=2560, intermediate_size=9728, num_attention_heads=32, num_key_value_heads=8, head_dim=128, num_hidden_layers=36,
    vocab_size=151936, rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=True, max_position_embeddings=40960,
    torch_dtype="bfloat16",
)  # fmt: skip

WEIGHT_BYTES = 8_044_936_192
"""Twice the 4,022,468,096 parameters of Qwen3 4B."""

TOKEN_BYTES = 36 * 2 * 8 * 128 * 2
"""Keys and values of one token in all layers."""


@pytest.fixture(scope="module")
def decode() -> StepGraph:
    return step(FOUR_BILLION, 1, 4096)


def op_traffic(graph: StepGraph, name: str, filled: int) -> int:
    (op,) = (op for op in graph.ops if op.name == name)
    return traffic(graph, op, filled, contract(op))


@pytest.mark.parametrize("filled", [1, 19, 4096])
def test_a_decode_step_reads_all_weights_and_the_filled_cache(decode: StepGraph, filled: int) -> None:
    read, written = streamed(decode, filled, contract)
    row, norms_and_tables = 2560 * 2, 36 * (128 * 2 + 2 * 128 * 4)  # attention and merge both rotate the key
    assert read == WEIGHT_BYTES + row + norms_and_tables + filled * TOKEN_BYTES
    assert written == TOKEN_BYTES


def test_an_untied_lm_head_is_read_instead_of_the_table(decode: StepGraph) -> None:
    untied = step(replace(FOUR_BILLION, tie_word_embeddings=False), 1, 4096)
    assert streamed(untied, 9, contract) == streamed(decode, 9, contract)


def test_operations_of_decode(decode: StepGraph) -> None:
    heads, group, filled = 8, 4, 100
    partial = UNMEASURED["parts"] * heads * group * (128 + 1 + 1) * 4
    squares = 4 * 2560 // 4
    assert op_traffic(decode, "layers.0.embed_tokens", filled) == 4 + 4 * 2560 * 2 + squares
    assert op_traffic(decode, "layers.7.qkv_proj", filled) == 2 * (6144 * 2560 + 2560 + 6144) + squares
    assert op_traffic(decode, "layers.7.o_proj", filled) == 2 * (2560 * 4096 + 4096 + 4 * 2560) + squares
    assert op_traffic(decode, "layers.7.gate_up_proj", filled) == 2 * (2 * 9728 * 2560 + 2560 + 9728) + squares
    rotation, cached = 4 * (128 + 1 + 1), 2 * 2 * 1024
    assert op_traffic(decode, "layers.7.attention", filled) == 2 * (6144 + 2 * 128) + rotation + filled * cached + partial
    assert op_traffic(decode, "layers.7.merge", filled) == partial + 2 * (6144 + 128 + 4096) + rotation + cached
    assert op_traffic(decode, "advance", filled) == 4 * (1 + 1 + 2 + 1 + 1)


def test_operations_of_prefill() -> None:
    tokens, past = 64, 100
    graph = step(FOUR_BILLION, tokens, 4096, past=past)
    filled = past + tokens
    assert op_traffic(graph, "layers.0.attention", filled) == 2 * (2 * tokens * 4096 + 2 * filled * 1024)
    assert op_traffic(graph, "layers.0.post_attention_layernorm", filled) == 2 * (4 * tokens * 2560 + 2560)
    assert op_traffic(graph, "norm", filled) == 2 * 3 * 2560
    assert op_traffic(graph, "layers.35.last_hidden", filled) == 2 * 2 * 2560 + 4
    assert streamed(graph, filled, contract)[1] == tokens * TOKEN_BYTES


def test_every_operation_moves_something_and_constants_are_never_written() -> None:
    small = replace(FOUR_BILLION, num_hidden_layers=2)
    for output_mode in OUTPUT_MODES:
        for tokens, past in ((1, 0), (5, 3)):
            graph = step(small, tokens, 64, output_mode=output_mode, past=past)
            for op in graph.ops:
                moved = list(moves(graph, op, past + tokens, contract(op)))
                assert sum(move.read + move.written for move in moved) > 0
                assert sum(move.written for move in moved) > 0
                assert all(move.written == 0 for move in moved if move.buffer.kind in (Kind.WEIGHT, Kind.TABLE, Kind.SETTING))


def test_more_slots_than_there_are(decode: StepGraph) -> None:
    with pytest.raises(ValueError, match="4097 rows of `k_cache`, which has 4096"):
        streamed(decode, 4097, contract)


def test_a_mixture_reads_the_experts_that_are_chosen() -> None:
    graph = step(shape_of("qwen3-30b-a3b"), 1, 4096)
    filled, expert = 9, 3 * 2048 * 768
    attention = 2 * 2048 * 4096 + 2 * 2048 * 512
    per_layer = attention + 128 * 2048 + 8 * expert + 2 * 2048 + 2 * 128
    rotation = 48 * (128 * 2 + 2 * 128 * 4)  # the key's norm and the table, twice
    read, _ = streamed(graph, filled, contract)
    assert read == 2 * (48 * per_layer + 151936 * 2048 + 2 * 2048) + rotation + filled * 48 * 2 * 4 * 128 * 2
    (op,) = (op for op in graph.ops if op.name == "layers.3.gate_up_proj")
    moved = {moved.buffer.name: moved.read for moved in moves(graph, op, filled, contract(op))}
    assert moved["model.layers.3.mlp.experts.gate_up_proj.weight"] == 8 * 2 * 768 * 2048 * 2


def test_no_more_rows_are_read_than_there_are() -> None:
    shape = shape_of("qwen3-30b-a3b")
    shape.num_experts = 16
    graph = model_step(shape, 2048).graph("batch", tokens=8)
    (op,) = (op for op in graph.ops if op.name == "layers.3.gate_up_proj")
    moved = {moved.buffer.name: moved.read for moved in moves(graph, op, 8, contract(op))}
    assert moved["model.layers.3.mlp.experts.gate_up_proj.weight"] == 16 * 2 * 768 * 2048 * 2
