"""Kernels with INT4 weights multiply each code, minus its zero point, by its scale, on the interpreter and in the emulator."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.formats.forms import Int4
from tests import shipped
from tests.emulator import shipped_run
from tests.emulator.shipped_run import compiled
from tests.shipped_launches import NUMPY, SIZES, expected, launch_values, make_arrays, reference
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Function

Arrays = dict[str, NDArray[Any]]
PRODUCTS: Final[dict[str, dict[str, float]]] = {
    "scaled_matvec_int4": {"N": 32, "eps": 1e-6}, "scaled_matvec_silu_mul_int4": {"I": 32, "I2": 64, "eps": 1e-6},
    "matvec_add_int4": {"N": 32}, "matvec_add_scaled_int4": {"N": 32, "P": 8},
    "scaled_matvec_rows_int4": {"N": 32, "eps": 1e-6}, "scaled_matvec_silu_mul_rows_int4": {"I": 32, "I2": 64, "eps": 1e-6},
    "matvec_add_scaled_rows_int4": {"N": 32, "P": 2},
}  # fmt: skip
"""Launches with two blocks, and eight or more groups of inputs."""
NEAR: Final = {"bf16": 2.0**-8, "f16": 2.0**-11}
"""One rounding of a result."""
TERMS: Final = 2.0**-18
"""Roundings of sums in f32, relative to the sum of the magnitudes of their terms."""


def packed(codes: NDArray[Any]) -> NDArray[np.uint32]:
    """Words of eight codes, the first in the lowest bits: (N, K) -> (N, K / 8)."""
    parts = codes.astype(np.uint32).reshape(len(codes), -1, 8) << np.arange(0, 32, 4, dtype=np.uint32)
    return np.bitwise_or.reduce(parts, axis=2)


def weights(arrays: Arrays) -> None:
    """Sets codes, scales and zero points: in every row each of 16 codes is at every place of a word, every code meets every
    zero point, and no two groups of a row or rows of a group have the same scale."""
    rows, columns = len(arrays["w"]), 8 * int(arrays["w"].shape[1])
    row: NDArray[np.int64] = np.arange(rows)[:, None]
    column: NDArray[np.int64] = np.arange(columns)[None, :]
    codes = (column + column // 16 + 5 * row) % 16
    arrays["w"] = packed(codes)
    group: NDArray[np.int64] = np.arange(columns // 128)[:, None]
    arrays["w_zeros"] = ((7 * group + row.T) % 16).astype(np.uint8)
    numbers: NDArray[np.int64] = np.arange(group.size * rows).reshape(group.size, rows)
    exponents = np.float64(2.0) ** -(4 + numbers // 128 % 8)
    arrays["w_scales"] = (exponents * (1 + numbers % 128 / 128)).astype(arrays["w_scales"].dtype)
    meets = {(int(code), int(zero)) for g in range(group.size) for n in range(rows) for zero in arrays["w_zeros"][g, n : n + 1]
             for code in np.unique(codes[n, 128 * g : 128 * g + 128])}  # fmt: skip
    assert group.size < 8 or meets == {(code, zero) for code in range(16) for zero in range(16)}
    groups = codes.reshape(rows, -1, 8)
    assert group.size < 2 or all(len(np.unique(groups[n, :, at])) == 16 for n in range(rows) for at in range(8))


def made(function: Function, size: Mapping[str, float]) -> tuple[Arrays, dict[str, float]]:
    env = launch_values(function, dict(size))
    arrays = make_arrays(function, env)
    weights(arrays)
    return arrays, env


def interpreted(function: Function, arrays: Arrays, env: Mapping[str, float]) -> Arrays:
    after = {name: array.copy() for name, array in arrays.items()}
    run(function, after, {p.name: env[p.name] for p in function.parameters if p.access is None})
    return after


def emulated(name: str, number: int, arrays: Arrays, env: dict[str, float], arch: str = "sm_90a") -> Arrays:
    """The launch `number` of `SIZES`, on these arrays."""
    return shipped_run.emulated(replace(compiled(name, number, arch), env=env), arrays)


def wrong(function: Function, before: Arrays, after: Arrays, env: dict[str, float]) -> list[str]:
    """Outputs that differ from float64 by more than a rounding of what is stored, and of sums relative to their terms."""
    near = NEAR[str(function.constants["E"])]
    exact = expected(function, before, env)
    terms = before | {name: np.abs(before[name].astype(np.float64)) for name in ("x", "residual") if name in before}
    terms["w_zeros"] = np.zeros_like(before["w_zeros"])
    sizes = expected(function, terms, env)
    return [
        name
        for name, value in exact.items()
        if not (np.abs(after[name].astype(np.float64) - value) <= 3 * near * np.abs(value) + TERMS * np.abs(sizes[name])).all()
    ]


@pytest.mark.parametrize(("number", "E", "F"), [(0, "bf16", "bf16"), (1, "f16", "f16")])
def test_every_code_minus_every_zero_point_times_its_scale(number: int, E: str, F: str) -> None:
    function = shipped.load("dequantise_int4", {"E": E, "F": F})
    arrays, env = made(function, {"N": 32, "K": 1024})
    codes = arrays["w"][..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15
    zeros, scales = (arrays[name].T.astype(np.float32).repeat(128, axis=1) for name in ("w_zeros", "w_scales"))
    right = ((codes.reshape(32, -1).astype(np.float32) - zeros) * scales).astype(arrays["out"].dtype)
    assert np.array_equal(interpreted(function, arrays, env)["out"].view(np.uint16), right.view(np.uint16))
    assert np.array_equal(emulated("dequantise_int4", number, arrays, env)["out"].view(np.uint16), right.view(np.uint16))


@pytest.mark.parametrize("has_zeros", [True, False])
def test_weights_of_the_loaded_form(has_zeros: bool) -> None:
    """From scales and zero points of (N, K / 128) as loaders have them, by the formula of `engine.formats.forms.Int4`."""
    random = np.random.default_rng(3)
    codes, scales = random.integers(0, 16, (32, 1024)), random.uniform(0.5, 2, (32, 8)).astype(np.float16)
    zeros = random.integers(0, 16, (32, 8), np.uint8) if has_zeros else None
    form = Int4(packed(codes), scales, 128, zeros)
    given = reference("int4_tensors")(form.packed, form.scales, form.zeros)
    assert all(tensor.flags.c_contiguous for tensor in given)
    below = 8 if zeros is None else zeros.astype(np.int64).repeat(128, axis=1)
    right = (codes - below) * scales.astype(np.float64).repeat(128, axis=1)
    assert np.array_equal(reference("dequantise_int4")(*given), right)


@pytest.mark.parametrize("E", ["bf16", "f16"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_agree_with_float64(name: str, E: str) -> None:
    function = shipped.load(name, {"E": E})
    arrays, env = made(function, PRODUCTS[name])
    assert wrong(function, arrays, interpreted(function, arrays, env), env) == []


@pytest.mark.parametrize(
    ("name", "number", "arch"),
    [
        (name, number, arch)
        for turn, name in enumerate(PRODUCTS)
        for number in range(len(SIZES[name]))
        for arch in ("sm_90a", ("sm_80", "sm_100a", "sm_120a")[turn % 3])
    ],
)
def test_machine_code_agrees_with_float64(name: str, number: int, arch: str) -> None:
    kernel = compiled(name, number, arch)
    arrays, env = made(kernel.function, PRODUCTS[name])
    assert wrong(kernel.function, arrays, emulated(name, number, arrays, env, arch), env) == []
    assert {str(compiled(name, at, arch).function.constants["E"]) for at in range(len(SIZES[name]))} == {"bf16", "f16"}


@pytest.mark.parametrize("number", [0, 1], ids=["bf16", "f16"])
def test_a_single_input_shows_each_weight(number: int) -> None:
    """Of an input that is 1 in one column, outputs are that column's weights, rounded once: on the interpreter each place of a
    word in some group, in the emulator each place of each of a thread's words."""
    name = "matvec_add_int4"
    kernel = compiled(name, number, "sm_90a")
    arrays, env = made(kernel.function, PRODUCTS[name])
    rows, columns = len(arrays["w"]), arrays["x"].shape[1]
    codes = (arrays["w"][..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15).reshape(rows, -1)
    arrays["residual"][:] = 0
    for turn, column in enumerate((128 * turn + 9 * turn) % columns for turn in range(64)):
        arrays["x"] = np.eye(1, columns, column).astype(arrays["x"].dtype)
        zeros, scales = (arrays[name][column // 128].astype(np.float32) for name in ("w_zeros", "w_scales"))
        right = ((codes[:, column].astype(np.float32) - zeros) * scales).astype(arrays["residual"].dtype)
        assert np.array_equal(interpreted(kernel.function, arrays, env)["residual"][0], right)
        if turn % 2 == 0:
            assert np.array_equal(emulated(name, number, arrays, env)["residual"][0], right)


@pytest.mark.parametrize(("number", "largest"), [(0, 1e4), (0, 1e30), (1, 65504.0)], ids=["bf16", "bf16-huge", "f16"])
def test_large_inputs_that_cancel_leave_the_small_ones(number: int, largest: float) -> None:
    """Products of the largest inputs with the largest codes cancel in pairs; what is left is exact, so no partial sum
    overflowed or lost it. A sum of f16 would: 15 times 65504 is not one."""
    name = "matvec_add_int4"
    kernel = compiled(name, number, "sm_90a")
    arrays, env = made(kernel.function, PRODUCTS[name])
    rows, columns = len(arrays["w"]), arrays["x"].shape[1]
    dtype = NUMPY[str(kernel.function.constants["E"])]
    for partner in (1, 4, 8, 64, 128 * (columns // 256)):  # within a pair, a word, a thread, a group, and in another group
        x, codes = np.zeros(columns), np.zeros((rows, columns), np.int64)
        first = 128 * 3 + 17
        x[[first, first + partner]] = largest, -largest
        codes[:, [first, first + partner]] = 15
        if largest < 1e5:  # a sum in f32 has both
            x[5], codes[:, 5] = 1, np.arange(rows) % 16
        arrays |= {"w": packed(codes), "x": x[None].astype(dtype)}
        arrays["w_zeros"], arrays["w_scales"] = np.zeros_like(arrays["w_zeros"]), np.full_like(arrays["w_scales"], 0.5)
        arrays["residual"][:] = 0
        right = (0.5 * codes[:, 5] * (largest < 1e5)).astype(dtype)
        assert np.array_equal(interpreted(kernel.function, arrays, env)["residual"][0], right)
        assert np.array_equal(emulated(name, number, arrays, env)["residual"][0], right)


@pytest.mark.parametrize("number", [0, 1], ids=["bf16", "f16"])
def test_codes_that_are_their_zero_points_are_zero_whatever_they_multiply(number: int) -> None:
    name = "matvec_add_int4"
    kernel = compiled(name, number, "sm_90a")
    arrays, env = made(kernel.function, PRODUCTS[name])
    rows, columns = len(arrays["w"]), arrays["x"].shape[1]
    arrays["w"] = packed(arrays["w_zeros"].T.repeat(128, axis=1))
    dtype = arrays["x"].dtype
    largest = np.frombuffer({1: b"\xff\x7b", 0: b"\x7f\x7f"}[number], dtype)[0]
    arrays["x"] = np.array([[largest if column % 3 else -largest for column in range(columns)]], dtype)
    assert np.isfinite(arrays["x"].astype(np.float32)).all()
    before = arrays["residual"].copy()
    assert rows == before.shape[1]
    assert np.array_equal(interpreted(kernel.function, arrays, env)["residual"], before)
    assert np.array_equal(emulated(name, number, arrays, env)["residual"], before)


MISTAKES: Final = {
    "low and high fields": ("int4_groups", "field % 2 == 0", "field % 2 != 0"),
    "order of fields": ("int4_groups", "(0, 2, 1, 4, 3)", "(0, 2, 1, 3, 4)"),
    "order of words": ("int4_groups", "(0, 2, 1, 4, 3)", "(0, 1, 2, 4, 3)"),
    "shift of the upper byte": ("int4_groups", "8 * (field // 2)", "8 * (field % 2)"),
    "sign of zero points": ("int4_groups", "(parts, rows), -up, dtype", "(parts, rows), up, dtype"),
    "unit": ("int4_groups", "up / 16.0", "up / 8.0"),
    "scales of another group": ("scaled_matvec_int4", "tl.load(w_scales, (k, n)", "tl.load(w_scales, (0 * k, n)"),
    "scales of other rows": ("scaled_matvec_int4", "tl.load(w_scales, (k, n)", "tl.load(w_scales, (k, 0 * n)"),
    "zero points of another group": ("matvec_add_int4", "tl.load(w_zeros, (k, n)", "tl.load(w_zeros, (0 * k, n)"),
    "order of words, several rows": ("int4_groups", "(1, 3, 2, 5, 4, 0)", "(1, 2, 3, 5, 4, 0)"),
    "order of fields, several rows": ("int4_groups", "(1, 3, 2, 5, 4, 0)", "(1, 3, 2, 4, 5, 0)"),
    "scales of other rows of up, several rows": (
        "scaled_matvec_silu_mul_rows_int4", "w_scales, offset=(k * SPLIT, I + n * ROWS)", "w_scales, offset=(k * SPLIT, I)",
    ),
    "scales of gate for up": ("scaled_matvec_silu_mul_int4", "scales, offset=(k * SPLIT, I + ", "scales, offset=(k * SPLIT, "),
}  # fmt: skip
"""In a source: what takes a field, a scale or a zero point of another place, or makes another number of it."""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: str, tmp_path: Path) -> None:
    changed, old, new = MISTAKES[mistake]
    of_groups = "scaled_matvec_rows_int4" if "several rows" in mistake else "matvec_add_scaled_int4"
    name = of_groups if changed == "int4_groups" else changed
    shutil.copytree(shipped.ROOT / "kernels_src", tmp_path / "kernels_src")
    path = tmp_path / "kernels_src" / f"{changed}.py"
    assert path.read_text().count(old) == 1
    path.write_text(path.read_text().replace(old, new))
    function = load_kernel(tmp_path / "kernels_src" / f"{name}.py", dict(shipped.load(name).constants), root=tmp_path)
    arrays, env = made(function, PRODUCTS[name])
    assert wrong(function, arrays, interpreted(function, arrays, env), env)
