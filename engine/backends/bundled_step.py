"""The step of a bundle for a model, and the refusals of bundles that are for something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from engine.backends.upload import WeightSource
from engine.errors import BundleRefused
from tilec.runtime import Bundle
from tilec.step.expressions import StepError
from tilec.step.formats import SIXTEEN_BIT, stored_as
from tilec.step.step import Step

AnyStep = TypeVar("AnyStep", bound=Step)

PACK_AGAIN: Final = "pack the bundle of this model"


def bundled_step(
    bundle: Bundle, weights: WeightSource, cache_format: str, gpus: int, make: Callable[[], AnyStep]
) -> AnyStep:  # fmt: skip
    """The bundle's step, which `make` returns, for a model that `gpus` GPUs share. The bundle decides whether activations are
    quantised. BundleRefused if the step needs sizes or weights that the model lacks, or if the bundle is for other formats or
    another number of GPUs."""
    if weights.weight_format not in (bundle.weight_format, stored_as(bundle.declaration, bundle.weight_format)):
        raise other_format(bundle, weights.weight_format)
    if bundle.cache_format != cache_format:
        what = f"has kernels for a cache in `{bundle.cache_format}`, and `{cache_format}` is asked for"
        fix = f"pack one with `tilec bundle pack --model NAME --cache {cache_format}`"
        raise BundleRefused(what, where=bundle.path, fix=f"{fix}, or take this one's: `--cache {bundle.cache_format}`")
    check_gpus(bundle, gpus)
    try:
        step = make()
        needed = {(weight.name, weight.dtype, weight.shape) for weight in step.weights()}
    except StepError as error:
        raise BundleRefused(f"its step does not fit the model: {error}", where=bundle.path, fix=PACK_AGAIN) from None
    available = {(destination.name, destination.dtype, destination.shape) for destination in weights.destinations}
    if needed != available:
        name = min(needed ^ available)[0]
        raise BundleRefused(f"its step asks for other weights: `{name}`", where=bundle.path, fix=PACK_AGAIN)
    return step


def check_gpus(bundle: Bundle, gpus: int) -> None:
    """BundleRefused unless the bundle is for so many GPUs."""
    if bundle.gpus != gpus:
        own, asked = (f"{number} GPU{'s' if number > 1 else ''}" for number in (bundle.gpus, gpus))
        fix = f"{packing(gpus)}, or take as many as this one is for: `--gpus {bundle.gpus}`"
        raise BundleRefused(f"has the kernels of a step on {own}, and {asked} are to run it", where=bundle.path, fix=fix)


def packing(gpus: int) -> str:
    """How to get a bundle for a number of GPUs."""
    return f"pack one with `tilec bundle pack --model NAME{f' --gpus {gpus}' if gpus > 1 else ''}`"


def other_format(bundle: Bundle, weight_format: str) -> BundleRefused:
    """The error for weights that the kernels of a bundle do not take."""
    own = bundle.weight_format
    what = f"has kernels for weights in `{own}`, and those of the model are in `{weight_format}`"
    fix = f"pack one with `tilec bundle pack --model NAME --weights {weight_format}`"
    if own == SIXTEEN_BIT:
        fix += f", or dequantise them while they are loaded: `--weights {own}`"
    return BundleRefused(what, where=bundle.path, fix=fix)
