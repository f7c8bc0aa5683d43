"""Dims that are read directly from shapes equal those that the equations give, and the same shapes are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launch_contracts import H, T, V, manifest, tensor, view

import tilec.runtime.dims as dims_module
from tilec.artifact.records import ScalarSpec
from tilec.ir.expr import binary, cdiv, const
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
