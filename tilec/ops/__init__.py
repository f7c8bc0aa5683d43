"""Kernels as functions of tensors: `tilec.op` turns a kernel function into one.

A call takes tensors and numbers by the names of the kernel's parameters, selects the specialisation by their dtypes and shapes,
allocates the kernel's `Out` tensors and returns them, and launches on the current stream. PyTorch tensors have a fast path, and
the op is registered with PyTorch: fake tensors, `torch.compile`, CUDA graphs (`torch_op`). For other tensors, with DLPack or
the CUDA array interface, results are `DeviceArray`s, which export DLPack.

`declaration` derives arguments and results from a kernel's interface, `kernels` finds compiled kernels. No file here needs a
compiler if kernels are prebuilt.
"""

from __future__ import annotations

from tilec.ops.tensor_op import Op, op

__all__ = ["Op", "op"]
