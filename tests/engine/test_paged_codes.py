"""Rows over pages of FP8 codes on the interpreter: tokens are those of a contiguous FP8 cache, and a row's bits follow from its
tokens alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from paged_logits import logits_of
from step_contracts import TINY, contract
from tiny_formats import tiny_in_format

from engine.backends.host_pages import HostPages
from engine.backends.interpreter import InterpreterBackend
from engine.backends.prompts import padded_room
from engine.checkpoint.weights import WeightPlan
from engine.graph.integers import GraphError
from engine.graph.invariance import verify_invariance
from engine.graph.plan import plan_memory
from engine.graph.verify import verify
from engine.models.families import read_config
from engine.models.steps import model_step
from engine.paged_batch import PagedBatch
from engine.sampling import SamplingParams
from engine.serving.llm import LLM
from engine.tools.tiny import write_tiny_model
from tests.campaign import first
from tilec.step.graph import Kind, Op, StepGraph, View
from tilec.step.step import BUCKETS

LENGTH = 90
"""Tokens of the prompt, of two pages."""
CASES = [("qwen3", "16bit"), ("qwen3_moe", "int4"), ("llama", "16bit"), ("qwen3_moe", "16bit"), ("qwen3", "int4")]
MODELS = first(3, CASES)
NEAR = 0.05
"""Of logits over those of the contiguous cache, relative to their deviation: a key near the middle of two codes may differ."""

Loaded = Callable[[str, str], InterpreterBackend]


def prompt(length: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(length).integers(0, 400, length)]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    known: dict[tuple[str, str], InterpreterBackend] = {}

    def backend(family: str, form: str) -> InterpreterBackend:
        if (family, form) not in known:
            root = tmp_path_factory.mktemp(f"{family}-{form}")
            folder = tiny_in_format(root, form, family=family, hidden_size=64 if form == "16bit" else 128)
            config = read_config(folder)
            one = known[family, form] = InterpreterBackend()
            one.load(config, WeightPlan.for_model(config, folder, "bf16"), 128, cache_format="fp8")
        return known[family, form]

    return backend


@pytest.mark.parametrize(("family", "form"), MODELS)
def test_tokens_and_logits_are_those_of_the_contiguous_cache_of_codes(loaded: Loaded, family: str, form: str) -> None:
    backend: Any = loaded(family, form)
    sequence = backend.begin()
    backend.prefill(sequence, prompt(LENGTH))
    expected, logits = [backend.token()], None
    for _ in range(3):
        logits = backend.decode_logits(sequence, expected[-1])
        expected.append(int(np.argmax(logits)))
    assert logits is not None
    with PagedBatch(backend, 2) as batch:
        tokens = [batch.join(0, [1, 2], 0, prompt(LENGTH), None)]
        while len(tokens) < 3:
            tokens.append(batch.step(ahead=False)[0])
        found = batch.step_logits()[0]
        assert tokens == expected[:3] and int(np.argmax(found)) == expected[3]
        assert np.sqrt(np.mean((found - logits) ** 2)) < NEAR * logits.std()
        arrays: Any = batch
        pools = {name: one for name, one in arrays._steps.device.rows.arrays.items() if "_pages" in name}
    assert pools["k_pages.0"].dtype == pools["v_pages.1"].dtype == ml_dtypes.float8_e4m3fn
    heads = backend.config.num_key_value_heads
    for name in ("k_pages_scales.0", "v_pages_scales.1"):
        assert pools[name].dtype == np.float32 and pools[name].shape[1:] == (64, heads)
        assert (pools[name][1] > 0).all() and (pools[name][3:] == 0).all(), "tokens of its pages, and no others"


@pytest.mark.parametrize(("family", "form"), MODELS)
def test_bits_do_not_depend_on_other_rows_chunks_and_pages(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch, family: str, form: str
) -> None:
    """Alone; in another bucket and in odd chunks, with tokens of nobody after each; after a page of another prompt."""
    ids = prompt(LENGTH)
    with PagedBatch(loaded(family, form), 2) as batch:
        alone = logits_of(batch, 0, [1, 2], [ids]).tobytes()
    monkeypatch.setattr(HostPages, "padded", lambda _, count, filled: padded_room(count, filled, 128, 256))
    with PagedBatch(loaded(family, form), 20) as batch:
        batch.join(0, [10], 0, prompt(17), None)
        batch.join(6, [11, 12], 0, prompt(70), SamplingParams(0.9, 20, 0.9, seed=7))
        assert logits_of(batch, 17, [5, 3], [ids[:1], ids[1:38], ids[38:]]).tobytes() == alone
        batch.remove(17)
        batch.join(2, [8, 9], 0, [*ids[:70], 7, 7], None)
        batch.join(1, [8, 4], 64, ids[64:], None)  # its first page is that of row 2
        batch.step(ahead=False)
        assert batch.step_logits()[1].tobytes() == alone


def test_guesses_give_the_tokens_and_bits_of_single_steps(loaded: Loaded) -> None:
    """Right and wrong ones, whose codes and scales are written again."""
    with PagedBatch(loaded("qwen3", "16bit"), 4) as batch:
        expected = [batch.join(0, [1, 2], 0, prompt(60), None)]
        while len(expected) < 7:
            expected.append(batch.step()[0])
        logits = batch.step_logits()[0].tobytes()
        batch.remove(0)
        assert batch.join(0, [3, 4], 0, prompt(60), None) == expected[0]
        wrong = (expected[3] + 1) % 400
        assert batch.verify({0: [*expected[1:3], wrong]}, [1, 2, 3]) == {0: expected[1:4]}
        assert batch.verify({0: expected[4:6]}, [3, 1]) == {0: expected[4:7]}
        assert batch.step_logits()[0].tobytes() == logits


def test_the_server_s_loop_takes_the_format_and_finds_prefixes(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "model")
    given = ["the sky is blue because light of short waves is scattered " * 2 + word for word in ("more", "less", "more")]
    found: list[list[list[int]]] = []
    for rows in (2, 8):
        with LLM.from_pretrained(
            tmp_path / "model", backend="interpreter", max_seq_len=192, rows=rows, cache_format="fp8"
        ) as llm:
            engine: Any = llm
            assert engine._engine.backend.step.cache_format == "fp8" and PagedBatch.serves(engine._engine.backend)
            found.append([one.ids for one in llm.generate(given, max_tokens=3)])
    assert found[0] == found[1] and found[0][0] == found[0][2]


def coded(mode: Any, tokens: int, head: Any = "argmax", past: int = 0) -> StepGraph:
    step = model_step(TINY, 2048, cache_format="fp8").with_pages(50)
    return step.graph(mode, head, tokens=tokens, past=past)


@pytest.mark.parametrize(("mode", "tokens", "head"), [("serve", 16, "sample"), ("serve", 256, "argmax"), ("chunk", 20, "none")])
def test_steps_are_verified(mode: str, tokens: int, head: str) -> None:
    graph = coded(mode, tokens, head)
    verify(graph, plan_memory(graph), contract)
    pools = {buffer.name.partition(".")[0]: buffer for buffer in graph.of_kind(Kind.POOL)}
    assert {name: (one.dtype, one.shape) for name, one in pools.items()} == {
        "k_pages": ("f8e4m3", (50, 64, 8, 128)), "k_pages_scales": ("f32", (50, 64, 8)),
        "v_pages": ("f8e4m3", (50, 64, 8, 128)), "v_pages_scales": ("f32", (50, 64, 8)),
    }  # fmt: skip


def test_rows_of_all_buckets_and_tokens_of_all_chunks_are_invariant() -> None:
    def constants(op: Op) -> Any:
        return op.constants

    verify_invariance([coded("serve", tokens) for tokens in BUCKETS], constants)
    verify_invariance([coded("chunk", tokens, "none", past) for tokens, past in ((1, 0), (7, 64), (2048, 0))], constants)
    other = coded("serve", 64)
    number, op = next((number, op) for number, op in enumerate(other.ops) if op.kernel == "paged_decode_attention_c8")
    other.ops[number] = replace(op, constants={**op.constants, "CHUNK": 512})
    with pytest.raises(GraphError, match="`CHUNK` = 256, or 512"):
        verify_invariance([coded("serve", 32), other], constants)


MISTAKES: list[tuple[str, str, str, View, str]] = [
    ("serve", "qk_norm_rope_kv_c8", "slots", View("others", (16,)), "which is not the step's `slots`"),
    ("serve", "paged_decode_attention_c8", "table", View("tables", (16, 32)), "which is not the step's `table`"),
    ("serve", "paged_decode_attention_c8", "k_scales", View("k_pages_scales.0", (49, 64, 8)), "is a part of it|extent"),
    ("serve", "paged_decode_attention_c8", "v_scales", View("v_pages.0", (50, 64, 8)), "takes f32 of rank"),
    ("serve", "qk_norm_rope_kv_c8", "v_scales", View("k_pages_scales.0", (3200, 8)), "k_pages_scales.0"),
    ("chunk", "paged_gather_c8", "table", View("short", (32,)), "which is not the step's `table`"),
]
"""Of a step's mode and kernel: a tensor, what a mistake gives it, and the reason of the refusal."""


@pytest.mark.parametrize(("mode", "kernel", "tensor", "view", "match"), MISTAKES)
def test_what_could_reach_another_sequence_is_refused(mode: str, kernel: str, tensor: str, view: View, match: str) -> None:
    graph = coded(mode, 16, "argmax" if mode == "serve" else "none")
    graph.buffer("others", "i32", (16,), Kind.INPUT, low=0, high=3200, distinct=True)
    graph.buffer("tables", "i32", (16, 32), Kind.INPUT, low=0, high=50)
    graph.buffer("short", "i32", (32,), Kind.INPUT, low=0, high=50)
    number, op = next((number, op) for number, op in enumerate(graph.ops) if op.kernel == kernel)
    graph.ops[number] = replace(op, tensors={**op.tensors, tensor: view})
    with pytest.raises(GraphError, match=match):
        verify(graph, plan_memory(graph), contract)
