"""Streaming kernels and matrix products as torch expressions: part of `cases`."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any, Final

from ci.bench.kernels.launch import EPSILON, VOCABULARY, Tensors
from tilec.artifact.records import Manifest

torch: Any = importlib.import_module("torch")
functional: Any = importlib.import_module("torch.nn.functional")


def _rms_norm(manifest: Manifest, t: Tensors) -> Tensors:
    x, weight = _inputs(manifest, t)
    return {_out(manifest): functional.rms_norm(x, (x.shape[-1],), weight, EPSILON)}


def _add_rms_norm(manifest: Manifest, t: Tensors) -> Tensors:
    """The residual is updated in place; its old value is the tensor passed here."""
    rank = {spec.name: len(spec.dims) for spec in manifest.tensors}
    (residual,) = (spec.name for spec in manifest.tensors if spec.access == "inout")
    (x,) = (spec.name for spec in manifest.tensors if spec.access == "in" and rank[spec.name] == 2)
    (weight,) = (spec.name for spec in manifest.tensors if spec.access == "in" and rank[spec.name] == 1)
    summed = t[x] + t[residual]
    return {residual: summed, _out(manifest): functional.rms_norm(summed, (summed.shape[-1],), t[weight], EPSILON)}


def _add_rms_norm_splits(manifest: Manifest, t: Tensors) -> Tensors:
    """The parts are f32, as is their sum with the residual, which is rounded once."""
    total = t["parts"].sum(0) + t["residual"].to(t["parts"].dtype)
    stored = total.to(t["residual"].dtype)
    return {"residual": stored, "out": functional.rms_norm(stored, (stored.shape[-1],), t["weight"], EPSILON)}


def _gather(manifest: Manifest, t: Tensors) -> Tensors:
    index = next(spec.name for spec in manifest.tensors if spec.access == "in" and spec.dtype in ("i32", "i64"))
    table = next(spec.name for spec in manifest.tensors if spec.access == "in" and spec.name != index)
    out = _out(manifest)
    return {out: t[table][t[index].reshape(-1).long()].reshape(t[out].shape)}


def _matmul(manifest: Manifest, t: Tensors) -> Tensors:
    a, b = (spec for spec in manifest.tensors if spec.access == "in")
    transposed = str(a.dims[1]) == str(b.dims[1])
    return {_out(manifest): t[a.name] @ (t[b.name].T if transposed else t[b.name])}


def _inputs(manifest: Manifest, t: Tensors) -> tuple[Any, Any]:
    first, second = (t[spec.name] for spec in manifest.tensors if spec.access == "in")
    return first, second


def _matmul_silu_mul(manifest: Manifest, t: Tensors) -> Tensors:
    gate, up = (t["a"] @ half.T for half in t["b"])
    return {"out": functional.silu(gate) * up}


def _unscaled(codes: Any, scales: Any, rows: int) -> Any:
    """Codes in f32, times the scales of blocks of `rows` rows and 128 columns."""
    return codes.to(torch.float32) * scales.repeat_interleave(rows, 0).repeat_interleave(128, 1)


def _matmul_fp8(manifest: Manifest, t: Tensors) -> Tensors:
    a, b = _unscaled(t["a"], t["a_scales"].T, 1), _unscaled(t["b"], t["b_scales"], 128)
    return {"out": (a @ b.T).to(t["out"].dtype)}


def _matmul_silu_mul_fp8(manifest: Manifest, t: Tensors) -> Tensors:
    a = _unscaled(t["a"], t["a_scales"].T, 1)
    gate, up = (a @ _unscaled(*half, 128).T for half in zip(t["b"], t["b_scales"], strict=True))
    return {"out": (functional.silu(gate) * up).to(t["out"].dtype)}


def _quantise_rows(manifest: Manifest, t: Tensors) -> Tensors:
    rows, columns = t["x"].shape
    blocks = t["x"].to(torch.float32).reshape(rows, columns // 128, 128)
    tops = blocks.abs().amax(2).clamp(min=1e-10)
    return {"codes": (blocks * (448 / tops)[..., None]).reshape(rows, columns).to(t["codes"].dtype), "scales": tops.T / 448}


def _matmul_split(manifest: Manifest, t: Tensors) -> Tensors:
    """Each split of K is a range of whole iterations; the last may be shorter or empty."""
    step, parts = int(manifest.constants["BK"]), int(manifest.constants["S"])
    run = math.ceil(math.ceil(t["a"].shape[1] / step) / parts) * step
    parts_of_k = [
        t["a"][:, part * run : (part + 1) * run] @ t["b"][:, part * run : (part + 1) * run].T for part in range(parts)
    ]
    return {"parts": torch.stack(parts_of_k)}


def _out(manifest: Manifest) -> str:
    return next(spec.name for spec in manifest.tensors if spec.access == "out")


def _add(manifest: Manifest, t: Tensors) -> Tensors:
    x, y = _inputs(manifest, t)
    return {_out(manifest): x + y}


def _argmax_reduce(manifest: Manifest, t: Tensors) -> Tensors:
    """The lowest index among the parts with the greatest maximum."""
    maxima, indices = (t[spec.name] for spec in manifest.tensors if spec.access == "in")
    best = maxima == maxima.amax(1, keepdim=True)
    return {_out(manifest): torch.where(best, indices, 2147483647).amin(1)}


def _argmax_blocks(manifest: Manifest, t: Tensors) -> Tensors:
    """The lowest column among the greatest of each part."""
    rows, parts = t["maxima"].shape
    size, width = int(manifest.constants["BLOCK"]), t["logits"].shape[1]
    logits = functional.pad(t["logits"].to(torch.float32), (0, parts * size - width), value=-math.inf).reshape(
        rows, parts, size
    )
    maxima = logits.amax(2)
    columns = torch.arange(parts * size, device=t["logits"].device).reshape(1, parts, size)
    return {"maxima": maxima, "indices": torch.where(logits == maxima[:, :, None], columns, 2147483647).amin(2)}


def _advance(manifest: Manifest, t: Tensors) -> Tensors:
    """The chosen token if it is valid, else 0; and the next position."""
    following = t["positions"] + 1
    chosen = torch.where((t["token"] >= 0) & (t["token"] < VOCABULARY), t["token"], 0)
    return {"ids": chosen, "positions": following, "slots": following, "lengths": following + 1}


MEANING: Final[dict[str, Callable[[Manifest, Tensors], Tensors]]] = {
    "add": _add, "rms_norm": _rms_norm, "add_rms_norm": _add_rms_norm, "embedding": _gather,
    "gather_row": _gather, "matvec": _matmul, "matmul": _matmul, "matmul_few": _matmul,
    "matmul_fp8": _matmul_fp8, "matmul_silu_mul_fp8": _matmul_silu_mul_fp8, "quantise_rows": _quantise_rows,
    "matmul_silu_mul": _matmul_silu_mul, "matmul_silu_mul_few": _matmul_silu_mul, "matmul_split": _matmul_split,
    "add_rms_norm_splits": _add_rms_norm_splits,
    "argmax_reduce": _argmax_reduce, "argmax_blocks": _argmax_blocks, "advance": _advance,
}  # fmt: skip
