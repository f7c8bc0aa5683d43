"""A model on the GPU for measuring: its config, its weights or random ones, its bundle; no tokenizer."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from engine.backends.cuda import CudaBackend
from engine.config import ModelConfig
from engine.dummy_weights import dummy_weights
from engine.errors import BundleRefused
from engine.weights import WeightPlan
from tilec.runtime import BundleError, open_bundle

DRIVER_FILE: Final = Path("/proc/driver/nvidia/version")
"""Where the kernel module tells its version."""


def load_backend(
    config: ModelConfig,
    folder: str,
    bundle: str,
    *,
    max_seq_len: int,
    dtype: str,
    dummy: int | None,
    progress: Callable[[int, int], None] | None = None,
) -> CudaBackend:
    """The model of `folder` with the CUBINs of `bundle`; random weights of the seed `dummy` where one is given. Errors as in
    `engine.api.Engine.from_pretrained`."""
    weights = dummy_weights(config, dtype, dummy) if dummy is not None else WeightPlan.for_model(config, folder, dtype)
    try:
        opened = open_bundle(bundle)
    except BundleError as error:
        raise BundleRefused(error.message, fix="pack one with `tilec bundle pack`") from None
    try:
        backend = CudaBackend(opened)
        try:
            backend.load(config, weights, max_seq_len, dtype, progress)
        except BaseException:
            backend.close()
            raise
    except BaseException:
        opened.close()
        raise
    return backend


def machine_facts(backend: CudaBackend) -> dict[str, Any]:
    """The GPU and the software that the numbers depend on."""
    return {
        "gpu": backend.device.name, "architecture": backend.device.architecture,
        "gpu_memory_bytes": backend.driver.memory()[1], "nvidia_driver": driver_version(DRIVER_FILE),
        "cuda_bindings": _version("cuda-bindings"), "tilec": _version("tilec"), "python": platform.python_version(),
    }  # fmt: skip


def driver_version(file: Path) -> str | None:
    """The version of the NVIDIA kernel module, such as `580.65.06`; None where there is none."""
    try:
        found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", file.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return found[1] if found else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
