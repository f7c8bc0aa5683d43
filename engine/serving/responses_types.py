"""Requests of /v1/responses, and what they say as a request for a chat completion.

The server keeps no responses: `input` is the whole conversation, and fields that name or make kept ones are refused. Its items
become messages. A thought and calls of tools belong to one message of the assistant with the text between them, as chat
templates have it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, cast

import msgspec

from engine.serving.errors import ApiError, invalid, unsupported
from engine.serving.openai_types import (
    REFUSED,
    ChatRequest,
    Count,
    Generation,
    JsonSchema,
    ResponseFormat,
    TemplateKeywords,
    read,
)

EFFORTS: Final = ("none", "minimal", "low", "medium", "high")
TEXT_PARTS: Final = ("input_text", "output_text", "text", "reasoning_text")
NOT_KEPT: Final = "this server keeps no responses; give the whole conversation as `input`"


class Reasoning(msgspec.Struct, forbid_unknown_fields=True):
    """`reasoning`: effort `none` turns thoughts off. A thought is returned whole, so that `auto` is the one summary."""

    effort: str | None = None
    summary: str | None = None


class TextFormat(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """`text.format`."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct, forbid_unknown_fields=True):
    """`text`: its form."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ResponseStreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """`stream_options`: events are never padded."""

    include_obfuscation: bool = False


class ResponsesRequest(Generation, kw_only=True):
    """POST /v1/responses. Fields of `Generation` that it does not have are in `REFUSED_HERE`."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    metadata: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    reasoning: Reasoning | None = None
    text: TextOptions | None = None
    tools: list[dict[str, Any]] = msgspec.field(default_factory=list[dict[str, Any]])
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    include: list[str] = msgspec.field(default_factory=list[str])
    chat_template_kwargs: TemplateKeywords | None = None
    stream_options: ResponseStreamOptions | None = None  # pyright: ignore[reportIncompatibleVariableOverride]

    def chat(self) -> ChatRequest:
        """The same request for a chat completion; ApiError for what neither can do."""
        self._check()
        shared = {*Generation.__struct_fields__} - {"stream_options", "response_format"}
        of_both: dict[str, Any] = {name: getattr(self, name) for name in shared}
        return ChatRequest(
            **of_both, response_format=self._format(), messages=messages_of(self.input, self.instructions),
            max_completion_tokens=self.max_output_tokens,
            tools=[_chat_tool(tool, number) for number, tool in enumerate(self.tools)], tool_choice=self.tool_choice,
            parallel_tool_calls=self.parallel_tool_calls,
            chat_template_kwargs=self.chat_template_kwargs,
            reasoning_effort=self.reasoning.effort if self.reasoning is not None else None,
        )  # fmt: skip

    def _format(self) -> ResponseFormat | None:
        """`text.format` as chat completions have it."""
        asked = self.text.format if self.text is not None else None
        if asked is None:
            return None
        if asked.type != "json_schema":
            return ResponseFormat(asked.type)
        if asked.schema is None:
            raise invalid("text.format", "`schema` is missing")
        return ResponseFormat(asked.type, JsonSchema(asked.name or "", asked.description, asked.schema, asked.strict))

    def _check(self) -> None:
        """ApiError for a value that would be without effect."""
        if self.reasoning is not None:
            if self.reasoning.effort not in (None, *EFFORTS):
                raise invalid("reasoning.effort", f"it is none of {', '.join(f'`{effort}`' for effort in EFFORTS)}")
            if self.reasoning.summary not in (None, "auto"):
                raise unsupported("reasoning.summary", "thoughts are returned whole, and not summed up")
        if self.text is not None and self.text.verbosity not in (None, "medium"):
            raise unsupported("text.verbosity", "the model has no such setting")
        for one in self.include:
            if one != "reasoning.encrypted_content":
                raise unsupported("include", f"{one[:64]!r} is nothing that this server has")


REFUSED_HERE: Final[dict[str, tuple[tuple[Any, ...], str]]] = {
    **{name: rule for name, rule in REFUSED.items() if name != "parallel_tool_calls"},
    "previous_response_id": ((), NOT_KEPT),
    "conversation": ((), NOT_KEPT),
    "store": ((False,), NOT_KEPT),
    "background": ((False,), "a response is made while its client waits"),
    "prompt": ((), "there are no kept prompts; give `instructions` and `input`"),
    "truncation": (("disabled",), "prompts are not cut"),
    "max_tool_calls": ((), "tools are called by the client"),
    "context_management": (([],), "prompts are not cut"),
    "moderation": ((), "texts are not checked"),
    "n": ((1,), "a response is one generation"),
    "max_tokens": ((), "give `max_output_tokens`"),
    "max_completion_tokens": ((), "give `max_output_tokens`"),
    "messages": ((), "give `input`"),
    "reasoning_effort": ((), "give `reasoning`"),
    "response_format": ((), "give `text`"),
    "logprobs": ((False,), "a response has no probabilities"),
    "top_logprobs": ((0,), "a response has no probabilities"),
}
"""As `REFUSED` of `openai_types`."""


def read_response(body: bytes) -> ResponsesRequest:
    """A request from its body; ApiError as of `openai_types.read`."""
    return read(body, ResponsesRequest, REFUSED_HERE)


def messages_of(items: str | Iterable[dict[str, Any]], instructions: str | None) -> list[dict[str, Any]]:
    """The messages that items of `input` stand for; ApiError that names an item which the model cannot be given."""
    first = [{"role": "system", "content": instructions}] if instructions is not None else []
    if isinstance(items, str):
        return [*first, {"role": "user", "content": items}]
    messages: list[dict[str, Any]] = []
    for number, item in enumerate(items):
        _add(messages, item, f"input[{number}]")
    if not messages:
        raise invalid("input", "it is empty")
    return first + [{"content": None if "tool_calls" in message else ""} | message for message in messages]


def _add(messages: list[dict[str, Any]], item: dict[str, Any], where: str) -> None:
    """Add an item to the messages before it."""
    kind = item.get("type", "message")
    if kind == "message":
        role = item.get("role")
        if role == "assistant":
            _assistant(messages, "content")["content"] = _text(item.get("content"), f"{where}.content")
        else:
            messages.append({"role": role, "content": _text(item.get("content"), f"{where}.content")})
    elif kind == "reasoning":
        if item.get("content"):
            thought = _text(item["content"], f"{where}.content")
            _assistant(messages, "reasoning_content", "content", "tool_calls")["reasoning_content"] = thought
    elif kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        _assistant(messages).setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        output = _text(item.get("output"), f"{where}.output")
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
    elif kind == "item_reference":
        raise _refused(where, NOT_KEPT)
    else:
        raise _refused(where, f"items of the type {str(kind)[:64]!r} are not for this model")


def _assistant(messages: list[dict[str, Any]], *absent: str) -> dict[str, Any]:
    """The assistant's message at the end, a new one if there is none, or if it has one of `absent` or a call already."""
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant" or any(name in last for name in absent) or (absent and "tool_calls" in last):
        messages.append({"role": "assistant"})
    return messages[-1]


def _text(content: Any, where: str) -> str:
    """The text of a content: a text, or parts that are texts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _refused(where, "it is neither a text nor a list of parts")
    texts: list[str] = []
    for number, part in enumerate(cast("list[Any]", content)):
        fields = cast("dict[str, Any]", part) if isinstance(part, dict) else {}
        text = fields.get("text")
        if fields.get("type") not in TEXT_PARTS or not isinstance(text, str):
            raise _refused(f"{where}[{number}]", "it is not a text, and the model takes no others")
        texts.append(text)
    return "".join(texts)


def _chat_tool(tool: dict[str, Any], number: int) -> dict[str, Any]:
    """A tool in the form of chat completions, which templates know. ApiError if it is no function."""
    if tool.get("type") != "function":
        raise unsupported("tools", f"tool {number} is of the type {str(tool.get('type'))[:64]!r}; give functions")
    names = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {name: tool[name] for name in names if tool.get(name) is not None}}


def _refused(where: str, why: str) -> ApiError:
    return ApiError(400, f"`{where}`: {why}", param="input", code="invalid_value")
