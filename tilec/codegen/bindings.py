"""Imports the MLIR Python bindings and llvmlite; only this module knows which package provides MLIR.

`torch_mlir` ships the bindings today. The official `mlir` package has the same modules under its own name and is the fallback.
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
    """The modules `ir`, `passmanager` and `dialects.llvm`; CompileError E0601 if no bindings are installed."""
    return _import("ir"), _import("passmanager"), _import("dialects.llvm")


def load_llvmlite() -> Any:
    """`llvmlite.binding` with the NVPTX back end initialised; CompileError E0601 if it is not installed."""
    try:
        binding: Any = importlib.import_module("llvmlite.binding")
    except ModuleNotFoundError:
        raise missing_package("llvmlite") from None
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    return binding
