"""Problems of the kernels of a cache of codes: sizes, contents of tensors, and what they write, with bounds of errors.

Part of `cases`. Rows are e4m3 codes with an f32 scale each. A new row's codes are exact but where its quotient is so near the
middle of two codes that roundings before it may decide; attention is that of `rounded_attention` to codes times their scales.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

from ci.bench.kernels import rounded_attention
from ci.bench.kernels.launch import Tensors
from ci.bench.kernels.rounded import Rounded, exact
from tilec.artifact.records import Manifest

torch: Any = importlib.import_module("torch")

GREATEST: Final = 448.0
SMALLEST: Final = 1e-30
Results = dict[str, Any]


def _is_coded(manifest: Manifest) -> bool:
    return manifest.kernel.endswith("_c8") and not manifest.kernel.startswith("paged_")


def sizes(manifest: Manifest) -> list[dict[str, int]]:
    """Dims to check; empty if any are valid."""
    if not _is_coded(manifest):
        return []
    constants = manifest.constants
    match manifest.kernel.removesuffix("_c8"):
        case "dequantise":
            heads, slots = int(constants["HEADS"]), int(constants["SLOTS"])
            return [{"HKV": count * heads, "S": tiles * slots} for count, tiles in ((1, 1), (2, 5), (1, 512))]
        case "qk_norm_rope_kv" | "rope_kv":
            positions = "P" if manifest.kernel.startswith("qk") else "R"
            return [
                {"T": t, "HQ": hq, "HKV": 8, "HEADS": hq + 16, "S": t + 300, positions: 4096}
                for hq in (16, 40)
                for t in (1, 3, 127, 1000)
            ]
        case "decode_merge_kv" | "rope_merge_kv":
            return [{"B": b, "HKV": h, "S": s, "R": s + 77} for b, h, s in ((1, 8, 2), (3, 1, 160), (8, 8, 512))]
        case _:
            tile, group = int(constants["BN"]), int(constants["G"])
            found = [(1, 8, 1, 1), (3, 4, 5, 2), (1, 8, 64, 33), (8, 8, 9, 8)]
            return [
                {"B": b, "HKV": h, "S": tiles * tile, "P": parts, "R": tiles * tile + 77}
                for b, h, tiles, parts in found
                if group + 2 * h >= 8
            ]


def adjust(manifest: Manifest, t: Tensors) -> None:
    """Every code but NaN's, by scales of rows whose greatest element is some ones, in place."""
    for name in ("cache", "k_cache", "v_cache") if _is_coded(manifest) else ():
        if name in t:
            fill(t[name], t[name.replace("_cache", "_scales").replace("cache", "scales")])
    if manifest.kernel in ("decode_merge_kv_c8", "rope_merge_kv_c8"):
        t["sums"].abs_().add_(0.5)


def fill(codes: Any, scales: Any) -> None:
    """Every code but NaN's, by scales of rows whose greatest element is some ones, in place."""
    found = torch.randint(0, 254, codes.shape, device=codes.device)
    codes.view(torch.uint8).copy_(found + (found >= 127))
    scales.abs_().add_(0.5).mul_(2.0**-9)


def _codes_of(quotient: Any) -> Any:
    """The nearest code of each number, as a number."""
    bounded = torch.where(quotient > GREATEST, GREATEST, torch.where(quotient < -GREATEST, -GREATEST, quotient))
    return bounded.to(torch.float32).to(torch.float8_e4m3fn).double()


def _coded(rows: Rounded) -> tuple[Rounded, Rounded]:
    """Codes and scales of rows, (..., D) -> (..., D), (...)."""
    most, least = ((rows.value.abs() + side * rows.bound).amax(-1) for side in (1, -1))
    most, least = (torch.where(one > SMALLEST, one, SMALLEST) / GREATEST for one in (most, least))
    scale = Rounded((most + least) / 2, (most - least) / 2 + most * 2.0**-22)
    quotient = rows.value / scale.value[..., None]
    error = (rows.bound + quotient.abs() * scale.bound[..., None]) / scale.value[..., None] + quotient.abs() * 2.0**-22
    low, high = _codes_of(quotient - error), _codes_of(quotient + error)
    return Rounded((low + high) / 2, (high - low) / 2), scale


def _new_rows(manifest: Manifest, t: Tensors) -> tuple[Rounded, Rounded, Rounded]:
    """Queries in the model's dtype, keys and values in f32: (B, heads, D) each."""
    heads, qkv = t["k_cache"].shape[-2], t["qkv"]
    queries, half = qkv.shape[1] - 2 * heads, qkv.shape[-1] // 2
    table = t["table"][t["positions"].long()][:, None]
    parts = (
        (slice(queries), "q_weight", str(manifest.constants["E"])),
        (slice(queries, queries + heads), "k_weight", "f32"),
    )
    turned = [
        rounded_attention.turned_heads(qkv[:, part], t.get(weight), table[..., :half], table[..., half:], dtype)
        for part, weight, dtype in parts
    ]
    return turned[0], turned[1], exact(qkv[:, queries + heads :])


def _stored(manifest: Manifest, t: Tensors, index: Any) -> tuple[Rounded, Results]:
    """Queries, and caches after the new rows were written at an index."""
    queries, *rows = _new_rows(manifest, t)
    after: Results = {}
    for name, new in zip("kv", rows, strict=True):
        for part, one in zip(("cache", "scales"), _coded(new), strict=True):
            after[f"{name}_{part}"] = rounded_attention.with_rows(t[f"{name}_{part}"], index, one)
    return queries, after


def _of_sequences(t: Tensors) -> Any:
    slots = t["slots"] if "slots" in t else t["lengths"] - 1
    return torch.arange(len(slots), device=slots.device), slots.long()


def _decoded(after: Results) -> Results:
    """Caches as they would be in 16 bits, under the names that they have there."""
    return {f"{name}_cache": after[f"{name}_cache"] * after[f"{name}_scales"][..., None] for name in "kv"}


def _store(manifest: Manifest, t: Tensors) -> Results:
    queries, after = _stored(manifest, t, t["slots"].long())
    return {"q": queries, **after}


def _merge(manifest: Manifest, t: Tensors) -> Results:
    return {**rounded_attention.ROUNDED["decode_merge"](manifest, t), **_stored(manifest, t, _of_sequences(t))[1]}


def _split(manifest: Manifest, t: Tensors) -> Results:
    queries, after = _stored(manifest, t, _of_sequences(t))
    return rounded_attention.parts_of(manifest, t, rounded_attention.grouped(queries, t), _decoded(after), apart=True)


def _whole(manifest: Manifest, t: Tensors) -> Results:
    queries, after = _stored(manifest, t, _of_sequences(t))
    out = rounded_attention.attention(manifest, t, rounded_attention.grouped(queries, t), _decoded(after))
    return {"out": out, **after}


def _dequantise(manifest: Manifest, t: Tensors) -> Results:
    """Of one filled slot: a block's slots."""
    end = int(manifest.constants["SLOTS"])
    rows = Rounded(t["cache"].double()[:end] * t["scales"].double()[:end][..., None])
    stored = rows.stored(str(manifest.constants["E"]))
    return {"out": rounded_attention.with_rows(t["out"], torch.arange(end, device=t["out"].device), stored)}


def _values(manifest: Manifest, t: Tensors) -> Tensors:
    """What is written, without bounds: torch has no kernel of such caches to compare with."""
    return {name: one.value for name, one in ROUNDED[manifest.kernel](manifest, t).items()}


ROUNDED: Final[dict[str, Callable[[Manifest, Tensors], Results]]] = {
    "qk_norm_rope_kv_c8": _store, "rope_kv_c8": _store, "decode_merge_kv_c8": _merge, "rope_merge_kv_c8": _merge,
    "rotary_decode_attention_c8": _split, "rope_decode_attention_c8": _split, "rotary_decode_attention_kv_c8": _whole,
    "rope_decode_attention_kv_c8": _whole, "dequantise_c8": _dequantise,
}  # fmt: skip

MEANING: Final[dict[str, Callable[[Manifest, Tensors], Tensors]]] = dict.fromkeys(ROUNDED, _values)
