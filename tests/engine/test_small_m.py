"""Prefill with small M has its own graph form: it generates the same as the other form, with kernels only for its own
lengths."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from step_contracts import DENSE, MODELS, contract, shape_of
from test_short_form import TOLERANCE

from engine.backends.interpreter import InterpreterBackend
from engine.checkpoint.weights import WeightPlan
from engine.graph.plan import plan_memory
from engine.graph.verify import verify
from engine.models.dense import UNMEASURED
from engine.models.steps import model_step
from engine.tools.tiny import write_tiny_model
from tests.campaign import first, one_of_each
from tilec.step.expressions import StepError
from tilec.step.graph import StepGraph
from tilec.step.requests import choices, requests
from tilec.step.step import CHUNK_TOKENS, OUTPUT_MODES, Step
from tilec.step.tuning import Tuning, read_tuning

SMALL_M_KERNELS = {"matmul_few", "matmul_silu_mul_few", "matmul_split", "add_rms_norm_splits"}
LARGE_M_KERNELS = {"matmul", "matmul_silu_mul", "add_rms_norm"}
PROMPT = [int(i) for i in np.random.default_rng(3).integers(0, 400, 12)]


def model(name: str = "qwen3-0.6b", **measured: Any) -> Step:
    return model_step(shape_of(name), 4096, measured={**UNMEASURED, "few_tokens": 64, "few_blocks": 132, **measured})


def kernels(graph: StepGraph) -> set[str]:
    return {op.kernel for op in graph.ops}


@pytest.mark.parametrize(
    ("name", "output_mode"), one_of_each(itertools.product(DENSE, OUTPUT_MODES), lambda case: case[0], lambda case: case[1])
)
def test_both_forms_are_verified(name: str, output_mode: Any) -> None:
    step = model(name)
    graphs = {tokens: step.graph("prefill", output_mode, tokens=tokens) for tokens in (1, 16, 17, 32, 33, 64, 65)}
    for graph in graphs.values():
        verify(graph, plan_memory(graph), contract)
    assert all(
        kernels(graphs[tokens]) & (SMALL_M_KERNELS | LARGE_M_KERNELS) == SMALL_M_KERNELS for tokens in (1, 16, 17, 32, 33, 64)
    )
    assert kernels(graphs[65]) & (SMALL_M_KERNELS | LARGE_M_KERNELS) == LARGE_M_KERNELS


def test_which_lengths_use_small_m() -> None:
    assert [model().prefills(limit) for limit in (2048, 65, 64, 7)] == [(64, 2048), (64, 65), (64,), (7,)]
    assert model(few_tokens=0).prefills(2048) == (2048,)
    assert kernels(model(few_tokens=0).graph("prefill", tokens=1)) & SMALL_M_KERNELS == set()
    for mode in ("decode", "batch"):  # of two tokens at most
        assert not kernels(model().graph(mode, tokens=2 if mode == "batch" else 1)) & (SMALL_M_KERNELS | LARGE_M_KERNELS)
    for wrong in (-1, True, "64"):
        with pytest.raises(StepError, match="few_tokens"):
            model(few_tokens=wrong).prefills(2048)


def test_there_is_a_part_for_each_block_of_a_tile() -> None:
    parts = {name: model(name).graph("prefill", tokens=5).buffers["layers.0.o_parts"].shape[0] for name in MODELS}
    assert list(parts.values()) == [8, 4, 3, 2, 2, 2, 2, 4, 2]


@pytest.mark.parametrize("few_tokens", first(3, [0, 64, CHUNK_TOKENS + 1, 1, 32, CHUNK_TOKENS]))
def test_requested_kernels_are_those_that_lengths_launch(few_tokens: int) -> None:
    """Each form builds kernels for its own lengths only: neither the other form's, nor tiles that none of its lengths uses."""
    step = model(few_tokens=few_tokens)
    requested = {
        (request.kernel, request.constants.get("BM"), request.constants.get("GROUP"))
        for request in requests(step, Tuning())
        if request.op.startswith("prefill_")
    }
    launched = {
        (op.kernel, op.constants.get("BM"), op.constants.get("GROUP"))
        for tokens in range(1, CHUNK_TOKENS + 1)
        for op in step.form("prefill", tokens=tokens, layers=3).at(tokens).ops
    }
    prefill_kernels = SMALL_M_KERNELS | LARGE_M_KERNELS | {"qk_norm_rope_kv"}
    assert {variant for variant in requested if variant[0] in prefill_kernels} == {
        variant for variant in launched if variant[0] in prefill_kernels
    }


def test_tuned_choices_begin_after_the_small_m_lengths() -> None:
    rows = [{"BM": 64, "at": 1}, {"BM": 128, "at": 9}]
    table = {"kernel": "matmul", "cost": "cdiv(out[0], BM) * at", "choices": rows, "measured": "here"}
    ranges = [chosen for chosen in choices(model(), read_tuning([table])) if chosen.op == "prefill_o_proj"]
    assert (ranges[0].first, ranges[-1].last) == (65, CHUNK_TOKENS)


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InterpreterBackend]:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    config = write_tiny_model(folder)
    loaded = InterpreterBackend()
    loaded.load(config, WeightPlan.for_model(config, folder, "bf16"), 40)
    yield loaded
    loaded.close()


def test_both_forms_generate_alike(backend: InterpreterBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt in one chunk of either form, and after an earlier chunk."""

    def logits(small_m: int) -> list[Any]:
        monkeypatch.setattr(Step, "bound", lambda step, variant: {"short": 64, "near": 0, "few": small_m}[variant])
        sequence = backend.begin()
        prefill_logits = [backend.prompt_logits(sequence, PROMPT[:5]), backend.prompt_logits(sequence, PROMPT[5:])]
        return [*prefill_logits, backend.decode_logits(sequence, 7)]

    small_m, large_m = logits(8), logits(0)
    for small_m_logits, large_m_logits in zip(small_m, large_m, strict=True):
        assert (
            0
            < float(np.linalg.norm(small_m_logits - large_m_logits))
            < TOLERANCE * float(np.std(large_m_logits)) * len(large_m_logits) ** 0.5
        )
