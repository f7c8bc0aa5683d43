"""Continuous batching: which prompt is prefilled, and when a step decodes. Pure functions from state to state: no I/O, no
clock.

    state = submit(state, request)             a request waits
    state, iteration = plan(state, policy)     what to do now: a chunk of a prompt, a decode step, or nothing
    state = advanced(state, iteration)         a chunk was done
    state = generated(state, stopped)          tokens arrived, some of which end their request
    state = without(state, number)             a request was cancelled

What holds after each of them:

1. A row or a page is free or has one owner, and none is lost.
2. A request that was admitted never waits for memory again: it has the pages for its prompt and all tokens that it may
   generate.
3. Between two decode steps at most one chunk of `chunk_tokens` prompt tokens is computed: the bound on the time between tokens.
   And no two decode steps follow each other while there is a prompt to compute, so prompts do not wait for generations either.
4. Chunks begin at multiples of `chunk_tokens` of their prompt. So how a prompt is computed does not depend on other requests.
5. Of two requests of one priority the earlier one is admitted first. A request with a lower number of priority overtakes
   others, each of them at most `patience` times. Then the overtaken go before anything else, and what they need is kept for
   them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from engine.serving.memory import Memory


@dataclass(frozen=True, slots=True)
class Policy:
    """Constants of the scheduler. `chunk_tokens`: tokens of a chunk of a prompt. `patience`: how often a request is
    overtaken."""

    memory: Memory
    chunk_tokens: int
    patience: int = 16


@dataclass(frozen=True, slots=True)
class Request:
    """What the scheduler knows of a request: a number of its own, the tokens of its prompt, the most that it may generate (both
    positive), and its priority; a lower one goes first."""

    number: int
    prompt: int
    max_tokens: int
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request without memory. `overtaken`: how many later requests were admitted before it."""

    request: Request
    overtaken: int = 0


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request with a row and pages. `done`: tokens of its prompt that are computed. `generated`: tokens after it."""

    request: Request
    row: int
    pages: frozenset[int]
    done: int = 0
    generated: int = 0


@dataclass(frozen=True, slots=True)
class State:
    """All requests: those that wait, in the order in which they came; the one whose prompt is computed; those that decode.
    `decode_first`: whether a decode step is due before the next chunk."""

    free_rows: frozenset[int]
    free_pages: frozenset[int]
    waiting: tuple[Waiting, ...] = ()
    prompt: Admitted | None = None
    running: tuple[Admitted, ...] = ()
    decode_first: bool = False

    @classmethod
    def empty(cls, memory: Memory) -> State:
        """The state without requests."""
        return cls(frozenset(range(memory.rows)), frozenset(range(memory.pages)))


@dataclass(frozen=True, slots=True)
class Chunk:
    """Compute `tokens` tokens of a prompt from `first` on; with `last`, take the sequence into its row and choose a token."""

    number: int
    row: int
    first: int
    tokens: int
    last: bool


@dataclass(frozen=True, slots=True)
class Decode:
    """Compute a token of each of the sequences in these rows."""

    rows: Mapping[int, int]
    """Number of a request, by row."""


@dataclass(frozen=True, slots=True)
class Idle:
    """There is nothing to do until a request comes."""


Iteration = Chunk | Decode | Idle


def fits(request: Request, memory: Memory) -> bool:
    """Whether a request can be admitted at all; one that does not fit must not be submitted."""
    return request.prompt > 0 and request.max_tokens > 0 and request.prompt + request.max_tokens <= memory.longest


def submit(state: State, request: Request) -> State:
    """The state with one more request that waits."""
    return replace(state, waiting=(*state.waiting, Waiting(request)))


def plan(state: State, policy: Policy) -> tuple[State, Iteration]:
    """What to do now, and the state in which a request may have been admitted for it. The caller does it, then says so with
    `advanced` or `generated`."""
    if state.prompt is None:
        state = _admitted(state, policy)
    prompt, rows = state.prompt, {one.row: one.request.number for one in state.running}
    if rows and (prompt is None or state.decode_first):
        return replace(state, decode_first=False), Decode(rows)
    if prompt is None:
        return state, Idle()
    tokens = min(policy.chunk_tokens, prompt.request.prompt - prompt.done)
    last = prompt.done + tokens == prompt.request.prompt
    return state, Chunk(prompt.request.number, prompt.row, prompt.done, tokens, last)


def advanced(state: State, chunk: Chunk) -> State:
    """The state after a chunk; nothing changes if its request is gone. The token that the last chunk chose is reported by
    `generated`."""
    prompt = state.prompt
    if prompt is None or prompt.request.number != chunk.number:
        return state
    prompt = replace(prompt, done=chunk.first + chunk.tokens)
    if chunk.last:
        return replace(state, prompt=None, running=(*state.running, prompt), decode_first=True)
    return replace(state, prompt=prompt, decode_first=True)


def generated(state: State, stopped: Mapping[int, bool]) -> tuple[State, dict[int, str]]:
    """The state after a token of each request in `stopped`, which says whether the token ends it. Second: why requests ended,
    by number: `stop`, or `length` after the most tokens that they may generate."""
    ended: dict[int, str] = {}
    running: list[Admitted] = []
    gone: list[Admitted] = []
    for one in state.running:
        number = one.request.number
        if number in stopped:
            one = replace(one, generated=one.generated + 1)
            if stopped[number] or one.generated == one.request.max_tokens:
                ended[number] = "stop" if stopped[number] else "length"
        (gone if number in ended else running).append(one)
    return _freed(replace(state, running=tuple(running)), gone), ended


def without(state: State, number: int) -> State:
    """The state without a request, whatever it was doing; unchanged if there is none of this number."""
    prompt = state.prompt
    if prompt is not None and prompt.request.number == number:
        return _freed(replace(state, prompt=None), [prompt])
    gone = [one for one in state.running if one.request.number == number]
    running = tuple(one for one in state.running if one.request.number != number)
    waiting = tuple(one for one in state.waiting if one.request.number != number)
    return _freed(replace(state, waiting=waiting, running=running), gone)


def _admitted(state: State, policy: Policy) -> State:
    """The state in which the request that is next has its row and pages; unchanged if none waits, or while the next one does
    not fit: what is free is then kept for it."""
    if not state.waiting or not state.free_rows:
        return state
    index = _next(state.waiting, policy.patience)
    request = state.waiting[index].request
    for row in sorted(state.free_rows):
        pages = policy.memory.grant(row, request.prompt + request.max_tokens, state.free_pages)
        if pages is not None:
            earlier = [replace(one, overtaken=one.overtaken + 1) for one in state.waiting[:index]]
            return replace(
                state, waiting=(*earlier, *state.waiting[index + 1 :]), prompt=Admitted(request, row, pages),
                free_rows=state.free_rows - {row}, free_pages=state.free_pages - pages,
            )  # fmt: skip
    return state


def _next(waiting: tuple[Waiting, ...], patience: int) -> int:
    """The index of the request to admit: the first that was overtaken often enough, else the first of the lowest priority."""
    for index, one in enumerate(waiting):
        if one.overtaken >= patience:
            return index
    return min(range(len(waiting)), key=lambda index: (waiting[index].request.priority, index))


def _freed(state: State, gone: Iterable[Admitted]) -> State:
    """The state with the rows and pages of requests that are gone."""
    rows, pages = state.free_rows, state.free_pages
    for one in gone:
        rows, pages = rows | {one.row}, pages | one.pages
    return replace(state, free_rows=rows, free_pages=pages)
