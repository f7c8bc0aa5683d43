"""The loop on the tile interpreter: a request has the same tokens alone and among others, and ends alone if it goes wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.backends.interpreter import InterpreterBackend
from engine.batch import Batch
from engine.checkpoint.weights import WeightPlan
from engine.errors import UsageError
from engine.models.families import read_config
from engine.sampling import Logprobs, SamplingParams
from engine.serving.loop import EngineLoop
from engine.serving.protocol import LENGTH_BYTES, Submit, encoded, from_engine

MAX_SEQ_LEN = 320
"""Longer than a short context, which has a graph of its own."""
CHUNK = 64


def prompt(seed: int, tokens: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 400, tokens)]


def loaded(folder: Path) -> InterpreterBackend:
    backend = InterpreterBackend()
    config = read_config(folder)
    backend.load(config, WeightPlan.for_model(config, folder, "bf16"), MAX_SEQ_LEN)
    return backend


@pytest.fixture(scope="module")
def backend(tiny: Path) -> Iterator[InterpreterBackend]:
    one = loaded(tiny)
    yield one
    one.close()


@pytest.fixture(scope="module")
def alone(backend: InterpreterBackend) -> list[list[int]]:
    """The tokens of each of `WORKS` with nothing else; the long prompt's are not needed."""
    loop = EngineLoop(backend, 2, CHUNK)
    found = [run(loop, work)[0][work.number] for work in (WORKS[0], WORKS[1], WORKS[3])]
    loop.close()
    return [*found[:2], [], *found[2:]]


@pytest.fixture
def loop(backend: InterpreterBackend) -> Iterator[EngineLoop]:
    one = EngineLoop(backend, 2, CHUNK)
    yield one
    one.close()


def run(loop: EngineLoop, *works: Submit) -> tuple[dict[int, list[int]], dict[int, str]]:
    """The tokens of requests, and why they ended."""
    tokens: dict[int, list[int]] = {work.number: [] for work in works}
    ended: dict[int, str] = {}
    for work in works:
        loop.submit(work)
    while not loop.idle:
        report = loop.iteration()
        for number, token in report.tokens.items():
            tokens[number].append(token)
        ended |= report.ended
    return tokens, ended


SAMPLED = SamplingParams(0.9, 20, 0.95, seed=11)
WORKS = [
    Submit(0, prompt(0, 70), 4, sampling=SAMPLED),  # two chunks
    Submit(1, prompt(1, 5), 4),
    Submit(2, prompt(2, 262), 3),  # beyond a short context
    Submit(3, prompt(4, 20), 5, sampling=SamplingParams(1.1, 0, 0.99, 3, frequency_penalty=0.5, min_p=1e-4, logprobs=2)),
    Submit(4, prompt(0, 70), 4, sampling=SAMPLED),  # the same as the first
]


def test_tokens_do_not_depend_on_other_requests(loop: EngineLoop, alone: list[list[int]]) -> None:
    together, ended = run(loop, *WORKS)
    assert [together[number] for number in (0, 1, 3, 4)] == [alone[0], alone[1], alone[3], alone[0]]
    assert ended == dict.fromkeys(range(5), "length") and len(together[2]) == 3


def test_probabilities_are_reported_with_their_tokens(loop: EngineLoop, alone: list[list[int]]) -> None:
    """Of the request that asks for them, in its prompt and while it decodes next to another."""
    found: list[tuple[int, Logprobs]] = []
    for work in (WORKS[0], WORKS[3]):
        loop.submit(work)
    while not loop.idle:
        report = loop.iteration()
        assert report.logprobs.keys() == report.tokens.keys() & {3}
        found += [(report.tokens[number], logprobs) for number, logprobs in report.logprobs.items()]
        assert from_engine(encoded(report)[LENGTH_BYTES:]) == report
    assert [token for token, _ in found] == alone[3]
    for token, logprobs in found:
        assert len(logprobs.tokens) == 2 and logprobs.values[0] >= max(logprobs.values[1], logprobs.own)
        assert token not in logprobs.tokens or logprobs.values[logprobs.tokens.index(token)] == logprobs.own


def test_logits_are_those_of_a_batch_without_others_to_the_bit(backend: InterpreterBackend) -> None:
    """Also next to a long context. Without `one_graph` the neighbour changes them: its graph is another."""

    def logits(batch: Batch, *, other: bool) -> Any:
        if other:
            batch.add(prompt(2, 262))
        row, _ = batch.add(prompt(1, 5))
        return batch.logits({row: 7} | ({0: 9} if other else {}))[row]

    for one_graph in (True, False):
        with Batch(backend, 2, one_graph=one_graph) as alone, Batch(backend, 2, one_graph=one_graph) as among:
            same = (logits(alone, other=False) == logits(among, other=True)).all()
        assert same == one_graph


def test_a_stop_token_ends_a_request_with_itself(loop: EngineLoop, alone: list[list[int]]) -> None:
    third = alone[1][2]
    found, ended = run(loop, Submit(1, WORKS[1].ids, 50, stop_tokens=[third]))
    assert found[1] == alone[1][: alone[1].index(third) + 1] and ended == {1: "stop"}


def test_cancelled_requests_leave_the_others_as_they_are(loop: EngineLoop, alone: list[list[int]]) -> None:
    """One is cancelled while it waits, one in its prompt, one while it decodes."""
    decodes, waits = Submit(1, prompt(1, 5), 200), [Submit(number, prompt(number, 3), 200) for number in (5, 6, 7)]
    for work in (decodes, WORKS[0], WORKS[2], *waits):
        loop.submit(work)
    tokens: list[int] = []
    for iteration in range(40):
        report = loop.iteration()
        tokens += [token for number, token in report.tokens.items() if number == 0]
        if iteration == 2:  # the decoding request gives its row to the long prompt
            assert (report.running, report.waiting) == (2, 4)
            loop.cancel(waits[0].number)
            loop.cancel(decodes.number)
        if iteration == 6:
            assert (report.running, report.waiting) == (2, 2)
            for work in (WORKS[2], *waits):
                loop.cancel(work.number)
        if loop.idle:
            break
    assert tokens == alone[0] and loop.idle
    assert loop.iteration().used_pages == 0


def test_a_request_that_cannot_be_done_ends_alone(loop: EngineLoop, alone: list[list[int]]) -> None:
    bad = [Submit(1, [100_000], 3), Submit(2, prompt(1, MAX_SEQ_LEN), 1), Submit(3, [], 1), Submit(4, [1], 0)]
    tokens, ended = run(loop, *bad, WORKS[0])
    assert tokens[0] == alone[0]
    assert ended[1] == "error: token 100000 is not in the vocabulary of 408"
    assert ended[2] == "error: 320 tokens and 1 more do not fit a context of 320"
    assert ended[3].startswith("error") and ended[4].startswith("error")


def test_logits_that_are_not_finite_end_requests_and_not_the_loop(tiny: Path) -> None:
    broken: Any = loaded(tiny)
    loop = EngineLoop(broken, 2, CHUNK)
    good = broken._buffers["model.norm.weight"]

    def norm(values: Any) -> None:
        """Replace the weight of the last norm; steps find weights when they are prepared."""
        broken._buffers["model.norm.weight"] = values
        loop._batch._steps.forget()  # pyright: ignore[reportPrivateUsage]

    loop.submit(WORKS[1])
    assert 1 in loop.iteration().tokens
    norm(np.full_like(good, np.nan))
    assert "not finite" in loop.iteration().ended[1]  # while it decodes
    assert "not finite" in run(loop, WORKS[1])[1][1]  # in its prompt
    norm(good)
    assert run(loop, WORKS[1])[1] == {1: "length"}
    loop.close()
    broken.close()


def test_a_batch_of_another_size_is_refused(backend: InterpreterBackend) -> None:
    with pytest.raises(UsageError, match="a batch has 2, 4 or 8 sequences, not 3"):
        EngineLoop(backend, 3, CHUNK)
