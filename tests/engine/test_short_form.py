"""Decode with a short context has its own graph form: the tokens are the same whichever form processes which tokens, and
whoever selects the form."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from step_contracts import MODELS, contract, shape_of

from engine.backends.interpreter import InterpreterBackend
from engine.batch import Batch
from engine.checkpoint.weights import WeightPlan
from engine.graph.plan import plan_memory
from engine.graph.verify import GraphError, verify
from engine.models.steps import model_step
from engine.sampling import SamplingParams, sample_logits
from engine.tools.tiny import write_tiny_model
from tests import campaign
from tilec.step.expressions import StepError
from tilec.step.graph import Kind, StepGraph
from tilec.step.step import BATCHES, NO_VARIANT, Step

SHORT = frozenset({"short"})
ATTENTION = "rotary_decode_attention_kv"
PROMPT = [int(i) for i in np.random.default_rng(3).integers(0, 400, 6)]
SAMPLED = SamplingParams(0.9, 20, 0.9, seed=7)
TOLERANCE = 0.02
"""Upper bound of the root mean square difference between the two forms of a step, over the deviation of the logits."""


def model(name: str = "qwen3-0.6b", **measured: Any) -> Step:
    return model_step(shape_of(name), 2048, measured={"parts": 33, "head_parts": 8, "few_blocks": 132} | measured)


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InterpreterBackend]:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    config = write_tiny_model(folder)
    loaded = InterpreterBackend()
    loaded.load(config, WeightPlan.for_model(config, folder, "bf16"), 40)
    yield loaded
    loaded.close()


def set_short_slots(monkeypatch: pytest.MonkeyPatch, slots: int) -> None:
    monkeypatch.setattr(Step, "bound", lambda step, variant: {"short": slots, "few": 8, "near": 0}[variant])


@pytest.mark.parametrize(
    ("name", "mode"),
    campaign.one_of_each(itertools.product(MODELS, ("decode", "batch")), lambda case: case[0], lambda case: case[1]),
)
def test_both_forms_are_verified_and_the_short_one_has_no_merge(name: str, mode: Any) -> None:
    step, tokens = model(name), 4 if mode == "batch" else 1
    for output_mode in ("argmax", "sample", "logits"):
        short_graph, long_graph = (
            step.graph(mode, output_mode, tokens=tokens, variants=variants) for variants in (SHORT, NO_VARIANT)
        )
        for graph in (short_graph, long_graph):
            verify(graph, plan_memory(graph), contract)
        assert len(long_graph.ops) - len(short_graph.ops) == step.layers
        kernels = {op.kernel for op in short_graph.ops} ^ {op.kernel for op in long_graph.ops}
        if name.startswith("llama"):
            assert kernels == {"rope_decode_attention_kv", "rope_decode_attention", "rope_merge_kv"}
        else:
            assert kernels == {ATTENTION, "rotary_decode_attention", "decode_merge_kv"}
        caches = {buffer.name for buffer in long_graph.of_kind(Kind.CACHE)}
        assert {buffer.name for buffer in short_graph.of_kind(Kind.CACHE)} == caches


def test_a_prompt_has_one_form() -> None:
    short_graph, long_graph = (model().graph("prefill", tokens=7, variants=variants) for variants in (SHORT, NO_VARIANT))
    assert short_graph.ops == long_graph.ops


@pytest.mark.parametrize("sequences", [1, BATCHES[-1]])
def test_a_cache_that_an_earlier_operation_writes_is_not_read_early(sequences: int) -> None:
    """The verifier's rule for prologue reads of a tensor that the kernel also writes: attention twice, instead of once."""
    graph: StepGraph = model().graph("batch" if sequences > 1 else "decode", tokens=sequences, variants=SHORT)
    index = next(index for index, op in enumerate(graph.ops) if op.kernel == ATTENTION)
    graph.ops.insert(index, graph.ops[index])
    with pytest.raises(GraphError, match=rf"`[kv]_cache`, which `{ATTENTION}` reads before earlier operations"):
        verify(graph, plan_memory(graph), contract)


def test_when_the_short_context_form_is_used() -> None:
    step = model(short_slots=256)
    assert [step.decode_variants(filled) for filled in (1, 256, 257)] == [SHORT, SHORT, NO_VARIANT]
    assert step.all_decode_variants() == (SHORT, NO_VARIANT)
    assert model().all_decode_variants() == (NO_VARIANT,)  # no measurement exists
    for wrong in (-1, 2.5, True):
        with pytest.raises(StepError, match="short_slots"):
            model(short_slots=wrong).decode_variants(1)


@pytest.mark.parametrize("sampling", campaign.first(1, [SAMPLED, None]))
def test_the_form_changes_within_a_generation(
    backend: InterpreterBackend, monkeypatch: pytest.MonkeyPatch, sampling: SamplingParams | None
) -> None:
    forms: list[Any] = []
    run = backend.own.run
    monkeypatch.setattr(backend.own, "run", lambda mode, variants: (forms.append(variants), run(mode, variants)))
    slots = 10
    set_short_slots(monkeypatch, slots)
    sequence = backend.begin()
    backend.prefill(sequence, PROMPT, sampling)
    token = backend.token()
    generated = [token, *backend.stream_tokens(sequence, token, 5)]
    assert forms == [SHORT if len(PROMPT) + 1 + number <= slots else NO_VARIANT for number in range(5)]
    assert len(set(forms)) == 2
    assert len(set(generated)) > 2
    sequence = backend.begin()  # each token follows from the logits of its step, in the same form
    logits = backend.prompt_logits(sequence, PROMPT)
    for number, token in enumerate(generated):
        assert token == (logits.argmax() if sampling is None else sample_logits(logits, sampling, number))
        logits = backend.decode_logits(sequence, token)


def test_logits_and_caches_of_both_forms(backend: InterpreterBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[Any] = []
    for slots in (0, 100):
        set_short_slots(monkeypatch, slots)
        sequence = backend.begin()
        backend.prefill(sequence, PROMPT)
        logits = np.stack([backend.decode_logits(sequence, token) for token in PROMPT])
        first, last = (backend.cache(f"k_cache.{layer}")[: 2 * len(PROMPT)].copy() for layer in (0, 1))
        values = backend.cache("v_cache.0")[: 2 * len(PROMPT)].copy()
        results.append((logits, first, values, last))
    (long_logits, *long_caches), (short_logits, *short_caches) = results
    assert np.sqrt(np.mean((short_logits - long_logits) ** 2)) < TOLERANCE * long_logits.std()
    assert (long_caches[0] == short_caches[0]).all()
    assert (long_caches[1] == short_caches[1]).all()  # before any attention: bit for bit
    assert np.abs(long_caches[2].astype(float) - short_caches[2].astype(float)).max() < 0.1


@pytest.mark.campaign
def test_a_batch_uses_the_short_form_if_all_its_sequences_are_short(
    backend: InterpreterBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[Any] = []
    for slots, expected in ((0, [NO_VARIANT] * 4), (9, [SHORT, SHORT, NO_VARIANT, NO_VARIANT]), (100, [SHORT] * 4)):
        set_short_slots(monkeypatch, slots)
        forms: list[Any] = []
        with Batch(backend, 2) as batch:
            steps = batch._steps  # pyright: ignore[reportPrivateUsage]
            run = steps.run
            monkeypatch.setattr(
                steps,
                "run",
                lambda mode, variants, run=run, forms=forms: (forms.append(variants), run(mode, variants)),
            )
            rows = [batch.add(ids)[0] for ids in (PROMPT[:2], [*PROMPT, 7])]
            logits_by_step = [batch.logits({rows[0]: token, rows[1]: token + 1}) for token in PROMPT[:4]]
            results.append(np.array([[logits[row] for row in rows] for logits in logits_by_step]))
        assert forms == expected
    long_logits, mixed_logits, short_logits = results
    for other in (mixed_logits, short_logits):
        assert np.sqrt(np.mean((other - long_logits) ** 2)) < TOLERANCE * long_logits.std()
    assert (mixed_logits[:2] == short_logits[:2]).all()  # one and the same form
