"""Planted mistakes in the scheduler, the pool and its keys: the model of `scheduler_model` finds each of them."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any, Final

import pytest
from scheduler_model import Code
from scheduler_search import details, explore, order_of_eviction, walk

MISTAKES: Final = {
    # Of the scheduler.
    "a step does not allow more prompts": ("scheduler", "replace(state, budget=policy.chunk_tokens), Decode", "state, Decode"),
    "prompts are unbounded": (
        "scheduler",
        "policy, state.budget if state.running else policy.chunk_tokens)",
        "policy, policy.chunk_tokens)",
    ),
    "a first chunk costs nothing": (
        "scheduler",
        "prompts=prompts, budget=max(0, state.budget - chunk.tokens)",
        "prompts=prompts",
    ),
    "a last chunk costs nothing": (
        "scheduler",
        "one.row: one}, budget=max(0, state.budget - chunk.tokens),\n",
        "one.row: one},\n",
    ),
    "prompts are divided anywhere": ("scheduler", "(prompt.done + left) // cut * cut - prompt.done", "left"),
    "only the prompt has pages": ("scheduler", "request.prompt + request.max_tokens, reusable", "request.prompt, reusable"),
    "a whole prompt is reused": ("scheduler", "(request.prompt - 1) // state.memory", "request.prompt // state.memory"),
    "a prefix is computed again": ("scheduler", "grant.pages, grant.cached, grant.cached)", "grant.pages, grant.cached, 0)"),
    "a page is shared before it is full": (
        "scheduler",
        "done // memory.page_tokens, done // memory.page_tokens",
        "done // memory.page_tokens, -(-done // memory.page_tokens)",
    ),
    "a prompt in parts is not shared": (
        "scheduler",
        "memory = _shared(state.memory, chunk.request, prompt.done)",
        "memory = state.memory",
    ),
    "the largest row is taken": ("scheduler", "row = min(state.free_rows)", "row = max(state.free_rows)"),
    "a row is not freed": ("scheduler", "free_rows=state.free_rows | rows", "free_rows=state.free_rows"),
    "pages are not freed": ("scheduler", "        memory = memory.freed(one.pages, forget=forget)", "        pass"),
    "what went wrong is read": ("scheduler", "memory.freed(one.pages, forget=forget)", "memory.freed(one.pages)"),
    "a prompt that is cancelled goes on": (
        "scheduler",
        "_freed(replace(state, prompts=prompts), gone",
        "_freed(state, gone",
    ),
    "a token too many": ("scheduler", "chunk.request.request.max_tokens - 1)", "chunk.request.request.max_tokens)"),
    "a token too few after a step without one": (
        "scheduler",
        "last=state.running[row].last + 1",
        "last=state.running[row].last",
    ),
    "a guess is in a row of the prompt": (
        "scheduler",
        "tuple(sorted(state.free_rows)) if",
        "tuple(set(range(state.memory.rows)) - set(state.running)) if",
    ),
    "a guess that is right is not counted": (
        "scheduler",
        "last=state.running[row].last - tokens",
        "last=state.running[row].last",
    ),
    "a row that is free is not spare": ("scheduler", "sorted(state.free_rows)", "sorted(state.free_rows)[1:]"),
    "a stop token is ignored": ("scheduler", "one.last <= steps or one.row in stopped", "one.last <= steps"),
    "a stop token of a prompt is ignored": ("scheduler", "[one.row] if stops else []", "[]"),
    "one more is overtaken": ("scheduler", "one.overtaken >= patience", "one.overtaken > patience"),
    "nobody counts": ("scheduler", "overtaken=one.overtaken + 1", "overtaken=one.overtaken"),
    "priorities are reversed": (
        "scheduler",
        "key=lambda index: (waiting[index].request.priority",
        "key=lambda index: (-waiting[index].request.priority",
    ),
    "a launch has a prompt too many": ("scheduler", "len(chunks) < policy.prompts", "len(chunks) <= policy.prompts"),
    "a launch has one prompt": ("scheduler", "left and len(chunks) < policy.prompts", "left and not chunks"),
    "the tokens of a launch are unbounded": ("scheduler", "        left -= tokens\n", ""),
    "the slots of a launch are unbounded": ("scheduler", "or (chunks and slots > policy.slots)", ""),
    "the slots of a prompt are not whole": ("scheduler", "-(-end // policy.prompt_slots) * policy.prompt_slots", "end"),
    "a prompt begins before the one in front ends": (
        "scheduler",
        "if not chunks[-1].last:\n            break",
        "if not chunks[-1].last:\n            pass",
    ),
    "a prefix is computed twice in a launch": ("scheduler", "if not pending.isdisjoint(reusable):", "if False:"),
    "a prefix that is there keeps others waiting": (
        "scheduler",
        "prompt.request.keys[prompt.done // state.memory.page_tokens :]",
        "prompt.request.keys",
    ),
    "a prompt that ended is computed again": (
        "scheduler",
        "prompts=tuple(other for other in state.prompts if other is not chunk.request)",
        "prompts=state.prompts",
    ),
    # Of the pool.
    "free pages that are hits count twice": ("pool", "len(hits) > self.free - idle", "len(hits) > self.free"),
    "partial sums are not counted": ("pool", " or items > self.items", ""),
    "partial sums are lost": ("pool", "self.items + -(-len(pages) * self.page_tokens // self.item_tokens)", "self.items"),
    "a reader is not counted": ("pool", "Page(page.key, page.readers + 1)", "Page(page.key, max(1, page.readers))"),
    "a hit stays free": ("pool", "if page.readers == 0:\n            self._unlink(number)", "if False:\n            pass"),
    "a page that has readers is freed": ("pool", "if page.readers == 1:", "if page.readers >= 1:"),
    "a page that is free is lost": ("pool", "if page.readers == 1:", "if page.readers == 2:"),
    "a page keeps the key of another": ("pool", "            self.forget(following)\n", ""),
    "a forgotten page stays in the index": (
        "pool",
        "tuple(one for one in self._bucket(page.key) if one != number)",
        "self._bucket(page.key)",
    ),
    "two pages have a key": ("pool", "if not any(self._page(other).key == key for other in bucket):", "if True:"),
    "a gap in a prefix is skipped": ("pool", "                break\n", "                continue\n"),
    "the youngest prefix goes first": (
        "pool",
        "self._link(keyed, self._page(self._pool.end).before)",
        "self._link(keyed, self._pool.end)",
    ),
    "pages without a key go last": (
        "pool",
        "self._link(unkeyed, self._pool.end)",
        "self._link(unkeyed, self._page(self._pool.end).before)",
    ),
    "a prefix goes from its begin": ("pool", "for number in reversed(numbers):", "for number in numbers:"),
    "what went wrong keeps its keys": ("pool", "                draft.forget(page)", "                pass"),
    "a page of parking is free": ("pool", "ring[:parking] = [Page()] * parking", "parking = 0"),
    "the end of the ring is lost": ("pool", "numbers[index + 1] if index + 1 < len(numbers) else after", "after"),
    "the page after is lost": ("pool", "Page(page.key, 0, numbers[-1], page.after)", "page"),
    "one page more counts as free": ("pool", "        self._free -= count\n", "        self._free -= count - 1\n"),
    "a page is taken twice": ("pool", "            following = page.after\n", ""),
    "pages that are taken stay free": ("pool", "        self._join(end, following)\n", ""),
    # Of the keys.
    "a key is that of one page alone": ("keys", "hashlib.sha256(key + data[start", "hashlib.sha256(data[start"),
    "a page that is not full has a key": ("keys", "len(data) - size + 1", "len(data)"),
}
"""By what is wrong: the module, what stands in it, and what stands there instead."""


def planted(module: str, right: str, wrong: str) -> ModuleType:
    """A copy of a module with a mistake."""
    original: Any = importlib.import_module(f"engine.serving.{module}")
    with open(original.__file__, encoding="utf-8") as file:
        source = file.read()
    assert source.count(right) >= 1, "the mistake has nowhere to go"
    copy = ModuleType(f"planted_{module}")
    sys.modules[copy.__name__] = copy  # dataclasses look their own module up
    try:
        exec(compile(source.replace(right, wrong), original.__file__, "exec"), copy.__dict__)
    finally:
        del sys.modules[copy.__name__]
    return copy


def search(code: Code) -> None:
    """All that could find a mistake; AssertionError if something does."""
    order_of_eviction(code)
    details(code)
    for seed in range(6):
        walk(code, seed)
    for kind in ("contiguous", "pool", "narrow"):
        explore(code, kind, 200)


def test_without_a_mistake_nothing_is_found() -> None:
    search(Code())


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_is_found(what: str) -> None:
    module, right, wrong = MISTAKES[what]
    code = replace(Code(), **{module: planted(module, right, wrong)})
    with pytest.raises((AssertionError, ValueError, IndexError, KeyError)):
        search(code)
