"""Many prompts at once, for programs: `LLM` completes a list in this process, `AsyncLLM` streams from a process of its own.

with LLM.from_pretrained("Qwen3-4B", bundle="qwen3-4b-sm_90a.bundle") as llm:
    for found in llm.generate(["The sky is", "A kernel is"], max_tokens=32):
        print(found.text)
"""

from __future__ import annotations

import signal
import threading
from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from os import PathLike
from typing import Any, Self

from engine.api import Engine, Prompt
from engine.backends.load import device_errors
from engine.errors import DeviceError, EngineError, UsageError
from engine.models.config import GenerationConfig
from engine.models.families import family_of, read_config
from engine.sampling import SamplingParams
from engine.serving.client import EngineClient
from engine.serving.generated_text import GeneratedText
from engine.serving.loop import EngineLoop
from engine.serving.options import CHUNK_TOKENS
from engine.serving.protocol import Load, Submit
from engine.serving.rows import rows_of
from engine.text.tokenizer import Text
from tilec.step.step import BATCHES


@dataclass(frozen=True, slots=True)
class Generated:
    """A generation: its text and tokens, the number of tokens of its prompt, and why it ended: `stop` or `length`."""

    text: str
    ids: list[int]
    prompt_tokens: int
    finish_reason: str


class LLM:
    """A model that completes many prompts, as many at a time as it has rows. Not thread-safe. Tokens are those that the server
    would give, whatever else is in the list."""

    def __init__(self, engine: Engine, rows: int = BATCHES[-1], chunk_tokens: int = CHUNK_TOKENS) -> None:
        self._engine = engine
        with device_errors():
            self._loop = EngineLoop(engine.backend, rows_of(engine.backend, rows), chunk_tokens)
            while self._loop.prepare():
                pass

    @classmethod
    def from_pretrained(
        cls, path: str | PathLike[str], *, rows: int = BATCHES[-1], chunk_tokens: int = CHUNK_TOKENS, **options: Any
    ) -> LLM:
        """Load a model folder; `options` and errors are those of `Engine.from_pretrained`."""
        engine = Engine.from_pretrained(path, **options)
        try:
            return cls(engine, rows, chunk_tokens)
        except BaseException:
            with suppress(DeviceError):  # the first error is the one to report
                engine.close()
            raise

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        max_tokens: int = 128,
        sampling: SamplingParams | Sequence[SamplingParams | None] | None = None,
        stop: str | Sequence[str] = (),
        thinking: bool = True,
    ) -> list[Generated]:
        """The generations of prompts, each a text or a conversation, in their order. `sampling` is for all of them or one for
        each; None: the most likely token. A generation ends before a string of `stop`, at a stop token, or after `max_tokens`
        tokens.

        UsageError if a prompt does not fit; nothing is generated then. EngineError if one cannot be finished. Ctrl-C ends it
        between two steps, and others can be generated after it.
        """
        if isinstance(prompts, str):  # which is a sequence of texts too
            raise UsageError("the prompts are one text", fix="give a list of prompts")
        if self._engine.backend.closed:
            raise UsageError("the engine is closed", fix="load the model again")
        engine, longest = self._engine, self._engine.backend.max_seq_len
        each = [sampling] * len(prompts) if sampling is None or isinstance(sampling, SamplingParams) else list(sampling)
        if len(each) != len(prompts):
            raise UsageError(f"there are {len(prompts)} prompts and {len(each)} sampling parameters", fix="give one for each")
        works = [
            _work(number, engine.tokens(prompt, thinking=thinking), max_tokens, engine.generation, one, longest)
            for number, (prompt, one) in enumerate(zip(prompts, each, strict=True))
        ]
        outputs = [GeneratedText(engine.text, _stops(stop), engine.generation.eos_token_id) for _ in works]
        try:
            return self._run(works, outputs)
        finally:
            with _uninterrupted():
                for work in works:
                    self._loop.cancel(work.number)

    def close(self) -> None:
        """Free the device; idempotent."""
        with ExitStack() as releases:
            releases.callback(self._engine.close)
            with device_errors():
                self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, works: Sequence[Submit], outputs: Sequence[GeneratedText]) -> list[Generated]:
        """The generations of submitted works."""
        texts, ids, reasons = [""] * len(works), [list[int]() for _ in works], [""] * len(works)
        with _uninterrupted():
            for work in works:
                self._loop.submit(work)
        while not self._loop.idle:
            with _uninterrupted(), device_errors():
                report = self._loop.iteration()
            for number, token in report.each():
                if outputs[number].stopped:
                    continue
                ids[number].append(token)
                texts[number] += "".join(part.content for part in outputs[number].push(token))
                if outputs[number].stopped and number not in report.ended:
                    self._loop.cancel(number)
                    reasons[number] = "stop"
            for number, reason in report.ended.items():
                if reason.startswith("error"):
                    raise EngineError(reason.partition(": ")[2])
                reasons[number] = "stop" if outputs[number].stopped else reason
        return [
            Generated(text + "".join(part.content for part in output.finish()), found, len(work.ids), reason)
            for text, output, found, work, reason in zip(texts, outputs, ids, works, reasons, strict=True)
        ]


class AsyncLLM:
    """A model in a process of its own, for programs with an event loop. `async with` starts and ends it."""

    def __init__(self, load: Load, most_waiting: int = 256) -> None:
        self._load, self._client = load, EngineClient(most_waiting)
        config = read_config(load.model)
        self.generation = GenerationConfig.read(load.model, config)
        self.text = Text.read(load.model, family_of(config.model_type).tokenizer)

    async def __aenter__(self) -> Self:
        try:
            await self._client.start(self._load)
        except BaseException:
            await self._client.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.stop()

    async def stream(
        self, ids: Sequence[int], *, max_tokens: int = 128, sampling: SamplingParams | None = None,
        stop: str | Sequence[str] = (),
    ) -> AsyncIterator[str]:  # fmt: skip
        """The text that follows the token ids `ids`, in pieces. When the iterator is closed, the row is free for others.

        UsageError if the prompt does not fit, EngineError if there is no room for one more request, or if the engine failed.
        """
        output = GeneratedText(self.text, _stops(stop), self.generation.eos_token_id)
        work = _work(0, list(ids), max_tokens, self.generation, sampling, self._load.max_seq_len)
        async with self._client.submit([work]) as generations:
            ended = None
            while ended is None:
                for arrival in await generations.arrivals():
                    ended = arrival.ended
                    for token in arrival.tokens:
                        for part in output.push(token):
                            yield part.content
                        if output.stopped:
                            return
            if ended.startswith("error"):
                raise self._client.failure or EngineError(ended.partition(": ")[2])
            for part in output.finish():
                yield part.content


@contextmanager
def _uninterrupted() -> Generator[None]:
    """Ctrl-C has its effect after the block: in the middle of an iteration it would leave rows and pages that nobody frees."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is None:
        yield  # no handler of Python runs in this thread
        return
    asked: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: asked.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if asked:
            signal.raise_signal(signal.SIGINT)


def _work(
    number: int, ids: list[int], max_tokens: int, generation: GenerationConfig, sampling: SamplingParams | None, longest: int
) -> Submit:
    """A request to the loop; UsageError if it does not fit."""
    if max_tokens < 1:
        raise UsageError(f"max-tokens is {max_tokens}, and must be positive")
    if len(ids) >= longest:
        raise UsageError(f"{len(ids)} tokens do not fit max-seq-len {longest}", fix="raise it or shorten the prompt")
    return Submit(number, ids, min(max_tokens, longest - len(ids)), list(generation.eos_token_id), 0, sampling)


def _stops(stop: str | Sequence[str]) -> Sequence[str]:
    return (stop,) if isinstance(stop, str) else stop
