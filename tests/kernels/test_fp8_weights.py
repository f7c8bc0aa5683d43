"""Kernels with FP8 weights multiply each code by the scale of its block, on the interpreter and in the emulator."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tests import shipped
from tests.emulator import shipped_run
from tests.emulator.shipped_run import compiled
from tests.shipped_launches import expected, launch_values, make_arrays
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Function

Arrays = dict[str, NDArray[Any]]
E4M3: Final = np.dtype(ml_dtypes.float8_e4m3fn)
CODES: Final = np.array([code for code in range(256) if code & 0x7F != 0x7F], np.uint8)
"""Every code but those of NaN: both zeros, subnormal numbers, the largest ones."""
PRODUCTS: Final[dict[str, dict[str, float]]] = {
    "scaled_matvec_fp8": {"N": 256, "eps": 1e-6}, "scaled_matvec_silu_mul_fp8": {"I": 256, "I2": 512, "eps": 1e-6},
    "matvec_add_fp8": {"N": 256}, "matvec_add_scaled_fp8": {"N": 256, "P": 64},
}  # fmt: skip
"""Launches with two blocks of weights along the outputs of each matrix, and eight or more along the inputs."""
NEAR: Final = 2.0**-8
"""Roundings to bf16 and f32 together, relative to the exact value."""


def weights(arrays: Arrays) -> None:
    """Sets codes and scales: every code is in each block of 128 x 128, no two blocks have the same scale."""
    rows, columns = arrays["w"].shape
    index = 7 * np.asarray(range(rows))[:, None] + np.asarray(range(columns))[None, :]
    arrays["w"] = CODES[index % len(CODES)].view(E4M3)
    scales = arrays["w_scales"]
    numbers = np.arange(scales.size).reshape(scales.shape)
    arrays["w_scales"] = (np.float32(2.0**-9) * (1 + numbers % 64 / np.float32(9)) * np.float32(8.1) ** (numbers // 64)).astype(
        np.float32
    )
    assert len(np.unique(arrays["w_scales"])) == scales.size
    blocks = arrays["w"].view(np.uint8).reshape(rows // 128, 128, columns // 128, 128)
    assert all(len(np.unique(blocks[i, :, j])) == len(CODES) for i in range(len(blocks)) for j in range(columns // 128))


def made(function: Function, size: Mapping[str, float]) -> tuple[Arrays, dict[str, float]]:
    env = launch_values(function, dict(size))
    arrays = make_arrays(function, env)
    weights(arrays)
    return arrays, env


def interpreted(function: Function, arrays: Arrays, env: Mapping[str, float]) -> Arrays:
    after = {name: array.copy() for name, array in arrays.items()}
    run(function, after, {p.name: env[p.name] for p in function.parameters if p.access is None})
    return after


def emulated(name: str, arrays: Arrays, env: dict[str, float]) -> Arrays:
    return shipped_run.emulated(replace(compiled(name, 0, "sm_90a"), env=env), arrays)


def wrong(function: Function, before: Arrays, after: Arrays, env: dict[str, float]) -> list[str]:
    """Outputs that differ from float64 by more than roundings of what is stored, and of sums relative to their terms."""
    terms = before | {name: np.abs(before[name].astype(np.float64)) for name in ("x", "w", "residual") if name in before}
    exact, sizes = expected(function, before, env), expected(function, terms, env)
    return [
        name
        for name, value in exact.items()
        if not (np.abs(after[name].astype(np.float64) - value) <= NEAR * np.abs(value) + 2.0**-16 * np.abs(sizes[name])).all()
    ]


@pytest.mark.parametrize("E", ["bf16", "f16"])
def test_every_code_becomes_its_number_times_the_scale_of_its_block(E: str) -> None:
    function = shipped.load("dequantise_fp8", {"E": E})
    arrays, env = made(function, {"N": 256, "K": 384})
    each = arrays["w_scales"].repeat(128, axis=0).repeat(128, axis=1)
    right = (arrays["w"].astype(np.float32) * each).astype(arrays["out"].dtype)
    assert (right[arrays["w"].view(np.uint8) == 0x80].view(np.uint16) == 0x8000).all()  # -0 stays what it is
    found = interpreted(function, arrays, env)["out"]
    assert np.array_equal(found.view(np.uint16), right.view(np.uint16))
    if E == "bf16":
        assert np.array_equal(emulated("dequantise_fp8", arrays, env)["out"].view(np.uint16), right.view(np.uint16))


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_agree_with_float64(name: str) -> None:
    function = shipped.load(name)
    arrays, env = made(function, PRODUCTS[name])
    assert wrong(function, arrays, interpreted(function, arrays, env), env) == []
    assert wrong(function, arrays, emulated(name, arrays, env), env) == []


def test_a_single_input_shows_each_weight() -> None:
    """Of an input that is 1 in one column, outputs are that column's weights, rounded as f32 and then as bf16."""
    function = shipped.load("matvec_add_fp8")
    arrays, env = made(function, PRODUCTS["matvec_add_fp8"])
    columns = arrays["w"].shape[1]
    for column in [block * 128 + (block * 53 + 127) % 128 for block in range(0, columns // 128, 3)]:
        arrays["x"] = np.eye(1, columns, column).astype(arrays["x"].dtype)
        arrays["residual"][:] = 0
        scales = arrays["w_scales"][:, column // 128].repeat(128)
        right = (arrays["w"][:, column].astype(np.float32) * scales).astype(arrays["residual"].dtype)
        assert np.array_equal(interpreted(function, arrays, env)["residual"][0], right)


MISTAKES: Final = {
    "row of scales": ("scaled_matvec_fp8", "(n // (SQUARE // ROWS), k)", "(0 * n, k)"),
    "column of scales": ("scaled_matvec_fp8", "(n // (SQUARE // ROWS), k)", "(n // (SQUARE // ROWS), 0 * k)"),
    "other column": ("matvec_add_fp8", "(n // (SQUARE // ROWS), k)", "(n // (SQUARE // ROWS), (k + 1) % (K // BLOCK))"),
    "rows of up": ("scaled_matvec_silu_mul_fp8", "I // SQUARE + n // (SQUARE", "n // (SQUARE"),
    "one scale for both": ("fp8_blocks", "tl.max(each, axis=3)", "tl.max(tl.max(each, axis=3), axis=1)[:, None, :]"),
    "sign": ("fp8_blocks", "w.astype(tl.f32)", "tl.abs(w.astype(tl.f32))"),
}
"""In a source: what reads a wrong scale, or loses the sign of a code."""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: str, tmp_path: Path) -> None:
    changed, old, new = MISTAKES[mistake]
    name = "matvec_add_scaled_fp8" if changed == "fp8_blocks" else changed
    shutil.copytree(shipped.ROOT / "kernels_src", tmp_path / "kernels_src")
    path = tmp_path / "kernels_src" / f"{changed}.py"
    assert path.read_text().count(old) == 1
    path.write_text(path.read_text().replace(old, new))
    function = load_kernel(tmp_path / "kernels_src" / f"{name}.py", dict(shipped.load(name).constants), root=tmp_path)
    arrays, env = made(function, PRODUCTS[name])
    assert wrong(function, arrays, interpreted(function, arrays, env), env)
