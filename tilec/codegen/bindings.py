"""The one place that knows which package carries the upstream MLIR Python bindings.

`torch_mlir` ships them today; the official `mlir` package has the same modules under its own name and is used where it is
installed instead.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from tilec.toolchain import missing_package

_ROOTS = ("torch_mlir", "mlir")


def _import(name: str) -> ModuleType:
    for root in _ROOTS:
        try:
            return importlib.import_module(f"{root}.{name}")
        except ModuleNotFoundError as error:
            if error.name is None or not error.name.startswith(root):
                raise
    raise missing_package("torch-mlir")


def load_mlir() -> tuple[Any, Any, Any]:
    """The modules `ir`, `passmanager` and `dialects.llvm`; CompileError E0601 where no bindings are installed."""
    return _import("ir"), _import("passmanager"), _import("dialects.llvm")


def load_llvmlite() -> Any:
    """`llvmlite.binding` with the NVPTX back end initialised; CompileError E0601 where it is not installed."""
    try:
        binding: Any = importlib.import_module("llvmlite.binding")
    except ModuleNotFoundError:
        raise missing_package("llvmlite") from None
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    return binding
