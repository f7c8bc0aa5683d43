"""Facts about the measured machine."""

from __future__ import annotations

import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from engine.backends.cuda import CudaBackend

DRIVER_FILE: Final = Path("/proc/driver/nvidia/version")
"""The file in which the kernel module reports its version."""


def machine_facts(backend: CudaBackend) -> dict[str, Any]:
    """The GPU and the software that the numbers depend on."""
    return {
        "gpu": backend.device.name, "architecture": backend.device.architecture,
        "gpu_memory_bytes": backend.driver.memory()[1], "nvidia_driver": driver_version(DRIVER_FILE),
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
