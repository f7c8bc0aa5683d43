"""From text to content, thought and calls of tools: the same for every way to cut the text, and nothing lost."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.models.families import family_of
from engine.sampling import Logprobs
from engine.serving.generated_text import GeneratedText, Part
from engine.serving.logprobs import TokenTexts
from engine.serving.served_model import ServedModel
from engine.serving.thinking import Thinking
from engine.serving.tool_calls import ToolCall, ToolCalls
from engine.text.tokenizer import Text

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "} </tool_call> \\" <"}}\n</tool_call>'
PARSED = ToolCall("f", '{"a":"} </tool_call> \\" <"}')


def pieces(text: str, cuts: Iterable[int]) -> list[str]:
    bounds = [0, *sorted({min(cut, len(text)) for cut in cuts}), len(text)]
    return [text[first:last] for first, last in itertools.pairwise(bounds)]


def split(text: str, cuts: Iterable[int] = (), *, begun: bool = False) -> tuple[str, str]:
    """Thought and content."""
    thinking = Thinking(begun=begun)
    found = [thinking.push(piece) for piece in pieces(text, cuts)] + [thinking.finish()]
    return "".join(thought for thought, _ in found), "".join(content for _, content in found)


def calls(text: str, cuts: Iterable[int] = ()) -> list[str | ToolCall]:
    """Texts, joined where they follow each other, and calls."""
    finder = ToolCalls()
    found: list[str | ToolCall] = []
    for one in [*itertools.chain(*(finder.push(piece) for piece in pieces(text, cuts))), *finder.finish()]:
        if isinstance(one, str) and found and isinstance(found[-1], str):
            found[-1] += one
        else:
            found.append(one)
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>\nab c\n</think>\n\nhi </think> <think>x", ("ab c", "hi </think> <think>x")),
        ("  <think>  </think>x", ("", "x")),
        ("hello <think>a</think>", ("", "hello <think>a</think>")),
        ("<thi", ("", "<thi")),
        ("<think>a < /think \n", ("a < /think", "")),
        ("<think>a\n</thin", ("a\n</thin", "")),
        ("  ", ("", "  ")),
        ("<think></think>", ("", "")),
    ],
)
def test_a_thought(text: str, expected: tuple[str, str]) -> None:
    for cuts in itertools.combinations_with_replacement(range(len(text) + 1), 2):
        assert split(text, cuts) == expected
    assert split(text, range(len(text))) == expected


def test_a_thought_that_the_prompt_began() -> None:
    assert split("\nab\n</think>\n\nc", begun=True) == ("ab", "c")
    assert split("<think>ab", begun=True) == ("<think>ab", "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CALL, [PARSED]),
        ("a " + CALL + "\n" + CALL + "b", ["a ", PARSED, "\n", PARSED, "b"]),
        ('<tool_call>{"name": "g"}</tool_call>', [ToolCall("g", "{}")]),
        (
            '<tool_call>{"name": "g", "arguments": [1]}</tool_call>x',
            ['<tool_call>{"name": "g", "arguments": [1]}</tool_call>x'],
        ),
        ("<tool_call>no json</tool_call>" + CALL, ["<tool_call>no json</tool_call>", PARSED]),
        ('<tool_call>{"name": 1}</tool_call>', ['<tool_call>{"name": 1}</tool_call>']),
        ('<tool_call>{"name": "g", "argu', ['<tool_call>{"name": "g", "argu']),
        ("a <tool_cal", ["a <tool_cal"]),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", ["<tool_call>" + "[" * 100_000 + "</tool_call>"]),
    ],
    ids=range(9),
)
def test_calls_of_tools(text: str, expected: list[str | ToolCall]) -> None:
    assert calls(text) == expected
    if len(text) < 1000:
        assert calls(text, range(len(text))) == expected
        for cut in range(len(text)):
            assert calls(text, [cut]) == expected


WORDS = st.lists(
    st.sampled_from(
        ["<think>", "</think>", "<tool_call>", "</tool_call>", CALL, '{"name": "h"}', '"', "\\", "<", " ", "\n", "x"]
    ),
    max_size=8,
).map("".join)


@settings(max_examples=150)
@given(text=WORDS, cuts=st.lists(st.integers(0, 200), max_size=6))
@example(text="<think>\n" + CALL + " </think> " + CALL, cuts=[7, 8, 20])
def test_the_parts_do_not_depend_on_the_pieces(text: str, cuts: Sequence[int]) -> None:
    assert split(text, cuts) == split(text)
    assert calls(text, cuts) == calls(text)
    written = {PARSED: CALL, ToolCall("h", "{}"): '<tool_call>{"name": "h"}</tool_call>'}
    again = "".join(one if isinstance(one, str) else written[one] for one in calls(text))
    assert "".join(again.split()) == "".join(text.split()), "something is lost"


def generated(text: Text, ids: Sequence[int], **options: Any) -> tuple[list[tuple[str, str, ToolCall | None]], GeneratedText]:
    made = GeneratedText(text, options.pop("stop", ()), options.pop("silent", ()), **options)
    parts: list[Part] = []
    for token in ids:
        parts += made.push(token)
        if made.stopped:
            break
    parts += made.finish()
    return [(part.thought, part.content, part.call) for part in parts], made


@pytest.fixture(scope="module")
def text(talker: Path) -> Text:
    return Text.read(talker, family_of("qwen3").tokenizer)


def test_all_together(text: Text) -> None:
    """Thought, content, two calls, an end token that is no text, and characters of several tokens."""
    end = text.tokenizer.token_to_id("<|im_end|>")
    ids = [*text.encode("<think>\nblå himmel\n</think>\n\nSo 天: " + CALL + "\n" + CALL), end]
    parts, made = generated(text, ids, silent=[end], thinking=Thinking(), tools=ToolCalls())
    assert "".join(thought for thought, _, _ in parts) == "blå himmel"
    assert "".join(content for _, content, _ in parts) == "So 天: "
    assert [call for _, _, call in parts if call] == [PARSED, PARSED]
    assert made.tokens == len(ids)
    assert [made.finish_reason(reason) for reason in ("stop", "length")] == ["tool_calls", "length"]


def test_a_stop_string_ends_it_before_what_follows(text: Text) -> None:
    ids = text.encode("one two three four")
    parts, made = generated(text, ids, stop=["three"])
    assert "".join(content for _, content, _ in parts) == "one two "
    assert made.stopped and made.tokens < len(ids)


def test_of_tokens_with_one_text_the_most_likely_one_counts(talker: Path) -> None:
    """Two parts of characters have the same text, and a name of JSON can be there once."""
    text = ServedModel(talker, 256, "talker").text
    texts = TokenTexts(text)
    parts = [token for token in range(text.tokenizer.get_vocab_size()) if texts.bytes_of(token) in (b"\x80", b"\x81", b"\x82")]
    word = text.encode("sky")[0]
    for drawn, others in ((parts[2], [parts[0], parts[1], word]), (parts[0], [parts[0], parts[1], word])):
        values = [-1.0, -2.0, -3.0]
        own = values[others.index(drawn)] if drawn in others else -4.0
        (found,) = texts.of_text([(drawn, Logprobs(own, others, values))], 0)["top_logprobs"]
        assert found == {"\ufffd": -1.0, texts.bytes_of(word).decode(): -3.0}
