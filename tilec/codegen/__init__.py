"""MLIR text to PTX text. Call it only in worker processes (`tilec.workers`), because LLVM may abort its process."""

from __future__ import annotations

from tilec.codegen.ptx import to_llvm_ir, to_ptx

__all__ = ["to_llvm_ir", "to_ptx"]
