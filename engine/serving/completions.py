"""Both kinds of completions: from a request to generations, and from their tokens to what the client is sent.

In: a request of `openai_types`, a model, and the client of the engine. Out: a value for JSON, or events of a stream.
"""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from engine.errors import EngineError
from engine.sampling import SamplingParams
from engine.serving.asgi import Framing
from engine.serving.client import Arrival, EngineClient, EngineRestarting, Generations, NeverFits, QueueFull
from engine.serving.errors import ApiError, engine_failed, invalid, unsupported
from engine.serving.generated_text import GeneratedText, Part, joined
from engine.serving.grammars import Make, form_of, grammar_of, is_strict, tools_form
from engine.serving.logprobs import Reported, TokenTexts
from engine.serving.openai_types import MOST_CHOICES, ChatRequest, CompletionRequest, Generation
from engine.serving.protocol import Grammar, Submit
from engine.serving.served_model import ServedModel
from engine.serving.thinking import Thinking
from engine.serving.traces import Value

TEXT_DEFAULT: Final = 16
"""Tokens of a completion without `max_tokens`, as OpenAI has it."""


@dataclass(slots=True)
class Choice:
    """One choice of a response, and why it ended. `reported`: its tokens whose probabilities were not sent yet;
    `reported_text`: how many characters the tokens before them have."""

    output: GeneratedText
    reported: list[Reported] = field(default_factory=list[Reported])
    reported_text: int = 0
    parts: list[Part] = field(default_factory=list[Part])
    finish_reason: str | None = None

    def text(self, name: str) -> str:
        """All of its content, or of its thought."""
        return "".join(getattr(part, name) for part in self.parts)


class Completion(ABC):
    """A response that is being made. `prompts` are token ids; each has `request.n` choices, one after the other. `grammar`:
    what their texts must be."""

    prefix: str
    object: str
    chunk_object: str
    framing: Framing = Framing()
    nothing: Any
    """The delta of a chunk without text."""

    def __init__(
        self, model: ServedModel, request: Generation, prompts: list[list[int]], grammar: Grammar | None = None
    ) -> None:  # fmt: skip
        self._model, self._request, self._prompts, self._grammar = model, request, prompts, grammar
        self._silent = {*(() if request.ignore_eos else model.generation.eos_token_id), *request.stop_token_ids}
        request.check_choices(len(prompts) * request.n)
        self._counts_each = request.counts_each
        self._texts = TokenTexts(model.text)
        self._choices = [Choice(self._output(ids)) for ids in prompts for _ in range(request.n)]
        self._begun, self._first_token = time.monotonic(), 0.0
        self._head = {"id": self.prefix + secrets.token_hex(12), "created": int(time.time()), "model": model.name}

    def submit(self, client: EngineClient, max_tokens: list[int]) -> Generations:
        """Submit its generations, of up to `max_tokens` tokens for each prompt; ApiError if there is no room for them."""
        works = [
            Submit(0, ids, tokens, sorted(self._silent), self._request.priority, self._sampling(choice, tokens), self._grammar)
            for ids, tokens in zip(self._prompts, max_tokens, strict=True)
            for choice in range(self._request.n)
        ]
        try:
            generations = client.submit(works)
        except NeverFits as error:
            raise invalid("n" if self._request.n > 1 else "prompt", str(error)) from None
        except QueueFull as error:
            raise ApiError(503, str(error), code="queue_full", kind="overloaded_error", retry=True) from None
        except EngineRestarting as error:
            raise ApiError(503, str(error), code="engine_restarting", kind="server_error", retry=True) from None
        except EngineError as error:
            raise engine_failed(str(error)) from None
        self._generations = generations
        return generations

    def _sampling(self, choice: int, max_tokens: int) -> SamplingParams | None:
        if self._request.min_tokens > max_tokens:
            raise invalid("min_tokens", f"it is {self._request.min_tokens}, and at most {max_tokens} tokens are generated")
        return self._model.sampling(self._request, choice, self._silent, masked=self._grammar is not None)

    async def whole(self, generations: Generations) -> dict[str, Any]:
        """The response at once."""
        async for index, parts in self._arriving(generations):
            self._choices[index].parts += parts
        choices = [self._choice(index, choice) for index, choice in enumerate(self._choices)]
        return self._head | {"object": self.object, "choices": choices, "usage": self._usage()}

    async def events(self, generations: Generations) -> AsyncGenerator[dict[str, Any]]:
        """The response as chunks. A choice's first one comes with its first token, since clients take it for that. Where each
        chunk has the usage, tokens that arrived have a chunk also if they are no text yet."""
        head: dict[str, Any] = self._head | {"object": self.chunk_object}
        begun = set[int]()
        async for index, parts in self._arriving(generations):
            deltas = [*(() if index in begun else self._first()), *self._deltas(index, parts)]
            begun.add(index)
            reason = self._choices[index].finish_reason
            if self._counts_each:
                head["usage"] = self._usage()
                deltas = deltas or ([] if reason else [self.nothing])
            for delta in deltas:
                yield head | {"choices": [self._chunk(index, delta, None)]}
            if reason is not None:
                yield head | {"choices": [self._chunk(index, self.nothing, reason)]}
        options = self._request.stream_options
        if options is not None and options.include_usage:
            yield head | {"choices": [], "usage": self._usage()}

    async def _arriving(self, generations: Generations) -> AsyncIterator[tuple[int, list[Part]]]:
        """What each choice got, until all have ended; ApiError if one cannot be finished."""
        while any(choice.finish_reason is None for choice in self._choices):
            arrived = await generations.arrivals()
            self._first_token = self._first_token or time.monotonic()
            for arrival in arrived:
                choice = self._choices[arrival.index]
                if choice.finish_reason is None:
                    yield arrival.index, self._parts(choice, arrival)
                    if choice.output.stopped:
                        generations.cancel([arrival.index], "stop")  # its text is whole

    def _parts(self, choice: Choice, arrival: Arrival) -> list[Part]:
        """What tokens mean for a choice, and whether it has ended."""
        parts: list[Part] = []
        for number, token in enumerate(arrival.tokens):
            parts += choice.output.push(token)
            if number < len(arrival.logprobs) and token not in self._silent:
                choice.reported.append((token, arrival.logprobs[number]))
            if choice.output.stopped:
                break
        ended = "stop" if choice.output.stopped else arrival.ended
        if ended is None:
            return parts
        if ended.startswith("error"):
            raise engine_failed(ended.partition(": ")[2])
        if ended.startswith("invalid"):
            raise ApiError(400, ended.partition(": ")[2], code="invalid_value")
        parts += choice.output.finish()
        choice.finish_reason = choice.output.finish_reason(ended)
        return parts

    def noted(self) -> dict[str, Value]:
        """What a trace says of it: no text."""
        found: dict[str, Value] = {
            "gen_ai.request.model": self._model.name, "gen_ai.response.id": str(self._head["id"]),
            "gen_ai.usage.input_tokens": sum(map(len, self._prompts)),
            "gen_ai.usage.output_tokens": sum(choice.output.tokens for choice in self._choices),
            "gen_ai.response.finish_reasons": [choice.finish_reason or "abort" for choice in self._choices],
        }  # fmt: skip
        if self._first_token:
            found["gen_ai.latency.time_to_first_token"] = self._first_token - self._begun
        return found

    def _usage(self) -> dict[str, Any]:
        prompt = sum(map(len, self._prompts))
        completion = sum(choice.output.tokens for choice in self._choices)
        usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        cached = sum(self._generations.cached[:: self._request.n])  # of first choices: others find the pages of those
        return usage | ({"prompt_tokens_details": {"cached_tokens": cached}} if cached else {})

    @abstractmethod
    def _output(self, ids: list[int]) -> GeneratedText: ...

    @abstractmethod
    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        """A choice in a whole response."""

    @abstractmethod
    def _first(self) -> list[Any]:
        """The deltas that begin a choice."""

    @abstractmethod
    def _deltas(self, index: int, parts: list[Part]) -> Iterator[Any]:
        """The deltas for new parts of a choice."""

    @abstractmethod
    def _chunk(self, index: int, delta: Any, reason: str | None) -> dict[str, Any]:
        """A choice in a chunk of a stream."""


class ChatCompletion(Completion):
    """A response of /v1/chat/completions."""

    prefix, object, chunk_object, nothing = "chatcmpl-", "chat.completion", "chat.completion.chunk", {}
    _request: ChatRequest

    @classmethod
    async def begin(cls, model: ServedModel, client: EngineClient, request: ChatRequest) -> tuple[ChatCompletion, Generations]:
        """Render and submit a conversation; ApiError if it cannot be served."""
        if request.reasoning_effort not in (None, "none", "minimal", "low", "medium", "high"):
            raise invalid("reasoning_effort", "it is none of `none`, `minimal`, `low`, `medium`, `high`")
        ids = await model.chat(request.messages, _tools(request), think=request.thinking)
        asked = request.max_completion_tokens or request.max_tokens
        limit = "max_completion_tokens" if request.max_completion_tokens else "max_tokens"
        max_tokens = model.max_tokens(len(ids), asked, None, "messages", limit)
        response = cls(model, request, [ids], await cls._grammar_of(model, client, request, ids))
        return response, response.submit(client, [max_tokens])

    @classmethod
    async def _grammar_of(
        cls, model: ServedModel, client: EngineClient, request: ChatRequest, ids: list[int]
    ) -> Grammar | None:  # fmt: skip
        """What the text after a conversation must be; ApiError if it cannot be had."""
        tools, form = _tools(request), form_of(request)
        asks = request.tool_choice not in ("auto", "none") or not request.parallel_tool_calls or any(map(is_strict, tools))
        if form is None and not (asks and (tools or request.tool_choice != "auto")):
            return None
        check_grammars(client, "tool_choice" if form is None else form[0])

        def find(make: Make) -> str:
            of_tools = tools_form(request, tools, model.call_tags, make, model.tool_form)
            return of_tools or ("" if form is None else grammar_of(form, make))

        found = await model.grammar(find, ids, think=request.thinking)
        return found if found.text else None

    def _output(self, ids: list[int]) -> GeneratedText:
        model = self._model
        thinking = Thinking(begun=model.thought_begun(ids)) if model.thinks else None
        finder = model.finder(tools) if (tools := _tools(self._request)) else None
        return GeneratedText(model.text, self._request.stops, self._silent, thinking, finder)

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        called = (part for part in joined(choice.parts) if part.call is not None)
        calls = [_call(number, part) for number, part in enumerate(called)]
        content, thought = choice.text("content"), choice.text("thought")
        message: dict[str, Any] = {"role": "assistant", "content": content or None if calls else content}
        if thought:
            message["reasoning_content"] = thought
        if calls:
            message["tool_calls"] = [{name: value for name, value in call.items() if name != "index"} for call in calls]
        logprobs = None if self._request.asked_logprobs is None else self._texts.of_chat(choice.reported)
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": choice.finish_reason}

    def _first(self) -> list[Any]:
        return [{"role": "assistant", "content": ""}]

    def _deltas(self, index: int, parts: list[Part]) -> Iterator[Any]:
        calls = self._choices[index].parts
        for part in parts if len(parts) < 2 else joined(parts):
            if part.call is not None:
                yield {"tool_calls": [_call(len(calls), part)]}
                calls.append(part)
            elif part.more is not None:
                yield {"tool_calls": [{"index": len(calls) - 1, "function": {"arguments": part.more.text}}]}
            else:
                yield {"reasoning_content": part.thought} if part.thought else {"content": part.content}

    def _chunk(self, index: int, delta: Any, reason: str | None) -> dict[str, Any]:
        reported = self._choices[index].reported
        logprobs = self._texts.of_chat(reported) if reported else None
        self._choices[index].reported = []
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}


class TextCompletion(Completion):
    """A response of /v1/completions."""

    prefix, object, chunk_object, nothing = "cmpl-", "text_completion", "text_completion", ""
    _request: CompletionRequest

    @classmethod
    async def begin(
        cls, model: ServedModel, client: EngineClient, request: CompletionRequest
    ) -> tuple[TextCompletion, Generations]:
        """Tokenize and submit prompts; ApiError if one cannot be served."""
        asked = request.prompts
        if len(asked) * request.n > MOST_CHOICES:
            raise invalid("prompt", f"{len(asked)} prompts with {request.n} choices each are over {MOST_CHOICES}")
        prompts: list[list[int]] = []
        for one in asked:
            prompts.append(await model.raw(one) if isinstance(one, str) else one)
            model.check_ids(prompts[-1], "prompt")
        max_tokens = [model.max_tokens(len(ids), request.max_tokens, TEXT_DEFAULT, "prompt") for ids in prompts]
        grammar = None
        if (form := form_of(request)) is not None:
            check_grammars(client, form[0])
            grammar = await model.grammar(partial(grammar_of, form))
        response = cls(model, request, prompts, grammar)
        return response, response.submit(client, max_tokens)

    def _output(self, ids: list[int]) -> GeneratedText:
        return GeneratedText(self._model.text, self._request.stops, self._silent)

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        return self._chunk(index, choice.text("content"), choice.finish_reason)

    def _first(self) -> list[Any]:
        return []

    def _deltas(self, index: int, parts: list[Part]) -> Iterator[Any]:
        text = "".join(part.content for part in parts)
        if text:
            yield text

    def _chunk(self, index: int, delta: Any, reason: str | None) -> dict[str, Any]:
        choice, logprobs = self._choices[index], None
        if choice.reported:
            logprobs = self._texts.of_text(choice.reported, choice.reported_text)
            choice.reported_text += sum(map(len, logprobs["tokens"]))
            choice.reported = []
        return {"index": index, "text": delta, "logprobs": logprobs, "finish_reason": reason}


def check_grammars(client: EngineClient, field: str) -> None:
    """ApiError if no generation can be under a grammar."""
    if not client.loaded.grammars:
        raise unsupported(field, "the caches of this model are not in pages, so its text is not constrained")


def _tools(request: ChatRequest) -> list[dict[str, Any]]:
    """The tools that the template gets."""
    return [] if request.tool_choice == "none" else request.tools


def _call(index: int, part: Part) -> dict[str, Any]:
    """A call of a tool, as far as its arguments are there."""
    assert part.call is not None
    function = {"name": part.call.name, "arguments": part.call.arguments}
    return {"index": index, "id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}
