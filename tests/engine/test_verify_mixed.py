"""The step of a mixture with dense layers between, before the verifier: real steps pass in all modes and formats, and texts
that take one kind of layer for the other are refused."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from step_contracts import MODELS, contract

import engine.models.qwen3_moe
from engine.graph.invariance import verify_invariance, with_tiles
from engine.graph.plan import plan_memory
from engine.graph.verify import GraphError, verify
from engine.models.steps import model_step
from tests.campaign import first
from tilec.step.expressions import StepError
from tilec.step.reader import read_declaration
from tilec.step.step import BUCKETS, OUTPUT_MODES, Step

TEXT = Path(str(engine.models.qwen3_moe.__file__)).with_name("qwen3_moe.step").read_text(encoding="utf-8")
DENSE = ["0", "3", "1,2", "0,2,3"]
"""Of four layers: the first, the last, two between, and all but one."""


def step_of(dense_layers: str, text: str = TEXT, **options: Any) -> Step:
    """The step of Qwen3 30B-A3B with four layers, some of them dense."""
    shape: Any = SimpleNamespace(
        **{**MODELS["qwen3-30b-a3b"], "num_hidden_layers": 4}, intermediate_size=6144, dense_layers=dense_layers,
        rms_norm_eps=1e-6, tie_word_embeddings=False, model_type="qwen3_moe",
    )  # fmt: skip
    return model_step(shape, 2048, declaration=read_declaration(text), **options).with_pages(40)


def check(step: Step, mode: Any, head: Any, tokens: int) -> None:
    graph = step.graph(mode, head, tokens=tokens)
    verify(graph, plan_memory(graph), contract)


@pytest.mark.parametrize("weights", ["16bit", "fp8", "w8a8", "int4"])
@pytest.mark.parametrize("dense_layers", DENSE)
def test_steps_of_all_modes_are_verified(dense_layers: str, weights: str) -> None:
    step = step_of(dense_layers, weight_format=weights)
    for mode, tokens in (("decode", 1), ("batch", 4), ("prefill", 5), ("prefill", 30), ("prefill", 517), ("serve", 8),
                         ("chunk", 300)):  # fmt: skip
        for head in OUTPUT_MODES if mode in ("prefill", "chunk") else OUTPUT_MODES[:3]:
            check(step, mode, head, tokens)


@pytest.mark.parametrize("weights", ["16bit", "fp8", "int4", "w8a8"])
def test_no_sum_of_a_row_over_pages_depends_on_the_number_of_rows(weights: str) -> None:
    step = step_of("1,2", weight_format=weights)
    verify_invariance([step.graph("chunk", tokens=tokens) for tokens in (1, 129, 600)], lambda op: op.constants)
    rows = [step.graph("serve", tokens=tokens) for tokens in BUCKETS]
    verify_invariance([with_tiles(graph, 16) for graph in rows], lambda op: {**op.constants, "ROWS": 0, "BN": 0})


NONE = "uses `model.layers.*.mlp"
UNWRITTEN = "before it is written"
DECIDES = 'if not dense and (not last_layer or mode == "serve")'


@pytest.mark.parametrize(
    ("condition", "launch", "instead", "mode", "tokens", "message"),
    [
        ("elif previous.dense", "down_proj = matvec_add_scaled(", "elif not previous.dense", "decode", 1, NONE),
        ("elif previous.dense", "down_proj = matvec_add_scaled_rows(", "elif dense", "batch", 4, NONE),
        ("if previous.dense", "last_down_proj = matvec_add(", "if not previous.dense", "decode", 1, NONE),
        ("if dense", "gate_up_proj = scaled_matvec_silu_mul(", "if previous.dense", "decode", 1, NONE),
        (
            "elif previous.dense and few",
            "input_layernorm = add_rms_norm_splits(",
            "elif dense and few",
            "prefill",
            5,
            UNWRITTEN,
        ),
        ("elif previous.dense", "input_layernorm = add_rms_norm(", "elif dense", "prefill", 517, UNWRITTEN),
        ("if dense", "gate_up_proj = matmul_silu_mul_few(", "if previous.dense", "serve", 8, NONE),
        ("if dense", "gate_up_proj = matmul_silu_mul(", "if not dense", "chunk", 300, NONE),
        (DECIDES, "route = route_experts(", 'if not last_layer or mode == "serve"', "prefill", 517, NONE),
        (DECIDES, "route = route_experts(", 'if not previous.dense and mode == "serve"', "serve", 8, ""),
        ("if previous.dense", "norm = add_rms_norm_splits(", "if not previous.dense", "serve", 8, UNWRITTEN),
        ("if dense", "ended_gate_up_proj = scaled_matvec_silu_mul_rows(", "if not dense", "chunk", 300, NONE),
        ("if dense", "last_gate_up_proj = scaled_matvec_silu_mul(", "if not dense", "prefill", 5, NONE),
    ],
)
@pytest.mark.parametrize("dense_layers", first(2, ["0,2", "1,3"]))
def test_a_text_that_takes_one_kind_for_the_other_is_refused(
    condition: str, launch: str, instead: str, mode: str, tokens: int, message: str, dense_layers: str
) -> None:
    changed, count = re.subn(rf"\b{re.escape(condition)}:(?=\n +{re.escape(launch)})", f"{instead}:", TEXT)
    assert count == 1
    check(step_of(dense_layers), mode, "argmax", tokens)
    with pytest.raises((StepError, GraphError)) as caught:
        check(step_of(dense_layers, changed), mode, "argmax", tokens)
    assert message in str(caught.value), str(caught.value)


def test_a_dense_layer_with_the_activations_of_experts_is_refused() -> None:
    old = "a=normed_again, b=mlp.gate_up_proj[2, intermediate_size, hidden_size], out=dense_act"
    assert TEXT.count(old) == 1
    with pytest.raises(GraphError, match="has extent"):
        check(step_of("1", TEXT.replace(old, old.replace("dense_act", "few_sorted_act"))), "serve", "argmax", 8)
