"""A library of kernels, each proven and without an unsafe block: functions of PyTorch's tensors with gradients, on the current
stream, under `torch.compile` and in CUDA graphs. They launch prebuilt kernels, or compile them if the compiler is installed."""

from __future__ import annotations

from tilec.kernels.norms import softmax

__all__ = ["softmax"]
