"""What each kernel's floats are, with bounds of their errors (`rounded`), rounded where the kernel's source rounds them.

Part of `cases`. From a manifest and the tensors before a launch: every float output by name, and integers that depend on a
comparison of floats. Other integers are compared as they are. What a kernel computes from a row that it stored is in
`stored_rows`.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ci.bench.kernels import attention_cases, few_cases, plain_cases
from ci.bench.kernels.attention_cases import columns_of_parts
from ci.bench.kernels.decode_cases import dequantised
from ci.bench.kernels.launch import EPSILON, Tensors
from ci.bench.kernels.rounded import CONFIDENCE, Rounded, exact, joined, product
from tilec.artifact.records import Manifest

torch: Any = importlib.import_module("torch")

EIGHT_BIT_STEP: Final = 32
"""Products that a tensor core adds at once to what it has, if they are of eight bits."""
EIGHT_BIT_CUT: Final = 2.0**-12
"""What tensor cores of sm_90 cut from each term of such a sum, as a part of the power of two at or below the largest one: sums
keep about 14 bits (DeepSeek-AI, DeepSeek-V3, 2024, section 3.3.2)."""
NORM: Final = 16
"""A norm of 32 numbers whose exponent is this is at most a quarter more than the largest of them."""
Results = dict[str, Any]
"""By output: `allows` says whether what was written is right, `value` is an example."""


def dtype_of(manifest: Manifest, name: str) -> str:
    return next(spec.dtype for spec in manifest.tensors if spec.name == name)


def _out(manifest: Manifest) -> str:
    return next(spec.name for spec in manifest.tensors if spec.access == "out")


def _read(manifest: Manifest, rank: int | None = None, kind: str = "in") -> list[str]:
    """Names of float tensors with this access, of this rank."""
    return [
        spec.name
        for spec in manifest.tensors
        if spec.access == kind and spec.dtype[0] != "i" and rank in (None, len(spec.dims))
    ]


def _scale_of(squares: Rounded, count: int) -> Rounded:
    """One over the root of the mean of `count` squares, kept as a column."""
    return (squares * (1.0 / count) + EPSILON).rsqrt()[..., None]


def normed(row: Rounded, weight: Any) -> Rounded:
    return row * _scale_of((row * row).sum(-1), row.value.shape[-1]) * exact(weight)


def _add(manifest: Manifest, t: Tensors) -> Results:
    x, y = (exact(t[name]) for name in _read(manifest))
    return {_out(manifest): (x + y).stored(dtype_of(manifest, _out(manifest)))}


def _rms_norm(manifest: Manifest, t: Tensors) -> Results:
    (x,), (weight,), out = _read(manifest, 2), _read(manifest, 1), _out(manifest)
    return {out: normed(exact(t[x]), t[weight]).stored(dtype_of(manifest, out))}


def _add_rms_norm(manifest: Manifest, t: Tensors) -> Results:
    (x,), (weight,), (residual,), out = _read(manifest, 2), _read(manifest, 1), _read(manifest, 2, "inout"), _out(manifest)
    total = (exact(t[x]) + exact(t[residual])).stored(dtype_of(manifest, residual))
    return {residual: total, out: normed(total, t[weight]).stored(dtype_of(manifest, out))}


def _add_rms_norm_splits(manifest: Manifest, t: Tensors) -> Results:
    total = (exact(t["parts"]).sum(0) + exact(t["residual"])).stored(dtype_of(manifest, "residual"))
    return {"residual": total, "out": normed(total, t["weight"]).stored(dtype_of(manifest, "out"))}


def _gathered(manifest: Manifest, t: Tensors) -> Results:
    index = next(spec.name for spec in manifest.tensors if spec.access == "in" and spec.dtype in ("i32", "i64"))
    (table,), out = _read(manifest), _out(manifest)
    return {out: exact(t[table][t[index].reshape(-1).long()].reshape(*t[out].shape))}


def _times(x: Any, w: Any) -> Rounded:
    """`x @ w.T`, in f32."""
    return product("mk,nk->mn", exact(x), exact(w), x.shape[1])


def _matmul(manifest: Manifest, t: Tensors) -> Results:
    a, b = (spec for spec in manifest.tensors if spec.access == "in")
    transposed = str(a.dims[1]) == str(b.dims[1])
    out = _out(manifest)
    return {out: _times(t[a.name], t[b.name] if transposed else t[b.name].T).stored(dtype_of(manifest, out))}


def silu_mul(gate: Rounded, up: Rounded) -> Rounded:
    return gate * gate.sigmoid() * up


def _matmul_silu_mul(manifest: Manifest, t: Tensors) -> Results:
    gate, up = (_times(t["a"], half) for half in t["b"])
    return {"out": silu_mul(gate, up).stored(dtype_of(manifest, "out"))}


def blocks(a: Any, a_scales: Any, b: Any, b_scales: Any) -> Rounded:
    """A sum of products of eight bits for each block of 128 inputs, of which tensor cores cut what `_cut` says, times the
    block's scales."""
    total: Rounded | None = None
    for block in range(a.shape[1] // 128):
        one = slice(128 * block, 128 * block + 128)
        codes, weights = exact(a[:, one]), exact(b[:, one])
        part = product("mk,nk->mn", codes, weights, 128)
        part = Rounded(part.value, part.bound + _cut(codes.value, weights.value))
        of_columns = b_scales[:, block].repeat_interleave(128)
        scaled = part * (exact(a_scales[block][:, None]) * exact(of_columns[None, :]))
        total = scaled if total is None else total + scaled
    assert total is not None
    return total


def _cut(codes: Any, weights: Any) -> Any:
    """What tensor cores may lose of sums of products of eight bits, for `codes @ weights.T`: in each step every product and the
    sum so far lose less than `EIGHT_BIT_CUT` of the largest. As for other sums (`rounded`), the smaller of two bounds: all
    losses together, and as many independent ones, since each has the sign of its term."""
    largest, before = torch.zeros((2, len(codes), len(weights)), dtype=torch.float64, device=codes.device)
    for left, right in zip(codes.split(EIGHT_BIT_STEP, 1), weights.split(EIGHT_BIT_STEP, 1), strict=True):
        powers = torch.einsum("mk,nk->mn", left.abs() ** NORM, right.abs() ** NORM)  # of which the root is at least the largest
        largest = torch.maximum(largest, torch.maximum(powers ** (1 / NORM), before.abs()))
        before = before + torch.einsum("mk,nk->mn", left, right)
    terms = codes.shape[1] + codes.shape[1] // EIGHT_BIT_STEP
    return EIGHT_BIT_CUT * largest * min(terms, CONFIDENCE * (terms / 3) ** 0.5)  # the mean square of a loss is a third


def _matmul_fp8(manifest: Manifest, t: Tensors) -> Results:
    return {"out": blocks(t["a"], t["a_scales"], t["b"], t["b_scales"]).stored(dtype_of(manifest, "out"))}


def _matmul_silu_mul_fp8(manifest: Manifest, t: Tensors) -> Results:
    gate, up = (blocks(t["a"], t["a_scales"], t["b"][half], t["b_scales"][half]) for half in (0, 1))
    return {"out": silu_mul(gate, up).stored(dtype_of(manifest, "out"))}


def _quantised(_: Manifest, t: Tensors) -> Results:
    """Codes and scales exactly, by the formula of the kernel in f32. Quotients are those of float64, rounded, which are those
    of f32: torch multiplies by an inverse."""
    rows, columns = t["x"].shape
    blocks = t["x"].to(torch.float32).reshape(rows, columns // 128, 128)
    tops = torch.where(blocks.abs().max(2)[0] > 1e-10, blocks.abs().max(2)[0], 1e-10).to(torch.float32)
    inverse = torch.full_like(tops, 448, dtype=torch.float64) / tops.to(torch.float64)
    codes = (blocks * inverse.to(torch.float32)[..., None]).to(torch.float8_e4m3fn).reshape(rows, columns)
    scales = tops.to(torch.float64) / torch.full_like(tops, 448, dtype=torch.float64)
    return {"codes": exact(codes), "scales": exact(scales.to(torch.float32).T)}


def _matmul_split(manifest: Manifest, t: Tensors) -> Results:
    step, parts = int(manifest.constants["BK"]), int(manifest.constants["S"])
    run = math.ceil(math.ceil(t["a"].shape[1] / step) / parts) * step
    pieces = [_times(t["a"][:, at * run : (at + 1) * run], t["b"][:, at * run : (at + 1) * run]) for at in range(parts)]
    return {"parts": joined([piece[None] for piece in pieces], 0)}


def _times_weights(t: Tensors) -> Rounded:
    """The same of a layer's weights. Those of FP8 and INT4 are exact in float64; the scale multiplies sums of their products,
    which is one rounding more."""
    if "w_scales" not in t:
        return _times(t["x"], t["w"])
    return product("mk,nk->mn", exact(t["x"]), exact(dequantised(t)), t["x"].shape[1] + 1)


def _scaled(t: Tensors) -> Rounded:
    return _times_weights(t) * _scale_of(exact(t["squares"]).sum(1), t["x"].shape[1])


def _scaled_matvec(manifest: Manifest, t: Tensors) -> Results:
    out = _out(manifest)
    return {out: _scaled(t).stored(dtype_of(manifest, out))}


def _scaled_matvec_silu_mul(manifest: Manifest, t: Tensors) -> Results:
    both, out = _scaled(t), _out(manifest)
    half = both.value.shape[1] // 2
    return {out: silu_mul(both[:, :half], both[:, half:]).stored(dtype_of(manifest, out))}


@dataclass(frozen=True, slots=True)
class Chosen:
    """Columns of greatest logits of parts: where intervals overlap, each that may be the lowest column of a greatest one."""

    upper: Any
    lower: Any
    columns: Any
    value: Any

    def allows(self, found: Any) -> bool:
        """Whether no column of the part is certainly greater, and none before is certainly as great."""
        given = found[..., None]
        own = (self.columns == given) & ~self.upper.isinf()
        highest = torch.where(own, self.upper, -math.inf).amax(2)[..., None]
        beaten = (self.lower > highest) | ((self.lower == highest) & (self.columns < given))
        empty = self.upper.isinf().all(2) & (found == 2147483647)
        some = ~highest[..., 0].isinf() & ~(beaten & ~self.lower.isinf()).any(2)
        return tuple(found.shape) == tuple(self.value.shape) and bool((empty | some).all())


def _greatest(manifest: Manifest, t: Tensors, logits: Rounded) -> Results:
    """The greatest logit of each part, compared as rounded, and its column."""
    logits, rows, parts = logits.stored(str(manifest.constants["E"])), int(manifest.constants["ROWS"]), t["maxima"].shape[1]
    near, upper, lower = (
        columns_of_parts(logits.value + side * logits.bound, rows, parts) for side in (0, 1, -1)
    )  # fmt: skip
    top, above, below = (one[0].amax(2) for one in (near, upper, lower))
    above, below = (torch.where(end == top, 0.0, (end - top).abs()) for end in (above, below))
    columns = near[1]
    first = torch.where(near[0] == top[..., None], columns, 2147483647).amin(2)
    chosen = Chosen(upper[0], lower[0], columns, torch.where(top.isinf(), 2147483647, first))
    return {"maxima": Rounded(top, torch.maximum(above, below)), "indices": chosen}


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of which each is right that one of several thresholds draws."""

    drawn: list[Any]

    @property
    def value(self) -> Any:
        return self.drawn[0]

    def allows(self, found: Any) -> bool:
        """Whether each token is one of those drawn."""
        some = found != found
        for one in self.drawn:
            some = some | (found == one)
        return tuple(found.shape) == tuple(self.value.shape) and bool(some.all())


def _sample_token(manifest: Manifest, t: Tensors) -> Results:
    """Sums of weights are off by less than 2^-15: `exp(fast=True)` by 2^-20 and 2^-21 for each unit of an argument, which
    counts only while its power does. Both thresholds are such sums, and what is drawn is monotone in each."""
    wide = {name: one.double() if one.is_floating_point() else one for name, one in t.items()}
    sides = [1 + side * 2.0**-15 for side in (0, 1, -1)]
    return {
        "token": Tokens([
            attention_cases.MEANING["sample_token"](
                manifest, wide | {"top_p": wide["top_p"] * first, "uniforms": wide["uniforms"] * second}
            )["token"]
            for first in sides
            for second in sides
        ])
    }  # fmt: skip


def _matvec_add(manifest: Manifest, t: Tensors) -> Results:
    total = _times_weights(t) + exact(t["residual"])
    return {"residual": total.stored(dtype_of(manifest, "residual"))}


def _dequantise_int4(manifest: Manifest, t: Tensors) -> Results:
    """A product of a code and a scale has no more than 15 significant bits."""
    return {"out": exact(dequantised(t)).stored(dtype_of(manifest, "out"))}


def _dequantise_fp8(manifest: Manifest, t: Tensors) -> Results:
    each = t["w_scales"].repeat_interleave(128, -2).repeat_interleave(128, -1)
    return {"out": (exact(t["w"]) * exact(each)).stored(dtype_of(manifest, "out"))}


def _topk_blocks(manifest: Manifest, t: Tensors) -> Results:
    """Logits are moved, not computed."""
    return {"best": exact(attention_cases.MEANING["topk_blocks"](manifest, t)["best"])}


def _argmax_blocks(manifest: Manifest, t: Tensors) -> Results:
    return {"maxima": exact(plain_cases.MEANING["argmax_blocks"](manifest, t)["maxima"])}


ROUNDED: Final[dict[str, Callable[[Manifest, Tensors], Results]]] = {
    "add": _add, "rms_norm": _rms_norm, "add_rms_norm": _add_rms_norm, "add_rms_norm_splits": _add_rms_norm_splits,
    "embedding": _gathered, "gather_row": _gathered, "matvec": _matmul, "matmul": _matmul, "matmul_few": _matmul,
    "matmul_fp8": _matmul_fp8, "matmul_silu_mul_fp8": _matmul_silu_mul_fp8, "quantise_rows": _quantised,
    "matmul_silu_mul": _matmul_silu_mul, "matmul_silu_mul_few": _matmul_silu_mul, "matmul_split": _matmul_split,
    "scaled_matvec": _scaled_matvec, "scaled_matvec_rows": _scaled_matvec,
    "scaled_matvec_silu_mul": _scaled_matvec_silu_mul, "scaled_matvec_silu_mul_rows": _scaled_matvec_silu_mul,
    "matvec_argmax": lambda manifest, t: _greatest(manifest, t, _times(t["x"], t["w"])),
    "scaled_matvec_argmax_rows": lambda manifest, t: _greatest(manifest, t, _scaled(t)),
    "matvec_add": _matvec_add, "matvec_add_scaled": _matvec_add, "matvec_add_scaled_rows": _matvec_add,
    "embedding_scaled": lambda manifest, t: {_out(manifest): exact(t["table"][t["ids"].long()])},
    "embedding_scaled_rows": lambda manifest, t: {_out(manifest): exact(t["table"][t["ids"].long()])},
    "scaled_matvec_fp8": _scaled_matvec, "scaled_matvec_silu_mul_fp8": _scaled_matvec_silu_mul,
    "matvec_add_fp8": _matvec_add, "matvec_add_scaled_fp8": _matvec_add, "dequantise_fp8": _dequantise_fp8,
    "dequantise_each_fp8": _dequantise_fp8, "dequantise_each_int4": _dequantise_int4,
    "scaled_matvec_rows_fp8": _scaled_matvec, "scaled_matvec_silu_mul_rows_fp8": _scaled_matvec_silu_mul,
    "matvec_add_scaled_rows_fp8": _matvec_add,
    "scaled_matvec_int4": _scaled_matvec, "scaled_matvec_silu_mul_int4": _scaled_matvec_silu_mul,
    "matvec_add_int4": _matvec_add, "matvec_add_scaled_int4": _matvec_add, "dequantise_int4": _dequantise_int4,
    "scaled_matvec_rows_int4": _scaled_matvec, "scaled_matvec_silu_mul_rows_int4": _scaled_matvec_silu_mul,
    "matvec_add_scaled_rows_int4": _matvec_add,
    **few_cases.ROUNDED,
    "topk_blocks": _topk_blocks, "argmax_blocks": _argmax_blocks, "sample_token": _sample_token,
}  # fmt: skip
