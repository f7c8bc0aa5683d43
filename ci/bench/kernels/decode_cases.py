"""Problems of decode kernels with a split norm: part of a norm is computed by the previous kernel, the rest by the next one.

Part of `cases`: sizes, contents of tensors, and each kernel as torch expressions. `squares` are sums of squares of runs of
a row; a row's scale is one over the root of their mean over `K`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

from ci.bench.kernels import attention_cases
from ci.bench.kernels.launch import EPSILON, VOCABULARY, Tensors
from tilec.artifact.records import Manifest
from tilec.target.dtypes import DTYPES

torch: Any = importlib.import_module("torch")
functional: Any = importlib.import_module("torch.nn.functional")


def sizes(manifest: Manifest) -> list[dict[str, int]]:
    """Dims to check; empty if this file does not know the kernel."""
    constants: dict[str, Any] = dict(manifest.constants)
    rows = int(constants.get("ROWS", 1))
    match manifest.kernel:
        case "scaled_matvec" | "scaled_matvec_rows" | "scaled_matvec_rows_int4":
            return [{"N": count * rows} for count in (2, 37, 384)]
        case "scaled_matvec_silu_mul" | "scaled_matvec_silu_mul_rows":
            return [{"I": count * rows, "I2": 2 * count * rows} for count in (2, 37, 608)]
        case "matvec_add_scaled" | "matvec_add_scaled_rows" | "matvec_add_scaled_rows_int4":
            return [{"N": count * rows, "P": count} for count in (2, 37, 160)]
        case "scaled_matvec_rows_fp8":
            return [{"N": count * 128} for count in (1, 3, 20)]
        case "scaled_matvec_fp8" | "matvec_add_fp8":
            return [{"B": 1, "N": count * 128} for count in (1, 3, 20)]
        case "scaled_matvec_silu_mul_fp8" | "scaled_matvec_silu_mul_rows_fp8":
            return [{"I": count * 128, "I2": 2 * count * 128} for count in (1, 3, 20)]
        case "matvec_add_scaled_fp8" | "matvec_add_scaled_rows_fp8":
            return [{"N": count * 128, "P": count * 128 // rows} for count in (1, 3, 20)]
        case "dequantise_each_fp8" | "dequantise_each_int4":
            return [{"X": x, "N": n * 128, "K": k * 128} for x, n, k in ((1, 1, 1), (3, 3, 5), (40, 2, 3))]
        case "dequantise_fp8":
            return [{"N": n * 128, "K": k * 128} for n, k in ((1, 1), (3, 5), (20, 32))]
        case "scaled_matvec_int4" | "matvec_add_int4":
            return [{"B": 1, "N": count * rows} for count in (2, 37, 160)]
        case "scaled_matvec_silu_mul_int4" | "scaled_matvec_silu_mul_rows_int4":
            return [{"I": count * rows, "I2": 2 * count * rows} for count in (2, 37, 608)]
        case "matvec_add_scaled_int4":
            return [{"N": count * rows, "P": count * rows // 4} for count in (2, 37, 160)]
        case "dequantise_int4":
            return [{"N": n * rows, "K": k * 128} for n, k in ((1, 1), (3, 5), (80, 32))]
        case "scaled_matvec_argmax_rows":
            return [{"V": count * rows, "P": parts} for count, parts in ((4, 3), (37, 64), (9496, 148))]
        case "embedding_scaled":
            return [{"V": v} for v in (1, 7, 151936)]
        case "embedding_scaled_rows":
            return [{"B": b, "V": v} for b in (1, 3, 8) for v in (7, 1009)]
        case "advance_rows":
            return [{"B": b} for b in (1, 3, 8)]
        case "next_ids":
            return [{"T": t} for t in (1, 3, 256)]
        case "decode_merge_kv" | "rope_merge_kv":
            return [{"B": b, "HKV": h, "S": s, "R": s + 77} for b, h, s in ((1, 8, 2), (3, 1, 160), (8, 8, 512))]
        case "rotary_decode_attention" | "rope_decode_attention":
            tile, group = int(constants["BN"]), int(constants["G"])
            found = [(4, 3, 1, 1), (8, 5, 3, 2), (1, 8, 64, 64), (3, 8, 9, 5)]
            return [
                {"B": b, "HKV": h, "S": tiles * tile, "P": parts, "R": tiles * tile + 77}
                for b, h, tiles, parts in found
                if group + 2 * h >= 8
            ]
        case _:
            return []


def adjust(manifest: Manifest, t: Tensors) -> None:
    """Set contents that random numbers do not have, in place."""
    if manifest.kernel.startswith("scaled_"):  # their sum is about that of the squares of K elements of deviation 1
        t["squares"].abs_().mul_(t["x"].shape[1] / t["squares"].shape[1])
        t["w_scales" if "w_scales" in t else "w"].mul_(t["x"].shape[1] ** -0.5)
    for weight in [name for name in ("w", "b") if f"{name}_scales" in t]:
        if f"{weight}_zeros" in t:  # words of all fields
            words, zeros = t[weight], t[f"{weight}_zeros"]
            words.view(torch.int32).copy_(torch.randint(-(2**31), 2**31, words.shape, device=words.device))
            zeros.copy_(torch.randint(0, 16, zeros.shape, device=zeros.device))
        else:  # every code but NaN's, by scales of their own
            found = torch.randint(0, 254, t[weight].shape, device=t[weight].device)
            t[weight].view(torch.uint8).copy_(found + (found >= 127))
        t[f"{weight}_scales"].abs_().add_(0.5).mul_(2.0**-7)
    if manifest.kernel.endswith(("matvec_argmax", "matvec_argmax_rows")):
        # Logits are small integers times one scale, which every dtype represents: equal ones are equal in all of them.
        for name in ("x", "w"):
            t[name].copy_(torch.randint(-1, 2, t[name].shape, device=t[name].device))
    if manifest.kernel in ("decode_merge_kv", "rope_merge_kv"):
        t["sums"].abs_().add_(0.5)


def dequantised(t: Tensors) -> Any:
    """Weights in float64, (..., N, K): those of FP8 times the scales of their blocks, of INT4 times those of their groups."""
    if "w_zeros" in t:
        words = t["w"].long()
        fields = torch.cat([(words // 16**field % 16)[..., None] for field in range(8)], dim=-1).reshape(*words.shape[:-1], -1)
        zeros, scales = (
            t[name].transpose(-1, -2).double().repeat_interleave(128, -1) for name in ("w_zeros", "w_scales")
        )  # fmt: skip
        return (fields.double() - zeros) * scales
    return t["w"].double() * t["w_scales"].double().repeat_interleave(128, -2).repeat_interleave(128, -1)


def _weights(t: Tensors) -> Any:
    """Weights in the dtype of the activations."""
    return dequantised(t).to(t["x"].dtype) if "w_scales" in t else t["w"]


def _scaled(t: Tensors) -> Any:
    """`x @ w.T` times each row's scale."""
    x, squares = t["x"], t["squares"]
    scale = (squares.sum(1, keepdim=True) / x.shape[1] + EPSILON).rsqrt()
    return ((x @ _weights(t).T).to(squares.dtype) * scale).to(x.dtype)


def _scaled_matvec(manifest: Manifest, t: Tensors) -> Tensors:
    return {_only_output(manifest): _scaled(t)}


def _scaled_matvec_silu_mul(manifest: Manifest, t: Tensors) -> Tensors:
    gate, up = _scaled(t).chunk(2, dim=1)
    return {_only_output(manifest): functional.silu(gate) * up}


def _scaled_matvec_argmax(manifest: Manifest, t: Tensors) -> Tensors:
    return attention_cases.argmax_of_parts(_scaled(t), int(manifest.constants["ROWS"]), t["maxima"].shape[1])


def _with_norm(row: Any, weight: Any, run: int, squares: Any) -> tuple[Any, Any, Any]:
    """A kernel's outputs for the next norm: the row as stored, its product with the weight, sums of squares of each `run`."""
    wide = row.to(squares.dtype) if row.dtype != torch.float64 else row
    return row, row * weight, (wide * wide).reshape(len(row), -1, run).sum(2)


def _matvec_add_scaled(manifest: Manifest, t: Tensors) -> Tensors:
    """The residual is updated in place; the other outputs are computed from its stored value."""
    total = t["residual"] + t["x"] @ _weights(t).T
    stored = total.to(getattr(torch, DTYPES[str(manifest.constants["E"])].numpy)).to(total.dtype)
    run = stored.shape[1] // t["squares"].shape[1]
    _, scaled, squares = _with_norm(stored, t["weight"], run, t["squares"])
    names = [spec.name for spec in manifest.tensors if spec.access in ("out", "inout")]
    return dict(zip(names, (total, scaled, squares), strict=True))


def _matvec_add(manifest: Manifest, t: Tensors) -> Tensors:
    return {"residual": t["residual"] + t["x"] @ _weights(t).T}


def _dequantise(manifest: Manifest, t: Tensors) -> Tensors:
    return {"out": dequantised(t).to(t["out"].dtype)}


def _embedding_scaled(manifest: Manifest, t: Tensors) -> Tensors:
    run = 16 if manifest.kernel.endswith("_rows") else 4
    row = t["table"][t["ids"].long()]
    names = [spec.name for spec in manifest.tensors if spec.access == "out"]
    return dict(zip(names, _with_norm(row, t["weight"], run, t["squares"]), strict=True))


def _advance_rows(manifest: Manifest, t: Tensors) -> Tensors:
    """Each row's token if it is valid, else 0, and its next position; an inactive row's position is unchanged."""
    following = t["positions"] + t["going"]
    chosen = torch.where((t["token"] >= 0) & (t["token"] < VOCABULARY), t["token"], 0)
    return {"ids": chosen, "positions": following, "slots": following, "lengths": following + 1}


def _next_ids(manifest: Manifest, t: Tensors) -> Tensors:
    """Each row's token if it is valid, else 0."""
    return {"ids": torch.where((t["token"] >= 0) & (t["token"] < VOCABULARY), t["token"], 0)}


def _decode_merge_kv(manifest: Manifest, t: Tensors) -> Tensors:
    _, caches = attention_cases.appended(t, t["slots"].tolist())
    return {**attention_cases.MEANING["decode_merge"](manifest, t), **caches}


def _rotary_decode_attention(manifest: Manifest, t: Tensors) -> Tensors:
    queries, caches = attention_cases.appended(t, [length - 1 for length in t["lengths"].tolist()])
    inner = {**t, **caches, "q": queries.reshape(len(queries), t["k_cache"].shape[2], -1, queries.shape[-1])}
    return attention_cases.MEANING["decode_attention"](manifest, inner)


def _only_output(manifest: Manifest) -> str:
    return next(spec.name for spec in manifest.tensors if spec.access == "out")


MEANING: Final[dict[str, Callable[[Manifest, Tensors], Tensors]]] = {
    "scaled_matvec": _scaled_matvec, "scaled_matvec_rows": _scaled_matvec,
    "scaled_matvec_silu_mul": _scaled_matvec_silu_mul, "scaled_matvec_silu_mul_rows": _scaled_matvec_silu_mul,
    "scaled_matvec_argmax_rows": _scaled_matvec_argmax,
    "matvec_add_scaled": _matvec_add_scaled, "matvec_add_scaled_rows": _matvec_add_scaled,
    "scaled_matvec_fp8": _scaled_matvec, "scaled_matvec_silu_mul_fp8": _scaled_matvec_silu_mul,
    "matvec_add_fp8": _matvec_add, "matvec_add_scaled_fp8": _matvec_add_scaled, "dequantise_fp8": _dequantise,
    "dequantise_each_fp8": _dequantise, "dequantise_each_int4": _dequantise,
    "scaled_matvec_rows_fp8": _scaled_matvec, "scaled_matvec_silu_mul_rows_fp8": _scaled_matvec_silu_mul,
    "matvec_add_scaled_rows_fp8": _matvec_add_scaled,
    "scaled_matvec_int4": _scaled_matvec, "scaled_matvec_silu_mul_int4": _scaled_matvec_silu_mul,
    "matvec_add_int4": _matvec_add, "matvec_add_scaled_int4": _matvec_add_scaled, "dequantise_int4": _dequantise,
    "scaled_matvec_rows_int4": _scaled_matvec, "scaled_matvec_silu_mul_rows_int4": _scaled_matvec_silu_mul,
    "matvec_add_scaled_rows_int4": _matvec_add_scaled,
    "embedding_scaled": _embedding_scaled, "embedding_scaled_rows": _embedding_scaled,
    "advance_rows": _advance_rows, "next_ids": _next_ids,
    "decode_merge_kv": _decode_merge_kv, "rotary_decode_attention": _rotary_decode_attention,
    "rope_merge_kv": _decode_merge_kv, "rope_decode_attention": _rotary_decode_attention,
}  # fmt: skip
