"""Facts about the measured machine."""

from __future__ import annotations

import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from engine.backends.cuda import CudaBackend
from engine.ranks.gpus import GpuRanks

DRIVER_FILE: Final = Path("/proc/driver/nvidia/version")
"""The file in which the kernel module reports its version."""


def machine_facts(backend: CudaBackend | GpuRanks) -> dict[str, Any]:
    """The GPU, the first of several, and the software that the numbers depend on."""
    if isinstance(backend, GpuRanks):
        first = backend.gpus[0]
        gpu = first["name"], first["architecture"], first["memory_bytes"]
    else:
        gpu = backend.device.name, backend.device.architecture, backend.driver.memory()[1]
    return {
        "gpu": gpu[0], "architecture": gpu[1], "gpu_memory_bytes": gpu[2], "nvidia_driver": driver_version(DRIVER_FILE),
        "cuda_bindings": _version("cuda-bindings"), "tilec": _version("tilec"), "python": platform.python_version(),
    }  # fmt: skip


def driver_version(file: Path) -> str | None:
    """The version of the NVIDIA kernel module, such as `580.65.06`; None if it is not loaded."""
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
