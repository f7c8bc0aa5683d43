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

from ci.bench.kernels import attention_cases, experts_tile_cases, packed_cases, pages_cases
from ci.bench.kernels.cases import MEANING
from ci.bench.kernels.launch import Tensors, past
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
    """One timed size. Dims that a kernel does not have are ignored. `floor` is the minimum ratio to the library; None if it is
    only reported."""

    kernel: str
    label: str
    dims: dict[str, int]
    floor: float | None = None
    against: str = "same"
    flops: float = 0.0


def problems(kernel: str) -> list[Problem]:
    """The sizes of one kernel."""

    def one(label: object, floor: float | None = None, against: str = "same", flops: float = 0.0, **dims: int) -> Problem:
        return Problem(kernel, str(label), dims, floor, against, flops)

    def product(label: str, m: int, n: int, k: int) -> Problem:
        return one(label, flops=2.0 * m * n * k, M=m, N=n, I=n // 2, K=k)

    models = (("4B", 4), ("32B", 8))
    match kernel:
        case "add":
            return [one(f"2^{p}", 0.97, "add", N=2**p) for p in (26, 27, 28)]
        case "rms_norm" | "add_rms_norm":
            return [one(f"{t}x{h}", 0.9 if t >= 4096 else None, "add", T=t, H=h) for h in HIDDEN for t in (1, 4096, 16384)]
        case "matvec":
            n, k = QWEN3["4B gate_up"]
            found = [one(name, 1.0, B=1, M=1, N=rows, K=columns) for name, (rows, columns) in QWEN3.items()]
            return found + [one(f"4B gate_up B={b}", B=b, M=b, N=n, K=k) for b in (2, 4, 8)]
        case "embedding":
            return [one(f"{t}x{h}", T=t, H=h, V=151936) for h in HIDDEN for t in (1, 4096)]
        case "gather_row":
            return [one(h, T=4096, H=h, V=151936, N=h, R=4096) for h in HIDDEN]
        case "argmax_reduce":
            return [one(151936, V=151936, N=151936, B=1, T=1)]
        case "decode_attention":
            # The cache is read once; writes are 2 % of it at 8k, so the reference is a pure read of the same bytes.
            return [
                one(f"KV {s} {name}", 0.85 if s >= 8192 else None, "read", B=1, S=s, P=64, HKV=8, G=g)
                for s in (1024, 8192, 32768)
                for name, g in models
            ] + [one(f"KV 8192 4B, {p} parts", None, "read", B=1, S=8192, P=p, HKV=8, G=4) for p in (32, 48, 128)]
        case "decode_attention_wide":
            return [one(f"KV {s} 235B-A22B", None, "read", B=1, S=s, P=33, HKV=4, G=16) for s in (1024, 8192, 32768)]
        case "decode_merge":
            return [one(name, B=1, HKV=8, G=g, P=64) for name, g in models]
        case "flash_attention":
            return [
                one(f"{t} after {past(t, s)}", flops=_causal_flops(t, s), T=t, S=s, HKV=8, G=4)
                for t, s in ((512, 512), (2048, 2048), (4096, 4096), (8192, 8192), (1000, 8192))
            ]
        case "packed_flash_attention":
            return [one(f"{t} of 3 prompts in {s}", T=t, S=s, HKV=8, G=4) for t, s in ((512, 512), (2048, 2048), (2048, 8192))]
        case "chunk_starts":
            return [one(f"{t} rows", T=t) for t in (8, 256)]
        case "paged_decode_attention" | "paged_decode_attention_c8" | "paged_merge":
            return [
                one(f"{rows} rows of {tokens} {name}", None, "read", **pages_cases.batch(rows, tokens, HKV=8, G=g))
                for name, g in models
                for rows, tokens in ((8, 512), (32, 512), (128, 512), (256, 512), (8, 8192))
            ]
        case "paged_decode_attention_wide" | "paged_merge_wide":
            return [
                one(f"{rows} rows of {tokens} 235B-A22B", None, "read", **pages_cases.batch(rows, tokens, HKV=4, G=16))
                for rows, tokens in ((8, 512), (256, 512))
            ]
        case "paged_flash_attention" | "paged_gather" | "paged_gather_c8":
            return [
                one(f"{t} after {b}", None, "read", flops, **pages_cases.prompt(t, b))
                for t, b in ((512, 0), (2048, 0), (8192, 0), (512, 7677))
                for flops in (0.0 if kernel.startswith("paged_gather") else 4.0 * 128 * 32 * t * (b + (t + 1) / 2),)
            ]
        case "qk_norm_rope_kv":
            return [one(f"{t} tokens 4B", T=t, HQ=32, HKV=8, HEADS=48, S=t, P=40960) for t in (1, 8, 512, 4096)]
        case "matvec_add":
            names = ("4B o", "4B down", "32B o", "32B down")
            return [one(name, B=1, N=QWEN3[name][0], K=QWEN3[name][1]) for name in names]
        case "matvec_argmax":
            sizes = ((name, k, p) for name, k in (("4B", 2560), ("32B", 5120)) for p in (660, 1024))
            return [one(f"{name}, {p} parts", B=1, V=151936, K=k, P=p) for name, k, p in sizes]
        case "argmax_blocks":
            return [one(f"{b} rows of 151936", V=151936, P=149, B=b) for b in (8, 32, 128, 256)]
        case "topk_blocks":
            return [one(f"151936, {k} of each part", V=151936, P=149, B=1, K=k) for k in (20, 64)]
        case "sample_token":
            return [one(f"{k} of 149 parts", P=149, B=1, S=4096, K=k) for k in (20, 64)]
        case "sample_maxima" | "sample_rows" | "sample_report":
            found = {"V": 151936, "GROUPS": 4748, "NUMBERS": 8, "FACTORS": 4}
            return [one(f"{b} rows", None, "read", B=b, **found) for b in (1, 8, 32, 256)]
        case "route_experts":
            return [one(f"{t} tokens", None, "read", T=t, X=128, C=8) for t in (1, 2, 4, 8)]
        case "experts_sort" | "experts_tiles" | "experts_gather" | "experts_combine" | "experts_sum":
            return [
                one(
                    f"{tokens} tokens {name}, tiles of {rows}",
                    None,
                    "read",
                    C=8,
                    BM=rows,
                    **experts_tile_cases.layer(tokens, rows, **model),
                )
                for name, model in experts_tile_cases.MODELS.items()
                for tokens, rows in ((18, 16), (512, 64), (2048, 64), (8192, 64))
            ]
        case _ if kernel.startswith("experts_matmul"):
            return [
                one(f"{tokens} tokens {name}, tiles of {rows}", None, "read", flops, BM=rows, N=n, I2=n, K=k, **dims)
                for name, model in experts_tile_cases.MODELS.items()
                for tokens, rows in ((18, 16), (64, 16), (256, 64), (512, 64), (2048, 64), (8192, 64), (8192, 128))
                for n, k in ((2 * model["I"], model["H"]) if "silu" in kernel else (model["H"], model["I"]),)
                for dims in (
                    {key: value for key, value in experts_tile_cases.layer(tokens, rows, **model).items() if key != "H"},
                )
                for flops in (2.0 * 8 * tokens * n * k,)
            ]
        case _ if kernel.startswith("experts_"):  # a layer's; of its weights those of chosen experts are read
            sums = {1: 4, 2: 16, 4: 16, 8: 16}  # elements of a sum of squares
            return [
                one(f"{name}, {t} tokens", None, "read", T=t, X=x, I=i, I2=2 * i, N=h, P=h // g, GROUP=g, K=h if silu else i)
                for name, x, h, i in (("30B-A3B", 128, 2048, 768), ("235B-A22B, 64 of its experts", 64, 4096, 1536))
                for t, g in sums.items()
                for silu in (kernel.startswith("experts_silu_mul"),)
            ]
        case "matmul_silu_mul":
            return [product(f"{t} tokens", t, *QWEN3["4B gate_up"]) for t in (128, 512, 2048)]
        case "matmul_split" | "matmul_few" | "matmul_silu_mul_few":
            layer = {"matmul_split": "4B down", "matmul_few": "4B qkv"}.get(kernel, "4B gate_up")
            return [product(f"{t} tokens", t, *QWEN3[layer]) for t in (16, 32, 64, 128, 256)]
        case "matmul":
            layers = [(name, *QWEN3[name]) for name in ("4B qkv", "4B o", "4B gate_up", "4B down")]
            cubes = [product(f"{s}^3", s, s, s) for s in (1024, 2048, 4096, 8192)]
            return cubes + [product(f"{name}, {t} tokens", t, n, k) for t in (18, 128, 512, 1024) for name, n, k in layers]
        case _:
            return []


def _causal_flops(tokens: int, slots: int) -> float:
    """FLOPs of two products of width 128 for each pair of a query (32 heads) and a visible key."""
    return 4.0 * 128 * 32 * tokens * (past(tokens, slots) + (tokens + 1) / 2)


def library_run(problem: Problem, manifest: Manifest, tensors: Tensors, total_bytes: int) -> tuple[str, Callable[[], object]]:
    """Name and call of the library alternative for one argument set."""
    if manifest.kernel in ("flash_attention", "paged_flash_attention"):  # over slots in order
        given = pages_cases.contiguous(tensors) if "table" in tensors else tensors
        return "torch scaled_dot_product_attention", attention_cases.fused(given)
    if manifest.kernel == packed_cases.KERNEL:
        return "torch scaled_dot_product_attention, a prompt after the other", packed_cases.fused(tensors)
    if problem.against == "same":
        return f"torch {manifest.kernel}", lambda: MEANING[manifest.kernel](manifest, tensors)
    if problem.against == "read":
        storage = torch.ones(max(8, total_bytes // 4), device=next(iter(tensors.values())).device)
        return "torch amax, equal bytes", lambda: storage.amax()
    floats = next(t for t in tensors.values() if t.is_floating_point())
    count = max(8, total_bytes // (3 * floats.element_size()))
    x, y = (torch.randn(count, device=floats.device, dtype=floats.dtype) for _ in range(2))
    out = torch.empty_like(x)
    return "torch add, equal bytes", lambda: torch.add(x, y, out=out)
