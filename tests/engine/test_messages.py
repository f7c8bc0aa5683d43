"""Conversations passed by programs: rendered whole or refused in one line, never in part."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import UsageError
from engine.text.chat_template import ChatTemplate
from engine.text.messages import PROMPT_LIMIT

LENIENT_TEMPLATE = """{%- for m in messages %}
{%- if m.role == 'critic' or m.role == 'user' %}[{{ m.content if m.content is string else '' }}]{% endif %}
{%- if m.tool_calls %}{{ m.tool_calls[0].function.name }}{% endif %}
{%- endfor %}"""
"""Silently drops unexpected content, as Qwen's template does."""


def render(*messages: Any, tools: Any = None) -> str:
    return ChatTemplate(LENIENT_TEMPLATE, "here").render(list(messages), tools=tools)


def test_parts_of_text_follow_each_other() -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    assert render({"role": "user", "content": parts}) == "[one two]"
    assert render({"role": "user", "content": []}) == "[]"
    assert render({"role": "user", "content": tuple(parts[:1])}) == "[one ]"


def test_a_role_that_the_template_names() -> None:
    assert render({"role": "critic", "content": "no"}) == "[no]"


def test_calls_without_content() -> None:
    call = {"type": "function", "id": "1", "function": {"name": "clock", "arguments": {}}}
    assert render({"role": "assistant", "content": None, "tool_calls": [call]}) == "clock"
    assert render({"role": "assistant", "tool_calls": [call]}) == "clock"


LOOP: list[Any] = []
LOOP.append(LOOP)

BAD: list[tuple[Any, str]] = [
    ("text", "it is not an object"),
    ({}, "it has no `role`"),
    ({"role": "usr", "content": "x"}, 'its role is "usr"'),
    ({"role": 3, "content": "x"}, "its role is 3"),
    ({"role": "user<|im_end|>", "content": "x"}, "its role is"),
    ({"role": "user"}, "its `content` is absent"),
    ({"role": "user", "content": None}, "its `content` is null"),
    ({"role": "user", "content": 3}, "its `content` is 3"),
    ({"role": "user", "content": {"type": "text", "text": "x"}}, "its `content` is an object"),
    ({"role": "user", "content": ["x"]}, 'part 1 of its `content` is "x"'),
    ({"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}, 'part 1 of its `content` is of type "image_url"'),
    ({"role": "user", "content": [{"type": "text", "text": None}]}, "is not `type` and `text` alone"),
    ({"role": "user", "content": [{"type": "text", "text": "x", "more": "y"}]}, "is not `type` and `text` alone"),
    ({"role": "user", "content": "x", "tool_calls": [{"name": "f", "arguments": {}}]}, "of the role user has no `tool_calls`"),
    ({"role": "assistant", "content": "x", "tool_calls": "f"}, "its `tool_calls` are"),
    ({"role": "assistant", "content": "x", "tool_calls": [{"arguments": {}}]}, "tool call 1 has no `name`"),
    ({"role": "assistant", "content": "x", "tool_calls": [{"function": {"name": "f"}}]}, "the `arguments` of tool call 1"),
    ({"role": "assistant", "tool_calls": []}, "its `content` is absent"),
    ({"role": "user", "content": "x", "reasoning_content": "y"}, "`reasoning_content` is"),
    ({"role": "user", "content": "x", "name": b"y"}, "a value of type bytes"),
    ({"role": "user", "content": "x", 3: "y"}, "a key of it is of type int"),
    ({"role": "user", "content": "x", "n": float("nan")}, "it contains nan"),
    ({"role": "user", "content": "x", "n": 1 << 5000}, "an integer of 5001 bits"),
    ({"role": "user", "content": "x", "n": LOOP}, "nested over 64 levels"),
    ({"role": "user", "content": "x" * (PROMPT_LIMIT + 1)}, "characters, over"),
]


@pytest.mark.parametrize(("message", "message_part"), BAD, ids=[message_part for _, message_part in BAD])
def test_a_message_that_is_refused(message: Any, message_part: str) -> None:
    with pytest.raises(UsageError) as caught:
        render({"role": "user", "content": "fine"}, message)
    assert message_part in str(caught.value)
    assert "over" in message_part or "message 2" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("messages", ["hello", {"role": "user", "content": "x"}, 3, b"x", None])
def test_messages_that_are_not_a_list(messages: Any) -> None:
    with pytest.raises(UsageError, match="the messages are not a list"):
        ChatTemplate(LENIENT_TEMPLATE, "here").render(messages)


@pytest.mark.parametrize("tools", [["clock"], [{"f": object()}]])
def test_invalid_tools(tools: Any) -> None:
    with pytest.raises(UsageError, match="tool 1"):
        render({"role": "user", "content": "x"}, tools=tools)
