"""What a kernel computes from a row that it stored: a right kernel passes whichever way its sums round, a wrong one fails."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.bench.kernels import stored_rows
from tests.kernels.numpy_torch import NAMES, Tensor, modules

RUN = 16
"""Elements of a sum of squares."""
SPLIT = 4
"""Warps that share a sum."""
KERNEL = "matvec_add_scaled_rows"
REFUSED_BY_RATIO = (25, 49, 77, 117)
"""Seeds of f16 rows of 17408 elements where the error of a right `squares` is more than 1.5 times torch's."""

Arrays = dict[str, Any]


def manifest(dtype: str = "f16", kernel: str = KERNEL) -> Any:
    """The part of a manifest that a comparison reads."""
    tensors = [("x", "in", dtype), ("w", "in", dtype), ("residual", "inout", dtype), ("weight", "in", dtype)]
    tensors += [("scaled", "out", dtype), ("squares", "out", "f32")]
    specs = tuple(SimpleNamespace(name=name, access=access, dtype=element) for name, access, element in tensors)
    return SimpleNamespace(kernel=kernel, constants={"E": dtype, "ROWS": RUN}, tensors=specs)


def inputs(seed: int, rows: int, outputs: int, depth: int, dtype: str) -> Arrays:
    """Normal numbers, and outputs that nobody wrote."""
    rng = np.random.default_rng(seed)
    shapes = {"x": (rows, depth), "w": (outputs, depth), "residual": (rows, outputs), "weight": (outputs,)}
    found: Arrays = {name: np.asarray(rng.standard_normal(shape, np.float32), NAMES[dtype]) for name, shape in shapes.items()}
    found["scaled"] = np.full((rows, outputs), np.nan, NAMES[dtype])
    found["squares"] = np.full((rows, outputs // RUN), np.nan, np.float32)
    return found


def chopped(value: Any) -> Any:
    """float64 cut to f32 towards zero, as tensor cores keep a sum."""
    near: Any = value.astype(np.float32)
    inner: Any = np.nextafter(near, np.float32(0))
    return np.where(np.abs(near.astype(np.float64)) > np.abs(value), inner, near)


def row_of(before: Arrays) -> Any:
    """The new residual before it is rounded to 16 bits: products of sixteen at a time, SPLIT sums side by side."""
    x, w = (before[name].astype(np.float64) for name in ("x", "w"))
    x, w = (part.reshape(len(part), -1, SPLIT, 4, 16).transpose(2, 1, 3, 0, 4) for part in (x, w))
    x, w = (part.reshape(SPLIT, -1, part.shape[3], 16) for part in (x, w))
    products = x @ w.transpose(0, 1, 3, 2)
    sums = np.zeros(products[:, 0].shape, np.float32)
    for step in range(products.shape[1]):
        sums = chopped(sums.astype(np.float64) + products[:, step])
    total = sums[0]
    for part in sums[1:]:
        total = total + part
    return total + before["residual"].astype(np.float32)


def squares_of(row: Any) -> Any:
    wide = row.astype(np.float32)
    return (wide * wide).reshape(len(row), -1, RUN).sum(2)


def right(before: Arrays) -> Arrays:
    """What the kernel writes."""
    dtype = before["residual"].dtype
    row = row_of(before).astype(dtype)
    scaled = (row.astype(np.float32) * before["weight"].astype(np.float32)).astype(dtype)
    return {"residual": row, "scaled": scaled, "squares": squares_of(row)}


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Arrays, Arrays, Any], dict[str, bool]]]:
    """`cases.compare` on arrays: whether each output is right."""
    kept = {name: module for name, module in sys.modules.items() if name.startswith("ci.bench.kernels")}
    for name, module in modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    cases = importlib.import_module("ci.bench.kernels.cases")

    def examined(before: Arrays, written: Arrays, of: Any) -> dict[str, bool]:
        wrapped = ({name: Tensor(array) for name, array in one.items()} for one in (before, {**before, **written}))
        return {result.output: result.ok for result in cases.compare(*wrapped, of)}

    yield examined
    for name in [name for name in sys.modules if name.startswith("ci.bench.kernels") and name not in kept]:
        del sys.modules[name]
        parent, _, child = name.rpartition(".")
        if parent in sys.modules:
            vars(sys.modules[parent]).pop(child, None)


@pytest.mark.parametrize("seed", REFUSED_BY_RATIO)
def test_a_right_kernel_passes_where_it_rounds_another_way_than_float64(seed: int, compare: Any) -> None:
    before = inputs(seed, 2, 32, 17408, "float16")
    written = right(before)
    exact = before["residual"].astype(np.float64) + before["x"].astype(np.float64) @ before["w"].T.astype(np.float64)
    assert (written["residual"] != exact.astype(np.float16)).any()
    assert compare(before, written, manifest()) == {"residual": True, "scaled": True, "squares": True}


@pytest.mark.parametrize(("dtype", "short"), [("float16", "f16"), ("bfloat16", "bf16")])
@pytest.mark.parametrize("rows", [1, 8])
def test_a_right_kernel_passes_at_any_seed(dtype: str, short: str, rows: int, compare: Any) -> None:
    for seed in range(20):
        before = inputs(seed, rows, 2 * RUN, 1024, dtype)
        assert all(compare(before, right(before), manifest(short)).values()), seed


def unrounded(before: Arrays) -> Arrays:
    """The row is rounded too late: the sums are of what was not stored."""
    return {"squares": squares_of(row_of(before))}


def lost(before: Arrays) -> Arrays:
    """The smallest square of each run is left out."""
    row = right(before)["residual"].astype(np.float32)
    parts = np.sort((row * row).reshape(len(row), -1, RUN))
    return {"squares": parts[:, :, 1:].sum(2)}


def shifted(before: Arrays) -> Arrays:
    """Each sum is that of its neighbour."""
    return {"squares": np.roll(right(before)["squares"], 1, 1)}


def in_16_bits(before: Arrays) -> Arrays:
    """Sums are kept in the dtype of the row."""
    return {"squares": right(before)["squares"].astype(before["x"].dtype).astype(np.float32)}


def unwritten(before: Arrays) -> Arrays:
    """One element is left as it was."""
    found = right(before)["squares"].copy()
    found[-1, -1] = np.nan
    return {"squares": found}


def cut(before: Arrays) -> Arrays:
    """Products are rounded towards zero."""
    exact = right(before)["residual"].astype(np.float64) * before["weight"].astype(np.float64)
    near = exact.astype(before["x"].dtype)
    larger = np.abs(near.astype(np.float64)) > np.abs(exact)
    return {"scaled": np.where(larger, np.nextafter(near, np.zeros_like(near)), near)}


def neighbour(before: Arrays) -> Arrays:
    """Weights are those of the next elements."""
    return {"scaled": (right(before)["residual"].astype(np.float32) * np.roll(before["weight"], 1)).astype(before["x"].dtype)}


def forgotten(before: Arrays) -> Arrays:
    """The old residual is not added."""
    row = (row_of(before) - before["residual"]).astype(before["x"].dtype)
    return {"residual": row}


@pytest.mark.parametrize("mistake", [unrounded, lost, shifted, in_16_bits, unwritten, cut, neighbour, forgotten])
def test_a_mistake_is_refused(mistake: Callable[[Arrays], Arrays], compare: Any) -> None:
    for seed in range(5):
        before = inputs(seed, 2, 2 * RUN, 1024, "float16")
        (output,) = changed = mistake(before)
        assert not compare(before, right(before) | changed, manifest())[output], seed


@given(st.integers(0, 2**32), st.integers(1, 64), st.sampled_from(["f16", "bf16"]), st.floats(-20, 6), st.booleans())
def test_the_bound_holds_in_any_order_of_summation(seed: int, count: int, dtype: str, scale: float, by_tree: bool) -> None:
    """Also for tiny numbers, whose products are subnormal."""
    rng = np.random.default_rng(seed)
    element = NAMES[{"f16": "float16", "bf16": "bfloat16"}[dtype]]
    row, weight = ((rng.standard_normal((2, 3 * count)) * 2.0**scale).astype(element) for _ in range(2))
    wide = row.astype(np.float32)
    terms = rng.permuted((wide * wide).reshape(2, 3, count), axis=2)
    while by_tree and terms.shape[2] > 1:
        half = terms.shape[2] // 2
        terms = np.concatenate((terms[:, :, :half] + terms[:, :, half : 2 * half], terms[:, :, 2 * half :]), axis=2)
    total = terms[:, :, 0]
    for position in range(1, terms.shape[2]):
        total = total + terms[:, :, position]
    scaled, squares = stored_rows.computed(manifest(dtype), row, weight[0], 3)
    assert squares.allows(total)
    assert scaled.allows((wide * weight[0].astype(np.float32)).astype(element))


def test_another_shape_and_another_infinity_are_refused() -> None:
    row = np.full((1, RUN), np.inf, np.float16)
    scaled, squares = stored_rows.computed(manifest(), row, np.ones(RUN, np.float16), 1)
    assert scaled.allows(row) and squares.allows([[np.inf]])
    assert not scaled.allows(-row) and not squares.allows([[3.4e38]]) and not squares.allows([np.inf])
