"""Loads a model onto a GPU: finds and opens a bundle, makes a backend and loads it. Any failure frees everything."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Final

from engine.backends.bundled_step import check_gpus, other_format, packing
from engine.backends.cuda import CudaBackend
from engine.backends.upload import Progress, WeightSource
from engine.errors import BundleRefused, DeviceError
from engine.garbage import without_collections
from engine.models.families import family_of
from engine.phases import PHASES
from tilec.runtime import Bundle, BundleError, Device, LaunchError, open_bundle
from tilec.step.caches import CACHE_FORMAT
from tilec.step.formats import SIXTEEN_BIT, WEIGHT_FORMAT
from tilec.step.ranks import GPUS

if TYPE_CHECKING:
    from tilec.runtime.trust import TrustSource

WITHOUT_BUNDLE: Final = "name one with `--bundle`, get one with `tilec bundle pull`, or take `--backend interpreter`"


@contextmanager
def device_errors() -> Generator[None]:
    """Convert errors of the driver and refused launches to DeviceError."""
    try:
        yield
    except LaunchError as error:
        raise DeviceError(f"{error.message} ({error.code})") from None


def load_on_gpu(
    bundle: str | PathLike[str] | None,
    config: Any,
    weights: WeightSource,
    max_seq_len: int,
    dtype: str,
    *,
    progress: Progress | None = None,
    device: Device | None = None,
    digest: str | None = None,
    trust: TrustSource = None,
    weight_format: str | None = None,
    cache_format: str | None = None,
    serves: bool = False,
    once: bool = False,
) -> CudaBackend:
    """A backend with the CUBINs of the file `bundle`. The file's sha256 must be `digest` if that is given, and it must be
    signed for this model as the policy `trust` requires. Without `bundle`, `tilec.ship.finder` looks for a bundle that fits the
    model and the device. `weight_format` must be the bundle's if it is given; else a bundle that quantises activations too
    fits. `cache_format` None means 16 bits, or of a named bundle its own. `serves` and `once` as of `CudaBackend.load`. The
    caller closes `CudaBackend.bundle` after the backend. Raises BundleRefused or DeviceError."""
    PHASES.ended("weights_found")
    if bundle is None:
        with device_errors():
            device = Device() if device is None else device
    opened = opened_bundle(
        bundle, config, weights.weight_format, device.architecture if device is not None else "", digest=digest, trust=trust,
        weight_format=weight_format, cache_format=cache_format,
    )  # fmt: skip
    PHASES.ended("bundle")
    try:
        with device_errors(), without_collections(tidy=not (once or serves)):
            backend = CudaBackend(opened, device)
            PHASES.ended("device")
            try:
                backend.load(config, weights, max_seq_len, dtype, progress, cache_format, serves=serves, once=once)
            except BaseException:
                with suppress(LaunchError):  # the first error is the one to report
                    backend.close()
                raise
    except BaseException:
        opened.close()
        raise
    return backend


def opened_bundle(
    bundle: str | PathLike[str] | None, config: Any, stored: str, architecture: str, *, digest: str | None = None,
    trust: TrustSource = None, weight_format: str | None = None, cache_format: str | None = None, gpus: int = 1,
) -> Bundle:  # fmt: skip
    """The open bundle of a model whose weights are stored in a format, and which `gpus` GPUs share: the file `bundle`, or one
    that is found for an architecture. Otherwise as `load_on_gpu`; BundleRefused."""
    if bundle is None:
        opened = _find_bundle(config, stored, architecture, digest, trust, cache_format or SIXTEEN_BIT, gpus)
    else:
        try:
            opened = open_bundle(
                fspath(bundle), digest=digest, trust=trust, proofs=False, decode=family_of(config.model_type).decode
            )
        except BundleError as error:
            raise BundleRefused(error.message, fix=error.hint or "pack one with `tilec bundle pack`") from None
    try:
        _check_model(opened, config)
        check_gpus(opened, gpus)
        if weight_format is not None and opened.weight_format != weight_format:
            raise other_format(opened, weight_format)
    except BaseException:
        opened.close()
        raise
    return opened


def _find_bundle(
    config: Any, weight_format: str, architecture: str, digest: str | None, trust: TrustSource,
    cache_format: str = SIXTEEN_BIT, gpus: int = 1,
) -> Bundle:  # fmt: skip
    """An open bundle for a model with weights and caches in a format each, an architecture and a number of GPUs; BundleRefused
    if there is none."""
    from tilec.ship.finder import find_bundle  # late: callers that name a bundle do not pay for the import

    formats = {WEIGHT_FORMAT: weight_format, CACHE_FORMAT: cache_format}
    numbers = {name: getattr(config, name) for name in config.__dataclass_fields__} | formats | {GPUS: gpus}
    deciding = [
        *family_of(config.model_type).deciding(config),
        *(name for name, form in formats.items() if form != SIXTEEN_BIT),
    ]
    deciding += [GPUS] if gpus > 1 else []
    try:
        return find_bundle(numbers, architecture, trust, digest=digest, deciding=deciding)
    except BundleError as error:
        what, fix = error.message, WITHOUT_BUNDLE
        if weight_format != SIXTEEN_BIT:
            what, fix = f"{what}; its weights are in `{weight_format}`", f"{fix}, or `--weights {SIXTEEN_BIT}`"
        if cache_format != SIXTEEN_BIT:
            what, fix = f"{what}; its cache is to be in `{cache_format}`", f"{fix}, or `--cache {SIXTEEN_BIT}`"
        if gpus > 1:
            what, fix = f"{what}; {gpus} GPUs are to share it", f"{packing(gpus)}, or name one with `--bundle`"
        raise BundleRefused(what, fix=error.hint or fix) from None


def _check_model(bundle: Bundle, config: Any) -> None:
    """BundleRefused if the bundle has no step, or if a signed bundle is for another model. A policy grants a key the right to
    sign for certain sizes; a valid signature for one model says nothing about another."""
    if not bundle.has_step:
        what = "is a bundle of kernels without a step, so there is no model in it to run"
        raise BundleRefused(what, where=bundle.path, fix="pack this model's with `tilec bundle pack --model NAME`")
    family = family_of(config.model_type)
    stated = (name for name in family.kinds if name in bundle.config)  # also for a model that has no such layers
    for name in dict.fromkeys((*family.deciding(config), *stated)) if bundle.signed is not None else ():
        signed, its = bundle.config.get(name), getattr(config, name)
        if type(signed) is not type(its) or signed != its:
            what = (
                f"is signed for a model whose `{name}` is {'not said' if signed is None else signed}, and this one's is {its}"
            )
            raise BundleRefused(what, where=bundle.path, fix="name the bundle of this model, or none to have one looked for")
