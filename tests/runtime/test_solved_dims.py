"""Dims that are read directly from shapes equal those that the equations give, and the same shapes are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launch_contracts import H, T, V, manifest, tensor, view

import tilec.runtime.dims as dims_module
from tilec.artifact.records import ScalarSpec
from tilec.frontend.extents import determined
from tilec.ir.expr import Expr, binary, cdiv, const, sym
from tilec.ir.types import MAX_DIM
from tilec.runtime import LaunchError

DIMS = (
    T, H, V, const(3), const(8), binary("*", H, const(2)), binary("+", T, H), binary("//", T, const(2)), cdiv(T, H),
    binary("%", H, T), binary("min", T, V), binary("-", T, const(1)), binary("*", T, H),
)  # fmt: skip
EXTENTS = st.one_of(st.integers(0, 9), st.sampled_from([16, MAX_DIM, MAX_DIM + 1]))
SCALARS = (ScalarSpec("H", "i32"), ScalarSpec("scale", "f32"))


def outcome(kernel_manifest: Any, views: Any, scalars: Any, given_dims: Any) -> Any:
    try:
        return dims_module.solve_dims(kernel_manifest, views, scalars, given_dims)
    except LaunchError as error:
        return str(error)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.sampled_from(DIMS), EXTENTS), min_size=1, max_size=3), min_size=1, max_size=3),
    st.booleans(), st.integers(-1, 9), st.sampled_from([(), ("T",), ("T", "H"), ("T", "H", "V")]), st.booleans(),
    st.dictionaries(st.sampled_from(["T", "V"]), st.integers(0, 9), max_size=2),
)  # fmt: skip
def test_dims_read_directly_equal_those_of_the_equations(
    axes: Any, by_scalar: bool, scalar: int, dim_slots: tuple[str, ...], strided: bool, given_dims: dict[str, int]
) -> None:
    specs = [tensor(f"x{i}", "in", "f32", *(dim for dim, _ in axis_list)) for i, axis_list in enumerate(axes)]
    if strided:
        specs[0] = tensor("x0", "in", "f32", *specs[0].dims, strides=specs[0].dims)
    views = {
        spec.name: view(0x1000, "f32", tuple(e for _, e in axis_list)) for spec, axis_list in zip(specs, axes, strict=True)
    }
    kernel_manifest = manifest(tuple(specs), SCALARS if by_scalar else (), dims=dim_slots)
    scalars = {"H": scalar, "scale": 1.0} if by_scalar else {}
    direct = outcome(kernel_manifest, views, scalars, given_dims)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dims_module, "_read_directly", lambda *_: None)
        assert direct == outcome(kernel_manifest, views, scalars, given_dims)


def sums_and_products() -> st.SearchStrategy[Expr]:
    leaves = st.sampled_from(["A", "B", "C"]).map(sym) | st.integers(1, 5).map(const)
    kinds = st.sampled_from(["+", "-", "*", "//"])
    return st.recursive(leaves, lambda inner: st.builds(binary, kinds, inner, inner), max_leaves=4)


@settings(max_examples=300, deadline=None)
@given(st.lists(sums_and_products(), min_size=1, max_size=3), st.tuples(*[st.integers(1, 9)] * 3))
def test_the_launcher_finds_the_dims_that_the_front_end_calls_determined(dims: list[Expr], numbers: tuple[int, ...]) -> None:
    env = dict(zip("ABC", numbers, strict=True))
    used = {name for dim in dims for name in dim.symbols()}
    try:
        extents = [dim.evaluate(env) for dim in dims]
    except ZeroDivisionError:
        return
    # A factor such as `A - 1` is 0 in some launches, which the launcher then refuses.
    vanishing = any("*" in str(dim) and ("-" in str(dim) or "//" in str(dim)) for dim in dims)
    if min(extents) < 1 or vanishing or not used <= determined(dims, ()):
        return
    specs = tuple(tensor(f"x{i}", "in", "f32", dim) for i, dim in enumerate(dims))
    views = {spec.name: view(0x1000, "f32", (e,)) for spec, e in zip(specs, extents, strict=True)}
    found = dims_module.solve_dims(manifest(specs, (), dims=tuple(sorted(used))), views, {}, {})
    assert found == {name: env[name] for name in used}
