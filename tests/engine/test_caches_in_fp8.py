"""A cache of FP8 codes in the engine: exact but for roundings of 16 bits; chunks, decode steps and batches agree; its bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dense_reference
import ml_dtypes
import numpy as np
import pytest
from dense_reference import Matrix
from one_sequence import OneSequence
from step_contracts import TINY, contract
from test_batch import PROMPTS, alone

from engine.backends.interpreter import InterpreterBackend
from engine.batch import Batch
from engine.checkpoint.weights import WeightPlan
from engine.cli import run
from engine.errors import UsageError
from engine.graph.plan import plan_memory
from engine.graph.verify import GraphError, verify
from engine.models.families import FAMILIES, read_config
from engine.models.steps import model_step
from engine.options import CACHE_FORMATS
from engine.ranks.step import rank_step
from engine.tools.tiny import write_tiny_model
from tilec.step.graph import Kind

IDS = [int(i) for i in np.random.default_rng(5).integers(0, 400, 80)]
KINDS = ("qwen3", "llama")
NEAR = {"qwen3": 0.0175, "llama": 0.035}
"""Upper bound of the root mean square error over the deviation of the logits, in f16, from float64 with the same rounding to
codes: twice the measured values. A key that differs in a bit may have another code, so a cache of 16 bits is nearer."""


def coded(rows: Matrix) -> Matrix:
    """What a cache of codes gives back, from the definition: e4m3 with a scale for each row."""
    scale = np.maximum(np.abs(rows).max(axis=-1, keepdims=True), 1e-30) / 448
    return (rows / scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * scale


class Model:
    """A tiny model with both kinds of caches, and its float64 logits with and without codes."""

    def __init__(self, folder: Path, kind: str) -> None:
        write_tiny_model(folder, family=kind)
        self.config = read_config(folder)
        self.weights = WeightPlan.for_model(self.config, folder, "f16", convert=True)
        self.backends = {name: OneSequence(InterpreterBackend()) for name in CACHE_FORMATS}
        for name, backend in self.backends.items():
            backend.load(self.config, self.weights, 128, "f16", None, name)
        tensors = {name: self.weights.tensor(name) for name in self.weights.tensor_names}
        self.exact = {"fp8": dense_reference.logits(self.config, tensors, IDS, cached=coded)}
        self.exact["16bit"] = dense_reference.logits(self.config, tensors, IDS)

    def distance(self, found: Any, position: int, name: str = "fp8") -> float:
        expected = self.exact[name][position]
        return float(np.sqrt(np.mean((found - expected) ** 2)) / expected.std())


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    known: dict[str, Model] = {}

    def model(kind: str) -> Model:
        if kind not in known:
            known[kind] = Model(tmp_path_factory.mktemp("tiny") / kind, kind)
        for backend in known[kind].backends.values():
            backend.reset()
        return known[kind]

    return model


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_a_cache_with_these_codes(models: Callable[[str], Model], kind: str) -> None:
    model = models(kind)
    found = {61: model.backends["fp8"].prompt_logits(IDS[:62])}
    for position in range(62, 67):  # across the end of a tile
        found[position] = model.backends["fp8"].decode_logits(IDS[position])
    for position, logits in found.items():
        near = model.distance(logits, position)
        assert near < NEAR[kind] and near < model.distance(logits, position, "16bit") / 2
    of_16_bits = model.backends["16bit"].prompt_logits(IDS[:62])
    assert model.distance(of_16_bits, 61, "16bit") < model.distance(of_16_bits, 61) / 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_in_chunks_and_token_by_token_is_the_prompt_at_once(models: Callable[[str], Model], kind: str) -> None:
    backend = models(kind).backends["fp8"]
    at_once = backend.prompt_logits(IDS[:40])
    backend.reset()
    backend.prompt_logits(IDS[:7])
    backend.prompt_logits(IDS[7:33])
    in_chunks = backend.prompt_logits(IDS[33:40])
    assert np.sqrt(np.mean((in_chunks - at_once) ** 2)) < NEAR[kind] / 2 * at_once.std()
    backend.reset()
    backend.prompt_logits(IDS[:37])
    steps = [backend.decode_logits(token) for token in IDS[37:40]]
    assert np.sqrt(np.mean((steps[-1] - at_once) ** 2)) < NEAR[kind] / 2 * at_once.std()


@pytest.mark.parametrize(("kind", "size"), [("qwen3", 2), ("llama", 2), ("qwen3", 8)])
def test_a_batch_generates_what_each_sequence_does_alone(models: Callable[[str], Model], kind: str, size: int) -> None:
    backend = models(kind).backends["fp8"].backend
    expected = [alone(backend, ids, 4) for ids in PROMPTS[:2]]
    with Batch(backend, size) as batch:
        slots, generated = list[int](), list[list[int]]()
        for ids in PROMPTS[:2]:
            slot, token = batch.add(ids)
            slots.append(slot)
            generated.append([token])
        for _ in range(3):
            tokens = batch.step()
            for slot, of_slot in zip(slots, generated, strict=True):
                of_slot.append(tokens[slot])
    assert generated == expected


def test_slots_have_a_byte_an_element_and_a_scale_a_row(models: Callable[[str], Model]) -> None:
    model = models("qwen3")
    buffers = model.backends["fp8"].own.buffers.arrays
    heads, width = model.config.num_key_value_heads, model.config.head_dim
    assert buffers["k_cache.1"].dtype == ml_dtypes.float8_e4m3fn and buffers["k_cache.1"].shape == (128, heads, width)
    assert buffers["v_cache_scales.1"].dtype == np.float32 and buffers["v_cache_scales.1"].shape == (128, heads)
    codes, scales = buffers["k_cache.0"], buffers["k_cache_scales.0"]
    before = codes.tobytes(), scales.copy()
    model.backends["fp8"].prompt_logits(IDS[:5])
    assert (np.abs(codes[:5].astype(np.float32)).max(axis=-1) == 448).all() and (scales[:5] > 0).all()
    row = heads * width
    assert (scales[5:] == before[1][5:]).all() and codes.tobytes()[5 * row :] == before[0][5 * row :]


def test_more_query_heads_than_kernels_take_are_refused() -> None:
    wide: Any = SimpleNamespace(**{**vars(TINY), "num_attention_heads": 128})
    model_step(wide, 256)
    refusal = "up to 8 query heads of a key head, and the model has 16; leave out `--cache fp8`"
    with pytest.raises(UsageError, match=refusal):
        model_step(wide, 256, cache_format="fp8")
    with pytest.raises(UsageError, match=refusal):
        rank_step(wide, 256, "bf16", 2, cache_format="fp8")


@pytest.mark.parametrize(("mode", "tokens"), [("decode", 1), ("batch", 4), ("prefill", 100)])
def test_a_step_verifies_and_refuses_codes_for_scales(mode: Any, tokens: int) -> None:
    graph = model_step(TINY, 256, "bf16", cache_format="fp8").graph(mode, tokens=tokens)
    memory = plan_memory(graph)
    verify(graph, memory, contract)
    caches = {buffer.name for buffer in graph.of_kind(Kind.CACHE)}
    assert any(name.endswith("k_cache_scales.0") for name in caches)
    assert ("k_cache.16bit" in caches) == (mode == "prefill")
    number, op = next((number, op) for number, op in enumerate(graph.ops) if "k_scales" in op.tensors)
    for wrong in ("k_cache", "positions"):
        graph.ops[number] = replace(op, tensors={**op.tensors, "k_scales": op.tensors[wrong]})
        with pytest.raises(GraphError, match="and `k_scales` takes f32 of rank"):
            verify(graph, memory, contract)


def test_the_options_name_every_format_that_a_step_has() -> None:
    declared = [family.declaration().caches for family in FAMILIES.values()]
    assert ("16bit", *dict.fromkeys(name for caches in declared for name in caches)) == CACHE_FORMATS


@pytest.mark.parametrize("options", [(), ("--cache", "16bit"), ("--cache", "fp8")])
def test_the_command_takes_a_format(
    options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny_model(tmp_path / "tiny")
    formats: list[str] = []
    close = InterpreterBackend.close

    def recorded(backend: InterpreterBackend) -> None:
        formats.append(backend.step.cache_format)
        close(backend)

    monkeypatch.setattr(InterpreterBackend, "close", recorded)
    command = ["--backend", "interpreter", "--model", str(tmp_path / "tiny"), "--prompt", "the sky", "--max-new-tokens", "2"]
    assert run([*command, "--max-seq-len", "64", *options]) == 0
    assert capsys.readouterr().out.strip()
    assert formats == [options[-1] if options else "16bit"]
