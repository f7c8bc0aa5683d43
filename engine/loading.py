"""Loads a model folder onto a device, without its tokenizer: what the engine and the server have in common."""

from __future__ import annotations

from os import PathLike
from typing import Unpack

from engine.backends import Backend
from engine.backends.load import load_on_gpu
from engine.checkpoint.weights import WeightPlan
from engine.errors import UsageError
from engine.models.config import ModelConfig
from engine.options import DEFAULT_SEQUENCE, LoadOptions, check_options
from tilec.runtime import Bundle
from tilec.step.formats import SIXTEEN_BIT


def load_backend(
    path: str | PathLike[str], config: ModelConfig, *, serves: bool = False, **options: Unpack[LoadOptions]
) -> tuple[Backend, Bundle | None]:  # fmt: skip
    """A model folder on a device, without its tokenizer, and the bundle that the caller closes after it. Errors are those of
    `Engine.from_pretrained`. `serves`: it is for `engine.serving` (`CudaBackend.load`)."""
    check_options(options)
    backend, gpus = options.get("backend", "cuda"), options.get("gpus", 1)
    max_seq_len, dtype = options.get("max_seq_len", DEFAULT_SEQUENCE), options.get("dtype")
    weight_format, cache_format = options.get("weight_format"), options.get("cache_format")
    bundle, digest, trust = options.get("bundle"), options.get("bundle_digest"), options.get("trust")
    dummy, progress, device = options.get("dummy"), options.get("progress"), options.get("device")
    if not 1 <= max_seq_len <= config.max_position_embeddings:
        what = f"max-seq-len {max_seq_len} is not from 1 to {config.max_position_embeddings}"
        raise UsageError(what, fix="the model supports no more positions")
    if gpus != 1:
        from engine.ranks.load import load_ranks  # late: a run on one GPU does without this import

        if device is not None:
            raise UsageError("each of several GPUs has a device of its own", fix="leave `device` out")
        return load_ranks(
            path, config, gpus, backend, max_seq_len, dtype=dtype, weight_format=weight_format, cache_format=cache_format,
            dummy=dummy, progress=progress, bundle=bundle, digest=digest, trust=trust, serves=serves,
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
        bundle, config, weights, max_seq_len, dtype, progress=progress, device=device, digest=digest, trust=trust,
        weight_format=weight_format, cache_format=cache_format, serves=serves, once=options.get("once", False),
    )  # fmt: skip
    return loaded, loaded.bundle
