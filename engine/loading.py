"""Loads a model folder onto a device, without its tokenizer: what the engine and the server have in common."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import TYPE_CHECKING

from engine.backends import Backend
from engine.backends.load import load_on_gpu
from engine.checkpoint.weights import WeightPlan
from engine.errors import UsageError
from engine.models.config import ModelConfig
from engine.options import DEFAULT_SEQUENCE, BackendName, check_backend
from tilec.runtime import Bundle, Device
from tilec.step.formats import SIXTEEN_BIT

if TYPE_CHECKING:
    from tilec.runtime.trust import TrustSource


def load_backend(
    path: str | PathLike[str],
    config: ModelConfig,
    *,
    bundle: str | PathLike[str] | None = None,
    backend: BackendName = "cuda",
    max_seq_len: int = DEFAULT_SEQUENCE,
    dtype: str | None = None,
    weight_format: str | None = None,
    cache_format: str | None = None,
    dummy: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    device: Device | None = None,
    bundle_digest: str | None = None,
    trust: TrustSource = None,
    gpus: int = 1,
    serves: bool = False,
    once: bool = False,
) -> tuple[Backend, Bundle | None]:
    """A model folder on a device, without its tokenizer, and the bundle that the caller closes after it. Options and errors are
    those of `Engine.from_pretrained`. `serves`: it is for `engine.serving` (`CudaBackend.load`), and `once`: for one prompt."""
    check_backend(backend, bundle, device, bundle_digest, trust)
    if not 1 <= max_seq_len <= config.max_position_embeddings:
        what = f"max-seq-len {max_seq_len} is not from 1 to {config.max_position_embeddings}"
        raise UsageError(what, fix="the model supports no more positions")
    if gpus != 1:
        from engine.ranks.load import load_ranks  # late: a run on one GPU does without this import

        if device is not None:
            raise UsageError("each of several GPUs has a device of its own", fix="leave `device` out")
        return load_ranks(
            path, config, gpus, backend, max_seq_len, dtype=dtype, weight_format=weight_format, cache_format=cache_format,
            dummy=dummy, progress=progress, bundle=bundle, digest=bundle_digest, trust=trust, serves=serves,
        )  # fmt: skip
    if dummy is not None:
        from engine.tools.dummy_weights import dummy_weights  # late: models with files do without this import

        of_model = "f16" if config.dtype == "f16" else "bf16"
        weights = dummy_weights(config, dtype or of_model, dummy, weight_format or SIXTEEN_BIT)
    else:
        weights = WeightPlan.for_model(config, path, dtype, weight_format=weight_format)
    dtype = weights.dtype
    if backend == "interpreter":
        from engine.backends.interpreter import InterpreterBackend  # late: GPU runs do without this import

        interpreter = InterpreterBackend()
        interpreter.load(config, weights, max_seq_len, dtype, progress, cache_format)
        return interpreter, None
    loaded = load_on_gpu(
        bundle, config, weights, max_seq_len, dtype, progress=progress, device=device, digest=bundle_digest, trust=trust,
        weight_format=weight_format, cache_format=cache_format, serves=serves, once=once,
    )  # fmt: skip
    return loaded, loaded.bundle
