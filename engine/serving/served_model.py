"""The model that a server serves, as its interface sees it: name, limits, tokenizer and chat template, defaults for
sampling."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from typing import Any, Final, ParamSpec, TypeVar, cast

from engine.errors import ModelError, UsageError
from engine.models.config import GenerationConfig
from engine.models.families import family_of, read_config
from engine.sampling import SEED_LIMIT, SamplingParams
from engine.serving import thinking, tool_calls
from engine.serving.errors import ApiError, engine_failed, invalid
from engine.serving.grammar_process import GrammarProcess
from engine.serving.grammars import Make
from engine.serving.openai_types import Generation, top_k_of
from engine.serving.options import ToolForm
from engine.serving.protocol import Grammar
from engine.serving.tool_calls import ToolCalls
from engine.serving.xml_calls import FUNCTION, PARAMETER, XmlCalls
from engine.text.messages import plain_tools
from engine.text.tokenizer import Text

P = ParamSpec("P")
R = TypeVar("R")

LONG_TEXT: Final = 1 << 16
"""Characters of a prompt that is tokenized in a thread for long ones, so that others do not wait for it: four million take ten
seconds."""
PROBE: Final[dict[str, Any]] = {
    "type": "function", "function": {
        "name": "f", "description": "x", "parameters": {
            "type": "object", "properties": {"a": {"type": "string", "description": "x"}}, "required": ["a"],
        },
    },
}  # fmt: skip
"""A tool that a template is shown, so that it says how calls are written."""


class ServedModel:
    """A model folder without its weights. ModelError if a file is absent or damaged. `longest` is the most tokens of a prompt
    and its generation together. `tool_form`: in which form the model writes calls of tools, None for what its chat template
    asks for."""

    def __init__(
        self, folder: str | PathLike[str], longest: int, name: str, tool_form: ToolForm | None = None
    ) -> None:  # fmt: skip
        config = read_config(folder)
        self.name, self.longest, self.vocabulary = name, longest, config.vocab_size
        self.generation = GenerationConfig.read(folder, config)
        self.text = Text.read(folder, family_of(config.model_type).tokenizer)
        self._texts, self._long_texts, self._forms = (
            ThreadPoolExecutor(1, thread_name_prefix=name) for name in ("text", "long-text", "form")
        )
        self._grammars = GrammarProcess(folder, config.vocab_size, self.generation.eos_token_id)
        self.call_tags = self.text.tokenizer.token_to_id(tool_calls.OPEN), self.text.tokenizer.token_to_id(tool_calls.CLOSE)
        """The tokens around a call of a tool; None for one that the vocabulary lacks."""
        self._tool_form: ToolForm | None = tool_form
        self._opens, self._closes = (self.text.tokenizer.token_to_id(tag) for tag in (thinking.OPEN, thinking.CLOSE))

    @property
    def thinks(self) -> bool:
        """Whether the model has the tags of a thought."""
        return self._opens is not None and self._closes is not None

    @property
    def tool_form(self) -> ToolForm:
        """The form in which the model writes calls of tools. It is known from the first conversation with tools on."""
        return self._tool_form or "hermes"

    def finder(self, tools: Sequence[dict[str, Any]]) -> ToolCalls | XmlCalls:
        """What finds the calls of tools in a generation."""
        return XmlCalls(tools) if self.tool_form == "xml" else ToolCalls()

    def thought_begun(self, ids: Sequence[int]) -> bool:
        """Whether a prompt ends in a thought: its template opened one for the generation."""
        return thinking.begun(ids, self._opens, self._closes)

    async def chat(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], *, think: bool = True,
        field: str = "messages",
    ) -> list[int]:  # fmt: skip
        """Token ids of a conversation; ApiError that names the request's `field` if the template does not take it."""
        for number, tool in enumerate(tools):
            _check_tool(tool, number)
        plain = [message | {"role": "system"} if message.get("role") == "developer" else message for message in messages]
        shown = [_without_strict(tool) for tool in tools]
        size = _characters([plain, shown])
        if shown:
            await self._in_thread("tools", size, plain_tools, shown)
        if self._tool_form is None and (shown or any(message.get("tool_calls") for message in plain)):
            self._tool_form = await self._in_thread("tools", 0, asked_form, self.text)
        if self.tool_form == "xml":
            plain = [_with_objects(message) for message in plain]
        return await self._in_thread(field, size, self.text.chat, plain, tools=shown or None, thinking=think)

    async def raw(self, prompt: str) -> list[int]:
        """Token ids of a text; ApiError if it is none."""
        return await self._in_thread("prompt", len(prompt), self.text.raw, prompt)

    async def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included; ApiError if one is not in the vocabulary."""
        self.check_ids(ids, "tokens")
        decode = self.text.tokenizer.decode
        return await self._in_thread("tokens", len(ids), decode, list(ids), skip_special_tokens=False)

    def check_ids(self, ids: Sequence[int], field: str) -> None:
        """ApiError for a token that is not in the vocabulary."""
        size = self.vocabulary
        if (outside := next((token for token in ids if not 0 <= token < size), None)) is not None:
            what = f"`{field}`: token {outside} is not in the vocabulary of {size}"
            raise ApiError(400, what, param=field, code="invalid_value")

    async def grammar(self, find: Callable[[Make], str], prompt: Sequence[int] = (), *, think: bool = False) -> Grammar:
        """The grammar that `find` returns, or its ApiError; `find` runs in a thread, and its argument makes grammars in the
        process that checks them. After a `prompt` that may be followed by a
        thought (`think`), or has begun one, it is for the text after that."""
        text = await asyncio.get_running_loop().run_in_executor(self._forms, find, self._grammars.made)
        begun = self.thinks and self.thought_begun(prompt)
        if not self.thinks or not (think or begun):
            return Grammar(text)
        between = tuple(ids[0] for blank in ("\n", "\n\n") if len(ids := self.text.encode(blank)) == 1)
        return Grammar(text, self._opens, self._closes, begun, between)

    def sampling(
        self, request: Generation, choice: int, stop_tokens: Iterable[int], *, masked: bool = False
    ) -> SamplingParams | None:  # fmt: skip
        """How the tokens of one choice of a request are chosen; None: greedy. Choices of one request have seeds that follow
        each other. Without a seed, one is drawn. None of `stop_tokens` is chosen among its first `min_tokens` tokens. `masked`:
        a grammar says which tokens may be next. ApiError if a parameter names a token that the model lacks, or leaves none."""
        model = self.generation
        temperature = request.temperature
        if temperature is None:
            temperature = model.temperature if model.do_sample else 0.0
        asked: dict[str, Any] = {
            "min_p": request.min_p if temperature else 0.0, "frequency_penalty": request.frequency_penalty,
            "presence_penalty": request.presence_penalty, "repetition_penalty": request.repetition_penalty,
            "logit_bias": request.biases, "allowed": tuple(sorted({*(request.allowed_token_ids or ())})),
            "barred": tuple(sorted({*stop_tokens})) if request.min_tokens else (), "min_tokens": request.min_tokens,
            "logprobs": request.asked_logprobs, "masked": masked,
        }  # fmt: skip
        self.check_ids([token for token, _ in asked["logit_bias"]], "logit_bias")
        self.check_ids(asked["allowed"], "allowed_token_ids")
        self.check_ids(asked["barred"], "stop_token_ids")
        if asked["allowed"] and set(asked["barred"]).issuperset(asked["allowed"]):
            raise invalid("allowed_token_ids", "with `min_tokens` it leaves no token")
        seed = secrets.randbelow(SEED_LIMIT) if request.seed is None else (request.seed + choice) % SEED_LIMIT
        if temperature == 0:
            params = SamplingParams(top_k=1, **asked)
            return None if params.simple else params
        top_p = model.top_p if request.top_p is None else request.top_p
        return SamplingParams(temperature, top_k_of(request.top_k, model.top_k), top_p, seed, **asked)

    def max_tokens(
        self, prompt: int, asked: int | None, default: int | None, field: str, limit: str = "max_tokens"
    ) -> int:  # fmt: skip
        """The most tokens of a generation; ApiError if they do not fit, which names the request's `field` of the prompt or that
        of the `limit`. `default` None: all that fit."""
        room = self.longest - prompt
        if prompt < 1:
            raise ApiError(400, f"`{field}`: the prompt is empty", param=field, code="invalid_value")
        if room < 1:
            what = f"the prompt has {prompt} tokens, and it has to be shorter than the context of {self.longest}"
            raise ApiError(400, what, param=field, code="context_length_exceeded")
        if asked is not None and asked > room:
            what = f"the prompt has {prompt} tokens, which leave {room} of the context of {self.longest}, not {asked}"
            raise ApiError(400, what, param=limit, code="context_length_exceeded")
        return min(room, asked or default or room)

    def close(self) -> None:
        """End the threads, and the process that checks grammars; idempotent."""
        for threads in (self._texts, self._long_texts, self._forms):
            threads.shutdown(wait=False, cancel_futures=True)
        self._grammars.close()

    async def _in_thread(
        self, field: str, size: int, work: Callable[P, R], *values: P.args, **keywords: P.kwargs
    ) -> R:  # fmt: skip
        """The result of a function that is too slow for the event loop. `size`: characters or tokens that it is for."""
        threads = self._texts if size < LONG_TEXT else self._long_texts
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, lambda: work(*values, **keywords))
        except UsageError as error:
            # A file's path, and what the command line can do about it, are nothing for clients.
            what = UsageError(error.what) if error.where else error
            raise ApiError(400, str(what), param=field, code="invalid_value") from None
        except ModelError as error:
            raise engine_failed(error.what) from None


def asked_form(text: Text) -> ToolForm:
    """The form of calls that a chat template asks the model to write: what it says of a tool, in a conversation without
    other words. Hermes if it takes no tools."""
    if text.template is None:
        return "hermes"
    try:
        shown = text.template.render([{"role": "user", "content": "x"}], tools=[PROBE])
    except UsageError:
        return "hermes"
    return "xml" if FUNCTION in shown and PARAMETER in shown else "hermes"


def _check_tool(tool: dict[str, Any], number: int) -> None:
    """ApiError unless a tool, the `number`-th from 0, is a function in OpenAI's form."""
    if tool.get("type", "function") != "function":
        raise invalid("tools", f"tool {number} is no function, and the model takes no others")
    function: Any = tool.get("function")
    fields = cast("dict[str, Any]", function) if isinstance(function, dict) else {}
    name = fields.get("name")
    if not isinstance(name, str) or not name:
        raise invalid("tools", f"tool {number} has no `function` with a `name`")
    for field, kind, what in (
        ("description", str, "a text"), ("parameters", dict, "an object"), ("strict", bool, "true or false"),
    ):  # fmt: skip
        if not isinstance(fields.get(field), kind | None):
            raise invalid("tools", f"`{field}` of tool {number} is not {what}")


def _characters(value: Any) -> int:
    """The characters of all texts in a value, which was JSON."""
    found, waiting = 0, [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            found += len(one)
        elif isinstance(one, dict):
            waiting += [part for pair in cast("dict[str, Any]", one).items() for part in pair]
        elif isinstance(one, list):
            waiting += cast("list[Any]", one)
    return found


def _with_objects(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose calls have objects as arguments: clients send texts of them, and templates of the XML form write each
    argument. What is no object stays as it is, for the template to refuse."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    found: list[Any] = []
    for call in cast("list[Any]", calls):
        fields = cast("dict[str, Any]", call) if isinstance(call, dict) else {}
        function: Any = fields.get("function", fields)
        arguments: Any = cast("dict[str, Any]", function).get("arguments") if isinstance(function, dict) else None
        try:
            value: Any = json.loads(arguments) if isinstance(arguments, str) else None
        except (ValueError, RecursionError):
            value = None
        changed: dict[str, Any] = {**function, "arguments": value} if isinstance(value, dict) else {}
        found.append(call if not changed else fields | {"function": changed} if "function" in fields else changed)
    return message | {"tool_calls": found}


def _without_strict(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool as the template shows it: that calls are held to it is no news for the model."""
    function: Any = tool.get("function")
    if not isinstance(function, dict):
        return tool
    return tool | {"function": {name: value for name, value in cast("dict[str, Any]", function).items() if name != "strict"}}
