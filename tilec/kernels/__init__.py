"""A library of kernels, each proven and without an unsafe block: functions of PyTorch's tensors with gradients, on the current
stream, under `torch.compile` and in CUDA graphs. They launch prebuilt kernels, or compile them if the compiler is installed.

Import PyTorch first: then its ops are made here, before any tracing. Tensors with gaps, and those that do not begin at a
multiple of 16 bytes, are copied; Dynamo does not see where a tensor begins, so that the launcher refuses
one in a compiled function."""

from __future__ import annotations

from tilec.kernels.activations import gelu, swiglu
from tilec.kernels.adamw import AdamW
from tilec.kernels.attention import attention
from tilec.kernels.convolutions import conv2d
from tilec.kernels.dropout import dropout
from tilec.kernels.grouped import grouped_matmul, grouped_swiglu
from tilec.kernels.linear import linear_cross_entropy
from tilec.kernels.losses import cross_entropy
from tilec.kernels.low_bit import fp8_matmul, int4_matmul
from tilec.kernels.norms import group_norm, layer_norm, rms_norm, softmax
from tilec.kernels.optimizers import adamw_
from tilec.kernels.ordering import argsort, sort, topk
from tilec.kernels.paged import paged_attention
from tilec.kernels.pools import avg_pool2d, max_pool2d
from tilec.kernels.positions import rope
from tilec.kernels.routing import moe_combine, moe_permute, moe_route, sort_by_expert
from tilec.kernels.scans import bincount, cumsum, histogram
from tilec.kernels.sequences import causal_conv1d, selective_scan
from tilec.kernels.tables import embedding, embedding_bag
from tilec.kernels.transforms import fft
from tilec.kernels.varlen import attention_varlen

__all__ = [
    "AdamW", "adamw_", "argsort", "attention", "attention_varlen", "avg_pool2d", "bincount", "causal_conv1d", "conv2d",
    "cross_entropy", "cumsum", "dropout", "embedding", "embedding_bag", "fft", "fp8_matmul", "gelu", "group_norm",
    "grouped_matmul", "grouped_swiglu", "histogram", "int4_matmul", "layer_norm", "linear_cross_entropy", "max_pool2d",
    "moe_combine", "moe_permute", "moe_route", "paged_attention", "rms_norm", "rope", "selective_scan", "softmax", "sort",
    "sort_by_expert", "swiglu", "topk",
]  # fmt: skip
