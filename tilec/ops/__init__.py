"""Kernels as functions of tensors: `tilec.op` makes one of a kernel function.

A call takes tensors and numbers by the names of the kernel's parameters, chooses the specialisation by their dtypes and shapes,
allocates the kernel's `Out` tensors and returns them, and launches on the current stream. PyTorch's tensors go through a short
way of their own, and PyTorch knows the op: fake tensors, `torch.compile`, CUDA graphs (`torch_op`). Other tensors, of anything
with DLPack or the CUDA array interface, give `DeviceArray`s, which export DLPack.

`declaration` is what a kernel says of its arguments and results, `kernels` where compiled kernels come from. No file here needs
a compiler where kernels are prebuilt.
"""

from __future__ import annotations

from tilec.ops.tensor_op import Op, op

__all__ = ["Op", "op"]
