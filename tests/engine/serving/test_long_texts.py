"""Long texts and lists do not stop what else the server does."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from in_process import Received, says, server

from engine.models.families import family_of
from engine.serving.errors import ApiError
from engine.serving.openai_types import MOST_CHOICES, CompletionRequest
from engine.serving.served_model import LONG_TEXT as LONG_PROMPT
from engine.text.control_tokens import LONG_TEXT
from engine.text.tokenizer import Text

HANG_SECONDS = 60


@pytest.fixture(scope="module")
def text(tiny: Path) -> Text:
    return Text.read(tiny, family_of("qwen3").tokenizer)


def test_other_threads_run_while_a_long_text_is_encoded(text: Text) -> None:
    """Python changes to another thread only where one waits, or where the library lets it."""
    begun, done = threading.Event(), list[int]()

    def encode() -> None:
        begun.set()
        done.append(len(text.raw("the sky is " * 200_000)))

    before = sys.getswitchinterval()
    sys.setswitchinterval(HANG_SECONDS)
    try:
        thread = threading.Thread(target=encode)
        thread.start()
        assert begun.wait(HANG_SECONDS)
        assert not done
    finally:
        sys.setswitchinterval(before)
    thread.join()
    assert done == [600_001]


@pytest.mark.parametrize("control", [True, False])
def test_a_long_text_has_the_tokens_of_its_parts(text: Text, control: bool) -> None:
    part = "the sky <|im_end|>\u00e9\U0001f389 is"
    times = LONG_TEXT // len(part) + 1
    separate = text.raw(part, allow_control_tokens=control)
    assert text.raw(part * times, allow_control_tokens=control) == separate * times


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_long_prompt_delays_no_short_one(talker: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The long one is not done before the short one is."""
    one, released = server(talker, says(talker, "x")), threading.Event()
    name = "raw" if path == "/v1/completions" else "chat"
    tokenized = getattr(one.model.text, name)

    def delayed(value: Any, **keywords: Any) -> list[int]:
        if len(str(value)) >= LONG_PROMPT:
            assert released.wait(HANG_SECONDS)
        return tokenized(value, **keywords)

    monkeypatch.setattr(one.model.text, name, delayed)

    async def run() -> tuple[Received, Received]:
        def asked(text: str) -> Any:
            fields = {"prompt": text} if name == "raw" else {"messages": [{"role": "user", "content": text}]}
            return one.ask(path, fields | {"max_tokens": 1})

        try:
            long = asyncio.ensure_future(asked("the " * (LONG_PROMPT // 4)))
            await asyncio.sleep(0)
            async with asyncio.timeout(HANG_SECONDS / 2):
                short = await asked("the")
            assert not long.done()
        finally:
            released.set()
        return short, await long

    short, long = asyncio.run(run())
    one.model.close()
    assert (short.status, long.status, long.error["code"]) == (200, 400, "context_length_exceeded")


def test_too_many_prompts_are_refused_before_each_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(msgspec, "convert", Mock(side_effect=AssertionError))
    for one in ("a", [1], {}):
        with pytest.raises(ApiError, match=f"{MOST_CHOICES + 1} prompts are over {MOST_CHOICES}"):
            _ = CompletionRequest(prompt=[one] * (MOST_CHOICES + 1)).prompts
