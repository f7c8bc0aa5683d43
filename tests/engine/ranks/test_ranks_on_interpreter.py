"""Two ranks on the interpreter: logits of one rank within rounding, equal tokens, the same bits in both and each time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dense_reference
import numpy as np
import pytest
from click.testing import CliRunner
from interpreter_ranks import (
    IDS,
    TOLERANCE,
    bits_of_ranks,
    decode_logits,
    distance,
    greedy,
    one_rank,
    prompt_logits,
    two_ranks,
)  # fmt: skip

from engine.api import Engine
from engine.backends.backend import Backend
from engine.backends.interpreter import InterpreterBackend
from engine.batch import Batch
from engine.checkpoint.weights import WeightPlan
from engine.cli import run
from engine.errors import EngineError, ModelError, UsageError
from engine.ranks import interpreter as ranks_on_interpreter
from engine.ranks.barrier import RankBarrier, RankStopped
from engine.ranks.interpreter import InterpreterRanks
from engine.sampling import SamplingParams
from engine.tools.quantize.command import command as quantize
from tests.campaign import first

LENGTHS = (1, 5, 17, 70)
"""A prompt of one token, of a few (parts are gathered), of many (sums are reduced), and one of two tiles of the cache."""


@pytest.fixture(scope="module")
def folder(tiny_folder: Callable[..., Path]) -> Path:
    return tiny_folder()


@pytest.mark.parametrize("tokens", LENGTHS)
def test_logits_of_a_prompt(one: Backend, two: InterpreterRanks, folder: Path, tokens: int) -> None:
    found, expected = prompt_logits(two, IDS[:tokens]), prompt_logits(one, IDS[:tokens])
    assert distance(found, expected) < TOLERANCE
    weights = WeightPlan.for_model(two.config, folder)
    tensors = {name: weights.tensor(name) for name in weights.tensor_names}
    assert distance(found, dense_reference.logits(two.config, tensors, IDS[:tokens])[-1]) < TOLERANCE


def test_logits_of_decode_steps_across_the_end_of_a_tile(one: Backend, two: InterpreterRanks) -> None:
    found, expected = (decode_logits(backend, IDS[:62], IDS[62:66]) for backend in (two, one))
    assert max(map(distance, found, expected)) < TOLERANCE


@pytest.mark.parametrize("tokens", LENGTHS[1:3])
def test_both_ranks_have_the_same_bits_every_time(two: InterpreterRanks, tokens: int) -> None:
    seen = set[bytes]()
    for _ in range(3):
        decode_logits(two, IDS[:tokens], IDS[tokens : tokens + 2])
        seen |= {*bits_of_ranks(two)}
    assert len(seen) == 1


def test_greedy_tokens_are_those_of_one_rank(one: Backend, two: InterpreterRanks) -> None:
    for tokens in (3, 20):
        assert greedy(two, IDS[:tokens], 6) == greedy(one, IDS[:tokens], 6)


def test_each_rank_keeps_its_own_heads(one: InterpreterBackend, two: InterpreterRanks) -> None:
    """The first layer's keys and values depend on no collective, so halves of heads are equal."""
    for backend in (one, two):
        prompt_logits(backend, IDS[:20])
    for name in ("k_cache.0", "v_cache.0"):
        whole = one.cache(name)[:20].astype(np.float32)
        halves = np.concatenate([two.cache(rank, name)[:20].astype(np.float32) for rank in range(2)], axis=1)
        assert whole.shape == halves.shape
        assert np.abs(whole - halves).max() < 0.05 * whole.std()
        assert np.abs(whole[:, :4] - halves[:, 4:]).max() > whole.std(), "the halves could be exchanged unseen"


def test_a_batch_generates_as_one_rank(one: Backend, two: InterpreterRanks) -> None:
    generated: list[list[Any]] = []
    for backend in (one, two):
        with Batch(backend, 4) as batch:
            found: list[Any] = [batch.add(IDS[:tokens]) for tokens in (3, 9, 20)]
            generated.append([*found, *(batch.step() for _ in range(4))])
    assert generated[0] == generated[1]


def test_sampled_tokens_are_the_same_every_time(two: InterpreterRanks) -> None:
    def sampled() -> list[int]:
        sequence = two.begin()
        two.prefill(sequence, IDS[:9], SamplingParams(temperature=0.8, top_k=20, seed=3))
        return list(two.stream_tokens(sequence, two.token(), 6))

    assert sampled() == sampled()


@pytest.mark.parametrize(
    ("family", "options"),
    first(
        4,
        [
            ("llama", {}),
            ("qwen3", {"weight_format": "fp8"}),
            ("qwen3", {"weight_format": "int4"}),
            ("qwen3", {"weight_format": "w8a8", "cache_format": "fp8"}),
            ("llama", {"weight_format": "fp8", "cache_format": "fp8"}),
            ("llama", {"weight_format": "int4"}),
        ],
    ),
)
def test_families_and_formats(family: str, options: dict[str, str], tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    stored = options.get("weight_format", "").replace("w8a8", "fp8")
    source = tiny_folder(family)
    if stored:
        target = tmp_path / "quantised"
        ended = CliRunner().invoke(quantize, [str(source), str(target), "--format", stored])
        assert ended.exit_code == 0, ended.output
        source = target
    backends = one_rank(source, **options), two_ranks(source, **options)
    assert all(backend.step.weight_format == options.get("weight_format", "16bit") for backend in backends)
    for tokens in (5, 70):
        expected, found = (prompt_logits(backend, IDS[:tokens]) for backend in backends)
        assert distance(found, expected) < 2 * TOLERANCE
    expected, found = (decode_logits(backend, IDS[:9], IDS[9:11]) for backend in backends)
    assert max(map(distance, found, expected)) < 2 * TOLERANCE
    assert len({*bits_of_ranks(backends[1])}) == 1
    for backend in backends:
        backend.close()


def test_a_kernel_that_does_not_take_a_rank_s_heads_is_named(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"operation `layers.0.attention`: .* is broken \(HKV = 2, S = 128\)"):
        two_ranks(folder, 4)


def test_an_error_in_one_rank_stops_the_other_and_is_the_one_error(
    two: InterpreterRanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = prompt_logits(two, IDS[:9])
    of_rank = two.of_ranks[1]
    original, calls = of_rank._run, []

    def failing(ops: Any, order: Any) -> None:
        for op in ops:
            calls.append(op.op.name)
            if len(calls) == 7:
                raise ModelError("a planted failure")
            original((op,), order)

    monkeypatch.setattr(of_rank, "_run", failing)
    with pytest.raises(ModelError, match="a planted failure"):
        prompt_logits(two, IDS[:9])
    monkeypatch.undo()
    assert (prompt_logits(two, IDS[:9]) == expected).all(), "the ranks go on after a failure"


def test_ranks_that_choose_different_tokens_are_an_error(two: InterpreterRanks, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collective that gives one rank another sum is seen, whatever it is."""
    original = ranks_on_interpreter.collect

    def wrong(op: Any, parts: Any, own: Any) -> None:
        original(op, parts, own)
        if own["x"] is parts[1]:
            for name in own.keys() & {"residual", "out"}:
                own[name][...] = 0

    monkeypatch.setattr(ranks_on_interpreter, "collect", wrong)
    with pytest.raises(EngineError, match=r"rank 1 chose the tokens \[\d+\], and rank 0 \[\d+\]"):
        greedy(two, IDS[:9], 4)


def test_ranks_that_wait_for_different_things_are_an_error() -> None:
    barrier, things = RankBarrier(2), ("`all_reduce` of `a`", "the end of a step")
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(barrier.exchange, rank, what) for rank, what in enumerate(things)]:
            with pytest.raises(EngineError, match="rank 0 is at `all_reduce` of `a`, and rank 1 at the end of a step"):
                future.result()
        barrier.stop()
        with pytest.raises(RankStopped):
            barrier.exchange(0, "alone")


def test_the_api_and_the_command(tiny_folder: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = tiny_folder()
    with Engine.from_pretrained(folder, backend="interpreter", max_seq_len=128, gpus=2) as engine:
        expected = list(engine.generate_ids(engine.tokens([{"role": "user", "content": "hello"}]), 4))
    arguments = ["--model", str(folder), "--backend", "interpreter", "--prompt", "hello", "--max-new-tokens", "4", "--json"]
    for gpus in ("1", "2"):
        assert run([*arguments, "--max-seq-len", "128", "--gpus", gpus]) == 0
        assert json.loads(capsys.readouterr().out)["ids"] == expected


@pytest.mark.parametrize(
    ("change", "gpus", "message"),
    [
        ({}, 3, "3 GPUs cannot share this model: `num_attention_heads` is 16, which 3 ranks cannot share equally"),
        ({"num_key_value_heads": 1}, 2, "2 GPUs cannot share this model: `num_key_value_heads` is 1, which 2 ranks cannot"),
        ({"intermediate_size": 255}, 2, "2 GPUs cannot share this model: `intermediate_size` is 255, which 2 ranks cannot"),
        ({}, 9, "9 GPUs are asked for; ask for 1 to 8"),
        ({}, 0, "0 GPUs are asked for; ask for 1 to 8"),
    ],
)
def test_models_that_ranks_cannot_share(
    change: dict[str, int], gpus: int, message: str, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder(), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(UsageError) as caught:
        Engine.from_pretrained(folder, backend="interpreter", max_seq_len=128, gpus=gpus)
    assert message in str(caught.value)
