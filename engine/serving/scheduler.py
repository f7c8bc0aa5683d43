"""Continuous batching: which prompt is computed, and when a step decodes. Pure functions from state to state: no I/O, no clock.

    state = submit(state, request)               a request waits
    state, iteration = plan(state, policy)       what to do now: chunks of prompts, a decode step, or nothing
    state = advanced(state, chunk)               a chunk was done that is not the last of its prompt
    state, ended = joined(state, chunk, ...)     the last chunk of a prompt was done and chose a token
    state, ended = decoded(state, ...)           a decode step was done
    state = without(state, number)               a request was cancelled, or went wrong

What holds after each of them:

1. A row has one owner or is free, and so has a page, except full pages of prompts: those may have several readers, and nobody
   writes them again. None is lost.
2. A request that was admitted never waits for memory again: it has the pages for its prompt and all tokens that it may
   generate. So nobody is preempted, and the tokens of a request never have to be computed twice.
3. Between two decode steps at most `chunk_tokens` tokens of prompts are computed, of one prompt or several: the bound on the
   time between tokens. No two decode steps follow each other while there is a prompt to compute: prompts do not wait for
   generations either. A launch has at most `launch.tokens` of them, so that several may come between two steps.
4. A chunk that is not the last of its prompt ends at a multiple of `cut_tokens` in it. If that is `chunk_tokens`, chunks
   do not depend on other requests.
5. Of two requests of one priority the earlier one is admitted first. A request with a lower number of priority overtakes
   others, each of them at most `patience` times. Then the overtaken go before anything else, and what they need is kept for
   them.
6. A step may process guesses of next tokens in rows that are free, and in no others: a guess keeps nobody waiting.
7. Of a prompt, pages that the memory has from other prompts are not computed again, but at least its last token is. So a prompt
   that begins as another one of the same launch waits for that.
8. The chunks of one launch are of different prompts, in the order in which they were admitted. All but the last one end theirs,
   and a request is admitted only once those before it end in this launch.

A decode step costs no work for requests that go on: only the number of steps changes, and each request knows the step at which
it has all its tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from engine.launch_limits import Filling, LaunchLimits
from engine.serving.memory import Memory

ONE_PROMPT: Final = LaunchLimits()
"""Limits of launches with one prompt each, of any length."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Constants of the scheduler. `chunk_tokens`: most tokens of prompts between two decode steps, in one launch or several.
    `cut_tokens`, at most as many, and as a launch has: where a prompt may be divided. `patience`: how often a request is
    overtaken. `guesses`: most guesses of a request in one step. `launch`: what one launch of prompts has at most."""

    chunk_tokens: int
    cut_tokens: int
    patience: int = 16
    guesses: int = 0
    launch: LaunchLimits = ONE_PROMPT


@dataclass(frozen=True, slots=True)
class Request:
    """What the scheduler knows of a request: a number of its own, the tokens of its prompt, the most that it may generate (both
    positive), its priority, a lower one goes first, and the keys of its prompt's full pages (none: they are not shared)."""

    number: int
    prompt: int
    max_tokens: int
    priority: int = 0
    keys: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request without memory. `overtaken`: how many later requests were admitted before it."""

    request: Request
    overtaken: int = 0


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request with a row and pages, in the order of its tokens. `cached`: tokens of its prompt that the memory had. `done`:
    tokens of its prompt that need not be computed any more. `last`: the decode step with its last token, by `State.steps`."""

    request: Request
    row: int
    pages: tuple[int, ...]
    cached: int
    done: int
    last: int = 0


@dataclass(frozen=True, slots=True)
class State:
    """All requests: those that wait, in the order in which they came; those whose prompts are computed, in the order in which
    they were admitted; those that decode, by row. `steps`: decode steps so far. `budget`: tokens of prompts that may be
    computed before the next one."""

    memory: Memory
    free_rows: frozenset[int]
    waiting: tuple[Waiting, ...] = ()
    prompts: tuple[Admitted, ...] = ()
    running: Mapping[int, Admitted] = field(default_factory=dict[int, "Admitted"])
    steps: int = 0
    budget: int = 0

    @classmethod
    def empty(cls, memory: Memory) -> State:
        """The state without requests."""
        return cls(memory, frozenset(range(memory.rows)))


@dataclass(frozen=True, slots=True)
class Chunk:
    """Compute `tokens` tokens of a prompt from `first` on; with `last`, take the sequence into its row and choose a token."""

    request: Admitted
    first: int
    tokens: int
    last: bool


@dataclass(frozen=True, slots=True)
class Prompts:
    """Compute these chunks in one launch, or at least one after the other."""

    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Decode:
    """Compute a token of each of the sequences in these rows. `spare`: rows in which guesses of their next tokens may be.
    `followed`: prompts are next, unless those that wait have no room; their launch need not wait for the step's tokens."""

    rows: Mapping[int, Admitted]
    spare: tuple[int, ...] = ()
    followed: bool = False


@dataclass(frozen=True, slots=True)
class Idle:
    """There is nothing to do until a request comes."""


Iteration = Prompts | Decode | Idle

NO_MORE: Final[Mapping[int, int]] = {}


def fits(request: Request, memory: Memory) -> bool:
    """Whether a request can be admitted at all; one that does not fit must not be submitted."""
    return request.prompt > 0 and request.max_tokens > 0 and request.prompt + request.max_tokens <= memory.longest


def submit(state: State, request: Request) -> State:
    """The state with one more request that waits."""
    return replace(state, waiting=(*state.waiting, Waiting(request)))


def plan(state: State, policy: Policy) -> tuple[State, Iteration]:
    """What to do now, and the state in which requests may have been admitted for it. The caller does it, then says so with
    `advanced` or `joined` for each chunk, or with `decoded`."""
    left = state.budget if state.running else policy.chunk_tokens
    state, chunks = _packed(state, policy, left)
    if chunks:
        return state, Prompts(chunks)
    if state.running:
        spare = tuple(sorted(state.free_rows)) if policy.guesses else ()
        followed = bool(state.prompts or (state.waiting and state.free_rows and not left))
        return replace(state, budget=policy.chunk_tokens), Decode(state.running, spare, followed)
    return state, Idle()


def advanced(state: State, chunk: Chunk) -> State:
    """The state after a chunk that is not the last of its prompt."""
    prompt = replace(chunk.request, done=chunk.first + chunk.tokens)
    memory = _shared(state.memory, chunk.request, prompt.done)
    prompts = tuple(prompt if one is chunk.request else one for one in state.prompts)
    return replace(state, memory=memory, prompts=prompts, budget=max(0, state.budget - chunk.tokens))


def joined(state: State, chunk: Chunk, *, stops: bool) -> tuple[State, dict[int, str]]:
    """The state after the last chunk of a prompt, which chose a token; `stops`: the token ends the request. Second: why it
    ended, by number, as of `decoded`."""
    one = replace(chunk.request, done=chunk.request.request.prompt, last=state.steps + chunk.request.request.max_tokens - 1)
    state = replace(
        state, memory=_shared(state.memory, chunk.request, one.done),
        prompts=tuple(other for other in state.prompts if other is not chunk.request),
        running={**state.running, one.row: one}, budget=max(0, state.budget - chunk.tokens),
    )  # fmt: skip
    return _ended(state, [one.row] if stops else [])


def left(state: State, row: int) -> int:
    """How many tokens the request in a row may still generate."""
    return state.running[row].last - state.steps


def decoded(
    state: State, stopped: Collection[int], missing: Collection[int] = (), more: Mapping[int, int] = NO_MORE
) -> tuple[State, dict[int, str]]:
    """The state after a decode step that chose a token in every row but those in `missing`, and so many `more` in some, at most
    what is left; the tokens in `stopped` rows end their requests. Second: why requests ended, by number: `stop`, or `length`
    after the most tokens that they may generate."""
    if more:
        early = {row: replace(state.running[row], last=state.running[row].last - tokens) for row, tokens in more.items()}
        state = replace(state, running={**state.running, **early})
    if missing:
        late = {row: replace(state.running[row], last=state.running[row].last + 1) for row in missing}
        state = replace(state, running={**state.running, **late})
    return _ended(replace(state, steps=state.steps + 1), stopped)


def without(state: State, number: int, *, wrong: bool = False) -> State:
    """The state without a request, whatever it was doing; unchanged if there is none of this number. If it went `wrong`, other
    requests read nothing of its pages any more."""
    gone = [one for one in state.prompts if one.request.number == number]
    if gone:
        prompts = tuple(one for one in state.prompts if one.request.number != number)
        return _freed(replace(state, prompts=prompts), gone, forget=wrong)
    gone = [one for one in state.running.values() if one.request.number == number]
    if gone:
        return _freed(state, gone, forget=wrong)
    waiting = tuple(one for one in state.waiting if one.request.number != number)
    return replace(state, waiting=waiting) if len(waiting) < len(state.waiting) else state


def _packed(state: State, policy: Policy, left: int) -> tuple[State, tuple[Chunk, ...]]:
    """The chunks of the next launch, of at most `left` tokens, and the state in which their requests are admitted."""
    chunks, launch = list[Chunk](), Filling()
    pending = set[bytes]()  # keys of pages that the launch computes
    while left and launch.prompts < policy.launch.prompts:
        if len(chunks) == len(state.prompts):
            state = _admitted(state, policy.patience, pending)
        if len(chunks) == len(state.prompts):
            break
        prompt = state.prompts[len(chunks)]
        tokens = _tokens(prompt, min(left, policy.launch.tokens - launch.tokens), policy.cut_tokens)
        end = prompt.done + tokens
        more = policy.launch.added(launch, tokens, end) if tokens else None
        if more is None:
            break
        launch = more
        chunks.append(Chunk(prompt, prompt.done, tokens, end == prompt.request.prompt))
        if not chunks[-1].last:
            break
        pending.update(prompt.request.keys[prompt.done // state.memory.page_tokens :])
        left -= tokens
    return state, tuple(chunks)


def _tokens(prompt: Admitted, left: int, cut: int) -> int:
    """How many tokens of a prompt to compute if `left` may be: all that remain, or up to a multiple of `cut`."""
    if prompt.request.prompt - prompt.done <= left:
        return prompt.request.prompt - prompt.done
    return max(0, (prompt.done + left) // cut * cut - prompt.done)


def _shared(memory: Memory, request: Admitted, done: int) -> Memory:
    """The memory once `done` tokens of a prompt are computed: the pages that became full have their keys."""
    first, last = request.done // memory.page_tokens, done // memory.page_tokens
    keys = request.request.keys[first:last]
    return memory.filled(request.pages[first : first + len(keys)], keys) if keys else memory


def _ended(state: State, stopped: Collection[int]) -> tuple[State, dict[int, str]]:
    """The state without requests whose last token is there."""
    steps = state.steps
    gone = [one for one in state.running.values() if one.last <= steps or one.row in stopped]
    if not gone:
        return state, {}
    return _freed(state, gone), {one.request.number: "stop" if one.row in stopped else "length" for one in gone}


def _admitted(state: State, patience: int, pending: set[bytes]) -> State:
    """The state in which the request that is next has its row and pages; unchanged if none waits, or while the next one does
    not fit: what is free is then kept for it. Also unchanged while pages with keys `pending` are computed that it can use."""
    if not state.waiting or not state.free_rows:
        return state
    index = _next(state.waiting, patience)
    request = state.waiting[index].request
    reusable = request.keys[: (request.prompt - 1) // state.memory.page_tokens]
    if not pending.isdisjoint(reusable):
        return state
    row = min(state.free_rows)
    found = state.memory.grant(row, request.prompt + request.max_tokens, reusable)
    if found is None:
        return state
    memory, grant = found
    earlier = [replace(one, overtaken=one.overtaken + 1) for one in state.waiting[:index]]
    return replace(
        state, waiting=(*earlier, *state.waiting[index + 1 :]), free_rows=state.free_rows - {row}, memory=memory,
        prompts=(*state.prompts, Admitted(request, row, grant.pages, grant.cached, grant.cached)),
    )  # fmt: skip


def _next(waiting: tuple[Waiting, ...], patience: int) -> int:
    """The index of the request to admit: the first that was overtaken often enough, else the first of the lowest priority."""
    for index, one in enumerate(waiting):
        if one.overtaken >= patience:
            return index
    return min(range(len(waiting)), key=lambda index: (waiting[index].request.priority, index))


def _freed(state: State, gone: Collection[Admitted], *, forget: bool = False) -> State:
    """The state with the rows and pages of requests that are gone."""
    memory, rows = state.memory, frozenset(one.row for one in gone)
    for one in gone:
        memory = memory.freed(one.pages, forget=forget)
    running = {row: one for row, one in state.running.items() if row not in rows}
    return replace(state, memory=memory, free_rows=state.free_rows | rows, running=running)
