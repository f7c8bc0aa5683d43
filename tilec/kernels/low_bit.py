"""Linear layers with weights of four and of eight bits, as checkpoints have them. Threads convert those of four to 16 bits
before they are multiplied; for many rows a kernel converts each once. They have no gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from tilec.kernels.attention import DTYPES
from tilec.kernels.linear import product
from tilec.kernels.ops import library_op
from tilec.kernels.shapes import whole

GROUP: Final = 128
"""Inputs of a group of weights of four bits, and inputs and outputs of a block of those of eight."""
SCALES: Final = ("bfloat16", "float16", "float32")
EIGHT_BITS: Final = ("float8_e4m3fn", "float8_e5m2")
FEW: Final = 16
"""Rows up to which a block has 16."""
MANY: Final = 512
"""Rows up to which each block converts the weights of four bits that it multiplies (docs/decisions.md)."""
SOME: Final = 256
"""Rows up to which a block of an fp8 product has 64."""


def int4_matmul(x: Any, packed: Any, scales: Any, zeros: Any) -> Any:
    """`x @ weights` in f32, rounded once, where `weights[k, n] = (q[k, n] - z[k // 128, n]) * scales[k // 128, n]` with `q` and
    `z` from 0 to 15.

    x: `[..., K]`, bf16 or f16, K a multiple of 128. packed: i32 `[K / 8, N]`, bits 4 * i to 4 * i + 3 of `packed[j, n]` are
        `q[8 * j + i, n]`; N is a multiple of 8. zeros: i32 `[K / 128, N / 8]`, where those bits of `zeros[g, j]` are
        `z[g, 8 * j + i]`. That is GPTQ's layout without permuted inputs (`desc_act`); its version 1 stores `z - 1`.
    scales: `[K / 128, N]`, bf16, f16 or f32.
    Of more than 512 rows, weights are rounded to the dtype of `x`, which takes 2 * K * N bytes for the time of the call.
    Returns `[..., N]` in the dtype of `x`. ValueError for other dtypes and shapes."""
    dtypes = [str(one.dtype).removeprefix("torch.") for one in (x, packed, scales, zeros)]
    if dtypes[0] not in DTYPES or dtypes[1] != "int32" or dtypes[2] not in SCALES or dtypes[3] != "int32":
        raise ValueError(f"arguments are {', '.join(dtypes)}; int4_matmul takes bfloat16 or float16, int32, a float, int32")
    shapes = [list(one.shape) for one in (x, packed, scales, zeros)]
    inputs, outputs = shapes[0][-1] if shapes[0] else 0, shapes[1][-1] if shapes[1] else 0
    wanted = [[inputs // 8, outputs], [inputs // GROUP, outputs], [inputs // GROUP, outputs // 8]]
    if shapes[1:] != wanted or inputs % GROUP or outputs % 8 or 0 in (inputs, outputs):
        shown = ", ".join(map(str, shapes))
        raise ValueError(f"arguments are {shown}; they are [..., K], [K/8, N], [K/128, N], [K/128, N/8], K a multiple of 128")
    rows, weights = whole(x.reshape(-1, inputs)), (whole(packed), whole(scales), whole(zeros))
    if rows.shape[0] > MANY:
        converted, out = x.new_empty((inputs, outputs)), x.new_empty((rows.shape[0], outputs))
        _int4_weights()(*weights, converted)
        product()(rows, converted, out)
    else:
        out = _int4()(rows, *weights)
    return out.reshape(*shapes[0][:-1], outputs)


def fp8_matmul(x: Any, weight: Any, x_scales: Any, weight_scales: Any) -> Any:
    """`x @ weight.T` of numbers of eight bits with scales of blocks, in f32, rounded once to bf16: the sum over blocks b of 128
    inputs of `x[m, b] @ weight[n, b]` times `x_scales[m, b]` and `weight_scales[n // 128, b]`.

    x: `[..., K]`, weight: `[N, K]`, both float8_e4m3fn or both float8_e5m2; K a multiple of 16, N of 8. x_scales: f32
        `[..., K / 128]`, weight_scales: f32 `[N / 128, K / 128]`, rounded up; both multiply, as does `weight_scale_inv` of
        DeepSeek-V3 and Qwen3.
    Returns `[..., N]` of bf16. ValueError for other dtypes and shapes."""
    dtypes = [str(one.dtype).removeprefix("torch.") for one in (x, weight, x_scales, weight_scales)]
    if dtypes[0] not in EIGHT_BITS or dtypes[1] != dtypes[0] or dtypes[2:] != ["float32", "float32"]:
        raise ValueError(f"arguments are {', '.join(dtypes)}; fp8_matmul takes {' or '.join(EIGHT_BITS)} twice, float32 twice")
    shapes = [list(one.shape) for one in (x, weight, x_scales, weight_scales)]
    inputs, outputs = shapes[0][-1] if shapes[0] else 0, shapes[1][0] if shapes[1] else 0
    blocks = -(-inputs // GROUP)
    wanted = [[outputs, inputs], [*shapes[0][:-1], blocks], [-(-outputs // GROUP), blocks]]
    if shapes[1:] != wanted or inputs % 16 or outputs % 8 or 0 in (inputs, outputs):
        shown = ", ".join(map(str, shapes))
        raise ValueError(f"arguments are {shown}; they are [..., K], [N, K], [..., K/128], [N/128, K/128], K a multiple of 16")
    rows = math.prod(shapes[0][:-1])
    scales = whole(x_scales.reshape(rows, blocks))
    out = _fp8()(whole(x.reshape(rows, inputs)), whole(weight), scales, whole(weight_scales))
    return out.reshape(*shapes[0][:-1], outputs)


def _int4_tile(known: Mapping[str, Any]) -> dict[str, int]:
    return {"BM": 16, "BN": 64} if known["M"] <= FEW else {"BM": 128, "BN": 128}


def _fp8_tile(known: Mapping[str, Any]) -> dict[str, int]:
    rows = known["M"]
    return {"BM": 16, "BN": 64} if rows <= FEW else {"BM": 64, "BN": 64} if rows <= SOME else {"BM": 128, "BN": 128}


_int4 = library_op("int4_matmul", _int4_tile)
_int4_weights = library_op("int4_weights", {"BN": 64}, mutates=("weights",))
_fp8 = library_op("fp8_matmul", _fp8_tile)
