"""The scheduler as a model: whatever requests come, end and are cancelled, nothing is lost, shared or starved.

`Model` keeps what happened itself, and compares each decision with the rules in the scheduler's docstring. It is driven at
random by hypothesis, and through every order of a few operations.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Set
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.serving.memory import PAGE_TOKENS, ContiguousRows, Memory
from engine.serving.scheduler import (
    Admitted,
    Chunk,
    Decode,
    Idle,
    Iteration,
    Policy,
    Request,
    State,
    advanced,
    fits,
    generated,
    plan,
    submit,
    without,
)


@dataclass(frozen=True)
class AnyPages:
    """Memory in which any free pages do, as a cache of pages would have it."""

    rows: int
    pages: int

    @property
    def longest(self) -> int:
        return self.pages * PAGE_TOKENS

    def grant(self, row: int, tokens: int, free: Set[int]) -> frozenset[int] | None:
        needed = -(-tokens // PAGE_TOKENS)
        return frozenset(sorted(free)[:needed]) if needed <= len(free) else None


@dataclass
class Known:
    """What the model knows of a request."""

    request: Request
    computed: int = 0
    tokens: int = 0
    admitted: bool = False
    overtaken: int = 0


@dataclass
class Model:
    """A scheduler's state, and what is known of it without the scheduler."""

    policy: Policy
    state: State = field(init=False)
    known: dict[int, Known] = field(default_factory=dict[int, Known])
    chunks_since_decode: int = 0
    last: Iteration = field(default_factory=Idle)

    def __post_init__(self) -> None:
        self.state = State.empty(self.policy.memory)

    def submit(self, request: Request) -> None:
        assert fits(request, self.policy.memory)
        self.known[request.number] = Known(request)
        self.state = submit(self.state, request)
        self.check()

    def cancel(self, number: int) -> None:
        self.known.pop(number, None)
        self.state = without(self.state, number)
        self.check()

    def iteration(self, stops: Iterable[int] = ()) -> Iteration:
        """One iteration; requests in `stops` get a token that ends them, if they get one."""
        before = self.state
        self.state, iteration = plan(self.state, self.policy)
        self._check_admission(before)
        match iteration:
            case Chunk():
                self._chunk(iteration, set(stops))
            case Decode():
                self._decode(iteration, set(stops))
            case Idle():
                assert not self.known, "requests, and nothing is done"
        self.last = iteration
        self.check()
        return iteration

    def drain(self) -> None:
        """Turns until no request is left, no more than the requests have chunks and tokens."""
        size = self.policy.chunk_tokens
        left = sum(
            -(-(one.request.prompt - one.computed) // size) + one.request.max_tokens - one.tokens for one in self.known.values()
        )
        for _ in range(left):
            if not self.known:
                break
            self.iteration()
        assert not self.known, "a request does not end"
        assert self.state == replace(State.empty(self.policy.memory), decode_first=self.state.decode_first)

    def check(self) -> None:
        """Rows and pages are free or have one owner; requests are where they belong."""
        state, memory = self.state, self.policy.memory
        owners = [*state.running, *([state.prompt] if state.prompt else [])]
        rows = [*state.free_rows, *(one.row for one in owners)]
        assert sorted(rows) == list(range(memory.rows)), "a row is lost, or has two owners"
        pages = [*state.free_pages, *itertools.chain(*(one.pages for one in owners))]
        assert sorted(pages) == list(range(memory.pages)), "a page is lost, or has two owners"
        numbers = [*(one.request.number for one in owners), *(one.request.number for one in state.waiting)]
        assert sorted(numbers) == sorted(self.known), "a request is lost, or there twice"
        for one in owners:
            needed = one.request.prompt + one.request.max_tokens
            assert len(one.pages) * PAGE_TOKENS >= needed, "a request has too few pages for what it may need"
            known = self.known[one.request.number]
            assert (one.done, one.generated) == (known.computed, known.tokens)

    def _check_admission(self, before: State) -> None:
        """At most one request was admitted, and nobody was overtaken too often by it."""
        now = self.state.prompt
        if now is None or (before.prompt is not None and before.prompt.request == now.request):
            return
        assert before.prompt is None, "a prompt was given up for another"
        admitted = self.known[now.request.number]
        earlier = [
            one for one in self.known.values() if not one.admitted and one.request.number < admitted.request.number
        ]  # numbers rise
        for one in earlier:
            one.overtaken += 1
            assert one.overtaken <= self.policy.patience, "a request was overtaken too often"
            assert one.request.priority > now.request.priority, "a request was overtaken by one that may not"
        admitted.admitted = True

    def _chunk(self, iteration: Chunk, stops: set[int]) -> None:
        one = self.known[iteration.number]
        assert iteration.first == one.computed and iteration.first % self.policy.chunk_tokens == 0
        assert iteration.tokens == min(self.policy.chunk_tokens, one.request.prompt - iteration.first) > 0
        if self.state.running:
            self.chunks_since_decode += 1
            assert self.chunks_since_decode <= 1, "two chunks between two tokens"
        one.computed += iteration.tokens
        assert iteration.last == (one.computed == one.request.prompt)
        self.state = advanced(self.state, iteration)
        if iteration.last:
            self._tokens([iteration.number], stops)

    def _decode(self, iteration: Decode, stops: set[int]) -> None:
        if self.state.prompt is not None:
            assert not isinstance(self.last, Decode), "a prompt waits for more than one step"
        running = {one.row: one.request.number for one in self.state.running}
        assert iteration.rows == running and running, "a step leaves a row out"
        self.chunks_since_decode = 0
        self._tokens(iteration.rows.values(), stops)

    def _tokens(self, numbers: Iterable[int], stops: set[int]) -> None:
        got = list(numbers)
        self.state, ended = generated(self.state, {number: number in stops for number in got})
        for number in got:
            one = self.known[number]
            one.tokens += 1
            assert one.tokens <= one.request.max_tokens
            reason = "stop" if number in stops else "length" if one.tokens == one.request.max_tokens else None
            assert ended.get(number) == reason
            if reason is not None:
                del self.known[number]
        assert set(ended) <= set(got)


MEMORIES: tuple[Memory, ...] = (ContiguousRows(2, 3 * PAGE_TOKENS), ContiguousRows(4, 100), AnyPages(3, 5))


class Random(RuleBasedStateMachine):
    """Requests that come, iterations, tokens that end requests, cancellations, in any order."""

    @initialize(memory=st.sampled_from(MEMORIES), chunk=st.sampled_from([1, 16, 64]), patience=st.sampled_from([0, 1, 3]))
    def begin(self, memory: Memory, chunk: int, patience: int) -> None:
        self.model = Model(Policy(memory, chunk, patience))
        self.numbers = itertools.count()

    @rule(prompt=st.integers(1, 320), tokens=st.integers(1, 40), priority=st.integers(-1, 2))
    def submit(self, prompt: int, tokens: int, priority: int) -> None:
        prompt = min(prompt, self.model.policy.memory.longest - tokens)
        self.model.submit(Request(next(self.numbers), prompt, tokens, priority))

    @rule(stops=st.sets(st.integers(0, 30), max_size=4))
    def iteration(self, stops: set[int]) -> None:
        self.model.iteration(stops)

    @precondition(lambda self: self.model.known)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.model.cancel(data.draw(st.sampled_from(sorted(self.model.known))))

    @rule()
    def cancel_unknown(self) -> None:
        before = self.model.state
        self.model.cancel(-1)
        assert self.model.state == before

    @invariant()
    def nothing_is_lost(self) -> None:
        if hasattr(self, "model"):
            self.model.check()

    def teardown(self) -> None:
        if hasattr(self, "model"):
            self.model.drain()


Random.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None, derandomize=True)
test_random_requests = Random.TestCase


SMALL = (Request(0, 5, 2, 1), Request(1, 1, 1), Request(2, 4, 3), Request(3, 2, 2, 1))
"""Requests of which all orders are tried: of one chunk to three, one token to three, two priorities."""


@pytest.mark.parametrize("memory", [ContiguousRows(2, 8), AnyPages(2, 1)], ids=["contiguous", "pages"])
def test_every_order_of_a_few_operations(memory: Memory) -> None:
    """Every state that two rows and four requests reach: each may come, be cancelled or end by a stop token at any time."""
    policy = Policy(memory, chunk_tokens=2, patience=1)
    seen: set[tuple[State, int, int, type[Iteration]]] = set()
    waiting: list[tuple[Model, int]] = [(Model(policy), 0)]
    while waiting:
        model, came = waiting.pop()
        key = model.state, came, model.chunks_since_decode, type(model.last)
        if key in seen:
            continue
        seen.add(key)
        _copy(model).drain()
        some = [(), tuple(model.known), *((number,) for number in model.known)]
        following = [_done(model, "iteration", stops) for stops in some] if model.known else []
        following += [_done(model, "cancel", number) for number in model.known]
        waiting += [(one, came) for one in following]
        if came < len(SMALL):
            waiting.append((_done(model, "submit", SMALL[came]), came + 1))
    assert len(seen) > 100


def _copy(model: Model) -> Model:
    other = Model(model.policy)
    other.state, other.chunks_since_decode, other.last = model.state, model.chunks_since_decode, model.last
    other.known = {number: replace(one) for number, one in model.known.items()}
    return other


def _done(model: Model, operation: str, value: object) -> Model:
    other = _copy(model)
    getattr(other, operation)(value)
    return other


def test_a_flood_of_urgent_requests_does_not_starve_another() -> None:
    model = Model(Policy(ContiguousRows(2, 64), chunk_tokens=64, patience=5))
    model.submit(Request(0, 8, 2, priority=9))
    order: list[int] = []
    for number in range(1, 40):
        model.submit(Request(number, 8, 2))
        iteration = model.iteration()
        if isinstance(iteration, Chunk) and iteration.first == 0:
            order.append(iteration.number)
    assert order.index(0) == 5
    model.drain()


def test_what_is_free_is_kept_for_a_large_request() -> None:
    """Small requests that came later would fit; the large one that is next waits, and then gets all of it."""
    model = Model(Policy(AnyPages(4, 4), chunk_tokens=64))
    model.submit(Request(0, 8, 2))
    model.iteration()
    model.submit(Request(1, 4 * PAGE_TOKENS - 4, 4))
    model.submit(Request(2, 8, 2))
    assert isinstance(model.iteration(), Decode)
    iteration = model.iteration()
    assert isinstance(iteration, Chunk) and iteration.number == 1
    model.drain()


def test_a_long_prompt_and_a_generation_alternate() -> None:
    model = Model(Policy(ContiguousRows(2, 640), chunk_tokens=64))
    model.submit(Request(0, 8, 30))
    model.iteration()
    model.submit(Request(1, 320, 8))
    kinds = [type(model.iteration()).__name__ for _ in range(10)]
    assert kinds == ["Decode", "Chunk"] * 5
    model.drain()


@pytest.mark.parametrize(
    "request_", [Request(0, 0, 1), Request(0, 1, 0), Request(0, 60, 5)], ids=["no prompt", "no tokens", "too long"]
)
def test_what_can_never_run_does_not_fit(request_: Request) -> None:
    assert not fits(request_, ContiguousRows(2, 64))
    assert fits(replace(request_, prompt=60, max_tokens=4), ContiguousRows(2, 64))


class TwoOwners(AnyPages):
    """Planted mistake: pages that may be another's."""

    def grant(self, row: int, tokens: int, free: Set[int]) -> frozenset[int] | None:
        return frozenset({0})


def test_the_model_sees_a_page_with_two_owners() -> None:
    model = Model(Policy(TwoOwners(2, 4), chunk_tokens=8))
    model.submit(Request(0, 4, 4))
    model.iteration()
    model.submit(Request(1, 4, 4))
    with pytest.raises(AssertionError, match="two owners"):
        for _ in range(4):
            model.iteration()


def test_the_model_sees_a_row_that_is_not_freed() -> None:
    model = Model(Policy(ContiguousRows(2, 64), chunk_tokens=8))
    model.submit(Request(0, 4, 4))
    model.iteration()
    kept = model.state.running[0]
    model.state = replace(model.state, running=())
    assert isinstance(kept, Admitted)
    with pytest.raises(AssertionError, match="a row is lost"):
        model.check()
