"""What options of the commands may be. Imports nothing that takes time, so that a command line is read, and refused, first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypedDict

from engine.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from tilec.runtime import Device
    from tilec.runtime.trust import TrustSource

DEFAULT_SEQUENCE: Final = 4096
"""Default capacity of the KV cache, in tokens."""

BackendName = Literal["cuda", "interpreter"]
"""`cuda`: a GPU and the CUBINs of a bundle. `interpreter`: the kernels' sources in NumPy, slow and only for tiny models."""

WEIGHT_FORMATS: Final = ("16bit", "fp8", "w8a8", "int4", "fp8_head", "int4_head")
"""Formats of linear weights that steps have; a step may lack one. The weights of `w8a8` are those of `fp8`."""

CACHE_FORMATS: Final = ("16bit", "fp8")
"""The formats of caches that the families' steps declare, and 16 bits."""


class LoadOptions(TypedDict, total=False):
    """How a model folder is loaded; each may be left out.

    If `bundle` is None, `tilec.ship.finder` looks for one that fits the model and the GPU. `bundle_digest` is the hex sha256
    that the bundle file must have. `trust` is the policy that names who must have signed the bundle: a file, `none`, or None
    for the policy of the environment and the user's configuration (`tilec.runtime.trust`).

    `max_seq_len` bounds prompt plus generated tokens. `dtype` is bf16 or f16; None means the model's. Weights in a format that
    the step has kernels for (`fp8`) stay in it, all other quantised ones are dequantised to `dtype`; `weight_format` `16bit`
    dequantises all. With `w8a8`, or a bundle for it, products of long prompts have FP8 weights and FP8 activations.
    `cache_format` `fp8` keeps keys and values as e4m3 codes with a scale for each row of a head; None means 16 bits, or the
    format of a named bundle. `dummy` is a seed: random weights replace the files', in `weight_format`. `progress` is called
    with the bytes of weights loaded so far and the total. `gpus` above 1: as many share the model (`engine.ranks`), each in a
    process of its own, with a bundle for so many; the interpreter runs them in threads. `once`: one prompt will come, so that
    prompts of other lengths are prepared only when they come.
    """

    bundle: str | PathLike[str] | None
    backend: BackendName
    max_seq_len: int
    dtype: str | None
    weight_format: str | None
    cache_format: str | None
    dummy: int | None
    progress: Callable[[int, int], None] | None
    device: Device | None
    bundle_digest: str | None
    trust: TrustSource
    gpus: int
    once: bool


def check_options(options: LoadOptions) -> None:
    """TypeError for an option that does not exist, UsageError for one that only a GPU has, if the interpreter is to take it."""
    unknown = sorted(options.keys() - LoadOptions.__annotations__.keys())
    if unknown:
        raise TypeError(f"there is no option {unknown[0]!r} of a model")
    of_gpu = (options.get("bundle"), options.get("device"), options.get("bundle_digest"), options.get("trust"))
    check_backend(options.get("backend", "cuda"), *of_gpu)


def check_backend(backend: BackendName, *of_gpu: object) -> None:
    """UsageError if the interpreter is to take an option that only a GPU has: all but None are such."""
    if backend == "interpreter" and any(option is not None for option in of_gpu):
        raise UsageError("the interpreter takes neither a bundle nor a device", fix="leave them out")
