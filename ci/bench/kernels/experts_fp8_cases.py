"""A prompt's experts with operands of eight bits: sizes, torch expressions, bounds of errors. Part of `cases`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

from ci.bench.kernels.decode_cases import dequantised
from ci.bench.kernels.experts_tile_cases import runs
from ci.bench.kernels.launch import Tensors
from ci.bench.kernels.rounded import Rounded, exact, joined
from ci.bench.kernels.rounded_kernels import blocks, silu_mul
from tilec.artifact.records import Manifest

torch: Any = importlib.import_module("torch")
functional: Any = importlib.import_module("torch.nn.functional")

PRODUCT: Final = "experts_matmul_fp8"
GATED: Final = "experts_matmul_silu_mul_fp8"


def sizes(manifest: Manifest) -> list[dict[str, int]]:
    """Dims to check: partial tiles of columns, and as deep as `blocks` bounds sums of 14 bits; empty for another kernel."""
    shapes = ((3, 2, 128, 1024), (21, 5, 384, 1152), (40, 16, 768, 2048))
    if manifest.kernel not in MEANING:
        return []
    return [{"S": tiles, "X": experts, "N": n, "I": n, "K": k} for tiles, experts, n, k in shapes]


def _rows(t: Tensors, first: int, end: int) -> Any:
    """Rows of codes times the scales of their blocks, in float64."""
    return t["a"][first:end].double() * t["a_scales"][:, first:end].double().T.repeat_interleave(128, 1)


def _product(t: Tensors, rows: tuple[int, int], expert: int) -> Any:
    return _rows(t, *rows) @ dequantised({"w": t["b"][expert], "w_scales": t["b_scales"][expert]}).T


def _gated(t: Tensors, rows: tuple[int, int], expert: int) -> Any:
    gate, up = (_product({**t, "b": t["b"][:, half], "b_scales": t["b_scales"][:, half]}, rows, expert) for half in (0, 1))
    return functional.silu(gate) * up


def _meaning(product: Callable[[Tensors, tuple[int, int], int], Any]) -> Callable[[Manifest, Tensors], Tensors]:
    def meaning(_: Manifest, t: Tensors) -> Tensors:
        out = torch.zeros(tuple(t["out"].shape), dtype=torch.float64, device=t["out"].device)
        for first, end, expert in runs(t):
            if expert < t["b"].shape[0]:
                out[first:end] = product(t, (first, end), expert)
        return {"out": out}

    return meaning


def _bounded_gated(a: Any, a_scales: Any, b: Any, b_scales: Any) -> Rounded:
    return silu_mul(*(blocks(a, a_scales, b[half], b_scales[half]) for half in (0, 1)))


def _bounds(product: Callable[..., Rounded]) -> Callable[[Manifest, Tensors], dict[str, Rounded]]:
    def bounds(manifest: Manifest, t: Tensors) -> dict[str, Rounded]:
        parts: list[Rounded] = []
        for first, end, expert in runs(t):
            if expert < t["b"].shape[0]:
                weights = t["b"][expert], t["b_scales"][expert]
                parts.append(product(t["a"][first:end], t["a_scales"][:, first:end], *weights))
            else:
                parts.append(exact(torch.zeros((end - first, t["out"].shape[1]), device=t["out"].device)))
        return {"out": joined(parts, 0).stored(str(manifest.constants["E"]))}

    return bounds


MEANING: Final[dict[str, Callable[[Manifest, Tensors], Tensors]]] = {PRODUCT: _meaning(_product), GATED: _meaning(_gated)}
ROUNDED: Final[dict[str, Callable[[Manifest, Tensors], dict[str, Any]]]] = {
    PRODUCT: _bounds(blocks), GATED: _bounds(_bounded_gated),
}  # fmt: skip
