"""What the server's process and the engine's say to each other: messages, and how they are cut out of a stream of bytes.

A message is a length of four bytes, little-endian, and a MessagePack array of one of the structs here. Both ends are of one
installation and the stream is a pair of sockets without a name, so messages are not checked beyond their types.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from engine.sampling import Logprobs, SamplingParams
from tilec.step.formats import SIXTEEN_BIT

LENGTH_BYTES: Final = 4


class Message(msgspec.Struct, array_like=True, tag=True):
    """A message of either process."""


class Grammar(msgspec.Struct, array_like=True, frozen=True):
    """What the text of a generation must be: a grammar of llguidance. `opens`, `closes`: the tokens around a thought, None if
    there is none; `begun`: whether the prompt has opened it; `between`: tokens that may stand once between thought and text."""

    text: str
    opens: int | None = None
    closes: int | None = None
    begun: bool = False
    between: tuple[int, ...] = ()


class Load(Message):
    """To the engine, first: load a model. `rows` and `pages` as in `engine.serving.rows.rows_of`, `chunk_tokens`, `guesses` and
    `chunk_prompts` (None: as many as a launch takes) as in `engine.serving.scheduler`; the others as in
    `engine.api.Engine.from_pretrained`."""

    model: str
    backend: str
    rows: int
    max_seq_len: int
    chunk_tokens: int
    bundle: str | None = None
    bundle_digest: str | None = None
    trust: str | None = None
    weight_format: str | None = None
    cache_format: str | None = None
    dummy: int | None = None
    pages: int | None = None
    guesses: int = 0
    gpus: int = 1
    chunk_prompts: int | None = None

    @property
    def wakes(self) -> bool:
        """Whether the engine's own process uses a GPU; of several, each has a process of its own."""
        return self.backend == "cuda" and self.gpus == 1


class Submit(Message):
    """To the engine: generate up to `max_tokens` tokens after `ids`, ended by one of `stop_tokens`. `number` is the caller's
    and new. `sampling` None: greedy. With `grammar`, the sampling is masked."""

    number: int
    ids: list[int]
    max_tokens: int
    stop_tokens: list[int] = []
    priority: int = 0
    sampling: SamplingParams | None = None
    grammar: Grammar | None = None


class Cancel(Message):
    """To the engine: end a request. Nothing more is said of it."""

    number: int


class Loaded(Message):
    """From the engine, first: the model is loaded. `rows` sequences of up to `longest` tokens fit, in `pages` pages of
    `page_tokens`; `seconds` were needed. `grammars`: whether generations can be under a grammar. `cache_format`: how keys and
    values are stored. `phases`: seconds of the parts of the process's start (`engine.phases`)."""

    rows: int
    longest: int
    pages: int
    page_tokens: int
    seconds: float
    grammars: bool = True
    cache_format: str = SIXTEEN_BIT
    phases: dict[str, float] = {}


class Refused(Message):
    """From the engine instead, or as its last message: the error that ends it, and the exit status."""

    what: str
    where: str
    fix: str
    exit_code: int


class Report(Message):
    """From the engine after each iteration, and in one of prompts also before their tokens are there. `tokens`: a new token
    of each of these requests, by number. `ended`: why requests ended; `stop`, `length`, `error: ` and what went wrong, or
    `invalid: ` and what is wrong with its grammar. `admitted`: requests whose prompt begins. Then the tokens of prompts that
    the iteration computed, and how many requests decode or are in their prompt, how many wait, and how many pages are taken.
    `cached`: of the prompts that begin, how many tokens the cache of prefixes has. `logprobs`: probabilities of those new
    tokens whose requests ask for them. `more`: further new tokens, where guesses were right. `guessed`: how many requests had
    guesses, how many these were, and then of the first, second and later guesses of requests how many were right."""

    tokens: dict[int, int]
    ended: dict[int, str]
    admitted: list[int]
    prompt_tokens: int
    running: int
    waiting: int
    used_pages: int
    cached: dict[int, int] = {}
    logprobs: dict[int, Logprobs] = {}
    more: dict[int, list[int]] = {}
    guessed: list[int] = []

    def each(self) -> Iterator[tuple[int, int]]:
        """The new tokens with the numbers of their requests, those of a request in their order."""
        yield from self.tokens.items()
        for number, tokens in self.more.items():
            for token in tokens:
                yield number, token


ToEngine = Load | Submit | Cancel
FromEngine = Loaded | Refused | Report

_encoder: Final = msgspec.msgpack.Encoder()
_to_engine: Final[msgspec.msgpack.Decoder[ToEngine]] = msgspec.msgpack.Decoder(ToEngine)
_from_engine: Final[msgspec.msgpack.Decoder[FromEngine]] = msgspec.msgpack.Decoder(FromEngine)


def encoded(message: Message) -> bytes:
    """A message as bytes of the stream."""
    body = _encoder.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


def to_engine(body: bytes) -> ToEngine:
    """A message to the engine; `msgspec.MsgspecError` if it is none."""
    return _to_engine.decode(body)


def from_engine(body: bytes) -> FromEngine:
    """A message from the engine; `msgspec.MsgspecError` if it is none."""
    return _from_engine.decode(body)


class Frames:
    """Cuts bytes that arrive in any pieces into the bodies of messages."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def push(self, piece: bytes) -> Iterator[bytes]:
        """The bodies that are whole with this piece."""
        self._pending += piece
        start = 0
        while len(self._pending) - start >= LENGTH_BYTES:
            end = start + LENGTH_BYTES + int.from_bytes(self._pending[start : start + LENGTH_BYTES], "little")
            if end > len(self._pending):
                break
            yield bytes(self._pending[start + LENGTH_BYTES : end])
            start = end
        del self._pending[:start]
