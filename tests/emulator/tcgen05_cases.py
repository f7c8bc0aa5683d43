"""Launches of the PTX in `foreign_tcgen05/`: arguments, grid, and the outputs expected by NumPy."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tilec.emulator import launch
from tilec.emulator.errors import Report
from tilec.emulator.machine.memory import Memory
from tilec.emulator.matrices.tensor_maps import TensorMap
from tilec.emulator.ptx.parser import parse

Array = NDArray[Any]
HERE = Path(__file__).parent / "foreign_tcgen05"
CASES: dict[str, dict[str, Any]] = json.loads((HERE / "cases.json").read_text(encoding="utf-8"))["cases"]
BF16, E4M3, E5M2, FP4 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float4_e2m1fn
SWIZZLES = {0: 0, 1: 32, 2: 64, 3: 128}
SCRATCH = (0, 0)
"""Triton's last two parameters: scratch memory that no kernel here uses."""
REPLICATING: Final = {
    "attention_bf16_d128-sm_100": (854, 1800, 2215), "attention_bf16_ws-sm_100": (294, 2000),
    "matmul_persistent_ws-sm_100": (163, 540),
}  # fmt: skip
"""Lines whose store several threads repeat: two warps hold the same rows, or every thread writes the next roles."""


@dataclass
class Launch:
    """Arguments by parameter (arrays, numbers), the grid in blocks, and the exact outputs by parameter."""

    arguments: dict[str, Any]
    grid: tuple[int, int, int]
    expected: dict[str, Array]


def text(name: str) -> str:
    """The PTX of a case."""
    return gzip.decompress((HERE / f"{name}.ptx.gz").read_bytes()).decode()


def output(rows: int, columns: int, dtype: Any = BF16) -> Array:
    return np.full((rows, columns), np.nan, dtype)


def wide(array: Array) -> Array:
    return array.astype(np.float64)


def launch_of(name: str, seed: int = 0) -> Launch:
    """The launch of a case."""
    case, random = CASES[name], np.random.default_rng([seed, len(name)])
    kernel = case["kernel"]
    if kernel == "attention":
        return _attention(random, case["constants"], 2, 2 * case["constants"]["BM"])
    if kernel == "matmul_scaled":
        return _scaled(random, case["constants"])
    if kernel == "matmul_tma_mn":
        a, b = (random.normal(size=(128, size)).astype(np.float16) for size in (128, 64))
        arguments = {"a_desc": a, "b_desc": b, "c_desc": output(128, 64, np.float16), "k": 128}
        return Launch(arguments, (1, 1, 1), {"c_desc": wide(a).T @ wide(b)})
    if kernel == "matmul_pointers":
        return _pointers(random, 100, 56, 96)
    return _matmul(random, name, case, seed)


def _matmul(random: np.random.Generator, name: str, case: dict[str, Any], seed: int) -> Launch:
    """`C = A @ B.T`; the grid and the numbers of tiles by kernel."""
    kernel, constants, blocks = case["kernel"], case["constants"], case["ctas"]
    if kernel in ("matmul_pair", "matmul_clc"):
        (bm, bk), (bn, _) = (_tile(case["signature"][key]) for key in ("a_desc", "b_desc"))
    else:
        bm, bn, bk = constants["BM"], constants["BN"], constants["BK"]
    tiles_m, tiles_n, depth = 1, 2, 3 * bk
    if kernel == "matmul_persistent":  # with a seed some block has three tiles, more than accumulators
        tiles_m, depth = 5 if seed else 3, bk
    if kernel == "matmul_pair":
        tiles_m, tiles_n, depth = 2, 1, 5 * bk // 2 * 2
    dtype = E5M2 if "fp8e5" in name else E4M3 if "fp8" in name else BF16
    a, b = (random.normal(size=(size, depth)).astype(dtype) for size in (tiles_m * bm, tiles_n * bn))
    exact = wide(a) @ wide(b).T
    if "tf32" in name:  # values that tf32 holds exactly
        a, b = a.astype(np.float32), b.astype(np.float32)
    arguments = {"a_desc": a, "b_desc": b, "c_desc": output(*exact.shape), "m": len(a), "n": len(b), "k": depth}
    grid = (tiles_m * blocks, tiles_n, 1)
    if kernel == "matmul_persistent":
        grid = (constants["PROGRAMS"], 1, 1)
    elif kernel == "matmul_clc":
        grid = (tiles_m * tiles_n, 1, 1)
    return Launch(arguments | {"tiles_n": tiles_n}, grid, {"c_desc": exact})


def _tile(described: str) -> tuple[int, int]:
    rows, columns = described.partition("[")[2].partition("]")[0].split(",")
    return int(rows), int(columns)


def _pointers(random: np.random.Generator, m: int, n: int, k: int) -> Launch:
    a, b = random.normal(size=(m, k)).astype(BF16), random.normal(size=(k, 64)).astype(BF16)
    out = np.full(m * 64, np.nan, BF16)
    exact = np.full((m, 64), np.nan)
    exact[:, :n] = wide(a) @ wide(b[:, :n])
    arguments = {"a_ptr": a, "b_ptr": b, "c_ptr": out, "m": m, "n": n, "k": k, "a_stride": k, "b_stride": 64, "c_stride": 64}
    return Launch(arguments, (1, 1, 1), {"c_ptr": exact.reshape(-1)})


def _scaled(random: np.random.Generator, constants: dict[str, Any]) -> Launch:
    """Scales lie as (rows / 128, groups / 4, 32, 4, 4): row r % 32, r / 32, group % 4."""
    rows, depth, vector = 128, 2 * constants["BK"], constants["VEC"]
    stored: list[Array] = []
    exact: list[Array] = []
    for _ in range(2):
        if vector == 16:
            scale = random.uniform(0.25, 2, size=(rows, depth // vector)).astype(E4M3)
            factor = wide(scale)
        else:
            scale = random.integers(120, 132, size=(rows, depth // vector)).astype(np.uint8)
            factor = 2.0 ** (wide(scale) - 127)
        if constants["PACK"] == 2:
            code = random.integers(0, 16, size=(rows, depth)).astype(np.uint8)
            data, value = code[:, 0::2] | code[:, 1::2] << 4, wide(code.view(FP4))
        else:
            data = random.normal(size=(rows, depth)).astype(E4M3)
            value = wide(data)
        exact.append(value * np.repeat(factor, vector, axis=1))
        groups = scale.view(np.uint8).reshape(rows // 128, 4, 32, -1, 4).transpose(0, 3, 2, 1, 4)
        stored += [data, np.ascontiguousarray(groups).reshape(-1)]
    arguments = {
        "a_desc": stored[0], "b_desc": stored[2], "c_desc": output(rows, rows), "a_scale_ptr": stored[1],
        "b_scale_ptr": stored[3], "k": depth,
    }  # fmt: skip
    return Launch(arguments, (1, 1, 1), {"c_desc": exact[0] @ exact[1].T})


def _attention(random: np.random.Generator, constants: dict[str, Any], heads: int, length: int) -> Launch:
    scale = 0.125
    q, k, v = (random.normal(size=(heads, length, constants["D"])).astype(BF16) for _ in range(3))
    scores = np.einsum("hqd,hkd->hqk", wide(q), wide(k)) * scale
    scores[:, np.triu(np.ones((length, length), bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    exact = (weights / weights.sum(axis=2, keepdims=True) @ wide(v)).reshape(heads * length, -1)
    flat = (x.reshape(heads * length, -1) for x in (q, k, v))
    arguments = dict(zip(("q_desc", "k_desc", "v_desc"), flat, strict=True))
    arguments |= {"o_desc": output(*exact.shape), "length": length, "scale": scale}
    return Launch(arguments, (length // constants["BM"], heads, 1), {"o_desc": exact})


def emulate(name: str, given: Launch, *, seed: int = 0, ptx: str | None = None) -> Report:
    """The report of a launch; `ptx` replaces the stored text."""
    case, memory = CASES[name], Memory()
    arguments: list[Any] = []
    described = iter(case["tensor_maps"])
    for key, kind in case["signature"].items():
        value: Any = given.arguments[key]
        if not hasattr(value, "dtype"):
            arguments.append(value)
            continue
        written = key in given.expected
        whole = written and not np.isnan(given.expected[key]).any()
        allocation = memory.allocate(key, value, writable=written, initialised=not written, checked=whole)
        if not kind.startswith("tensordesc"):
            arguments.append(allocation)
            continue
        found = next(described)
        (rows, columns), size, box = value.shape, value.itemsize, found["block_size"]
        swizzle = SWIZZLES[found["swizzle"]]
        tensor = TensorMap(allocation.address, size, (columns, rows), (columns * size,), (box[1], box[0]), swizzle)
        arguments += [tensor.encode(), rows, columns, columns, 1]
    return launch.run(
        parse(ptx or text(name)), case["entry"], given.grid, (case["threads"], 1, 1), [*arguments, *SCRATCH], memory,
        dynamic_shared_bytes=case["shared"], seed=seed, cluster=(case["ctas"], 1, 1) if case["ctas"] > 1 else None,
        replicating=REPLICATING.get(name, ()),
    )  # fmt: skip
