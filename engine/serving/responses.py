"""Responses of /v1/responses: the items of one generation, and the events that say how they grow.

A thought, a message and each call of a tool is an item. The server keeps no responses: none can be asked for later.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from typing import Any, Final

from msgspec import to_builtins as builtins

from engine.serving.asgi import Framing
from engine.serving.client import EngineClient, Generations
from engine.serving.completions import ChatCompletion
from engine.serving.errors import ApiError, invalid
from engine.serving.generated_text import Part
from engine.serving.responses_types import ResponsesRequest
from engine.serving.served_model import ServedModel
from engine.serving.tool_calls import ToolCall

KINDS: Final = {
    "reasoning": ("rs_", {"summary": list[Any]}, "response.reasoning_text", {"type": "reasoning_text"}),
    "message": ("msg_", {"role": "assistant"}, "response.output_text", {"type": "output_text", "annotations": list[Any]}),
}
"""For each kind of item with text: the beginning of its id, its fields, the events of its text, and the part with the text."""

TEXT_ONLY: Final = {"format": {"type": "text"}}


class Items:
    """The items of a generation. Its methods yield the events for what they add."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        self._open = False  # whether the last item may grow

    def push(self, part: Part) -> Iterator[dict[str, Any]]:
        """Add a part of the generation."""
        if part.call is not None:
            yield from self.close("completed")
            yield from self._call(part.call)
        elif part.more is not None:
            yield from self._arguments(part.more.text, last=part.more.last)
        elif part.thought:
            yield from self._text("reasoning", part.thought)
        elif part.content:
            yield from self._text("message", part.content)

    def close(self, status: str) -> Iterator[dict[str, Any]]:
        """End the last item: `completed`, or `incomplete` if the generation was cut."""
        if not self._open:
            return
        self._open = False
        item = self.found[-1]
        if item["type"] == "function_call":  # its arguments are not whole
            item["status"] = "incomplete"
            yield self._of_item("response.output_item.done")
            return
        item["status"] = status
        part = item["content"][0]
        of_text = KINDS[item["type"]][2]
        logprobs: dict[str, Any] = {"logprobs": []} if item["type"] == "message" else {}
        yield self._of_content({"type": f"{of_text}.done", "text": part["text"], **logprobs})
        yield self._of_content({"type": "response.content_part.done", "part": {**part}})
        yield self._of_item("response.output_item.done")

    def _text(self, kind: str, text: str) -> Iterator[dict[str, Any]]:
        """Add text to the last item, or to a new one if the last is of another kind."""
        of_text = KINDS[kind][2]
        if not self._open or self.found[-1]["type"] != kind:
            yield from self.close("completed")
            yield from self._begin(kind)
        self.found[-1]["content"][0]["text"] += text
        logprobs: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        yield self._of_content({"type": f"{of_text}.delta", "delta": text, **logprobs})

    def _begin(self, kind: str) -> Iterator[dict[str, Any]]:
        prefix, fields, _, part = KINDS[kind]
        self._open = True
        self.found.append({"id": prefix + secrets.token_hex(12), "type": kind, "status": "in_progress", "content": []})
        self.found[-1] |= _made(fields)
        yield self._of_item("response.output_item.added")
        self.found[-1]["content"].append(_made(part) | {"text": ""})
        yield self._of_content({"type": "response.content_part.added", "part": {**self.found[-1]["content"][0]}})

    def _call(self, call: ToolCall) -> Iterator[dict[str, Any]]:
        """Add a call."""
        item = {
            "id": f"fc_{secrets.token_hex(12)}", "type": "function_call", "status": "in_progress", "name": call.name,
            "call_id": f"call_{secrets.token_hex(12)}", "arguments": "",
        }  # fmt: skip
        self.found.append(item)
        self._open = True
        yield self._of_item("response.output_item.added")
        if call.arguments:
            yield from self._arguments(call.arguments, last=call.whole)

    def _arguments(self, text: str, *, last: bool) -> Iterator[dict[str, Any]]:
        """Add to the arguments of the last item, a call; it is whole with the `last` of them."""
        item = self.found[-1]
        address = {"item_id": item["id"], "output_index": len(self.found) - 1}
        item["arguments"] += text
        yield {"type": "response.function_call_arguments.delta", "delta": text, **address}
        if last:
            self._open, item["status"] = False, "completed"
            whole = {"name": item["name"], "arguments": item["arguments"]}
            yield {"type": "response.function_call_arguments.done", **whole, **address}
            yield self._of_item("response.output_item.done")

    def _of_item(self, event: str) -> dict[str, Any]:
        """An event of the last item."""
        return {"type": event, "output_index": len(self.found) - 1, "item": _copy(self.found[-1])}

    def _of_content(self, event: dict[str, Any]) -> dict[str, Any]:
        """An event of the last item's text."""
        return event | {"item_id": self.found[-1]["id"], "output_index": len(self.found) - 1, "content_index": 0}


class ResponseFraming(Framing):
    """Events with their type as a name, and a number that counts them. A stream ends without `[DONE]`, as OpenAI's; an error is
    the event of a response that failed."""

    def __init__(self, response: ResponseCompletion) -> None:
        self._response, self._number = response, 0

    def event(self, value: Any) -> bytes:
        """The bytes of an event."""
        numbered = value | {"sequence_number": self._number}
        self._number += 1
        return f"event: {value['type']}\n".encode() + super().event(numbered)

    def end(self, error: ApiError | None) -> bytes:
        """The last bytes of a stream."""
        if error is None:
            return b""
        cut = [self.event(event) for event in self._response.items.close("incomplete")]
        failed = {"code": "server_error", "message": error.message}  # of the codes that OpenAI has here
        return b"".join(cut) + self.event(self._response.event("failed", error=failed))


@dataclass(frozen=True, slots=True)
class Chosen:
    """How tokens are chosen; greedy without values."""

    temperature: float = 0.0
    top_p: float = 1.0


class ResponseCompletion(ChatCompletion):
    """A response of /v1/responses."""

    prefix, object = "resp_", "response"
    asked: ResponsesRequest
    chosen: Chosen
    items: Items

    @classmethod
    async def make(
        cls, model: ServedModel, client: EngineClient, asked: ResponsesRequest
    ) -> tuple[ResponseCompletion, Generations]:
        """Render and submit a conversation; ApiError if it cannot be served."""
        request = asked.chat()
        tools = [] if request.tool_choice == "none" else request.tools
        ids = await model.chat(request.messages, tools, think=request.thinking, field="input")
        max_tokens = model.max_tokens(len(ids), asked.max_output_tokens, None, "input", "max_output_tokens")
        try:
            grammar = await cls._grammar_of(model, client, request, ids)
        except ApiError as error:
            if error.param != "response_format":
                raise
            raise invalid("text.format", error.message.removeprefix("`response_format`: ")) from None
        response = cls(model, request, [ids], grammar)
        sampling = model.sampling(request, 0, ())
        response.chosen = Chosen() if sampling is None else Chosen(sampling.temperature, sampling.top_p)
        response.asked, response.framing, response.items = asked, ResponseFraming(response), Items()
        return response, response.submit(client, [max_tokens])

    async def whole(self, generations: Generations) -> dict[str, Any]:
        """The response at once: what the last event of a stream has."""
        last: dict[str, Any] = {}
        async for event in self.events(generations):
            last = event
        return last["response"]

    async def events(self, generations: Generations) -> AsyncGenerator[dict[str, Any]]:
        """The response as events."""
        yield self.event("created", "in_progress")
        yield self.event("in_progress")
        async for _, parts in self._arriving(generations):
            for part in parts:
                for event in self.items.push(part):
                    yield event
        status = "incomplete" if self._choices[0].finish_reason == "length" else "completed"
        for event in self.items.close(status):
            yield event
        yield self.event(status)

    def event(self, name: str, status: str | None = None, error: dict[str, str] | None = None) -> dict[str, Any]:
        """An event of the whole response, as it is."""
        return {"type": f"response.{name}", "response": self._response(status or name, error)}

    def _response(self, status: str, error: dict[str, str] | None) -> dict[str, Any]:
        asked, ended = self.asked, status in ("completed", "incomplete")
        return {
            "id": self._head["id"], "object": self.object, "created_at": self._head["created"], "model": self._head["model"],
            "status": status, "error": error, "completed_at": int(time.time()) if status == "completed" else None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": [_copy(item) for item in self.items.found], "usage": self._used() if ended else None,
            "instructions": asked.instructions, "max_output_tokens": asked.max_output_tokens, "metadata": asked.metadata,
            "tools": [tool | {"strict": tool.get("strict") is True} for tool in asked.tools], "tool_choice": asked.tool_choice,
            "temperature": self.chosen.temperature, "top_p": self.chosen.top_p,
            "reasoning": {"effort": self._request.reasoning_effort, "summary": None},
            "text": TEXT_ONLY if asked.text is None or asked.text.format is None else {"format": builtins(asked.text.format)},
            "parallel_tool_calls": asked.parallel_tool_calls, "previous_response_id": None, "store": False,
            "background": False, "truncation": "disabled",
        }  # fmt: skip

    def _used(self) -> dict[str, Any]:
        """The usage, in the names of this endpoint."""
        usage = self._usage()
        cached = usage.get("prompt_tokens_details", {"cached_tokens": 0})
        return {
            "input_tokens": usage["prompt_tokens"], "input_tokens_details": cached | {"cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": self._choices[0].output.thought_tokens},
            "total_tokens": usage["total_tokens"],
        }  # fmt: skip


def _made(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields of a new item: a type stands for a new value of it."""
    return {name: value if isinstance(value, str) else value() for name, value in fields.items()}


def _copy(item: dict[str, Any]) -> dict[str, Any]:
    """An item as it is now: a later part changes neither it nor its content."""
    return item | ({"content": [{**part} for part in item["content"]]} if "content" in item else {})
