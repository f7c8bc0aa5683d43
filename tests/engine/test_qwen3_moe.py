"""A tiny mixture of experts on the interpreter against float64: prompts, decode steps, batches, and routers of every kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import checkpoints
import dense_reference
import numpy as np
import pytest
from one_sequence import OneSequence

from engine.api import Engine
from engine.backends.interpreter import InterpreterBackend
from engine.batch import Batch
from engine.checkpoint.weights import WeightPlan
from engine.errors import ModelError
from engine.graph.contract import Contract
from engine.graph.verify import GraphError
from engine.models.families import read_config
from engine.models.steps import model_step
from engine.sampling import SamplingParams
from engine.tools.tiny import KINDS, write_tiny_model
from tests.campaign import first
from tilec.step.graph import Op

MAX_SEQ_LEN = 128
IDS = np.random.default_rng(5).integers(0, 400, 80).tolist()
TOLERANCE = {"bf16": 0.025, "f16": 0.004}
"""Upper bound of the root mean square error, over the deviation of the logits: twice the measured values (0.0126 and 0.0021).
"""
CLEAR = {"bf16": 0.025, "f16": 0.003}
"""How far a router's logits must be apart, over their deviation, to be in the same order in 16 bits."""
UNCLEAR = 0.5
"""In place of `TOLERANCE` where they are not, and a token may have another expert: measured 0.15."""

Tensors = dict[str, Any]
Router = Callable[[Tensors], None]


def as_it_is(tensors: Tensors) -> None:
    """Random logits."""


def all_equal(tensors: Tensors) -> None:
    """Ties everywhere: the lowest experts are chosen."""
    for name in gates(tensors):
        tensors[name] = np.zeros_like(tensors[name])


def equal_pairs(tensors: Tensors) -> None:
    """Each expert has one whose logit is the same."""
    for name in gates(tensors):
        tensors[name] = np.repeat(tensors[name][::2], 2, axis=0)


def to_one(tensors: Tensors) -> None:
    """One expert has a logit far above all others, in every layer of every token."""
    table = tensors["model.embed_tokens.weight"].copy()
    table[:, 0] = 8
    tensors["model.embed_tokens.weight"] = table
    for name in gates(tensors):
        gate = np.zeros_like(tensors[name])
        gate[5, 0] = 16
        tensors[name] = gate


def gates(tensors: Tensors) -> list[str]:
    return [name for name in tensors if name.endswith(".mlp.gate.weight")]


class Model:
    """A tiny mixture on the interpreter, and the float64 logits of `IDS`."""

    def __init__(self, folder: Path, dtype: str, router: Router, **keys: Any) -> None:
        kind = KINDS["qwen3_moe"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(KINDS, "qwen3_moe", replace(kind, keys={**kind.keys, **HEADS, **keys}))
            write_tiny_model(folder, family="qwen3_moe")
        self.config, self.dtype = read_config(folder), dtype
        plan = WeightPlan.for_model(self.config, folder, "bf16")
        self.tensors = {name: plan.tensor(name).copy() for name in plan.tensor_names}
        router(self.tensors)
        (folder / "model.safetensors").unlink()
        checkpoints.write_sharded(folder, self.tensors, 3)
        self.folder = folder
        self.weights = WeightPlan.for_model(self.config, folder, dtype, convert=True)
        self.backend = OneSequence(InterpreterBackend())
        self.backend.load(self.config, self.weights, MAX_SEQ_LEN, dtype)
        gaps: list[Any] = []
        self.expected = dense_reference.logits(self.config, self.tensors, IDS, gaps=gaps)
        self.clear = np.minimum.accumulate(np.min(gaps, axis=0)) > CLEAR[dtype]
        """After each token, whether the experts of all tokens before are clear."""
        if not np.isnan(self.expected).any():
            assert self.clear.all() if dtype == "f16" else self.clear[:8].all()

    def distance(self, found: Any, position: int) -> float:
        """The distance of logits from the reference after the token at a position, in units of what is allowed."""
        expected = self.expected[position]
        allowed = TOLERANCE[self.dtype] if self.clear[position] else UNCLEAR
        return float(np.sqrt(np.mean((found - expected) ** 2)) / expected.std() / allowed)


Case = tuple[str, Router, Mapping[str, Any]]
CASES: list[Case] = [
    ("bf16", as_it_is, {"norm_topk_prob": True}),
    ("f16", as_it_is, {"norm_topk_prob": False}),
    ("f16", to_one, {"num_experts_per_tok": 1}),
    ("f16", all_equal, {"norm_topk_prob": True}),
    ("f16", equal_pairs, {"norm_topk_prob": False, "num_experts_per_tok": 4}),
    ("bf16", to_one, {"norm_topk_prob": False}),
    ("f16", as_it_is, {"num_experts_per_tok": 8}),
    ("bf16", all_equal, {"norm_topk_prob": False}),
    ("f16", as_it_is, {"num_attention_heads": 64, "num_experts_per_tok": 1}),
]
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4}
"""Of all cases that say nothing else: as few as fit. With the weights of these the experts of most tokens are clear."""
WIDE = len(CASES) - 1
"""The case with sixteen query heads of each key head."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Model]:
    cached: dict[int, Model] = {}

    def model(case: int) -> Model:
        if case not in cached:
            dtype, router, keys = CASES[case]
            cached[case] = Model(tmp_path_factory.mktemp("tiny") / "model", dtype, router, **keys)
        cached[case].backend.reset()
        return cached[case]

    return model


@pytest.mark.parametrize("case", first(6, [WIDE, *range(WIDE)]))
@pytest.mark.parametrize("tokens", first(4, [1, 70, 8, 17, 7, 9, 32, 33, 64]))
def test_logits_of_a_prompt(models: Callable[[int], Model], case: int, tokens: int) -> None:
    """On both sides of `few_tokens` and `some_tokens`, 8 and 32 here: tiles of 16, 64 and 128 rows."""
    model = models(case)
    assert model.distance(model.backend.prompt_logits(IDS[:tokens]), tokens - 1) < 1


@pytest.mark.parametrize("case", first(6, [WIDE, *range(WIDE)]))
def test_logits_of_decode_steps_after_a_prompt(models: Callable[[int], Model], case: int) -> None:
    model = models(case)
    model.backend.prefill(IDS[:11])
    assert max(model.distance(model.backend.decode_logits(IDS[position]), position) for position in range(11, 17)) < 1


@pytest.mark.parametrize(("case", "chunk"), first(3, [(0, 5), (1, 16), (2, 3), (3, 9), (4, 1)]))
def test_a_prompt_in_chunks(models: Callable[[int], Model], monkeypatch: pytest.MonkeyPatch, case: int, chunk: int) -> None:
    model = models(case)
    monkeypatch.setattr(model.backend.backend, "chunk_tokens", chunk)
    assert model.distance(model.backend.prompt_logits(IDS[:19]), 18) < 1
    assert model.distance(model.backend.decode_logits(IDS[19]), 19) < 1


@pytest.mark.parametrize(("case", "rows"), first(4, [(WIDE, 2), (0, 2), (1, 4), (2, 8), (3, 2), (4, 4)]))
def test_a_batch(models: Callable[[int], Model], case: int, rows: int) -> None:
    """Sequences that end at different tokens of `IDS`: each row has the logits of its own sequence."""
    model = models(case)
    lengths = [1, 9, 12, 20, 3, 5, 30, 2][: rows - 1]  # one row has no sequence
    with Batch(model.backend.backend, rows) as batch:
        row_of = {batch.add(IDS[:length])[0]: length for length in lengths}
        for step in range(2):
            found = batch.logits({row: IDS[length + step] for row, length in row_of.items()})
            assert max(model.distance(found[row], length + step) for row, length in row_of.items()) < 1


def test_a_row_of_a_batch_has_the_same_logits_whatever_the_others_are(models: Callable[[int], Model]) -> None:
    model = models(0)
    found: list[Any] = []
    for others in ([IDS[3:9]], [IDS[7:30], IDS[:2], IDS[5:6]]):
        with Batch(model.backend.backend, 4) as batch:
            tokens = {batch.add(ids)[0]: 7 for ids in others}
            row, _ = batch.add(IDS[:6])
            found.append(batch.logits(tokens | {row: 5})[row])
    assert np.array_equal(found[0], found[1])


def test_the_engine_generates_the_greedy_tokens_of_its_logits(models: Callable[[int], Model]) -> None:
    with Engine.from_pretrained(models(0).folder, backend="interpreter", max_seq_len=100) as engine:
        ids = engine.tokens([{"role": "user", "content": "Why is the sky blue?"}])
        generated = list(engine.generate_ids(ids, 4))
        for number, token in enumerate(generated):
            assert token == engine.logits([*ids, *generated[:number]]).argmax()


def not_finite(tensors: Tensors) -> None:
    """The router of the last layer has NaN for one expert."""
    gate = tensors[gates(tensors)[-1]].copy()
    gate[3, 0] = np.nan
    tensors[gates(tensors)[-1]] = gate


def not_finite_of_a_token(tensors: Tensors) -> None:
    """A token's embedding is NaN, and so are all of its routers."""
    table = tensors["model.embed_tokens.weight"].copy()
    table[401] = np.nan
    tensors["model.embed_tokens.weight"] = table


NOT_FINITE = "the logits are not finite, so no token can be chosen"


def test_logits_of_a_router_that_are_not_finite_are_reported(tmp_path: Path) -> None:
    """No expert's number comes of them: values that kernels take for indices are checked on the interpreter."""
    backend = Model(tmp_path / "model", "bf16", not_finite).backend
    for ids, sampling in (([1, 2, 3], None), ([1] * 20, None), ([1, 2, 3], SamplingParams(0.9, 20, 0.9, seed=1))):
        backend.reset()
        backend.prefill(ids, sampling)
        with pytest.raises(ModelError, match=NOT_FINITE):
            backend.token()
    backend.reset()
    assert np.isnan(backend.prompt_logits([1, 2])).all()
    assert np.isnan(backend.decode_logits(3)).all()


def test_a_sequence_that_is_not_finite_leaves_others_as_they_are(tmp_path: Path) -> None:
    backend = Model(tmp_path / "model", "bf16", not_finite_of_a_token).backend
    found: list[Any] = []
    for token in (4, 401):
        with Batch(backend.backend, 4) as batch:
            (other, _), (row, _) = batch.add([1, 2]), batch.add(IDS[:6])
            logits = batch.logits({other: token, row: 5})
            assert np.isnan(logits[other]).all() == (token == 401)
            found.append(logits[row])
    assert np.array_equal(found[0], found[1])
    assert not np.isnan(found[0]).any()


def test_a_router_that_promises_nothing_is_refused(models: Callable[[int], Model]) -> None:
    """The range of experts is a fact of the step only because the kernel that writes them promises it."""
    model = models(0)
    step = model_step(model.config, MAX_SEQ_LEN, "bf16")
    graph = step.graph("decode", "argmax")
    backend = model.backend.backend
    name = "layers.0.experts"
    wide = {**graph.buffers, name: replace(graph.buffers[name], high=graph.buffers[name].high + 1)}
    with pytest.raises(GraphError, match="holds 0 to 8, and `experts` of `experts_silu_mul` takes 0 to 7"):
        backend.planned(replace(graph, buffers=wide), backend._own_buffers.arrays)
    narrow = {**graph.buffers, name: replace(graph.buffers[name], high=graph.buffers[name].high - 1)}
    with pytest.raises(GraphError, match="holds 0 to 6, and `route_experts` writes it as `experts` and leaves 0 to 7"):
        backend.planned(replace(graph, buffers=narrow), backend._own_buffers.arrays)
    bare = {**graph.buffers, name: replace(graph.buffers[name], low=None, high=None)}
    with pytest.raises(GraphError, match="is computed, so nothing bounds it, and is `experts` of `experts_silu_mul`"):
        backend.planned(replace(graph, buffers=bare), backend._own_buffers.arrays)


def test_a_router_that_may_choose_an_expert_twice_is_refused(
    models: Callable[[int], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step says of every buffer of chosen experts that those of a token differ, and relies on the router for it."""
    model = models(0)
    graph = model_step(model.config, MAX_SEQ_LEN, "bf16").graph("decode", "argmax")
    chosen = [op.tensors["experts"].buffer for op in graph.ops if op.kernel == "route_experts"]
    assert chosen and all(graph.buffers[name].distinct_in_rows for name in chosen)
    backend = model.backend.backend
    backend.planned(graph, backend._own_buffers.arrays)
    contract_of = backend.contract

    def without_rows(op: Op) -> Contract:
        contract = contract_of(op)
        promises = tuple(replace(promise, distinct_in_rows=False) for promise in contract.promises)
        return replace(contract, promises=promises)

    monkeypatch.setattr(backend, "contract", without_rows)
    with pytest.raises(GraphError, match="holds distinct integers in each row of 2, and `route_experts` does not promise that"):
        backend.planned(graph, backend._own_buffers.arrays)
