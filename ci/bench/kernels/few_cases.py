"""Products of small M with FP8 and INT4 weights: sizes, torch expressions, bounds of errors. Part of `cases`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

from ci.bench.kernels.decode_cases import dequantised
from ci.bench.kernels.launch import Tensors
from ci.bench.kernels.rounded import Rounded, exact, joined, product
from tilec.artifact.records import Manifest

torch: Any = importlib.import_module("torch")
functional: Any = importlib.import_module("torch.nn.functional")

GROUP: Final = 128
"""Inputs with one scale."""


def sizes(manifest: Manifest) -> list[dict[str, int]]:
    """Dims to check: one tile of tokens that is not full, several, and a layer of Qwen3-4B; empty for another kernel."""
    if manifest.kernel not in MEANING:
        return []
    tokens, step = min(int(manifest.constants["BM"]), 32), GROUP * int(manifest.constants["SPLIT"])
    found = [(tokens - 3, 128, step), (2 * tokens + 1, 384, 5 * step), (tokens, 2560, 19 * step)]
    if "silu" in manifest.kernel:
        return [{"M": m, "I": n, "I2": 2 * n, "K": k} for m, n, k in found]
    return [{"M": m, "N": n, "K": k} for m, n, k in found]


def _weights(t: Tensors) -> Any:
    """The weights in float64."""
    return dequantised({f"w{name[1:]}": tensor for name, tensor in t.items() if name[0] == "b"})


def _few(manifest: Manifest, t: Tensors) -> Tensors:
    return {"out": t["a"] @ _weights(t).to(t["a"].dtype).T}


def _silu_mul_few(manifest: Manifest, t: Tensors) -> Tensors:
    gate, up = (t["a"] @ half.T for half in _weights(t).to(t["a"].dtype).chunk(2, 0))
    return {"out": functional.silu(gate) * up}


def _run(manifest: Manifest, t: Tensors) -> int:
    """Inputs of a part of a split product."""
    step, parts = GROUP * int(manifest.constants["SPLIT"]), int(manifest.constants["S"])
    return -(-(t["a"].shape[1] // step) // parts) * step


def _split(manifest: Manifest, t: Tensors) -> Tensors:
    """Each split of K is a range of whole steps; the last may be shorter or empty."""
    run, weights = _run(manifest, t), _weights(t).to(t["a"].dtype)
    firsts = range(0, run * int(manifest.constants["S"]), run)
    return {"parts": torch.stack([t["a"][:, at : at + run] @ weights[:, at : at + run].T for at in firsts])}


def _product(a: Any, weights: Any) -> Rounded:
    """Weights are exact in float64; the scale multiplies sums of products of their codes, which is one rounding more."""
    return product("mk,nk->mn", exact(a), exact(weights), a.shape[1] + 1)


def _rounded_few(manifest: Manifest, t: Tensors) -> dict[str, Any]:
    return {"out": _product(t["a"], _weights(t)).stored(str(manifest.constants["E"]))}


def _rounded_silu_mul_few(manifest: Manifest, t: Tensors) -> dict[str, Any]:
    gate, up = (_product(t["a"], half) for half in _weights(t).chunk(2, 0))
    return {"out": (gate * gate.sigmoid() * up).stored(str(manifest.constants["E"]))}


def _rounded_split(manifest: Manifest, t: Tensors) -> dict[str, Any]:
    run, weights = _run(manifest, t), _weights(t)
    firsts = range(0, run * int(manifest.constants["S"]), run)
    return {"parts": joined([_product(t["a"][:, at : at + run], weights[:, at : at + run])[None] for at in firsts], 0)}


MEANING: Final[dict[str, Callable[[Manifest, Tensors], Tensors]]] = {
    "matmul_few_fp8": _few, "matmul_silu_mul_few_fp8": _silu_mul_few, "matmul_split_fp8": _split,
    "matmul_few_int4": _few, "matmul_silu_mul_few_int4": _silu_mul_few, "matmul_split_int4": _split,
}  # fmt: skip
ROUNDED: Final[dict[str, Callable[[Manifest, Tensors], dict[str, Any]]]] = {
    "matmul_few_fp8": _rounded_few, "matmul_silu_mul_few_fp8": _rounded_silu_mul_few, "matmul_split_fp8": _rounded_split,
    "matmul_few_int4": _rounded_few, "matmul_silu_mul_few_int4": _rounded_silu_mul_few, "matmul_split_int4": _rounded_split,
}  # fmt: skip
