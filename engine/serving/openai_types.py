"""Requests of OpenAI's interface: which fields there are, which values they take, and how a body becomes a request.

A body has fields of four kinds. What is in a struct here has an effect. What is in `WITHOUT_EFFECT` is for others than the
model, and is read past. What is in `REFUSED` would change what is generated and cannot be done: only the value that asks for
nothing is taken. Any other field is refused too: its name says that the client expects an effect. A field that is null is
absent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeVar, cast

import msgspec
from msgspec import Meta

from engine.sampling import TOP_LOGPROBS
from engine.serving.errors import ApiError, invalid, unsupported

TOKEN_NUMBER: Final = re.compile("0|[1-9][0-9]{0,9}")
"""A token's number as a name of JSON has it: each token has one name, so that none has two biases."""
MOST_STOPS: Final = 16
MOST_CHOICES: Final = 128
"""Stop strings of a request, and choices of all of its prompts together."""
MOST_BIASES: Final = 1 << 15
MOST_ALLOWED: Final = 1 << 20
"""Entries of `logit_bias` and `allowed_token_ids` of all choices together: the engine reads those of each choice while nothing
else runs, 150,000 biases in 0.4 seconds."""

Count = Annotated[int, Meta(ge=1, le=1 << 31)]
TokenId = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
TokenIds = list[TokenId]
Text = Annotated[str, Meta(min_length=1)]
Stop = Text | Annotated[list[Text], Meta(max_length=MOST_STOPS)]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """`stream_options`: whether a last chunk has the usage, and every other one the usage so far, as vLLM has it."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class JsonSchema(msgspec.Struct, forbid_unknown_fields=True):
    """`json_schema` of `response_format`. A generation always keeps to the schema, strict or not."""

    name: str = ""
    description: str | None = None
    schema: dict[str, Any] | bool = True
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, forbid_unknown_fields=True):
    """`response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True):
    """`structured_outputs`, as vLLM has it: one of these. A grammar is one of Lark or GBNF."""

    json: dict[str, Any] | str | None = None
    regex: Text | None = None
    choice: list[str] | None = None
    grammar: Text | None = None
    json_object: bool | None = None


class Generation(msgspec.Struct, kw_only=True):
    """Fields that both kinds of completions have."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=MOST_CHOICES)] = 1
    stop: Stop = []
    stop_token_ids: Annotated[TokenIds, Meta(max_length=MOST_STOPS)] = []
    ignore_eos: bool = False
    max_tokens: Count | None = None
    seed: int | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=(1 << 31) - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] = 0.0
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] = 0.0
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] = 1.0
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] = {}
    allowed_token_ids: Annotated[TokenIds, Meta(min_length=1)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=1 << 31)] = 0
    priority: Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)] = 0
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: Text | None = None
    guided_choice: list[str] | None = None
    guided_grammar: Text | None = None

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        """`logit_bias` by token; ApiError for a name that is no token."""
        if wrong := [name for name in self.logit_bias if not TOKEN_NUMBER.fullmatch(name)]:
            raise invalid("logit_bias", f"`{_shown(wrong[0])}` is not the number of a token")
        return tuple((int(name), bias) for name, bias in self.logit_bias.items())

    def check_choices(self, choices: int) -> None:
        """ApiError if so many choices have more than the engine is to read at once."""
        lists = ("logit_bias", self.logit_bias, MOST_BIASES), ("allowed_token_ids", self.allowed_token_ids or (), MOST_ALLOWED)
        for name, values, most in lists:
            if len(values) * choices > most:
                raise invalid(name, f"{choices} choices have {len(values)} tokens each, over {most} together")

    @property
    def counts_each(self) -> bool:
        """Whether each chunk of a stream has the usage; ApiError if that is asked without one at the end, or anything of a
        stream where there is none."""
        asked = self.stream_options
        if asked is not None and not self.stream:
            raise invalid("stream_options", "it needs `stream` true")
        if asked is None or not asked.continuous_usage_stats:
            return False
        if not asked.include_usage:
            raise invalid("stream_options", "`continuous_usage_stats` needs `include_usage`")
        return True

    @property
    def asked_logprobs(self) -> int | None:
        """How many most likely tokens are reported with each token's probability; None: no probabilities."""
        return None

    @property
    def stops(self) -> list[str]:
        """The stop strings as a list."""
        return [self.stop] if isinstance(self.stop, str) else self.stop


class TemplateKeywords(msgspec.Struct, forbid_unknown_fields=True):
    """`chat_template_kwargs`."""

    enable_thinking: bool = True


class ChatRequest(Generation, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    tools: list[dict[str, Any]] = []
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    chat_template_kwargs: TemplateKeywords | None = None
    reasoning_effort: str | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0, le=TOP_LOGPROBS)] = 0

    @property
    def asked_logprobs(self) -> int | None:
        if self.top_logprobs and not self.logprobs:
            raise invalid("top_logprobs", "it needs `logprobs` true")
        return self.top_logprobs if self.logprobs else None

    @property
    def thinking(self) -> bool:
        """Whether the model is to think first."""
        return self.reasoning_effort != "none" and (self.chat_template_kwargs or TemplateKeywords()).enable_thinking


class CompletionRequest(Generation, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[Any]
    logprobs: Annotated[int, Meta(ge=0, le=TOP_LOGPROBS)] | None = None

    @property
    def asked_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, each a text or token ids; ApiError if there are none, or other things."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if len(self.prompt) > MOST_CHOICES and not isinstance(self.prompt[0], int):  # before each of them is looked at
            raise invalid("prompt", f"{len(self.prompt)} prompts are over {MOST_CHOICES}")
        for kind in (list[str], TokenIds, list[TokenIds]):
            try:
                found: Any = msgspec.convert(self.prompt, kind)
            except msgspec.ValidationError:
                continue
            if found:
                return [found] if kind is TokenIds else found
        raise invalid("prompt", "it is not a text, token ids, or a list of one of these")


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /tokenize: of a text, or of a conversation with the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] = []
    chat_template_kwargs: TemplateKeywords | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /detokenize."""

    model: str | None = None
    tokens: TokenIds


WITHOUT_EFFECT: Final = frozenset(
    {
        "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
        "request_id",
    }
)  # fmt: skip
"""Fields that are for accounts, logs and caches of a service, not for the model."""

NO_LOGPROBS: Final = "probabilities of the prompt are not returned"

REFUSED: Final[dict[str, tuple[tuple[Any, ...], str]]] = {
    "bad_words": (([],), "words of several tokens are not barred; give `logit_bias`"),
    "top_logprobs": ((0,), "a text has `logprobs` alone, the number of most likely tokens"),
    "prompt_logprobs": ((), NO_LOGPROBS),
    "parallel_tool_calls": ((True,), "a text has no calls"),
    "functions": (([],), "give `tools`"),
    "function_call": (("none", "auto"), "give `tool_choice`"),
    "best_of": ((1,), "give `n`"),
    "echo": ((False,), "the prompt is not returned"),
    "suffix": (("",), "the model continues a text, and fills no gap"),
    "modalities": ((["text"],), "the model writes text"),
    "audio": ((), "the model writes text"),
    "prediction": ((), "generated text is not predicted"),
    "verbosity": (("medium",), "the model has no such setting"),
    "web_search_options": ((), "there is no search"),
    "add_generation_prompt": ((True,), "a conversation is always continued by the assistant"),
    "continue_final_message": ((False,), "a conversation is always continued by a new message"),
    "add_special_tokens": ((True,), "the family's first token is always there"),
    "skip_special_tokens": ((True,), "special tokens are no text"),
    "include_stop_str_in_output": ((False,), "a generation ends before the stop string"),
    "truncate_prompt_tokens": ((), "prompts are not cut"),
    "return_token_ids": ((False,), "token ids are not returned"),
    "return_token_strs": ((False,), "token ids alone are returned"),
    "thinking_token_budget": ((), "thoughts are not limited"),
    "use_beam_search": ((False,), "tokens are chosen one by one"),
    "cache_salt": ((), "there is no cache of prompts"),
}
"""For each field, the values that ask for nothing, and why there are no others."""

T = TypeVar("T", bound=msgspec.Struct)
_FIELD: Final = re.compile(r"`\$\.(\w+)")


NOTHING: Final[Mapping[str, tuple[tuple[Any, ...], str]]] = {}


def read(body: bytes, kind: type[T], refused: Mapping[str, tuple[tuple[Any, ...], str]] = NOTHING) -> T:
    """A request from its body. ApiError that names the field if the body is no JSON object, or a field is unknown, has a wrong
    value, or one that would be without effect: another one than those of `refused`, or of `REFUSED` for a name that `kind`
    lacks."""
    try:
        value: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply", code="invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError(400, "the body is not a JSON object", code="invalid_json")
    known = frozenset(kind.__struct_fields__)  # `msgspec.structs.fields` evaluates every annotation anew
    fields: dict[str, Any] = {}
    for name, item in cast("dict[str, Any]", value).items():
        if item is None:
            continue
        rule = refused.get(name) or (None if name in known else REFUSED.get(name))
        if rule is not None:
            if not any(item == one and isinstance(item, bool) == isinstance(one, bool) for one in rule[0]):
                raise unsupported(name, rule[1])
        elif name in known:
            fields[name] = item
        elif name not in WITHOUT_EFFECT:
            raise unsupported(_shown(name), "this server does not know it")
    try:
        return msgspec.convert(fields, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        location = _FIELD.search(str(error))
        field = location[1] if location else next(iter(re.findall(r"field `(\w+)`", str(error))), "")
        raise ApiError(400, str(error), param=field or None, code="invalid_value") from None


def top_k_of(asked: int | None, of_model: int) -> int:
    """The number of tokens to draw from, 0 for all: as asked, where -1 is all too, else the model's."""
    return of_model if asked is None else max(asked, 0)


def _shown(name: str) -> str:
    return name if len(name) <= 64 and name.isprintable() else ascii(name[:64])
