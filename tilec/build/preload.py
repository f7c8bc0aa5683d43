"""Imports what a worker needs, once, in the server process that workers are forked from.

A package that is missing shows up as a diagnostic of the stage that needs it.
"""

from __future__ import annotations

import contextlib
import importlib

for _name in (
    "tilec.frontend",
    "tilec.passes",
    "tilec.lowering",
    "tilec.codegen",
    "tilec.assemble",
    "cuda.bindings.nvjitlink",
    "llvmlite.binding",
    "torch_mlir.ir",
    "torch_mlir.passmanager",
    "torch_mlir.dialects.llvm",
    "islpy",
):
    with contextlib.suppress(ImportError):
        importlib.import_module(_name)
