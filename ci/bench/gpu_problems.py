"""The timed problems: for each kernel the sizes, the library call it is held against, and the goal.

The library side of the streaming kernels is torch's element-wise add on the same number of bytes: that is the rate the chip
gives to a stream of reads and writes. Matrix products are held against cuBLAS through torch on the same operands.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from gpu_cases import MEANING, Tensors

from tilec.artifact import Manifest

torch: Any = importlib.import_module("torch")

QWEN3: Final = {
    "4B qkv": (6144, 2560), "4B o": (2560, 4096), "4B gate_up": (19456, 2560), "4B down": (2560, 9728),
    "4B lm_head": (151936, 2560), "32B qkv": (10240, 5120), "32B o": (5120, 8192), "32B gate_up": (51200, 5120),
    "32B down": (5120, 25600), "32B lm_head": (151936, 5120),
}  # fmt: skip
"""Rows and columns (N, K) of the linear layers of Qwen3, batch 1."""
HIDDEN: Final = (1024, 2048, 2560, 4096, 5120)


@dataclass(frozen=True)
class Problem:
    """One timed size. `floor` is the least acceptable ratio to the library; None where it is only reported."""

    kernel: str
    label: str
    dims: dict[str, int]
    floor: float | None
    against: str
    flops: float = 0.0


def problems(kernel: str) -> list[Problem]:
    """The sizes of one kernel. Dims that a kernel does not have are ignored."""
    if kernel in ("add", "silu_mul"):
        found = [Problem(kernel, f"2^{p}", {"N": 2**p}, 0.97, "add") for p in (26, 27, 28)]
        if kernel == "silu_mul":
            found += [Problem(kernel, f"{t}x9728", {"T": t, "I": 9728, "H": 9728}, 0.97, "add") for t in (6899, 27594)]
        return found
    if kernel in ("rms_norm", "add_rms_norm"):
        return [
            Problem(kernel, f"{t}x{h}", {"T": t, "H": h}, 0.9 if t >= 4096 else None, "add")
            for h in HIDDEN
            for t in (1, 4096, 16384)
        ]
    if kernel == "matvec":
        found = [Problem(kernel, name, {"B": 1, "M": 1, "N": n, "K": k}, 1.0, "same") for name, (n, k) in QWEN3.items()]
        n, k = QWEN3["4B gate_up"]
        return found + [Problem(kernel, f"4B gate_up B={b}", {"B": b, "M": b, "N": n, "K": k}, None, "same") for b in (2, 4, 8)]
    if kernel == "embedding":
        return [Problem(kernel, f"{t}x{h}", {"T": t, "H": h, "V": 151936}, None, "same") for h in HIDDEN for t in (1, 4096)]
    if kernel == "gather_row":
        return [Problem(kernel, f"{h}", {"T": 4096, "H": h, "V": 151936, "N": h, "R": 4096}, None, "same") for h in HIDDEN]
    if kernel.startswith("argmax"):
        return [Problem(kernel, "151936", {"V": 151936, "N": 151936, "B": 1, "T": 1}, None, "same")]
    if kernel == "matmul":
        return [Problem(kernel, f"{s}^3", {"M": s, "N": s, "K": s}, None, "same", 2.0 * s**3) for s in (1024, 2048, 4096, 8192)]
    return []


def library_run(problem: Problem, manifest: Manifest, tensors: Tensors, total_bytes: int) -> tuple[str, Callable[[], object]]:
    """Name and call of the library alternative for one argument set."""
    if problem.against == "same":
        return f"torch {manifest.kernel}", lambda: MEANING[manifest.kernel](manifest, tensors)
    floats = next(t for t in tensors.values() if t.is_floating_point())
    count = max(8, total_bytes // (3 * floats.element_size()))
    x, y = (torch.randn(count, device=floats.device, dtype=floats.dtype) for _ in range(2))
    out = torch.empty_like(x)
    return "torch add, equal bytes", lambda: torch.add(x, y, out=out)
