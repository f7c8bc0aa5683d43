"""MLIR text to PTX text, in worker processes: `worker.create_pool`, `worker.to_ptx`."""

from __future__ import annotations

from tilec.codegen.ptx import to_llvm_ir, to_ptx

__all__ = ["to_llvm_ir", "to_ptx"]
