"""The scheduler against its model (`scheduler_model`): whatever requests come, end and are cancelled, nothing is lost, starved,
or read by a request whose tokens it is not. The model is driven at random by hypothesis, and through every order of a few
operations."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scheduler_model import Code, Model
from scheduler_search import details, explore, order_of_eviction

from engine.launch_limits import LaunchLimits
from engine.serving.memory import PAGE_TOKENS, ContiguousRows, Memory
from engine.serving.pool import Pool
from engine.serving.scheduler import Decode, Policy, Prompts, Request, fits, without

CODE = Code()
MEMORIES: tuple[Memory, ...] = (
    ContiguousRows(2, 3 * PAGE_TOKENS), ContiguousRows(4, 100, 16),
    Pool.empty(3, 12, 40, parking=1, item_tokens=8, page_tokens=4),
    Pool.empty(4, 30, 30, parking=2, items=9, item_tokens=8, page_tokens=2),
)  # fmt: skip


class Random(RuleBasedStateMachine):
    """Requests that come, iterations, tokens that end requests, cancellations, in any order. Prompts are short and begin
    alike, so that some find pages of others."""

    @initialize(
        memory=st.sampled_from(MEMORIES), cut=st.sampled_from([1, 3, 4, 16]), more=st.sampled_from([0, 1, 5, 16]),
        patience=st.sampled_from([0, 1, 3]), guesses=st.sampled_from([0, 1, 4]), launch=st.sampled_from([0, 2, 1000]),
    )  # fmt: skip
    def begin(self, memory: Memory, cut: int, more: int, patience: int, guesses: int, launch: int) -> None:
        self.model = Model(CODE, Policy(cut + more, cut, patience, guesses, LaunchLimits(cut + launch)), memory)
        self.numbers = itertools.count()

    @rule(
        tokens=st.integers(1, 40),
        own=st.integers(0, 3),
        of=st.integers(0, 2),
        most=st.integers(1, 12),
        priority=st.integers(-1, 2),
    )
    def submit(self, tokens: int, own: int, of: int, most: int, priority: int) -> None:
        longest = self.model.memory.longest
        ids = [*[of] * tokens, *range(10, 10 + own)][: max(1, longest - most)]
        self.model.submit(next(self.numbers), ids, min(most, longest - len(ids)), priority)

    @rule(
        stops=st.sets(st.integers(0, 30), max_size=4), missing=st.sets(st.integers(0, 30), max_size=2),
        guesses=st.integers(0, 3), right=st.integers(0, 3), late=st.booleans(),
    )  # fmt: skip
    def iteration(self, stops: set[int], missing: set[int], guesses: int, right: int, late: bool) -> None:
        self.model.iteration(stops, missing, guesses, right, late=late)

    @precondition(lambda self: self.model.known)
    @rule(data=st.data(), wrong=st.booleans())
    def cancel(self, data: st.DataObject, wrong: bool) -> None:
        self.model.cancel(data.draw(st.sampled_from(sorted(self.model.known))), wrong=wrong)

    @rule()
    def cancel_unknown(self) -> None:
        before = self.model.state
        self.model.cancel(-1)
        assert self.model.state is before

    @invariant()
    def nothing_is_lost(self) -> None:
        if hasattr(self, "model"):
            self.model.check()

    def teardown(self) -> None:
        if hasattr(self, "model"):
            self.model.drain()


Random.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
test_random_requests = Random.TestCase


@pytest.mark.parametrize("kind", ["contiguous", "pool", "narrow"])
def test_every_order_of_a_few_operations(kind: str) -> None:
    assert explore(CODE, kind) > 100


def test_a_flood_of_urgent_requests_does_not_starve_another() -> None:
    model = Model(CODE, Policy(64, 64, patience=5), ContiguousRows(2, 64))
    model.submit(0, range(8), 2, priority=9)
    order: list[int] = []
    for number in range(1, 40):
        model.submit(number, range(8), 2)
        iteration = model.iteration()
        if isinstance(iteration, Prompts) and iteration.chunks[0].first == 0:
            order.append(iteration.chunks[0].request.request.number)
    assert order.index(0) == 5
    model.drain()


def test_what_is_free_is_kept_for_a_large_request() -> None:
    """Small requests that came later would fit; the large one that is next waits, and then gets all of it."""
    model = Model(CODE, Policy(64, 64), Pool.empty(4, 4, 1000))
    model.submit(0, range(8), 2)
    model.iteration()
    model.submit(1, range(4 * PAGE_TOKENS - 4), 4)
    model.submit(2, range(8), 2)
    assert isinstance(model.iteration(), Decode)
    iteration = model.iteration()
    assert isinstance(iteration, Prompts) and iteration.chunks[0].request.request.number == 1
    model.drain()


def test_a_long_prompt_and_a_generation_alternate() -> None:
    model = Model(CODE, Policy(64, 64), ContiguousRows(2, 640))
    model.submit(0, range(8), 30)
    model.iteration()
    model.submit(1, range(320), 8)
    kinds = [type(model.iteration()).__name__ for _ in range(10)]
    assert kinds == ["Decode", "Prompts"] * 5 or kinds == ["Prompts", "Decode"] * 5
    model.drain()


def chunks_of(iteration: Prompts) -> list[tuple[int, int]]:
    """The request and the tokens of each chunk of a launch."""
    return [(chunk.request.request.number, chunk.tokens) for chunk in iteration.chunks]


def test_short_prompts_share_a_launch() -> None:
    """As many as it takes, in their order; the last one may be divided. One that begins as another one waits for it."""
    model = Model(CODE, Policy(400, 64, launch=LaunchLimits(prompts=4)), Pool.empty(16, 80, 1000))
    for number, length in enumerate((60, 70, 300, 10, 10, 10, 10)):
        model.submit(number, [number] * length, 8)
    same = [9] * 200
    model.submit(7, same, 8)
    model.submit(8, same, 8)
    model.submit(9, [10] * 30, 8)
    launches: list[list[tuple[int, int]]] = []
    for _ in range(8):
        iteration = model.iteration()
        if isinstance(iteration, Prompts):
            launches.append(chunks_of(iteration))
    assert launches == [
        [(0, 60), (1, 70), (2, 256)], [(2, 44), (3, 10), (4, 10), (5, 10)], [(6, 10), (7, 200)], [(8, 8), (9, 30)],
    ]  # fmt: skip
    model.drain()


def test_prompts_of_a_launch_have_room_for_all_their_tokens() -> None:
    """A long prompt that was found but for its end takes as many slots as all of its tokens."""
    model = Model(CODE, Policy(400, 64, launch=LaunchLimits(prompts=4, slots=768, prompt_slots=128)), Pool.empty(16, 80, 1000))
    for number, length in enumerate((100, 130, 300, 10)):
        model.submit(number, [number] * length, 8)
    iteration = model.iteration()
    assert isinstance(iteration, Prompts) and chunks_of(iteration) == [(0, 100), (1, 130), (2, 128)]
    model.drain()


def test_short_prompts_share_the_tokens_between_two_steps() -> None:
    """Several prompts are computed between two steps, up to the bound; one that does not fit is divided at a page."""
    model = Model(CODE, Policy(200, 64), Pool.empty(8, 40, 1000))
    model.submit(0, [9], 30)
    model.iteration()
    model.iteration()
    for number in range(1, 5):
        model.submit(number, [number] * 60, 8)
    model.submit(5, [5] * 300, 8)
    done: list[tuple[int, int] | None] = []
    for _ in range(8):
        iteration = model.iteration()
        done.append(chunks_of(iteration)[0] if isinstance(iteration, Prompts) else None)
    assert done == [(1, 60), (2, 60), (3, 60), None, (4, 60), (5, 128), None, (5, 172)]
    model.drain()


def first_chunk(model: Model) -> Any:
    """The first chunk of the launch that is next."""
    return model.iteration().chunks[0]


def test_a_prefix_is_found_while_its_first_request_decodes_and_after() -> None:
    model = Model(CODE, Policy(512, 64), Pool.empty(4, 40, 1000))
    prompt = [*range(200)]
    model.submit(0, prompt, 3)
    assert first_chunk(model).first == 0
    assert isinstance(model.iteration(), Decode)
    model.submit(1, [*prompt[:150], *range(9)], 3)
    assert (chunk := first_chunk(model)).first == 2 * PAGE_TOKENS and chunk.request.cached == 2 * PAGE_TOKENS
    assert chunk.request.pages[:2] == model.state.running[0].pages[:2]
    model.drain()
    for ids, found in ((prompt, 3), (prompt[:192], 2), (prompt[:193], 3), (prompt[1:], 0)):  # one token at least is computed
        model.submit(2, ids, 1)
        assert first_chunk(model).first == found * PAGE_TOKENS
        model.drain()


def test_pages_without_a_key_go_first_and_then_the_oldest_prefix_from_its_end() -> None:
    order_of_eviction(CODE)


def test_details_of_a_pool() -> None:
    details(CODE)


def test_what_goes_wrong_leaves_nothing_in_the_cache() -> None:
    model = Model(CODE, Policy(64, 64), Pool.empty(4, 40, 1000))
    for number, wrong in ((0, True), (1, False)):
        model.submit(number, range(200), 3)
        model.iteration()
        model.cancel(number, wrong=wrong)
        model.submit(number + 10, range(200), 3)
        assert first_chunk(model).first == (0 if wrong else 64)
        model.cancel(number + 10, wrong=True)


@pytest.mark.parametrize(
    "request_", [Request(0, 0, 1), Request(0, 1, 0), Request(0, 60, 5)], ids=["no prompt", "no tokens", "too long"]
)
def test_what_can_never_run_does_not_fit(request_: Request) -> None:
    for memory in (ContiguousRows(2, 64), Pool.empty(2, 6, 1000, parking=2, page_tokens=16, item_tokens=32)):
        assert memory.longest == 64
        assert not fits(request_, memory)
        assert fits(replace(request_, prompt=60, max_tokens=4), memory)


def test_states_do_not_change() -> None:
    """Whoever keeps a state can go on from it as if nothing had been done since."""
    model = Model(CODE, Policy(8, 4), Pool.empty(3, 20, 100, page_tokens=4, item_tokens=8))
    states: list[tuple[Any, str]] = []
    for number in range(4):
        model.submit(number, [number % 2] * 9, 3)
        for _ in range(3):
            states.append((model.state, repr(model.state)))
            model.iteration()
    states.append((without(model.state, 2), repr(without(model.state, 2))))
    assert len({text for _, text in states}) == len(states)
    model.drain()
    assert all(repr(state) == text for state, text in states)
