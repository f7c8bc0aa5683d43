"""A prompt's experts: sizes, contents, torch expressions, bounds of errors. Part of `cases`.

Integers are those of a stable sort of all choices by expert, made on the host."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ci.bench.kernels.decode_cases import dequantised
from ci.bench.kernels.launch import EPSILON, Tensors
from ci.bench.kernels.rounded import Rounded, exact, joined, product
from tilec.artifact.records import Manifest

torch: Any = importlib.import_module("torch")
functional: Any = importlib.import_module("torch.nn.functional")

MODELS: Final = {"30B-A3B": {"H": 2048, "I": 768}, "235B-A22B": {"H": 4096, "I": 1536}}
"""Sizes of rows of the models with 128 experts, of which a token has eight."""
FORMS: Final = ("", "_few", "_few_fp8", "_few_int4")
"""Of a product: what its name has at its end."""
X: Final = 128
C: Final = 8


def layer(tokens: int, rows: int, **model: int) -> dict[str, int]:
    """Dims of a layer's launches, in tiles of this many rows; a product reads rows of `K`."""
    choices = tokens * C
    tiles = (choices + min(X, choices) * (rows - 1)) // rows
    return {"T": tokens, "P": -(-tokens // 64), "S": tiles, "R": tiles * rows, "X": X, **model}


def sizes(manifest: Manifest) -> list[dict[str, int]]:
    """Dims to check: prompts of one token, of odd ones and of several chunks, and products with partial tiles; empty for
    another kernel."""
    name, rows = manifest.kernel, int(manifest.constants.get("BM", 1))
    if name not in MEANING:
        return []
    if "matmul" not in name:
        hidden = int(manifest.constants.get("H", 2048))
        return [{**layer(tokens, rows, H=hidden, I=768), "C": C} for tokens in (1, 18, 64, 65, 1000, 2048)]
    if "SPLIT" in manifest.constants:  # of codes: whole blocks, and groups side by side
        step = 128 * int(manifest.constants["SPLIT"])
        shapes = ((3, 2, 384, 2 * step), (1, 1, 128, step), (40, 16, 768, 3 * step))
        return [{"S": tiles, "X": experts, "N": n, "I": n, "I2": 2 * n, "K": k} for tiles, experts, n, k in shapes]
    shapes = ((3, 2, 136, 136), (1, 1, 8, 8), (21, 5, 264, 200), (40, 16, 768, 2048))
    return [{"S": tiles, "X": experts, "N": n, "I": n, "K": k} for tiles, experts, n, k in shapes]


def _host(tensor: Any) -> Any:
    return tensor.cpu().numpy()


def _sorted(experts: Any, block: int) -> dict[str, Any]:
    """Order, ranks, counts and begins of each chunk; choices past the end count on from the ranks of the last expert."""
    chosen = experts.reshape(-1)
    chunks = -(-chosen.size // block)
    padded = np.concatenate([chosen, np.full(chunks * block - chosen.size, X)]).reshape(chunks, block)
    order = np.argsort(padded, 1, kind="stable")
    counts = np.stack([np.bincount(chunk, minlength=X + 1)[:X] for chunk in padded], 1)
    begins = np.cumsum(counts, 0) - counts
    ranks = np.zeros((chunks, block), np.int64)
    own = np.minimum(np.take_along_axis(padded, order, 1), X - 1)
    np.put_along_axis(ranks, order, np.arange(block) - np.take_along_axis(begins.T, own, 1), 1)
    return {"order": order, "ranks": ranks, "counts": counts, "begins": begins}


def _tiled(counts: Any, rows: int, tiles: int) -> dict[str, Any]:
    """Where each chunk's choices of an expert begin, and the expert of each tile, X for those of nobody."""
    heights = -(-counts.sum(1) // rows)
    used = np.repeat(np.arange(X), heights)[:tiles]
    first = (np.cumsum(heights) - heights)[:, None] * rows
    return {
        "starts": first + np.cumsum(counts, 1) - counts,
        "tiles": np.concatenate([used, np.full(tiles - used.size, X, np.int64)]),
    }


def _rows_of(manifest: Manifest, t: Tensors) -> Any:
    """The row of each choice in the order of experts."""
    chosen = _host(t["experts"]).reshape(-1)
    order = np.argsort(chosen, kind="stable")
    counts = np.bincount(chosen, minlength=X)
    heights = -(-counts // int(manifest.constants["BM"]))
    first = (np.cumsum(heights) - heights) * int(manifest.constants["BM"]) - (np.cumsum(counts) - counts)
    slots = np.zeros(chosen.size, np.int64)
    slots[order] = first[chosen[order]] + np.arange(chosen.size)
    return slots.reshape(*t["experts"].shape)


def adjust(manifest: Manifest, t: Tensors) -> None:
    """Set contents that random numbers do not have, in place: what earlier launches leave."""
    found: dict[str, Any] = {}
    if manifest.kernel == "experts_tiles":  # of a router that prefers some experts
        found = {"counts": np.where(np.arange(X)[:, None] % 3 == 0, _host(t["counts"]) % 9, 0)}
    elif manifest.kernel == "experts_gather":
        found = _sorted(_host(t["experts"]), int(manifest.constants["BLOCK"]))
        found |= _tiled(found["counts"], int(manifest.constants["BM"]), t["tiles"].shape[0])
    elif manifest.kernel.startswith("experts_matmul"):  # one tile in sixteen is of nobody
        tiles = np.sort(_host(t["tiles"]) % t["b"].shape[0])
        tiles[tiles.size - -(-tiles.size // 16) :] = t["b"].shape[0]
        found = {"tiles": tiles}
    for name, array in found.items():
        t[name].copy_(torch.as_tensor(array.astype(np.int32), device=t[name].device))
    if manifest.kernel.startswith("experts_matmul") and "b_scales" not in t:
        t["b"].mul_(t["a"].shape[1] ** -0.5)


def _integers(found: dict[str, Any], like: Any) -> Tensors:
    return {name: torch.as_tensor(array.astype(np.int32), device=like.device) for name, array in found.items()}


def _sort(manifest: Manifest, t: Tensors) -> Tensors:
    return _integers(_sorted(_host(t["experts"]), int(manifest.constants["BLOCK"])), t["experts"])


def _tiles(manifest: Manifest, t: Tensors) -> Tensors:
    return _integers(_tiled(_host(t["counts"]), int(manifest.constants["BM"]), t["tiles"].shape[0]), t["counts"])


def _gather(manifest: Manifest, t: Tensors) -> Tensors:
    slots = _rows_of(manifest, t)
    rows = torch.zeros(tuple(t["out"].shape), dtype=t["x"].dtype, device=t["x"].device)
    for choice in range(C):
        rows[torch.as_tensor(slots[:, choice], device=rows.device)] = t["x"]
    return {"out": rows, **_integers({"places": slots}, t["experts"])}


def runs(t: Tensors) -> list[tuple[int, int, int]]:
    """First row, row after the last, and expert of tiles of one expert in a row."""
    tiles = _host(t["tiles"])
    rows = t["a"].shape[0] // tiles.size
    ends = [*np.flatnonzero(np.diff(tiles)) + 1, tiles.size]
    return [(int(a) * rows, int(b) * rows, int(tiles[a])) for a, b in zip([0, *ends], ends, strict=False)]


def _products(t: Tensors, combined: Callable[[Any, Any], Any], none: Callable[[Any, int], Any]) -> list[Any]:
    """What each run of tiles makes of its rows and its expert's weights; `none` for those of nobody."""
    return [
        combined(t["a"][a:b], t["b"][expert]) if expert < t["b"].shape[0] else none(t["a"], b - a) for a, b, expert in runs(t)
    ]


def _with_weights(t: Tensors) -> Tensors:
    """Codes as weights in float64: (X, N, K), of gate and up (X, 2, I, K)."""
    if "b_scales" not in t:
        return t
    weights = dequantised({f"w{name[1:]}": tensor for name, tensor in t.items() if name[0] == "b"})
    if weights.shape[1] != t["out"].shape[1]:
        weights = weights.reshape(weights.shape[0], 2, t["out"].shape[1], -1)
    return {**t, "b": weights}


def _zeros(t: Tensors) -> Callable[[Any, int], Any]:
    return lambda a, rows: torch.zeros((rows, t["b"].shape[-2]), dtype=a.dtype, device=a.device)


def _silu_mul(a: Any, b: Any) -> Any:
    return functional.silu(a @ b[0].T) * (a @ b[1].T)


def _multiplied(combined: Callable[[Any, Any], Any]) -> Callable[[Manifest, Tensors], Tensors]:
    def meaning(_: Manifest, t: Tensors) -> Tensors:
        known = _with_weights(t)
        return {"out": torch.cat(_products({**known, "b": known["b"].to(t["a"].dtype)}, combined, _zeros(known)), 0)}

    return meaning


def _rounded_product(a: Any, b: Any) -> Rounded:
    """A scale multiplies sums of products of codes, which is one rounding more."""
    return product("mk,nk->mn", exact(a), exact(b), a.shape[1] + 1)


def _rounded_silu_mul(a: Any, b: Any) -> Rounded:
    gate, up = (_rounded_product(a, half) for half in b)
    return gate * gate.sigmoid() * up


def _rounded(combined: Callable[[Any, Any], Rounded]) -> Callable[[Manifest, Tensors], dict[str, Rounded]]:
    def bounds(manifest: Manifest, t: Tensors) -> dict[str, Rounded]:
        known = _with_weights(t)
        parts = _products(known, combined, lambda a, rows: exact(_zeros(known)(a, rows)))
        return {"out": joined(parts, 0).stored(str(manifest.constants["E"]))}

    return bounds


def _combine(manifest: Manifest, t: Tensors) -> Tensors:
    total = (_weighted(t)).sum(1) + t["residual"].to(t["weights"].dtype)
    stored = total.to(t["residual"].dtype)
    return {"residual": stored, "out": functional.rms_norm(stored, (stored.shape[-1],), t["weight"], EPSILON)}


def _weighted(t: Tensors) -> Any:
    """Each token's rows times their weights, in the dtype of the weights."""
    return t["y"][t["places"].long()].to(t["weights"].dtype) * t["weights"][:, :, None]


def _sum(manifest: Manifest, t: Tensors) -> Tensors:
    return {"out": _weighted(t).sum(1).to(t["y"].dtype)}


def _rounded_sum(manifest: Manifest, t: Tensors) -> dict[str, Rounded]:
    rows = exact(t["y"][t["places"].long()]) * exact(t["weights"][:, :, None])
    return {"out": rows.sum(1).stored(str(manifest.constants["E"]))}


def _rounded_combine(manifest: Manifest, t: Tensors) -> dict[str, Rounded]:
    element = str(manifest.constants["E"])
    rows = exact(t["y"][t["places"].long()]) * exact(t["weights"][:, :, None])
    stored = (exact(t["residual"]) + rows.sum(1)).stored(element)
    scale = ((stored * stored).sum(1) * (1 / stored.value.shape[1]) + EPSILON).rsqrt()[:, None]
    return {"residual": stored, "out": (stored * scale * exact(t["weight"])).stored(element)}


def _rounded_gather(manifest: Manifest, t: Tensors) -> dict[str, Rounded]:
    return {"out": exact(_gather(manifest, t)["out"])}


MEANING: Final[dict[str, Callable[[Manifest, Tensors], Tensors]]] = {
    "experts_sort": _sort, "experts_tiles": _tiles, "experts_gather": _gather, "experts_combine": _combine,
    "experts_sum": _sum,
    **{f"experts_matmul{form}": _multiplied(lambda a, b: a @ b.T) for form in FORMS},
    **{f"experts_matmul_silu_mul{form}": _multiplied(_silu_mul) for form in FORMS},
}  # fmt: skip
ROUNDED: Final[dict[str, Callable[[Manifest, Tensors], dict[str, Any]]]] = {
    "experts_gather": _rounded_gather, "experts_combine": _rounded_combine,
    "experts_sum": _rounded_sum,
    **{f"experts_matmul{form}": _rounded(_rounded_product) for form in FORMS},
    **{f"experts_matmul_silu_mul{form}": _rounded(_rounded_silu_mul) for form in FORMS},
}  # fmt: skip
