"""The engine for programs: a model folder and a bundle go in, text comes out. Where no bundle is named, one is looked for
(`tilec.finder`). With `backend="interpreter"` no bundle is needed, and no GPU.

with Engine.from_pretrained("Qwen3-4B", bundle="qwen3-4b-sm_90a.bundle") as engine:
    for piece in engine.generate([{"role": "user", "content": "Why is the sky blue?"}]):
        print(piece, end="")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from engine.backends import Backend
from engine.backends.load import device_errors, load_on_gpu
from engine.checkpoint.weights import WeightPlan
from engine.errors import DeviceError, UsageError
from engine.models.config import GenerationConfig, ModelConfig
from engine.sampling import TOP_K_LIMIT, SamplingParams
from engine.text.tokenizer import Detokenizer, StopStrings, Text
from engine.tools.dummy_weights import dummy_weights
from engine.tools.profile import StepProfile, profile_decode
from tilec.runtime import Bundle, Device

if TYPE_CHECKING:
    from tilec.runtime.trust import TrustSource

DEFAULT_SEQUENCE: Final = 4096
"""Tokens that a cache has room for unless another number is given."""

BackendName = Literal["cuda", "interpreter"]
"""A GPU with the CUBINs of a bundle, or the kernels' sources in NumPy: for tiny models, and slow."""

Prompt = str | Sequence[Mapping[str, Any]]
"""A raw text, or a conversation for the chat template."""


class Engine:
    """A model on a device. Batch 1, greedy unless sampling is asked for; not for several threads at once. Closing it closes
    the backend, and the bundle that the backend's kernels come from."""

    def __init__(
        self, backend: Backend, config: ModelConfig, generation: GenerationConfig, text: Text, bundle: Bundle | None = None
    ) -> None:
        self.backend, self.config, self.generation, self.text, self._bundle = backend, config, generation, text, bundle
        self._sequence = backend.begin()

    @classmethod
    def from_pretrained(
        cls,
        path: str | PathLike[str],
        *,
        bundle: str | PathLike[str] | None = None,
        backend: BackendName = "cuda",
        max_seq_len: int = DEFAULT_SEQUENCE,
        dtype: str | None = None,
        dummy: int | None = None,
        progress: Callable[[int, int], None] | None = None,
        device: Device | None = None,
        bundle_digest: str | None = None,
        trust: TrustSource = None,
    ) -> Engine:
        """Load a model folder (config, tokenizer, safetensors) with the CUBINs of `bundle`, or of the one that `tilec.finder`
        finds for the model and the GPU; `bundle_digest` is the hex sha256 that the file of the bundle must have, `trust` the
        policy that says who must have signed it: a file, `none`, or what the environment and the user's configuration say
        (`tilec.runtime.trust`).

        `max_seq_len` bounds prompt and answer together; `dtype` is bf16 or f16, that of the model where None; `dummy` takes
        random weights of that seed instead of the files'; `progress` is called with the bytes of weights loaded so far and in
        all. Raises an `EngineError`: see `engine.errors`.
        """
        if backend == "interpreter" and any(one is not None for one in (bundle, device, bundle_digest, trust)):
            raise UsageError("the interpreter takes neither a bundle nor a device", fix="leave them out")
        config = ModelConfig.read(path)
        generation = GenerationConfig.read(path, config)
        text = Text.read(path)
        if not 1 <= max_seq_len <= config.max_position_embeddings:
            what = f"max-seq-len {max_seq_len} is not from 1 to {config.max_position_embeddings}"
            raise UsageError(what, fix="the model knows no more positions")
        dtype = dtype or ("f16" if config.dtype == "f16" else "bf16")
        weights = dummy_weights(config, dtype, dummy) if dummy is not None else WeightPlan.for_model(config, path, dtype)
        if backend == "interpreter":
            from engine.backends.interpreter import InterpreterBackend  # so that a GPU does not wait for the frontend's import

            interpreter = InterpreterBackend()
            interpreter.load(config, weights, max_seq_len, dtype, progress)
            return cls(interpreter, config, generation, text)
        loaded = load_on_gpu(
            bundle, config, weights, max_seq_len, dtype, progress=progress, device=device, digest=bundle_digest, trust=trust
        )
        return cls(loaded, config, generation, text, loaded.bundle)

    def tokens(
        self, prompt: Prompt, *, thinking: bool = True, tools: Sequence[Mapping[str, Any]] | None = None,
        allow_control_tokens: bool = False,
    ) -> list[int]:  # fmt: skip
        """Token ids of a prompt; UsageError where it is empty. `tools` are JSON schemas of functions, for the chat template.

        A control token that the prompt spells, such as `<|im_end|>`, is text like any other, so that nobody's words end their
        turn and begin another's. `allow_control_tokens` makes it the control token: the ids are then those of transformers for
        every prompt, and else for every prompt that spells none.
        """
        raw = isinstance(prompt, str)
        if raw and tools:
            raise UsageError("tools are for conversations, and the prompt is a raw text", fix="give a list of messages")
        if raw:
            ids = self.text.raw(prompt, allow_control_tokens=allow_control_tokens)
        else:
            ids = self.text.chat(prompt, thinking=thinking, tools=tools, allow_control_tokens=allow_control_tokens)
        if not ids:
            raise UsageError("the prompt is empty", fix="give at least one character")
        return ids

    def sampling(self, *, seed: int = 0, **values: Any) -> SamplingParams:
        """How the model wants to be sampled (generation_config.json), with `temperature`, `top_k`, `top_p` changed where given.

        A `top_k` of the model above `TOP_K_LIMIT`, or of 0 for all tokens, becomes `TOP_K_LIMIT`. UsageError for bad values.
        """
        model = self.generation
        top_k = min(model.top_k or TOP_K_LIMIT, TOP_K_LIMIT)
        defaults: dict[str, Any] = {"temperature": model.temperature, "top_k": top_k, "top_p": model.top_p}
        return SamplingParams(seed=seed, **(defaults | values))

    def generate_ids(self, ids: Sequence[int], max_new_tokens: int, *, sampling: SamplingParams | None = None) -> Iterator[int]:
        """The continuation, token by token, without the stop token; ends at `max_new_tokens`, a stop token, or where the cache
        is full. Greedy, or drawn where `sampling` is given: the n-th token of an answer takes the n-th random number of the
        seed. UsageError for ids outside the vocabulary or a prompt longer than the cache."""
        if max_new_tokens < 1:
            raise UsageError(f"max-new-tokens is {max_new_tokens}, and must be positive")
        room = min(max_new_tokens, self.backend.max_seq_len - len(ids) + 1)
        sequence = self._sequence = self.backend.begin()
        with device_errors():
            self.backend.prefill(sequence, ids, sampling)
            token = self.backend.token()
            following = self.backend.stream_tokens(sequence, token, room - 1) if room > 1 else iter(())
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
        """The answer in pieces that end between characters; it ends before the first of the strings `stop`, and where another
        answer is begun. See `tokens` and `generate_ids` for the rest."""
        ids = self.tokens(prompt, thinking=thinking, tools=tools, allow_control_tokens=allow_control_tokens)
        stream, end = Detokenizer(self.text), StopStrings(stop)
        for token in self.generate_ids(ids, max_new_tokens, sampling=sampling):
            piece = end.push(stream.push(token))
            if piece:
                yield piece
            if end.found:
                return
        rest = end.push(stream.finish()) + end.finish()
        if rest:
            yield rest

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits after a prompt, (vocab,); UsageError as in `generate_ids`."""
        self._sequence = self.backend.begin()
        with device_errors():
            return self.backend.prompt_logits(self._sequence, ids)

    def profile(self) -> StepProfile:
        """Where the time of a decode step goes at the present length of the last answer, its tokens chosen as then. Overwrites
        the cache's last slot, so that the next thing to do is another answer. UsageError where no GPU runs the model."""
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
        with suppress(DeviceError) if kind is not None else nullcontext():  # what went wrong first is what is told
            self.close()
