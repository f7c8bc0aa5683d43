"""A tiny mixture of experts on two ranks of the interpreter: each has a part of every expert, and both choose the same ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
from numpy.typing import NDArray
from paged_logits import logits_of
from test_rows_over_pages import prompt, rows_of

from engine.api import Engine
from engine.backends.backend import Backend
from engine.batch import Batch
from engine.cli import run
from engine.errors import UsageError
from engine.paged_batch import PagedBatch
from engine.ranks import interpreter as ranks_on_interpreter
from engine.ranks.interpreter import InterpreterRanks
from engine.sampling import SamplingParams
from engine.tools.quantize.command import command as quantize
from tests.campaign import first

LENGTHS = (1, 5, 17, 70)


@pytest.fixture(scope="module")
def folder(tiny_folder: Callable[..., Path]) -> Path:
    return tiny_folder("qwen3_moe")


@pytest.mark.parametrize("tokens", LENGTHS)
def test_logits_of_a_prompt(one: Backend, two: InterpreterRanks, tokens: int) -> None:
    """Not the same bits: a part of each sum is rounded where it is sent."""
    assert 0 < distance(prompt_logits(two, IDS[:tokens]), prompt_logits(one, IDS[:tokens])) < TOLERANCE


def test_logits_of_decode_steps_across_the_end_of_a_tile(one: Backend, two: InterpreterRanks) -> None:
    found, expected = (decode_logits(backend, IDS[:62], IDS[62:66]) for backend in (two, one))
    assert max(map(distance, found, expected)) < TOLERANCE


@pytest.mark.parametrize("tokens", LENGTHS[1:])
def test_both_ranks_have_the_same_bits_every_time(two: InterpreterRanks, tokens: int) -> None:
    seen = set[bytes]()
    for _ in range(2):
        decode_logits(two, IDS[:tokens], IDS[tokens : tokens + 2])
        seen |= {*bits_of_ranks(two)}
    assert len(seen) == 1


def test_greedy_tokens_and_those_of_a_batch_are_those_of_one_rank(one: Backend, two: InterpreterRanks) -> None:
    generated: list[list[Any]] = []
    for backend in (one, two):
        with Batch(backend, 4) as batch:
            found: list[Any] = [batch.add(IDS[:tokens]) for tokens in (3, 9, 30)]
            generated.append([greedy(backend, IDS[:50], 4), *found, *(batch.step() for _ in range(3))])
    assert generated[0] == generated[1]


@pytest.mark.parametrize(
    "options",
    first(
        3,
        [
            {"weight_format": "fp8"},
            {"weight_format": "int4"},
            {"weight_format": "w8a8"},
            {"weight_format": "int4", "cache_format": "fp8"},
        ],
    ),
    ids=str,
)
def test_formats(options: dict[str, str], folder: Path, tmp_path: Path) -> None:
    """A short prompt multiplies by codes, as decode does; a long one by 16 bits, or by codes of activations."""
    stored = options["weight_format"].replace("w8a8", "fp8")
    ended = CliRunner().invoke(quantize, [str(folder), str(tmp_path / "quantised"), "--format", stored])
    assert ended.exit_code == 0, ended.output
    backends = one_rank(tmp_path / "quantised", **options), two_ranks(tmp_path / "quantised", **options)
    assert all(backend.step.weight_format == options["weight_format"] for backend in backends)
    for tokens in (5, 70):
        expected, found = (prompt_logits(backend, IDS[:tokens]) for backend in backends)
        assert distance(found, expected) < 2 * TOLERANCE
    expected, found = (decode_logits(backend, IDS[:9], IDS[9:11]) for backend in backends)
    assert max(map(distance, found, expected)) < 2 * TOLERANCE
    assert len({*bits_of_ranks(backends[1])}) == 1
    for backend in backends:
        backend.close()


def test_rows_over_pages_have_the_same_bits_alone_and_among_others(two: InterpreterRanks) -> None:
    ids = prompt(100)
    with PagedBatch(two, 2) as batch:
        alone = rows_of(batch, 0, [1, 2], [ids])
    with PagedBatch(two, 4) as batch:
        assert batch.join(0, [5], 0, prompt(9), SamplingParams(0.9, 20, 0.9, seed=7)) >= 0
        assert (rows_of(batch, 2, [6, 3], [ids[:64], ids[64:65], ids[65:]]) == alone).all(), "in chunks, next to another row"


def test_logits_of_rows_over_pages_are_those_of_one_rank_within_rounding(one: Backend, two: InterpreterRanks) -> None:
    found: list[Any] = []
    for backend in (one, two):
        with PagedBatch(backend, 2) as batch:
            found.append(logits_of(batch, 0, [2, 1], [prompt(70)]).copy())
    assert 0 < distance(found[1], found[0]) < TOLERANCE


def seen_choices(monkeypatch: pytest.MonkeyPatch, two: InterpreterRanks) -> list[list[NDArray[np.int32]]]:
    """What each rank's router chooses from now on, launch by launch."""
    seen: list[list[NDArray[np.int32]]] = [[], []]
    for rank, own in zip(two.of_ranks, seen, strict=True):

        def kept(ops: Any, order: Any, *, run: Any = rank._run, own: Any = own) -> None:  # pyright: ignore[reportPrivateUsage]
            for op in ops:
                run((op,), order)
                if op.op.kernel == "route_experts":
                    own.append(op.arrays["experts"].copy())

        monkeypatch.setattr(rank, "_run", kept)
    return seen


def test_both_ranks_choose_the_same_experts(two: InterpreterRanks, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = seen_choices(monkeypatch, two)
    decode_logits(two, IDS[:70], IDS[70:72])
    assert len(seen[0]) == len(seen[1]) == 2 * 3
    assert all((mine == theirs).all() for mine, theirs in zip(*seen, strict=True))
    assert len({tuple(row) for choices in seen[0] for row in choices}) > 10, "tokens choose different experts"


@pytest.mark.parametrize("guilty", [0, 1])
@pytest.mark.parametrize("tokens", [9, 70])
def test_a_rank_that_chooses_another_expert_is_found(
    two: InterpreterRanks, one: Backend, monkeypatch: pytest.MonkeyPatch, guilty: int, tokens: int
) -> None:
    """Both ranks still have the same bits, because they add the same parts; logits are no longer those of one rank."""
    of_rank = two.of_ranks[guilty]
    original = of_rank._run  # pyright: ignore[reportPrivateUsage]

    def other(ops: Any, order: Any) -> None:
        for op in ops:
            original((op,), order)
            if op.op.kernel == "route_experts":
                op.arrays["experts"][...] = 7 - op.arrays["experts"]

    expected = prompt_logits(one, IDS[:tokens])
    monkeypatch.setattr(of_rank, "_run", other)
    assert distance(prompt_logits(two, IDS[:tokens]), expected) > 5 * TOLERANCE
    assert len({*bits_of_ranks(two)}) == 1


def test_a_sum_that_leaves_a_rank_out_is_found(two: InterpreterRanks, monkeypatch: pytest.MonkeyPatch) -> None:
    original = ranks_on_interpreter.collect

    def wrong(op: Any, parts: Any, own: Any) -> None:
        parts = [parts[0], np.zeros_like(parts[1])] if op.name == "layers.1.down_proj_sum" else parts
        original(op, parts, own)

    expected = decode_logits(two, IDS[:9], IDS[9:11])
    monkeypatch.setattr(ranks_on_interpreter, "collect", wrong)
    assert min(map(distance, decode_logits(two, IDS[:9], IDS[9:11]), expected)) > TOLERANCE


def test_the_api_and_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", str(folder), "--backend", "interpreter", "--prompt", "hello", "--max-new-tokens", "4", "--json"]
    generated: list[Any] = []
    for gpus in ("1", "2"):
        assert run([*arguments, "--max-seq-len", "128", "--gpus", gpus]) == 0
        generated.append(json.loads(capsys.readouterr().out)["ids"])
    assert generated[0] == generated[1]


@pytest.mark.parametrize(
    ("change", "gpus", "message"),
    [
        ({}, 8, "8 GPUs cannot share this model: `num_key_value_heads` is 4, which 8 ranks cannot share equally"),
        ({"moe_intermediate_size": 255}, 2, "2 GPUs cannot share this model: `moe_intermediate_size` is 255, which 2 ranks"),
    ],
)
def test_mixtures_that_ranks_cannot_share(
    change: dict[str, int], gpus: int, message: str, folder: Path, tmp_path: Path
) -> None:
    copied = tmp_path / "model"
    shutil.copytree(folder, copied)
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(UsageError) as caught:
        Engine.from_pretrained(copied, backend="interpreter", max_seq_len=128, gpus=gpus)
    assert message in str(caught.value)
