"""The loop over pages, on a batch without a model: a request has the tokens that it has alone, whatever else is served,
cancelled or goes wrong, and whatever was in the cache of prefixes."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from fake_paged_batch import VOCABULARY, FakeBackend, FakePagedBatch

from engine.errors import DeviceError, ModelError
from engine.sampling import SamplingParams
from engine.serving.loop import EngineLoop
from engine.serving.pool import Pool
from engine.serving.protocol import Submit


def opened(batch: FakePagedBatch, chunk_tokens: int = 256) -> EngineLoop:
    memory = Pool.empty(
        batch.rows, batch.pages, batch.longest, parking=batch.parking, items=batch.items, page_tokens=batch.page_tokens
    )
    return EngineLoop(cast(Any, FakeBackend()), (batch, memory), chunk_tokens)


def tokens_alone(work: Submit) -> list[int]:
    loop = opened(FakePagedBatch(1, 80, 4096, parking=1))
    tokens = Traffic(loop)
    tokens.submit(work)
    tokens.run()
    return tokens.tokens[work.number]


@dataclass
class Traffic:
    """What requests got from a loop."""

    loop: EngineLoop
    tokens: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    ended: dict[int, str] = field(default_factory=dict[int, str])
    cached: dict[int, int] = field(default_factory=dict[int, int])

    def submit(self, work: Submit) -> None:
        self.tokens[work.number] = []
        self.loop.submit(work)

    def iteration(self) -> Any:
        report = self.loop.iteration()
        for number, token in report.tokens.items():
            assert number not in self.ended, "a token of a request that has ended"
            self.tokens[number].append(token)
        self.ended |= report.ended
        self.cached |= report.cached
        return report

    def run(self) -> None:
        while not self.loop.idle:
            self.iteration()


def some_work(draw: random.Random, number: int) -> Submit:
    """A request whose prompt begins as one of a few do."""
    beginning = [draw.randrange(3)] * draw.choice([0, 5, 64, 130, 300])
    ids = [*beginning, *(draw.randrange(VOCABULARY) for _ in range(draw.choice([0, 1, 30, 64])))] or [7]
    sampling = SamplingParams(1.0, 20, 0.9, seed=draw.randrange(5)) if draw.random() < 0.5 else None
    stops = draw.sample(range(VOCABULARY), draw.choice([0, 0, 3]))
    return Submit(number, ids, draw.choice([1, 2, 5, 70, 150]), stops, draw.choice([0, 0, 0, 1]), sampling)


@pytest.mark.parametrize("seed", range(4))
def test_tokens_are_those_of_a_request_alone(seed: int) -> None:
    """Few pages, so that prefixes are found, evicted and found again; some requests are cancelled."""
    draw = random.Random(seed)
    batch = FakePagedBatch(
        draw.choice([2, 5, 16]), draw.choice([20, 40, 90]), 600, items=draw.choice([12, 500]), ahead=seed % 3
    )
    traffic = Traffic(opened(batch, draw.choice([1, 100, 256])))
    works = [some_work(draw, number) for number in range(60)]
    cancelled: set[int] = set()
    waiting = list(works)
    while waiting or not traffic.loop.idle:
        if waiting and draw.random() < 0.3:
            traffic.submit(waiting.pop(0))
        if draw.random() < 0.01 and traffic.tokens:
            number = draw.choice(sorted(traffic.tokens))
            cancelled.update({number} - traffic.ended.keys())
            traffic.loop.cancel(number)
        report = traffic.iteration()
        assert not traffic.loop.idle or (report.used_pages, report.running) == (0, 0)
    assert sum(traffic.cached.values()) > 0 and not batch.members
    for work in works:
        alone = tokens_alone(work)
        if work.number in cancelled:
            assert traffic.tokens[work.number] == alone[: len(traffic.tokens[work.number])]
        else:
            assert traffic.tokens[work.number] == alone
            assert traffic.ended[work.number] == ("stop" if alone[-1] in work.stop_tokens else "length")


def test_a_prefix_is_not_computed_again() -> None:
    batch = FakePagedBatch(4, 60, 1000)
    traffic = Traffic(opened(batch))
    prompt = [1] * 200
    for number, ids in enumerate((prompt, prompt, [*prompt, 5, 6], [2, *prompt])):
        traffic.submit(Submit(number, ids, 3))
        traffic.run()
    assert traffic.cached == {0: 0, 1: 192, 2: 192, 3: 0}
    assert batch.computed == 200 + 8 + 10 + 201


def test_choices_of_one_prompt_share_its_pages() -> None:
    batch = FakePagedBatch(8, 60, 1000)
    traffic = Traffic(opened(batch))
    for number in range(8):
        traffic.submit(Submit(number, [1] * 640, 60, sampling=SamplingParams(1.0, 20, 0.9, seed=number)))
    most = 0
    while not traffic.loop.idle:
        most = max(most, traffic.iteration().used_pages)
    assert most == 11 + 7 * 2 and batch.computed == 640 + 7 * 64


def test_a_request_that_goes_wrong_ends_alone_and_is_not_shared() -> None:
    batch = FakePagedBatch(4, 60, 1000)
    traffic = Traffic(opened(batch))
    works = [Submit(0, [1] * 130, 20), Submit(1, [2] * 130, 20)]
    for work in works:
        traffic.submit(work)
    while len(traffic.tokens[1]) < 3:
        traffic.iteration()
    batch.broken = {1}
    traffic.iteration()
    assert traffic.ended == {1: "error: the logits are not finite, so no token can be chosen"}
    batch.broken = set()
    traffic.submit(Submit(2, [2] * 130, 20))
    traffic.run()
    assert (
        traffic.cached[2] == 0 and traffic.tokens[0] == tokens_alone(works[0]) and traffic.tokens[2] == tokens_alone(works[1])
    )
    batch.fails = ModelError("no")  # in a prompt
    traffic.submit(Submit(3, [1] * 130, 5))
    traffic.run()
    assert traffic.ended[3] == "error: no" and traffic.tokens[3] == []
    traffic.submit(Submit(4, [1] * 130, 5))
    traffic.run()
    assert traffic.cached[4] == 0 and len(traffic.tokens[4]) == 5


def test_a_step_that_fails_ends_all_that_decode_and_a_device_ends_everything() -> None:
    batch = FakePagedBatch(4, 60, 1000)
    traffic = Traffic(opened(batch))
    for number in range(2):
        traffic.submit(Submit(number, [number] * 5, 20))
    while len(traffic.tokens[1]) < 2:
        traffic.iteration()
    batch.fails = ModelError("no")
    assert traffic.iteration().ended == {0: "error: no", 1: "error: no"}
    assert traffic.loop.idle and not batch.members
    traffic.submit(Submit(2, [5], 5))
    batch.fails = DeviceError("gone")
    with pytest.raises(DeviceError):
        traffic.run()


def test_what_does_not_fit_the_pool_is_refused() -> None:
    traffic = Traffic(opened(FakePagedBatch(4, 14, 1000, parking=4)))
    for work in (Submit(0, [1] * 600, 41), Submit(1, [1] * 600, 40), Submit(2, [1000], 1), Submit(3, [], 1)):
        traffic.submit(work)
    traffic.run()
    assert traffic.ended[0] == "error: 600 tokens and 41 more do not fit a context of 640"
    assert traffic.ended[1] == "length" and len(traffic.tokens[1]) == 40
    assert traffic.ended[2].startswith("error") and traffic.ended[3].startswith("error")
