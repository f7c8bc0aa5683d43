"""Launches of the PTX in `foreign/`: arguments at several sizes and seeds, and the outputs expected by NumPy."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).parent / "foreign"
CASES: dict[str, dict[str, Any]] = json.loads((HERE / "cases.json").read_text(encoding="utf-8"))["cases"]
Array = NDArray[Any]
DTYPES = {"fp32": np.float32, "fp16": np.float16, "bf16": ml_dtypes.bfloat16}


REPLICATING = {
    "softmax-sm_90": (92, 146), "softmax-sm_100": (73, 123), "softmax-sm_120": (91, 147),
    "layer_norm-sm_90": (102, 176), "layer_norm-sm_100": (100, 172), "layer_norm-sm_120": (100, 172),
}  # fmt: skip
"""Lines whose store several threads repeat: every lane of a warp stores the warp's partial result to the same address."""
DEPARTURES = {"matmul_tma-sm_90": {"proxy"}, "matmul_tma-sm_120": {"proxy"}}
"""Rules of the PTX ISA that Triton's PTX violates: it has no fence between `mbarrier.init` and the copies that signal the
mbarrier."""


@dataclass
class Launch:
    """`arguments` in order of the signature: arrays, numbers, or (array, box) for a tensor map; `expected` float64 by name,
    `tolerance` relative to the largest value of the output."""

    arguments: dict[str, Any]
    grid: tuple[int, int, int]
    expected: dict[str, Array]
    tolerance: float


def text(name: str) -> str:
    """The PTX of a case."""
    return gzip.decompress((HERE / f"{name}.ptx.gz").read_bytes()).decode()


def launch(name: str, seed: int) -> Launch:
    """One launch of a case; sizes change with the seed."""
    case = CASES[name]
    random = np.random.default_rng([seed, len(name)])
    return MAKERS[case["kernel"]](case, random, seed)


def _softmax(case: dict[str, Any], random: np.random.Generator, seed: int) -> Launch:
    rows, columns, stride = 3, (512, 77, 500, 1)[seed % 4], 512
    x = random.normal(size=(rows, stride)).astype(np.float32)
    wide = x[:, :columns].astype(np.float64)
    exact = np.full((rows, stride), np.nan)
    exact[:, :columns] = np.exp(wide - wide.max(axis=1, keepdims=True))
    exact[:, :columns] /= exact[:, :columns].sum(axis=1, keepdims=True)
    used = (rows - 1) * stride + columns  # no padding after the last row
    out = np.full(used, np.nan, np.float32)
    arguments = {"x_ptr": x.ravel()[:used], "out_ptr": out, "row_stride": stride, "columns": columns}
    return Launch(arguments, (rows, 1, 1), {"out_ptr": exact.ravel()[:used]}, 2.0**-20)


def _layer_norm(case: dict[str, Any], random: np.random.Generator, seed: int) -> Launch:
    rows, columns, stride = 2, (600, 256, 3, 1001)[seed % 4], 1024
    x = random.normal(size=(rows, stride)).astype(np.float16)
    weight, bias = (random.normal(size=stride).astype(np.float32) for _ in range(2))
    wide = x[:, :columns].astype(np.float64)
    centred = wide - wide.mean(axis=1, keepdims=True)
    exact = np.full((rows, stride), np.nan)
    exact[:, :columns] = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)
    exact[:, :columns] = exact[:, :columns] * weight[:columns] + bias[:columns]
    used = (rows - 1) * stride + columns
    arguments = {
        "x_ptr": x.ravel()[:used], "weight_ptr": weight[:columns], "bias_ptr": bias[:columns],
        "out_ptr": np.full(used, np.nan, np.float16), "row_stride": stride, "columns": columns, "eps": 1e-5,
    }  # fmt: skip
    return Launch(arguments, (rows, 1, 1), {"out_ptr": exact.ravel()[:used]}, 2.0**-10)


def _matmul(case: dict[str, Any], random: np.random.Generator, seed: int) -> Launch:
    m, n, k = ((70, 80, 96), (64, 64, 32), (5, 16, 176), (130, 48, 16))[seed % 4]
    if case["kernel"] == "matmul_odd":
        m, n, k = ((67, 37, 71), (64, 32, 32), (3, 1, 5), (65, 33, 100))[seed % 4]
    dtype = DTYPES[case["signature"]["a_ptr"][1:]]
    a, b = random.normal(size=(m, k)).astype(dtype), random.normal(size=(k, n)).astype(dtype)
    c = np.full((m, n), np.nan, dtype)
    sizes = case["constants"]
    blocks = (-(-m // sizes["BM"]), -(-n // sizes["BN"]), 1)
    arguments = {"a_ptr": a, "b_ptr": b, "c_ptr": c, "m": m, "n": n, "k": k, "a_stride": k, "b_stride": n, "c_stride": n}
    exact = a.astype(np.float64) @ b.astype(np.float64)
    return Launch(arguments, blocks, {"c_ptr": exact}, 2.0**-8 if dtype is not np.float32 else 2.0**-9)


def _matmul_tma(case: dict[str, Any], random: np.random.Generator, seed: int) -> Launch:
    m, n, k = ((64, 64, 64), (100, 72, 208), (24, 136, 320), (128, 64, 16))[seed % 4]
    bf16 = ml_dtypes.bfloat16
    a, b = random.normal(size=(m, k)).astype(bf16), random.normal(size=(n, k)).astype(bf16)
    c = np.full((m, n), np.nan, bf16)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    arguments = {"a_desc": (a, (64, 64)), "b_desc": (b, (64, 64)), "c_desc": (c, (64, 64)), "k": k}
    return Launch(arguments, (-(-m // 64), -(-n // 64), 1), {"c_desc": exact}, 2.0**-8)


def _attention(case: dict[str, Any], random: np.random.Generator, seed: int) -> Launch:
    heads, length, wide = ((2, 70, 64), (1, 64, 64), (1, 33, 64), (1, 1, 64))[seed % 4]
    q, k, v = (random.normal(size=(heads, length, wide)).astype(np.float16) for _ in range(3))
    out = np.full_like(q, np.nan)
    scale = 0.125
    scores = np.einsum("hqd,hkd->hqk", q.astype(np.float64), k.astype(np.float64)) * scale
    scores[:, np.triu(np.ones((length, length), bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    exact = weights / weights.sum(axis=2, keepdims=True) @ v.astype(np.float64)
    arguments = {
        "q_ptr": q,
        "k_ptr": k,
        "v_ptr": v,
        "out_ptr": out,
        "row_stride": wide,
        "head_stride": length * wide,
        "length": length,
        "scale": scale,
    }
    return Launch(arguments, (-(-length // case["constants"]["BM"]), heads, 1), {"out_ptr": exact}, 2.0**-9)


MAKERS = {
    "softmax": _softmax, "layer_norm": _layer_norm, "matmul": _matmul, "matmul_odd": _matmul, "matmul_tf32": _matmul,
    "matmul_tma": _matmul_tma, "attention": _attention,
}  # fmt: skip
