"""A launch contract is evaluated over unbounded integers, for any integer arguments; tensors are on the kernel's device and fit
64 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from fake_driver import FakeDriver
from launch_contracts import loaded, manifest, tensor

from tilec.artifact.records import LaunchCheck, Manifest, ScalarSpec, ValueCheck
from tilec.ir.expr import binary, const, sym
from tilec.runtime import Device, LaunchError, TensorView, ValueBounds

A, B, S = sym("A"), sym("B"), sym("S")
KINDS = [int, np.int32, np.int64, np.uint32, np.array]


def guarded(**changes: Any) -> Manifest:
    """`requires(A * B <= S)` of three tensors."""
    tensors = (tensor("x", "in", "f32", A), tensor("y", "in", "f32", B), tensor("s", "inout", "f32", S))
    check = LaunchCheck(binary("<=", binary("*", A, B), S), "requires(A * B <= S)")
    return manifest(tensors, grid=(const(1),), dims=("A", "B", "S"), **({"launch_checks": (check,)} | changes))


def arguments_of(kind: Any, a: int, b: int, s: int) -> dict[str, TensorView]:
    sizes = {"x": a, "y": b, "s": s}
    return {
        name: TensorView(kind(0x1000 << 24 * number), "f32", (kind(size),), (kind(1),))
        for number, (name, size) in enumerate(sizes.items())
    }


@pytest.mark.parametrize("kind", [int, np.int64, np.uint64, np.array])
def test_a_product_does_not_wrap(kind: Any) -> None:
    kernel = loaded(guarded(), FakeDriver())
    with pytest.raises(LaunchError, match=r"A \* B <= S"):
        kernel.plan(arguments_of(kind, 2**16, 2**16, 5))
    with pytest.raises(LaunchError, match=r"A \* B <= S"):
        kernel.plan(arguments_of(kind, 2**30, 2**30, 2**30))
    plan = kernel.plan(arguments_of(kind, 3, 4, 12))
    assert plan.env == {"A": 3, "B": 4, "S": 12} and all(type(value) is int for value in plan.env.values())


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32, np.uint32])
def test_narrow_integers_do_not_wrap(kind: Any) -> None:
    arguments = arguments_of(int, 1, 1, 1)
    top = int(np.iinfo(kind).max)
    arguments["x"] = TensorView(0x1000, "f32", (kind(min(top, 2**30)),), (kind(1),))
    arguments["y"] = TensorView(1 << 40, "f32", (kind(min(top, 2**30)),), (kind(1),))
    with pytest.raises(LaunchError, match=r"A \* B <= S"):
        loaded(guarded(), FakeDriver()).plan(arguments)


@pytest.mark.parametrize("wrong", [3.0, np.float32(3), np.float64(3), True, np.bool_(True), "3", None, np.array([3])])
def test_non_integers_are_refused(wrong: Any) -> None:
    arguments = arguments_of(int, 3, 4, 12)
    arguments["x"] = TensorView(0x1000, "f32", (wrong,), (1,))
    with pytest.raises(LaunchError) as caught:
        loaded(guarded(), FakeDriver()).plan(arguments)
    assert caught.value.code == "E0914" and caught.value.argument == "x" and "integer" in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_dims_and_scalars_may_be_any_integers(kind: Any) -> None:
    kernel_manifest = manifest(
        (tensor("x", "in", "f32", A),), (ScalarSpec("n", "i32"),), grid=(const(1),), dims=("A", "B"),
        launch_checks=(LaunchCheck(binary("<=", binary("*", B, sym("n")), const(2**40)), "B * n <= 2^40"),),
    )  # fmt: skip
    kernel = loaded(kernel_manifest, FakeDriver())
    x = TensorView(0x1000, "f32", (3,), (1,))
    with pytest.raises(LaunchError, match="2\\^40"):
        kernel.plan({"x": x, "n": kind(2**30)}, dims={"B": kind(2**20)})
    plan = kernel.plan({"x": x, "n": kind(7)}, dims={"B": kind(2**20)})
    assert plan.env == {"A": 3, "B": 2**20, "n": 7} and all(type(value) is int for value in plan.env.values())


@pytest.mark.parametrize("wrong", [2.0, np.float64(2), True, np.bool_(False), "2"])
def test_dims_that_are_not_integers_are_refused(wrong: Any) -> None:
    kernel_manifest = manifest((tensor("x", "in", "f32", A),), grid=(const(1),), dims=("A", "B"))
    with pytest.raises(LaunchError) as caught:
        loaded(kernel_manifest, FakeDriver()).plan({"x": TensorView(0x1000, "f32", (3,), (1,))}, dims={"B": wrong})
    assert caught.value.code == "E0906" and caught.value.argument == "B"


@pytest.mark.parametrize("bounds", [(float("nan"), 4), (0, float("nan")), (0.0, 3.0), (True, 3)])
def test_bounds_of_values_are_integers(bounds: tuple[Any, Any]) -> None:
    kernel_manifest = manifest((tensor("ids", "in", "i32", A),), grid=(const(1),), dims=("A",),
                         value_checks=(ValueCheck("ids", const(0), const(4), False),))  # fmt: skip
    kernel = loaded(kernel_manifest, FakeDriver())
    ids = {"ids": TensorView(0x1000, "i32", (3,), (1,))}
    kernel.plan(ids, values={"ids": ValueBounds(np.int64(0), np.uint8(4))})
    with pytest.raises(LaunchError) as caught:
        kernel.plan(ids, values={"ids": ValueBounds(*bounds)})
    assert caught.value.code == "E0913"


def test_a_tensor_that_needs_more_than_63_bits_is_refused() -> None:
    dims = (sym("A"), sym("B"), sym("S"))
    kernel_manifest = manifest((tensor("x", "in", "f32", *dims),), grid=(const(1),), dims=("A", "B", "S"))
    kernel = loaded(kernel_manifest, FakeDriver())

    def view(*shape: int) -> dict[str, TensorView]:
        return {"x": TensorView(0x1000, "f32", shape, (shape[1] * shape[2], shape[2], 1))}

    assert kernel.plan(view(2**20, 2**20, 2**20)).env["A"] == 2**20
    with pytest.raises(LaunchError) as caught:
        kernel.plan(view(2**21, 2**20, 2**20))
    assert caught.value.code == "E0906" and "too large" in str(caught.value)


def test_an_extent_whose_divisor_is_zero_is_refused() -> None:
    extent = binary("//", const(100), binary("-", A, const(3)))
    kernel_manifest = manifest((tensor("x", "in", "f32", A), tensor("y", "in", "f32", extent)), grid=(const(1),), dims=("A",))
    kernel = loaded(kernel_manifest, FakeDriver())

    def views(a: int, y: int) -> dict[str, TensorView]:
        return {"x": TensorView(0x1000, "f32", (a,), (1,)), "y": TensorView(0x8000, "f32", (y,), (1,))}

    kernel.plan(views(5, 50))
    for wrong in (views(3, 50), views(3, 1), views(2, 1)):
        with pytest.raises(LaunchError, match="wrong extent"):
            kernel.plan(wrong)


@dataclass
class Exported:
    """A framework's tensor through the CUDA array interface, which does not name the device."""

    pointer: int

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (4,), "typestr": "<f4", "data": (self.pointer, False), "version": 3}


@pytest.mark.parametrize("exported", [Exported(0x5000), TensorView(0x5000, "f32", (4,), (1,))])
def test_a_tensor_on_another_device_is_refused(exported: Any) -> None:
    kernel_manifest = manifest((tensor("x", "in", "f32", A),), grid=(const(1),), dims=("A",))
    kernel = loaded(kernel_manifest, FakeDriver(devices=2, elsewhere={0x5000: 1}))
    with pytest.raises(LaunchError) as caught:
        kernel.plan({"x": exported})
    assert caught.value.code == "E0914" and caught.value.argument == "x" and "another device" in str(caught.value)
    kernel.plan({"x": Exported(0x6000)})
    managed = loaded(kernel_manifest, FakeDriver(devices=2, elsewhere={0x5000: None}))  # accessible from every device
    managed.plan({"x": exported})


def test_a_single_device_needs_no_owner_check() -> None:
    assert Device(FakeDriver()).owner is None
