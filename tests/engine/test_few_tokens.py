"""Prefill of few tokens has its own graph form: it generates the same as the other form, with kernels only for its own
lengths."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from step_contracts import MODELS, TIED, contract
from test_short_form import FAR

from engine.backends.interpreter import InterpreterBackend
from engine.checkpoint.weights import WeightPlan
from engine.graph.plan import plan_memory
from engine.graph.verify import verify
from engine.models.steps import UNMEASURED, model_step
from engine.tools.tiny import write_tiny_model
from tests.campaign import first, one_of_each
from tilec.step.expressions import StepError
from tilec.step.graph import StepGraph
from tilec.step.requests import choices, requests
from tilec.step.step import CHUNK_TOKENS, HEADS, Step
from tilec.step.tuning import Tuning, read_tuning

OF_FEW = {"matmul_few", "matmul_silu_mul_few", "matmul_split", "add_rms_norm_splits"}
OF_MANY = {"matmul", "matmul_silu_mul", "add_rms_norm"}
PROMPT = [int(i) for i in np.random.default_rng(3).integers(0, 400, 12)]


def model(name: str = "qwen3-0.6b", **measured: Any) -> Step:
    shape: Any = SimpleNamespace(**MODELS[name], rms_norm_eps=1e-6, tie_word_embeddings=name in TIED)
    return model_step(shape, 4096, measured={**UNMEASURED, "few_tokens": 64, "few_blocks": 132, **measured})


def kernels(graph: StepGraph) -> set[str]:
    return {op.kernel for op in graph.ops}


@pytest.mark.parametrize(
    ("name", "head"), one_of_each(itertools.product(MODELS, HEADS), lambda case: case[0], lambda case: case[1])
)
def test_both_forms_hold_together(name: str, head: Any) -> None:
    step = model(name)
    graphs = {tokens: step.graph("prefill", head, tokens=tokens) for tokens in (1, 16, 17, 32, 33, 64, 65)}
    for graph in graphs.values():
        verify(graph, plan_memory(graph), contract)
    assert all(kernels(graphs[tokens]) & (OF_FEW | OF_MANY) == OF_FEW for tokens in (1, 16, 17, 32, 33, 64))
    assert kernels(graphs[65]) & (OF_FEW | OF_MANY) == OF_MANY


def test_which_lengths_have_which_form() -> None:
    assert [model().prefills(most) for most in (2048, 65, 64, 7)] == [(64, 2048), (64, 65), (64,), (7,)]
    assert model(few_tokens=0).prefills(2048) == (2048,)
    assert kernels(model(few_tokens=0).graph("prefill", tokens=1)) & OF_FEW == set()
    for mode in ("decode", "batch"):  # of two tokens at most
        assert not kernels(model().graph(mode, tokens=2 if mode == "batch" else 1)) & (OF_FEW | OF_MANY)
    for wrong in (-1, True, "64"):
        with pytest.raises(StepError, match="few_tokens"):
            model(few_tokens=wrong).prefills(2048)


def test_a_part_for_each_block_that_a_tile_can_have() -> None:
    parts = {name: model(name).graph("prefill", tokens=5).buffers["layers.0.o_parts"].shape[0] for name in MODELS}
    assert list(parts.values()) == [8, 4, 3, 2, 2, 2]


@pytest.mark.parametrize("few", first(3, [0, 64, CHUNK_TOKENS + 1, 1, 32, CHUNK_TOKENS]))
def test_what_is_built_is_what_lengths_ask_for(few: int) -> None:
    """Each form builds kernels for its own lengths only: neither the other form's, nor tiles that none of its lengths uses."""
    step = model(few_tokens=few)
    asked = {
        (request.kernel, request.constants.get("BM"), request.constants.get("GROUP")) for request in requests(step, Tuning())
    }
    reached = {
        (op.kernel, op.constants.get("BM"), op.constants.get("GROUP"))
        for tokens in range(1, CHUNK_TOKENS + 1)
        for op in step.form("prefill", tokens=tokens, layers=3).at(tokens).ops
    }
    of_prefill = OF_FEW | OF_MANY | {"qk_norm_rope_kv"}
    assert {one for one in asked if one[0] in of_prefill} == {one for one in reached if one[0] in of_prefill}


def test_what_the_tuning_chooses_begins_behind_the_few() -> None:
    rows = [{"BM": 64, "at": 1}, {"BM": 128, "at": 9}]
    table = {"kernel": "matmul", "cost": "cdiv(out[0], BM) * at", "choices": rows, "measured": "here"}
    found = [one for one in choices(model(), read_tuning([table])) if one.op == "prefill_o_proj"]
    assert (found[0].first, found[-1].last) == (65, CHUNK_TOKENS)


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InterpreterBackend]:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    config = write_tiny_model(folder)
    made = InterpreterBackend()
    made.load(config, WeightPlan.for_model(config, folder, "bf16"), 40)
    yield made
    made.close()


def test_both_forms_answer_alike(backend: InterpreterBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt in one chunk of either form, and after an earlier chunk."""

    def logits(few: int) -> list[Any]:
        monkeypatch.setattr(Step, "few_tokens", property(lambda _: few))
        sequence = backend.begin()
        found = [backend.prompt_logits(sequence, PROMPT[:5]), backend.prompt_logits(sequence, PROMPT[5:])]
        return [*found, backend.decode_logits(sequence, 7)]

    few, many = logits(8), logits(0)
    for one, other in zip(few, many, strict=True):
        assert 0 < float(np.linalg.norm(one - other)) < FAR * float(np.std(other)) * len(other) ** 0.5
