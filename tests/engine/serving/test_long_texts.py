"""Long texts and lists do not stop what else the server does."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest

from engine.models.families import family_of
from engine.serving.errors import ApiError
from engine.serving.openai_types import MOST_CHOICES, CompletionRequest
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


def test_too_many_prompts_are_refused_before_each_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(msgspec, "convert", Mock(side_effect=AssertionError))
    for one in ("a", [1], {}):
        with pytest.raises(ApiError, match=f"{MOST_CHOICES + 1} prompts are over {MOST_CHOICES}"):
            _ = CompletionRequest(prompt=[one] * (MOST_CHOICES + 1)).prompts
