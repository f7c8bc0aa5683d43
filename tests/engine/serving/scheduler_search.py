"""Searches for mistakes with the model of `scheduler_model`: every order of a few operations, random ones, and details of a
pool. Each takes the modules under test."""

from __future__ import annotations

import random
from typing import Any

from scheduler_model import Code, Model

from engine.serving.memory import ContiguousRows, Memory


def memory_of(code: Code, kind: str) -> Memory:
    """Small memories of each kind, by name."""
    if kind == "contiguous":
        return ContiguousRows(2, 8, 2)
    if kind == "narrow":  # partial sums run out before pages do
        return code.pool.Pool.empty(3, 9, 12, parking=1, items=4, item_tokens=4, page_tokens=2)
    return code.pool.Pool.empty(2, 7, 10, parking=1, item_tokens=4, page_tokens=2)


SMALL = (((1, 1, 1, 1, 5), 2, 1), ((1, 1, 1), 1, 0), ((1, 1, 1, 1), 3, 0), ((1, 1, 2, 2), 2, 1))
"""Prompts of which all orders are tried, most tokens, priority: of one chunk to three, alike for no page, one or two."""


def explore(code: Code, kind: str, most: int = 1_000_000) -> int:
    """Every state that two or three rows, their pages and `SMALL` reach: each request may come, be cancelled, go wrong or end
    by a stop token at any time. Returns their number; AssertionError if one is wrong."""
    contiguous = kind == "contiguous"
    launch = code.launch_limits.LaunchLimits(3, 1 if contiguous else 2, slots=7, prompt_slots=2)
    policy = code.scheduler.Policy(3 if contiguous else 4, 3 if contiguous else 2, 1, guesses=1, launch=launch)
    seen: set[Any] = set()
    waiting: list[tuple[Model, int]] = [(Model(code, policy, memory_of(code, kind), ahead=1), 0)]
    while waiting and len(seen) < most:
        model, came = waiting.pop()
        key = came, fingerprint(model)
        if key in seen:
            continue
        seen.add(key)
        model.copy().drain()
        following: list[tuple[str, Any]] = []
        if model.known:
            following += [("iteration", {"stops": stops}) for stops in [(), *((number,) for number in model.known)]]
            following += [("iteration", {"late": True})]
            following += [("iteration", {"guesses": 1, "right": right}) for right in range(2 if most > 1000 else 1)]
        following += [("cancel", {"number": number, "wrong": number == 2}) for number in model.known]
        for name, arguments in following:
            other = model.copy()
            getattr(other, name)(**arguments)
            waiting.append((other, came))
        if came < len(SMALL):
            other = model.copy()
            other.submit(came, *SMALL[came])
            waiting.append((other, came + 1))
    return len(seen)


def fingerprint(model: Model) -> Any:
    """What decides how a model goes on: equal ones need not be followed twice."""
    state = model.state
    running = tuple(sorted((row, one.request.number, one.pages, one.last - state.steps) for row, one in state.running.items()))
    return (
        state.memory, state.free_rows, state.waiting, state.prompts, running, state.budget, model.since_decode, model.last,
        model.enqueued,
        tuple(sorted(model.slots.items(), key=lambda one: one[0])),
    )  # fmt: skip


def walk(code: Code, seed: int, steps: int = 150) -> None:
    """Random operations on each kind of memory; AssertionError if one goes wrong."""
    draw = random.Random(seed)
    for kind in ("contiguous", "pool", "narrow"):
        cut = draw.choice([1, 2, 3])
        model = Model(
            code,
            code.scheduler.Policy(
                cut + draw.choice([0, 2, 9]),
                cut,
                draw.choice([0, 1, 3]),
                draw.choice([0, 3]),
                code.launch_limits.LaunchLimits(
                    draw.choice([cut, 2 * cut + 1, 1 << 30]),
                    draw.choice([1, 2, 3]),
                    draw.choice([8, 13, 100]),
                    draw.choice([1, 2, 4]),
                ),
            ),
            memory_of(code, kind),
        )
        for number in range(steps):
            what = draw.random()
            if what < 0.35:
                most = draw.randint(1, 4)
                ids = [*[draw.randint(1, 2)] * draw.randint(1, 6), *range(3, 3 + draw.randint(0, 2))]
                model.submit(number, ids[: model.memory.longest - most], most, draw.randint(0, 2))
            elif what < 0.42 and model.known:
                model.cancel(draw.choice(sorted(model.known)), wrong=draw.random() < 0.5)
            else:
                some = [one for one in model.known if draw.random() < 0.15]
                model.iteration(
                    some, some[:1] if draw.random() < 0.5 else (), guesses=draw.randint(0, 3), right=draw.randint(0, 3),
                    late=draw.random() < 0.5,
                )  # fmt: skip
        model.drain()


def order_of_eviction(code: Code) -> None:
    """Pages without a key are taken first, then the prefix that was free for the longest time, from its end."""
    pool = code.pool.Pool.empty(2, 8, 100, page_tokens=4, item_tokens=4)
    names = {letter: letter.encode() * 8 for letter in "abcde"}

    def used(pool: Any, letters: str, tokens: int) -> Any:
        found = pool.grant(0, tokens, [])
        assert found is not None
        pool, grant = found
        return pool.filled(grant.pages[: len(letters)], [names[one] for one in letters]).freed(grant.pages)

    def known(pool: Any) -> str:
        return "".join(letter for letter, key in names.items() if pool.page_of(key) is not None)

    pool = used(used(used(pool, "ab", 16), "cd", 8), "e", 8)
    assert known(pool) == "abcde"
    kept = [pool]
    for _ in range(5):
        found = kept[-1].grant(0, 4, [])
        assert found is not None
        kept.append(found[0])
    assert [known(one) for one in kept] == ["abcde", "abcde", "abcde", "abcde", "acde", "cde"]
    found = pool.grant(0, 8, [names["a"], names["b"]])  # what is used again is the youngest
    assert found is not None and found[1].cached == 8
    pool = found[0].freed(found[1].pages)
    for expected in ("abcde", "abcde", "abcde", "abce", "abe", "ab", "a", ""):
        found = pool.grant(0, 4, [])
        assert found is not None
        pool = found[0]
        assert known(pool) == expected
    assert pool.grant(0, 4, []) is None


def details(code: Code) -> None:
    """What a pool and its keys do that the scheduler's requests reach rarely or never."""
    pool = code.pool.Pool.empty(2, 8, 1000, parking=2, page_tokens=4, item_tokens=8)
    assert (pool.pages, pool.longest, pool.used) == (6, 24, 0)
    pool, all_pages = pool.grant(0, 24, [])
    assert sorted(all_pages.pages) == [2, 3, 4, 5, 6, 7] and pool.used == 6 and pool.grant(1, 1, []) is None
    pool, first = pool.freed(all_pages.pages).grant(0, 8, [])
    pool = pool.filled(first.pages, [b"first---", b"second--"]).freed(first.pages)
    pool, again = pool.grant(0, 4, [b"first---"])
    assert again == (first.pages[:1], 4)
    pool = pool.freed(again.pages, forget=True)  # the second page has its key, and nothing before it
    assert pool.found([b"first---", b"second--"]) == []
    assert pool.grant(0, 12, [b"first---", b"second--"])[1].cached == 0
    two, three = code.keys.page_keys(range(11), 4), code.keys.page_keys(range(12), 4)
    assert len(two) == 2 and len(three) == 3 and three[:2] == two and code.keys.page_keys([], 4) == ()
    assert code.keys.page_keys([0] * 8, 4)[0] != code.keys.page_keys([0] * 8, 4)[1]
