"""What the kernels of `plain/` are compared with: PyTorch's operators, or the shortest text of it that `torch.compile` fuses;
and random arguments."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any, Final

from ci.bench.kernels.library_problem import DEVICE, Sizes, functional, normal, torch
from tilec.ops import op
from tilec.runtime.values import TRUSTED

KERNELS: Final = Path(__file__).with_name("plain")
bf16, f16, f32, f64, i32 = torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int32


@cache
def kernel(name: str, trusted: tuple[str, ...] = (), **constants: Any) -> Any:
    """A kernel as an op. `trusted`: integer tensors that are drawn within their bounds."""
    return op(
        KERNELS / f"{name}.py", constants=constants, values=dict.fromkeys(trusted, TRUSTED) or None, name=f"plain::{name}"
    )


@cache
def sized(name: str, names: tuple[str, ...], trusted: tuple[str, ...], **constants: Any) -> Any:
    """The same with extents that only its results have, given at each call by name."""
    found: dict[tuple[int, ...], Any] = {}

    def call(extents: tuple[int, ...], *args: Any) -> Any:
        if extents not in found:
            suffix = "_".join(map(str, extents))
            found[extents] = op(
                KERNELS / f"{name}.py", constants=constants, dims=dict(zip(names, extents, strict=True)),
                values=dict.fromkeys(trusted, TRUSTED) or None, name=f"plain::{name}_{suffix}",
            )  # fmt: skip
        return found[extents](*args)

    return call


def uniform(generator: Any, *shape: int, low: float = 0.0, high: float = 1.0, dtype: Any = f32) -> Any:
    """Random numbers in a range."""
    return (torch.rand(shape, device=DEVICE, generator=generator) * (high - low) + low).to(dtype)


def integers(generator: Any, low: int, high: int, *shape: int, dtype: Any = i32) -> Any:
    """Random integers from `low` to below `high`."""
    return torch.randint(low, high, shape, device=DEVICE, generator=generator).to(dtype)


def starts_of(generator: Any, rows: int, total: int) -> Any:
    """Ascending offsets of ragged rows: `rows + 1` of them, from 0 to `total`."""
    inner = integers(generator, 0, total + 1, rows - 1).sort().values
    ends = [torch.full((1,), value, dtype=i32, device=DEVICE) for value in (0, total)]
    return torch.cat([ends[0], inner, ends[1]])


def instance_norm(x: Any, weight: Any, bias: Any) -> Any:
    return functional.instance_norm(x, None, None, weight.to(x.dtype), bias.to(x.dtype), True, 0.0, 1e-5)


def ragged(x: Any, starts: Any, rows: Any) -> Any:
    count = starts.shape[0] - 1
    wide = x if x.dtype == f64 else x.float()
    high = torch.full((count,), -math.inf, dtype=wide.dtype, device=x.device).scatter_reduce(0, rows, wide, "amax")
    total = torch.zeros_like(high).scatter_add(0, rows, torch.exp(wide - high[rows]))
    return (wide - (high + torch.log(total))[rows]).to(x.dtype)


def make_ragged(generator: Any, sizes: Sizes) -> dict[str, Any]:
    starts = starts_of(generator, sizes["R"], sizes["N"])
    lengths = (starts[1:] - starts[:-1]).long()
    rows = torch.repeat_interleave(torch.arange(sizes["R"], device=DEVICE), lengths)
    return {"x": normal(generator, sizes["N"]), "starts": starts, "rows": rows}


def focal(logits: Any, labels: Any, alpha: Any) -> Any:
    wide = logits if logits.dtype == f64 else logits.float()
    probabilities = torch.softmax(wide, -1)
    chosen = functional.one_hot(labels.long(), logits.shape[1]).to(wide.dtype)
    log = torch.log_softmax(wide, -1).gather(1, labels.long()[:, None])[:, 0]
    p, a = torch.exp(log), alpha[labels.long()]
    slope = a * (2 * (1 - p) * p * log - (1 - p) ** 2)
    return -a * (1 - p) ** 2 * log, (slope[:, None] * (chosen - probabilities)).to(logits.dtype)


def lion(param: Any, momentum: Any, grad: Any) -> None:
    wide = grad.to(momentum.dtype)
    update = torch.sign(0.9 * momentum + 0.1 * wide) + 0.125 * param.to(momentum.dtype)
    param.copy_(param.to(momentum.dtype) - 0.03125 * update)
    momentum.copy_(0.75 * momentum + 0.25 * wide)


def make_lion(generator: Any, sizes: Sizes) -> dict[str, Any]:
    count = sizes["N"]
    return {"param": normal(generator, count), "momentum": normal(generator, count).float(), "grad": normal(generator, count)}


def make_whole(generator: Any, sizes: Any) -> dict[str, Any]:
    """Rows whose quotients by their scales are near whole numbers: near halves, two right roundings are two integers."""
    return {"x": integers(generator, -127, 128, sizes["T"], sizes["N"], dtype=bf16) / 64}


def quantised(x: Any) -> Any:
    wide = x.float()
    scale = wide.abs().amax(1) / 127
    divisor = torch.where(scale > 0, scale, 1.0)
    return torch.round(wide / divisor[:, None]).clamp(-127, 127).to(torch.int8), scale


def int8_product(a: Any, b: Any, row_scale: Any, col_scale: Any) -> Any:
    sums = torch._int_mm(a, b.T)
    return (sums.to(row_scale.dtype) * row_scale[:, None] * col_scale[None]).to(bf16 if row_scale.dtype == f32 else f64)


def depthwise(x: Any, weight: Any, bias: Any) -> Any:
    filters = weight.permute(2, 0, 1)[:, None]
    return functional.conv2d(x.permute(0, 3, 1, 2), filters, bias, padding=1, groups=x.shape[3]).permute(0, 2, 3, 1)


def gru(x: Any, h0: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any) -> Any:
    weights = [one.to(x.dtype) for one in (w_ih, w_hh, b_ih, b_hh)]
    return torch.gru(x, h0.to(x.dtype)[None], weights, True, 1, 0.0, False, False, True)[0]


def make_gru(generator: Any, sizes: Sizes) -> dict[str, Any]:
    hidden, inner = sizes["H"], sizes["I"]
    bound = hidden**-0.5

    def weight(*shape: int, dtype: Any = bf16) -> Any:
        return uniform(generator, *shape, low=-bound, high=bound, dtype=dtype)

    return {
        "x": normal(generator, sizes["B"], sizes["T"], inner), "h0": torch.zeros(sizes["B"], hidden, device=DEVICE),
        "w_ih": weight(3 * hidden, inner), "w_hh": weight(3 * hidden, hidden), "b_ih": weight(3 * hidden, dtype=f32),
        "b_hh": weight(3 * hidden, dtype=f32),
    }  # fmt: skip


def drawn(probs: Any, ids: Any, u: Any) -> Any:
    total = torch.cumsum(probs, 1)
    kept = (total - probs < 0.9).sum(1).clamp(min=1)
    target = u * total.gather(1, kept[:, None] - 1)[:, 0]
    index = torch.minimum((total <= target[:, None]).sum(1), kept - 1)
    return ids.gather(1, index[:, None])[:, 0]


def make_drawn(generator: Any, sizes: Sizes) -> dict[str, Any]:
    batch, count = sizes["B"], sizes["V"]
    probs = torch.softmax(3 * normal(generator, batch, count).float(), 1).sort(1, descending=True).values
    # Multiples of 2^-20, whose sums are exact in every order.
    probs = torch.round(probs * 2**20) / 2**20
    ids = torch.argsort(uniform(generator, batch, count), 1).to(i32)
    return {"probs": probs, "ids": ids, "u": torch.round(uniform(generator, batch) * 64) / 64}


def segment_max(x: Any, segments: Any, count: int) -> Any:
    at = segments.long()
    top = torch.full((count,), -math.inf, dtype=x.dtype, device=x.device).scatter_reduce(0, at, x, "amax")
    index = torch.where(x == top[at], torch.arange(x.shape[0], device=x.device), x.shape[0])
    first = torch.full((count,), x.shape[0], device=x.device).scatter_reduce(0, at, index, "amin")
    return top, torch.where(first < x.shape[0], first, -1).to(i32)


def upsample(x: Any) -> Any:
    return functional.interpolate(x[:, None], scale_factor=2, mode="bilinear")[:, 0]


def histogram(keys: Any, weights: Any) -> Any:
    inside = (keys >= -1) & (keys < 1)
    index = ((keys.float() + 1) * 256).long().clamp(0, 511)
    return torch.zeros(512, dtype=weights.dtype, device=keys.device).scatter_add(0, index, torch.where(inside, weights, 0))


def our_histogram(keys: Any, weights: Any) -> Any:
    found = torch.zeros(512, device=keys.device)
    kernel("histogram", BINS=512, BLOCK=1024, BLOCKS=264)(keys, weights, found, -1.0, 1.0)
    return found


def nearest(x: Any, centroids: Any) -> Any:
    x, centroids = (one if one.dtype == f64 else one.float() for one in (x, centroids))
    distance = (x * x).sum(1)[:, None] - 2 * x @ centroids.T + (centroids * centroids).sum(1)[None]
    found = distance.min(1)
    return found.indices.to(i32), found.values


def maxima(x: Any) -> Any:
    found = torch.cummax(x, 1)
    return found.values, found.indices.to(i32)


def mean_pool(x: Any, lengths: Any) -> Any:
    inside = torch.arange(x.shape[1], device=x.device)[None] < lengths[:, None]
    wide = x if x.dtype == f64 else x.float()
    sums = torch.where(inside[:, :, None], wide, 0).sum(1)
    return (sums / lengths.clamp(min=1)[:, None]).to(x.dtype)


def window_sum(x: Any) -> Any:
    return functional.avg_pool1d(x[:, None], 8, 1)[:, 0] * 8


def coo(rows: Any, columns: Any, x: Any, shape: tuple[int, int]) -> Any:
    return torch.zeros(shape, dtype=x.dtype, device=x.device).index_put((rows.long(), columns.long()), x, accumulate=True)


def our_coo(rows: Any, columns: Any, x: Any, shape: tuple[int, int]) -> Any:
    dense = torch.zeros(shape, device=x.device)
    kernel("coo_dense", ("rows", "columns"), BLOCK=256)(rows, columns, x, dense)
    return dense


def rotary(x: Any, positions: Any, cos: Any, sin: Any) -> Any:
    wide = x if x.dtype == f64 else x.float()
    c, s = cos[positions.long()][:, None], sin[positions.long()][:, None]
    a, b = wide[..., 0::2], wide[..., 1::2]
    return torch.stack((a * c - b * s, a * s + b * c), -1).reshape(x.shape).to(x.dtype)


def decode(q: Any, keys: Any, cached: Any, lengths: Any) -> Any:
    mask = torch.arange(keys.shape[1], device=q.device)[None, None, None] < lengths[:, None, None, None]
    k, v = (one.transpose(1, 2) for one in (keys, cached))
    return functional.scaled_dot_product_attention(q[:, :, None], k, v, attn_mask=mask, enable_gqa=True)[:, :, 0]


def make_decode(generator: Any, sizes: Sizes) -> dict[str, Any]:
    batch, slots, heads = sizes["B"], sizes["S"], sizes["HKV"]
    return {
        "q": normal(generator, batch, 4 * heads, 128), "keys": normal(generator, batch, slots, heads, 128),
        "cached": normal(generator, batch, slots, heads, 128),
        "lengths": integers(generator, max(1, slots // 2), slots + 1, batch),
    }  # fmt: skip


def linear_attention(q: Any, k: Any, v: Any) -> Any:
    fq, fk = (functional.elu(one) + 1 for one in (q, k))
    scores = torch.tril(fq @ fk.transpose(1, 2))
    return scores @ v / scores.sum(2, keepdim=True)


def triangular(lower: Any, rhs: Any) -> Any:
    return torch.linalg.solve_triangular(lower, rhs, upper=False)


def make_triangular(generator: Any, sizes: Sizes) -> dict[str, Any]:
    batch = sizes["B"]
    lower = torch.tril(normal(generator, batch, 32, 32).float(), -1) / 8
    diagonal = uniform(generator, batch, 32, low=1, high=2)
    return {"lower": lower + torch.diag_embed(diagonal), "rhs": normal(generator, batch, 32, sizes["N"]).float()}


def sorted_rows(keys: Any, payload: Any) -> Any:
    found = torch.sort(keys, dim=1, stable=True)
    return found.values, payload.gather(1, found.indices)


def distinct(x: Any) -> Any:
    return (1 + (x[:, 1:] != x[:, :-1]).sum(1)).to(i32)


def sinkhorn(cost: Any, g: Any) -> Any:
    f = -0.25 * (torch.logsumexp((g[:, None] - cost) / 0.25, 2) + math.log(cost.shape[1]))
    return f, -0.25 * (torch.logsumexp((f[:, :, None] - cost) / 0.25, 1) + math.log(cost.shape[2]))


def gated_norm(x: Any, residual: Any, gate: Any, weight: Any) -> Any:
    x, residual, gate, weight = (one if one.dtype == f64 else one.float() for one in (x, residual, gate, weight))
    total = x + residual
    out = total * torch.rsqrt((total * total).mean(1, keepdim=True) + 1e-6) * weight * functional.silu(gate)
    return (out, total) if x.dtype == f64 else (out.to(bf16), total.to(bf16))


def taken(table: Any, ids: Any) -> Any:
    inside = (ids >= 0) & (ids < table.shape[0])
    return torch.where(inside[:, None], table[torch.where(inside, ids, 0)], 0)


def moments(x: Any) -> Any:
    variance, mean = torch.var_mean(x, 0, correction=0)
    return mean, variance


def int4_product(a: Any, packed: Any, scales: Any) -> Any:
    codes = torch.stack((packed & 15, packed >> 4), -1).reshape(packed.shape[0], -1).to(a.dtype) - 8
    return a @ (codes.reshape(*scales.shape, 64) * scales[..., None]).reshape(codes.shape).T


def biased(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def smooth(logits: Any, labels: Any) -> Any:
    wide = logits if logits.dtype == f64 else logits.float()
    flat = wide.reshape(-1, wide.shape[2])
    found = functional.cross_entropy(flat, labels.reshape(-1).long(), reduction="none", label_smoothing=0.1, ignore_index=-100)
    return found.reshape(labels.shape)


def make_smooth(generator: Any, sizes: Sizes) -> dict[str, Any]:
    labels = integers(generator, 0, sizes["V"], sizes["T"], sizes["H"])
    ignored = uniform(generator, sizes["T"], sizes["H"]) < 0.1
    return {"logits": normal(generator, sizes["T"], sizes["H"], sizes["V"]), "labels": torch.where(ignored, -100, labels)}


def pooled(x: Any) -> Any:
    found = functional.max_pool1d(x[:, None], 3, 2, return_indices=True)
    return found[0][:, 0], found[1][:, 0].to(i32)


def unpooled(grad: Any, indices: Any, width: int) -> Any:
    return torch.zeros((grad.shape[0], width), dtype=grad.dtype, device=grad.device).scatter_add(1, indices.long(), grad)


def our_unpooled(grad: Any, indices: Any, width: int) -> Any:
    found = torch.zeros((grad.shape[0], width), device=grad.device)
    kernel("max_pool1d_back", ("indices",), BLOCK=256)(grad, indices, found)
    return found


def make_csr(generator: Any, sizes: Sizes) -> dict[str, Any]:
    count = sizes["Z"]
    return {
        "data": normal(generator, count).float(), "columns": integers(generator, 0, sizes["K"], count),
        "starts": starts_of(generator, sizes["R"], count), "dense": normal(generator, sizes["K"], 64).float(),
    }  # fmt: skip


def sparse(data: Any, columns: Any, starts: Any, dense: Any) -> Any:
    return torch.sparse_csr_tensor(starts, columns, data, (starts.shape[0] - 1, dense.shape[0])) @ dense


def kahan(x: Any) -> Any:
    high, low = sized("kahan_sum", ("P",), ())((264,), x)
    return kernel("kahan_finish")(high, low)
