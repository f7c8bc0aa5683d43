"""A library of kernels, each proven and without an unsafe block: functions of PyTorch's tensors with gradients, on the current
stream, under `torch.compile` and in CUDA graphs. They launch prebuilt kernels, or compile them if the compiler is installed.

Import PyTorch first: then its ops are made here, before any tracing. Tensors with gaps, and those that do not begin at a
multiple of 16 bytes, are copied; Dynamo does not see where a tensor begins, so that the launcher refuses
one in a compiled function."""

from __future__ import annotations

from tilec.kernels.activations import gelu, swiglu
from tilec.kernels.attention import attention
from tilec.kernels.dropout import dropout
from tilec.kernels.grouped import grouped_matmul, grouped_swiglu
from tilec.kernels.linear import linear_cross_entropy
from tilec.kernels.losses import cross_entropy
from tilec.kernels.low_bit import fp8_matmul, int4_matmul
from tilec.kernels.norms import group_norm, layer_norm, rms_norm, softmax
from tilec.kernels.optimizers import adamw_
from tilec.kernels.paged import paged_attention
from tilec.kernels.positions import rope
from tilec.kernels.varlen import attention_varlen

__all__ = [
    "adamw_", "attention", "attention_varlen", "cross_entropy", "dropout", "fp8_matmul", "gelu", "group_norm",
    "grouped_matmul", "grouped_swiglu", "int4_matmul", "layer_norm",
    "linear_cross_entropy", "paged_attention", "rms_norm", "rope", "softmax", "swiglu",
]  # fmt: skip
