"""The engine's Python API: loads a model folder with a bundle's CUBINs and generates text. If no bundle is named,
`tilec.ship.finder` looks for one. `backend="interpreter"` needs neither a bundle nor a GPU.

with Engine.from_pretrained("Qwen3-4B", bundle="qwen3-4b-sm_90a.bundle") as engine:
    for piece in engine.generate([{"role": "user", "content": "Why is the sky blue?"}]):
        print(piece, end="")
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from os import PathLike
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from engine.backends import Backend
from engine.backends.load import device_errors
from engine.errors import DeviceError, EngineError, UsageError
from engine.loading import load_backend
from engine.models.config import GenerationConfig, ModelConfig
from engine.models.families import family_of, read_config
from engine.options import LoadOptions, check_options
from engine.phases import PHASES
from engine.sampling import TOP_K_LIMIT, SamplingParams
from engine.text.detokenizer import Detokenizer, StopStrings
from engine.text.text_process import TextProcess
from tilec.runtime import Bundle

if TYPE_CHECKING:
    from engine.text.tokenizer import Text
    from engine.tools.profile import StepProfile

Prompt = str | Sequence[Mapping[str, Any]]
"""A raw text, or a conversation for the chat template."""


class Engine:
    """A model on a device, at batch size 1. Greedy unless sampling parameters are given. Not thread-safe. Closing it closes the
    backend and the bundle that the backend's kernels come from."""

    def __init__(
        self, backend: Backend, config: ModelConfig, generation: GenerationConfig, text: Text | TextProcess,
        bundle: Bundle | None = None,
    ) -> None:  # fmt: skip
        self.backend, self.config, self.generation, self._text, self._bundle = backend, config, generation, text, bundle
        self._sequence = backend.begin()

    @classmethod
    def from_pretrained(
        cls, path: str | PathLike[str], *, text: TextProcess | None = None, **options: Unpack[LoadOptions]
    ) -> Engine:  # fmt: skip
        """Load a model folder (config, tokenizer, safetensors) with the CUBINs of a bundle, or on the interpreter. Options are
        `engine.options.LoadOptions`. `text`: another process that reads the tokenizer meanwhile, which the caller closes.
        Raises an `EngineError`: see `engine.errors`."""
        check_options(options)
        config = read_config(path)
        generation = GenerationConfig.read(path, config)
        words = _read_text(path, config) if text is None else text
        PHASES.ended("tokenizer")
        loaded, opened = load_backend(path, config, **options)
        engine = cls(loaded, config, generation, words, opened)
        if text is not None:
            try:
                text.ready()
            except BaseException:
                with suppress(EngineError):  # the first error is the one to report
                    engine.close()
                raise
            PHASES.ended("tokenizer_waited_for")
        return engine

    @property
    def text(self) -> Text:
        """The tokenizer, if it is in this process."""
        assert not isinstance(self._text, TextProcess)
        return self._text

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, without special tokens."""
        return self._text.decode(ids)

    def tokens(
        self, prompt: Prompt, *, thinking: bool = True, tools: Sequence[Mapping[str, Any]] | None = None,
        allow_control_tokens: bool = False,
    ) -> list[int]:  # fmt: skip
        """Token ids of a prompt; UsageError if it is empty. `tools` are JSON schemas of functions, for the chat template.

        A control token spelled in the prompt, such as `<|im_end|>`, is tokenized as plain text, so that no message can
        end itself and begin another. `allow_control_tokens` makes it the control token: then the ids equal those of
        transformers for every prompt, otherwise for every prompt that spells no control token.
        """
        raw = isinstance(prompt, str)
        if raw and tools:
            raise UsageError("tools need a conversation, but the prompt is raw text", fix="give a list of messages")
        if raw:
            ids = self._text.raw(prompt, allow_control_tokens=allow_control_tokens)
        else:
            ids = self._text.chat(prompt, thinking=thinking, tools=tools, allow_control_tokens=allow_control_tokens)
        if not ids:
            raise UsageError("the prompt is empty", fix="give at least one character")
        return ids

    def sampling(self, *, seed: int = 0, **values: Any) -> SamplingParams:
        """The model's sampling parameters (generation_config.json), with `temperature`, `top_k`, `top_p` overridden if given.

        A model's `top_k` above `TOP_K_LIMIT`, or 0 (all tokens), becomes `TOP_K_LIMIT`. UsageError for bad values.
        """
        model = self.generation
        top_k = min(model.top_k or TOP_K_LIMIT, TOP_K_LIMIT)
        defaults: dict[str, Any] = {"temperature": model.temperature, "top_k": top_k, "top_p": model.top_p}
        return SamplingParams(seed=seed, **(defaults | values))

    def generate_ids(self, ids: Sequence[int], max_new_tokens: int, *, sampling: SamplingParams | None = None) -> Iterator[int]:
        """Generate token by token; the stop token is not yielded. Ends after `max_new_tokens`, at a stop token, or when the
        cache is full. Greedy, or sampled if `sampling` is given: the n-th token uses the seed's n-th random number. UsageError
        for ids outside the vocabulary or a prompt longer than the cache."""
        if max_new_tokens < 1:
            raise UsageError(f"max-new-tokens is {max_new_tokens}, and must be positive")
        limit = min(max_new_tokens, self.backend.max_seq_len - len(ids) + 1)
        sequence = self._sequence = self.backend.begin()
        with device_errors():
            self.backend.prefill(sequence, ids, sampling)
            token = self.backend.token()
            following = self.backend.stream_tokens(sequence, token, limit - 1) if limit > 1 else iter(())
            while token not in self.generation.eos_token_id:
                yield token
                token = next(following, None)
                if token is None:
                    return

    def generate(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int = 128,
        thinking: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        sampling: SamplingParams | None = None,
        stop: str | Sequence[str] = (),
        allow_control_tokens: bool = False,
    ) -> Iterator[str]:
        """Generated text in pieces that never split a character. Ends before the first of the strings `stop`, and when another
        generation begins. See `tokens` and `generate_ids` for the rest."""
        ids = self.tokens(prompt, thinking=thinking, tools=tools, allow_control_tokens=allow_control_tokens)
        stream, stop_strings = Detokenizer(self._text), StopStrings(stop)
        for token in self.generate_ids(ids, max_new_tokens, sampling=sampling):
            piece = stop_strings.push(stream.push(token))
            if piece:
                yield piece
            if stop_strings.found:
                return
        remaining = stop_strings.push(stream.finish()) + stop_strings.finish()
        if remaining:
            yield remaining

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits of the prompt's last token, (vocab,); UsageError as in `generate_ids`."""
        self._sequence = self.backend.begin()
        with device_errors():
            return self.backend.prompt_logits(self._sequence, ids)

    def profile(self) -> StepProfile:
        """Time per operation of a decode step, at the current length and output mode of the last generation. Overwrites the
        last slot of the cache, so the next call must begin a new generation. UsageError on a backend without a GPU."""
        from engine.tools.profile import profile_decode  # late: other calls do without this import

        with device_errors():
            return profile_decode(self.backend, self._sequence)

    def close(self) -> None:
        """Free the device and the bundle; idempotent."""
        try:
            with device_errors():
                self.backend.close()
        finally:
            if self._bundle is not None:
                self._bundle.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with suppress(DeviceError) if kind is not None else nullcontext():  # the first error is the one to report
            self.close()


def _read_text(path: str | PathLike[str], config: ModelConfig) -> Text:
    """The tokenizer of a model folder."""
    from engine.text.tokenizer import Text  # late: a process that has it elsewhere does without the library

    return Text.read(path, family_of(config.model_type).tokenizer)
