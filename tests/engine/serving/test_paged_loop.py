"""The loop over pages, on a batch without a model: a request has the tokens that it has alone, whatever else is served,
cancelled or goes wrong, and whatever was in the cache of prefixes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import msgspec
import pytest
from fake_paged_batch import VOCABULARY, FakeBackend, FakePagedBatch

from engine.errors import DeviceError, ModelError
from engine.launch_limits import LaunchLimits
from engine.sampling import SamplingParams
from engine.serving.loop import EngineLoop
from engine.serving.pool import Pool
from engine.serving.protocol import Report, Submit


def opened(
    batch: FakePagedBatch, chunk_tokens: int = 256, guesses: int = 0, early: Callable[[Report], None] | None = None
) -> EngineLoop:
    memory = Pool.empty(
        batch.rows, batch.pages, batch.longest, parking=batch.parking, items=batch.items, page_tokens=batch.page_tokens
    )
    return EngineLoop(cast(Any, FakeBackend()), (batch, memory), chunk_tokens, guesses=guesses, early=early)


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
    guessed: list[int] = field(default_factory=list[int])

    def submit(self, work: Submit) -> None:
        self.tokens[work.number] = []
        self.loop.submit(work)

    def iteration(self) -> Any:
        report = self.loop.iteration()
        self.take(report)
        return report

    def take(self, report: Report) -> None:
        """Keep what a report says."""
        for number, token in report.each():
            assert number not in self.ended, "a token of a request that has ended"
            self.tokens[number].append(token)
        self.ended |= report.ended
        self.guessed = [sum(pair) for pair in itertools.zip_longest(self.guessed, report.guessed, fillvalue=0)]
        self.cached |= report.cached

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
        draw.choice([2, 5, 16]), draw.choice([20, 40, 90]), 600, items=draw.choice([12, 500]), most_ahead=seed % 3
    )
    batch.limits = LaunchLimits(draw.choice([70, 2048]), 3, 1 << 20, 128)

    def early(report: Report) -> None:
        traffic.take(report)

    traffic = Traffic(opened(batch, draw.choice([1, 100, 256]), early=early if seed % 2 else None))
    everything_as_alone(draw, batch, traffic, [some_work(draw, number) for number in range(60)])


class Oracle:
    """Guesses of the tokens that a request gets alone, some of them wrong; in place of `engine.serving.guesses.Text`."""

    known: ClassVar[dict[tuple[int, ...], list[int]]] = {}
    draw: ClassVar[random.Random]

    def __init__(self, ids: list[int]) -> None:
        self._alone, self._count = self.known[tuple(ids)], 0

    def extend(self, tokens: list[int]) -> None:
        rest = self._alone[self._count :]
        assert tokens[: len(rest)] == rest[: len(tokens)]  # the step of a stop token may have chosen more
        self._count += len(tokens)

    def guesses(self, most: int) -> list[int]:
        known = [*self._alone[self._count :], *[0] * 9][: self.draw.randint(0, max(0, most))]
        return [token if self.draw.random() < 0.8 else self.draw.randrange(VOCABULARY) for token in known]


@pytest.mark.parametrize("seed", range(4))
def test_guesses_change_no_token(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is guessed: nothing is left of a guess that was wrong, in pages, in the cache of prefixes, or of the count of
    tokens."""
    draw = random.Random(seed)
    batch = FakePagedBatch(draw.choice([3, 6, 16]), draw.choice([20, 40, 90]), 600, most_ahead=seed % 3)
    works = [
        msgspec.structs.replace(some_work(draw, number), ids=[number % VOCABULARY, *some_work(draw, number).ids])
        for number in range(50)
    ]
    Oracle.known, Oracle.draw = {tuple(work.ids): tokens_alone(work) for work in works}, draw
    monkeypatch.setattr("engine.serving.loop.Text", Oracle)
    traffic = Traffic(opened(batch, draw.choice([1, 100, 256]), guesses=draw.choice([1, 4])))
    everything_as_alone(draw, batch, traffic, works, hits=False)
    assert batch.verified > 10 and traffic.guessed[2] + sum(traffic.guessed[3:]) == batch.verified
    assert traffic.guessed[0] <= traffic.guessed[1] and batch.verified < traffic.guessed[1]


def everything_as_alone(
    draw: random.Random, batch: FakePagedBatch, traffic: Traffic, works: list[Submit], *, hits: bool = True
) -> None:
    """Submit requests at any time, cancel some, and compare each with the same request alone."""
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
    assert (not hits or sum(traffic.cached.values()) > 0) and not batch.members
    for work in works:
        alone = tokens_alone(work)
        if work.number in cancelled:
            assert traffic.tokens[work.number] == alone[: len(traffic.tokens[work.number])]
        else:
            assert traffic.tokens[work.number] == alone
            assert traffic.ended[work.number] == ("stop" if alone[-1] in work.stop_tokens else "length")


def test_tokens_of_a_step_are_read_while_the_prompts_after_it_are_computed() -> None:
    """Prompts are enqueued after each step before its tokens are waited for, and it is reported before theirs. One step is
    between as many tokens of prompts as may be, whatever a launch takes of them."""
    batch, reports = FakePagedBatch(4, 80, 4096, most_ahead=1), list[Report]()
    batch.limits = LaunchLimits(128, 3, 1 << 20, 128)
    traffic = Traffic(opened(batch, 256, early=reports.append))
    traffic.submit(Submit(0, [5] * 30, 40))
    for _ in range(3):
        traffic.iteration()
    traffic.submit(Submit(1, [6] * 600, 4))
    batch.events.clear()
    found = [traffic.iteration() for _ in range(7)]
    assert [report.prompt_tokens for report in found] == [128, 128, 0, 128, 128, 0, 88]
    assert [sorted(report.tokens) for report in found] == [[], [], [], [], [], [], [1]]
    assert [sorted(report.tokens) for report in reports] == [[0], [0], [0]]
    read = ["prompts", "tokens"]
    assert batch.events == [*read, "prompts", "step", *read, "prompts", "step", *read]
    assert [report.running for report in reports] == [2, 2, 2]


def test_a_step_before_prompts_that_cannot_be_enqueued_ends_only_those_that_decode() -> None:
    batch = FakePagedBatch(4, 80, 4096)
    traffic = Traffic(opened(batch))
    traffic.submit(Submit(0, [5] * 30, 40))
    traffic.iteration()
    traffic.submit(work := Submit(1, [6] * 600, 4))
    batch.fails = ModelError("no")
    assert traffic.iteration().ended == {0: "error: no"}
    traffic.run()
    assert traffic.ended == {0: "error: no", 1: "length"} and traffic.tokens[1] == tokens_alone(work)


def test_a_request_can_be_cancelled_while_its_step_is_enqueued() -> None:
    """Its pages may be another prompt's at once: what the step writes there comes before that prompt."""
    batch = FakePagedBatch(2, 20, 1024)
    traffic = Traffic(opened(batch, 64))
    works = [Submit(0, [5] * 130, 100), Submit(1, [6] * 500, 4), Submit(2, [7] * 300, 100)]
    for work in works[:2]:
        traffic.submit(work)
    while batch.events[-1:] != ["step"]:
        traffic.iteration()
    assert batch.ahead
    traffic.loop.cancel(0)
    traffic.submit(works[2])
    traffic.run()
    assert all(traffic.tokens[work.number] == tokens_alone(work) for work in works[1:])


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


def test_short_prompts_share_launches_and_one_that_goes_wrong_ends_alone() -> None:
    batch = FakePagedBatch(8, 80, 4096)
    traffic = Traffic(opened(batch))
    works = [Submit(number, [number] * (30 + number), 4) for number in range(7)]
    broken = batch.join

    def join(row: int, *arguments: Any, **options: Any) -> int:
        if options["prompt"][0] == 1:
            raise ModelError("the logits are not finite")
        return broken(row, *arguments, **options)

    batch.join = join  # pyright: ignore[reportAttributeAccessIssue]
    for work in works:
        traffic.submit(work)
    report = traffic.iteration()
    assert (report.prompt_tokens, list(report.tokens), list(report.ended)) == (30 + 32, [0, 2], [1])
    traffic.run()
    assert batch.launches == [3, 3, 1]
    assert all(traffic.tokens[work.number] == tokens_alone(work) for work in works if work.number != 1)
    assert batch.members == {}
