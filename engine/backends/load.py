"""A model onto a GPU: a bundle is found and opened, a backend made and filled; whatever fails, everything is given back."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager, suppress
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Final

from engine.backends.cuda import CudaBackend
from engine.backends.upload import Progress, WeightSource
from engine.errors import BundleRefused, DeviceError
from tilec.runtime import BundleError, Device, LaunchError, open_bundle

if TYPE_CHECKING:
    from tilec.runtime.trust import TrustSource

WITHOUT_BUNDLE: Final = "name one with `--bundle`, get one with `tilec bundle pull`, or take `--backend interpreter`"


@contextmanager
def device_errors() -> Generator[None]:
    """A call that the driver refused, or a launch that the loader did, as a DeviceError."""
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
) -> CudaBackend:
    """A backend with the CUBINs of the file `bundle`, which is to be closed after it (`CudaBackend.bundle`), whose sha256 must
    be `digest` where that is given, and which is signed as the policy `trust` asks; where there is no file, of the bundle that
    is found for the model and the device. BundleRefused or DeviceError where that cannot be."""
    if bundle is None:
        with device_errors():
            device = Device() if device is None else device
        bundle = _found(config, device, trust)
    try:
        opened = open_bundle(fspath(bundle), digest=digest, trust=trust)
    except BundleError as error:
        raise BundleRefused(error.message, fix=error.hint or "pack one with `tilec bundle pack`") from None
    try:
        with device_errors():
            backend = CudaBackend(opened, device)
            try:
                backend.load(config, weights, max_seq_len, dtype, progress)
            except BaseException:
                with suppress(LaunchError):  # what went wrong first is what is told
                    backend.close()
                raise
    except BaseException:
        opened.close()
        raise
    # What was made so far lives as long as the model; a search of it for garbage would stop a step for tens of milliseconds.
    gc.collect()
    gc.freeze()
    return backend


def _found(config: Any, device: Device, trust: TrustSource) -> str:
    """The path of a bundle for a model and a device; BundleRefused where there is none."""
    from tilec.finder import find_bundle  # so that who names a bundle does not wait for the import

    numbers = {name: getattr(config, name) for name in config.__dataclass_fields__}
    try:
        return fspath(find_bundle(numbers, device.architecture, trust))
    except BundleError as error:
        raise BundleRefused(error.message, fix=error.hint or WITHOUT_BUNDLE) from None
