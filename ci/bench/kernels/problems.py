"""The timed problems: for each kernel the sizes, the library call it is compared with, and the goal.

Streaming kernels are compared with torch's element-wise add on the same number of bytes: that is the chip's rate for a stream
of reads and writes. Decode attention is compared with torch's maximum of as many bytes, a pure read; matrix products with
cuBLAS through torch on the same operands, attention with torch's fused attention.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import gpu_attention
from gpu_cases import MEANING, Tensors

from tilec.artifact.records import Manifest

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
    """One timed size. `floor` is the minimum ratio to the library; None if it is only reported."""

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
    if kernel == "decode_attention":
        # The cache is read once; writes are 2 % of it at 8k, so the reference is a pure read of the same bytes.
        return [
            Problem(kernel, f"KV {s} {name}", {"B": 1, "S": s, "P": 64, "HKV": 8, "G": g}, 0.85 if s >= 8192 else None, "read")
            for s in (1024, 8192, 32768)
            for name, g in (("4B", 4), ("32B", 8))
        ] + [
            Problem(kernel, f"KV 8192 4B, {p} parts", {"B": 1, "S": 8192, "P": p, "HKV": 8, "G": 4}, None, "read")
            for p in (32, 48, 128)
        ]
    if kernel == "decode_merge":
        return [Problem(kernel, name, {"B": 1, "HKV": 8, "G": g, "P": 64}, None, "same") for name, g in (("4B", 4), ("32B", 8))]
    if kernel == "flash_attention":
        return [
            Problem(
                kernel,
                f"{t} after {gpu_attention.past(t, s)}",
                {"T": t, "S": s, "HKV": 8, "G": 4},
                None,
                "same",
                _causal_flops(t, s),
            )
            for t, s in ((512, 512), (4096, 4096), (8192, 8192), (1000, 8192))
        ]
    if kernel == "qk_norm_rope_kv":
        return [
            Problem(kernel, f"{t} tokens 4B", {"T": t, "HQ": 32, "HKV": 8, "HEADS": 48, "S": t, "P": 40960}, None, "same")
            for t in (1, 8, 512, 4096)
        ]
    if kernel == "silu_mul_rows":
        dims = {"I": 9728, "I2": 19456}
        return [Problem(kernel, f"{t}x9728", {"T": t, **dims}, None, "add") for t in (1, 6899)]
    if kernel == "matvec_add":
        names = ("4B o", "4B down", "32B o", "32B down")
        return [Problem(kernel, name, {"B": 1, "N": QWEN3[name][0], "K": QWEN3[name][1]}, None, "same") for name in names]
    if kernel == "matvec_silu_mul":
        return [
            Problem(kernel, name, {"B": 1, "K": QWEN3[name][1], "I": QWEN3[name][0] // 2, "I2": QWEN3[name][0]}, None, "same")
            for name in ("4B gate_up", "32B gate_up")
        ]
    if kernel == "matvec_argmax":
        return [
            Problem(kernel, f"{name}, {p} parts", {"B": 1, "V": 151936, "K": k, "P": p}, None, "same")
            for name, k in (("4B", 2560), ("32B", 5120))
            for p in (660, 1024)
        ]
    if kernel == "topk_blocks":
        dims = {"V": 151936, "P": 149, "B": 1}
        return [Problem(kernel, f"151936, {k} of each part", {**dims, "K": k}, None, "same") for k in (20, 64)]
    if kernel == "sample_token":
        dims = {"P": 149, "B": 1, "S": 4096}
        return [Problem(kernel, f"{k} of 149 parts", {**dims, "K": k}, None, "same") for k in (20, 64)]
    if kernel in ("matmul_silu_mul", "matmul_split", "matmul_few", "matmul_silu_mul_few"):
        layer = {"matmul_split": "4B down", "matmul_few": "4B qkv"}.get(kernel, "4B gate_up")
        n, k = QWEN3[layer]
        tokens = (128, 512, 2048) if kernel == "matmul_silu_mul" else (16, 32, 64)
        return [
            Problem(kernel, f"{t} tokens", {"M": t, "N": n, "I": n // 2, "K": k}, None, "same", 2.0 * t * n * k) for t in tokens
        ]
    if kernel == "matmul":
        cubes = [(f"{s}^3", s, s, s) for s in (1024, 2048, 4096, 8192)]
        layers = ("4B qkv", "4B o", "4B gate_up", "4B down")
        prompts = [(f"{name}, {t} tokens", t, *QWEN3[name]) for t in (18, 128, 512, 1024) for name in layers]
        return [
            Problem(kernel, name, {"M": m, "N": n, "K": k}, None, "same", 2.0 * m * n * k)
            for name, m, n, k in (*cubes, *prompts)
        ]
    return []


def _causal_flops(tokens: int, slots: int) -> float:
    """FLOPs of two products of width 128 for each pair of a query (32 heads) and a visible key."""
    return 4.0 * 128 * 32 * tokens * (gpu_attention.past(tokens, slots) + (tokens + 1) / 2)


def library_run(problem: Problem, manifest: Manifest, tensors: Tensors, total_bytes: int) -> tuple[str, Callable[[], object]]:
    """Name and call of the library alternative for one argument set."""
    if manifest.kernel == "flash_attention":
        return "torch scaled_dot_product_attention", gpu_attention.fused(tensors)
    if problem.against == "same":
        return f"torch {manifest.kernel}", lambda: MEANING[manifest.kernel](manifest, tensors)
    floats = next(t for t in tensors.values() if t.is_floating_point())
    if problem.against == "read":
        storage = torch.ones(max(8, total_bytes // 4), device=floats.device)
        return "torch amax, equal bytes", lambda: storage.amax()
    count = max(8, total_bytes // (3 * floats.element_size()))
    x, y = (torch.randn(count, device=floats.device, dtype=floats.dtype) for _ in range(2))
    out = torch.empty_like(x)
    return "torch add, equal bytes", lambda: torch.add(x, y, out=out)
