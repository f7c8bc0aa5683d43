"""Reductions of several axes and of booleans, against NumPy; machine code computes what the interpreter computes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.words.kernels import One, refusal
from tilec.interpreter.dtypes import numpy_dtype
from tilec.ir import ops
from tilec.ir.types import DTYPES
from tilec.target.targets import MAIN_TARGETS

Array = NDArray[Any]
SHAPE = (2, 6, 40)
AXES = [axes for count in (1, 2, 3) for axes in itertools.combinations(range(3), count)]
NUMPY: dict[str, Any] = {"sum": np.sum, "max": np.max, "min": np.min, "any": np.any, "all": np.all}


def reduced(word: str, axes: str, keepdims: bool, shape: tuple[int, ...], dtype: str, source: str = "a") -> One:
    """The reduction as a kernel; booleans are stored as i32, a scalar as a tile of one."""
    result = np.sum(np.zeros(shape), **_arguments(axes, keepdims)).shape
    text = f"tl.{word}({source}{f', axis={axes}' if axes else ''}{', keepdims=True' if keepdims else ''})"
    boolean = word in ("any", "all")
    text = f"tl.where({text}, 1, 0)" if boolean else text
    text = text if result else f"tl.full((1,), {text}, tl.{'i32' if boolean else dtype})"
    return One(text, "i32" if boolean else dtype, result or (1,), ((dtype, shape),))


def _arguments(axes: str, keepdims: bool) -> dict[str, Any]:
    found: Any = tuple(int(axis) for axis in axes.strip("()").split(",") if axis.strip()) if axes not in ("", "None") else None
    return {"axis": found, "keepdims": keepdims}


def numbers(dtype: str, shape: tuple[int, ...] = SHAPE, seed: int = 0) -> Array:
    """Small integers, whose sums are exact in every order."""
    return np.random.default_rng(seed).integers(-9, 10, shape).astype(dtype)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axes", AXES, ids=str)
def test_every_set_of_axes(axes: tuple[int, ...], keepdims: bool) -> None:
    a = numbers("float32")
    for word in ("sum", "max", "min"):
        found = reduced(word, str(axes), keepdims, SHAPE, "f32").interpreted(a)
        wanted = NUMPY[word](a, axis=axes, keepdims=keepdims)
        np.testing.assert_array_equal(found, wanted.reshape(found.shape))
    for word, threshold in (("any", 8), ("all", -8)):
        found = reduced(word, str(axes), keepdims, SHAPE, "f32", f"a > {threshold}").interpreted(a)
        wanted = NUMPY[word](a > threshold, axis=axes, keepdims=keepdims)
        np.testing.assert_array_equal(found != 0, wanted.reshape(found.shape))


@pytest.mark.parametrize("word", NUMPY)
@pytest.mark.parametrize(
    ("axes", "keepdims", "warps"), [("", False, 4), ("(0, 2)", True, 2), ("-1", True, 1), ("(1, 2)", False, 8)]
)
def test_every_machine_computes_the_same(word: str, axes: str, keepdims: bool, warps: int) -> None:
    """Within warps and across them, on every architecture."""
    a = numbers("int32", seed=1)
    source = {"any": "a > 8", "all": "a > -9"}.get(word, "a")
    found = reduced(word, axes, keepdims, SHAPE, "i32", source).agreed(a, warps=warps)
    operand = {"any": a > 8, "all": a > -9}.get(word, a)
    wanted = NUMPY[word](operand, **_arguments(axes, keepdims))
    np.testing.assert_array_equal(found, np.asarray(wanted).astype(np.int32).reshape(found.shape))


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_shape(data: st.DataObject) -> None:
    """Extents that are no powers of two; true and false elements are rare in turn."""
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    axes = data.draw(st.one_of(st.none(), st.sets(st.integers(0, len(shape) - 1), min_size=1).map(sorted).map(tuple)))
    keepdims = data.draw(st.booleans())
    share = data.draw(st.sampled_from([0.02, 0.5, 0.98]))
    a = (np.random.default_rng(data.draw(st.integers(0, 99))).random(shape) < share).astype(np.int32)
    for word in ("any", "all", "sum", "max"):
        one = reduced(
            word, "" if axes is None else str(axes), keepdims, shape, "i32", "a != 0" if word in ("any", "all") else "a"
        )
        wanted = NUMPY[word](a != 0 if word in ("any", "all") else a, axis=axes, keepdims=keepdims)
        for found in (one.interpreted(a), one.emulated(MAIN_TARGETS[0], a)):
            np.testing.assert_array_equal(found, np.asarray(wanted).astype(np.int32).reshape(found.shape))


def test_none_is_every_axis() -> None:
    a = numbers("int32")
    one = One("tl.full((1,), tl.sum(a, axis=None), tl.i32)", "i32", (1,), (("i32", SHAPE),))
    assert one.interpreted(a) == a.sum()


def test_a_condition_of_a_block() -> None:
    """The scalar that `any` gives is a condition, the same for all threads."""
    one = One("(a if tl.any(a > 8) else -a)", "i32", (64,), (("i32", (64,)),))
    for largest in (8, 9):
        a = np.minimum(np.arange(64, dtype=np.int32), largest)
        np.testing.assert_array_equal(one.agreed(a), a if largest > 8 else -a)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_sum_of_narrow_floats_is_rounded_once(dtype: str) -> None:
    """2048 + 1 is 2048 in f16, and 256 + 1 is 256 in bf16: rows that are rounded before they are added lose what they have
    beyond it."""
    numpy_type = numpy_dtype(DTYPES[dtype])
    a = np.zeros((4, 32), np.float32)
    a[0, :2], a[1, 0] = (2048 if dtype == "f16" else 256, 1), 1
    one = One(f"tl.full((1,), tl.sum(a), tl.{dtype})", dtype, (1,), ((dtype, (4, 32)),))
    by_rows = a.sum(1).astype(numpy_type).astype(np.float32).sum().astype(numpy_type)
    assert one.agreed(a.astype(numpy_type))[0] == a.sum().astype(numpy_type) != by_rows


def test_one_axis_is_one_operation() -> None:
    """As before: several axes are successive reductions, and `keepdims` is a reshape."""
    one = reduced("sum", "(0, 2)", True, SHAPE, "f32").function()
    found = [(op.axis, op.kind) for op in one.body.walk() if isinstance(op, ops.Reduce)]
    assert found == [(2, "sum"), (0, "sum")]


@pytest.mark.parametrize(
    ("expression", "message"),
    [("tl.sum(a, axis=(0, 3))", "E0203: no axis `3` in a tile with 3 axes; name an axis from 0 to 2"),
     ("tl.max(a, axis=(1, -2))", "E0203: `max` names axis 1 twice; name each axis once"),
     ("tl.any(a > 0, axis=())", "E0203: `any` over no axis; name an axis, or leave `axis` out for all of them"),
     ("tl.any(a)", "E0204: `any` takes booleans, not f32; compare the tile: `x != 0`"),
     ("tl.all(tl.any(a > 0))", "E0206: `all` reduces a tile, found a scalar; use the condition itself"),
     ("tl.max(a > 0)", "E0204: `max` takes numbers; use `any(x)`"),
     ("tl.sum(a, keepdims=1)", "E0203: `keepdims` is `True` or `False`, found `1`; write `keepdims=True`"),
     ("tl.any(True)", "E0206: `any` reduces a tile, found a scalar; use the condition itself"),
     ("tl.sum(3.0, keepdims=True)", "E0206: `sum` reduces a tile, found a scalar; a scalar needs no reduction"),
     ("tl.max(a, a)",
      "E0203: `max` takes an axis, found a tile of f32 of shape (2, 6, 40); to compare two tiles, use `maximum(a, b)`"),
     ("tl.any(a > 0, axis=((0, 1), 2))", "E0203: `any` takes an axis, found a tuple of 2; name an axis from 0 to 2"),
     ("tl.sum(a, axis=1.0)", "E0203: `sum` takes an axis, found `1.0`; name an axis from 0 to 2"),
     ("tl.argmax(a, axis=(0, 1))", "E0203: `argmax` takes an axis, found a tuple of 2; name an axis from 0 to 2"),
     ("tl.sum(a, 0, True)", "E0113: `sum` takes 2 arguments by position, 3 given; by position: x, axis; by name: keepdims"),
     ("tl.argmax(a, axis=0, keepdims=True)", "E0113: `keepdims` is not a parameter of `argmax`; its parameters: x, axis")],
)  # fmt: skip
def test_refusals(expression: str, message: str) -> None:
    assert refusal(One(expression, "f32", (32,), (("f32", SHAPE),)).text) == message
