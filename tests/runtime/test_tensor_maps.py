"""Tensor maps among the arguments: the driver's encode call, their location, and tensors that cannot have one."""

from __future__ import annotations

import copy
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_driver import FakeDriver, argument_bytes
from launch_contracts import T, loaded, manifest, tensor, view

from tilec.artifact.manifest_reader import manifest_from_json
from tilec.artifact.records import AbiSlot, Manifest, TensorMapSpec, to_json
from tilec.emulator.launch import tensor_map
from tilec.emulator.machine.memory import Memory
from tilec.emulator.matrices.tensor_maps import TensorMap
from tilec.ir.expr import sym
from tilec.ir.facts.tensor_maps import MAP_ELEMENTS
from tilec.runtime import DriverError, Kernel, LaunchError, TensorView
from tilec.runtime.driver import CudaDriver
from tilec.runtime.series import Series
from tilec.runtime.tensor_maps import TensorMapRequest, request_of

K, S, Z = sym("K"), sym("S"), sym("Z")


def kernel_manifest(strided: bool = False) -> Manifest:
    """Two maps of `a` and one of `b`."""
    a = tensor("a", "in", "bf16", T, K, strides=(S, Z) if strided else None, align=2)
    plain = manifest(
        (a, tensor("b", "in", "f16", K, T, K), tensor("out", "out", "f32", T)), dims=("T", "K"),
        strides=("S", "Z") if strided else (), grid=(T,),
    )  # fmt: skip
    maps = (TensorMapSpec("a", (128, 64), 128), TensorMapSpec("b", (1, 32, 16), 32), TensorMapSpec("a", (8, 32), 64))
    return replace(plain, abi=(*plain.abi, *(AbiSlot("tensor_map", map_spec.tensor) for map_spec in maps)), tensor_maps=maps)


def arguments(rows: int = 40, depth: int = 72, a: int = 4096) -> dict[str, TensorView]:
    return {
        "a": view(a, "bf16", (rows, depth)),
        "b": view(1 << 20, "f16", (depth, rows, depth)),
        "out": view(1 << 24, "f32", (rows,)),
    }


def sent(kernel: Kernel, launch: Any) -> list[bytes]:
    """The bytes of each map of a launch."""
    slots = kernel.manifest.abi
    arguments_data = argument_bytes(launch, [128 if slot.kind == "tensor_map" else 8 for slot in slots])
    return [data for data, slot in zip(arguments_data, slots, strict=True) if slot.kind == "tensor_map"]


def test_maps_are_requested_for_whole_tensors_innermost_axis_first() -> None:
    driver = FakeDriver()
    kernel = loaded(kernel_manifest(), driver)
    kernel.plan(arguments()).launch()
    first, second, third = driver.map_requests
    assert first == TensorMapRequest(4096, "bf16", (72, 40), (144,), (64, 128), 128)
    assert second == TensorMapRequest(1 << 20, "f16", (72, 40, 72), (144, 144 * 40), (16, 32, 1), 32)
    assert third == TensorMapRequest(4096, "bf16", (72, 40), (144,), (32, 8), 64)
    assert sent(kernel, driver.launches[0]) == [FakeDriver().encode_tensor_map(request) for request in driver.map_requests]


def test_maps_are_aligned_and_other_arguments_keep_their_offsets() -> None:
    driver = FakeDriver()
    kernel = loaded(kernel_manifest(), driver)
    for _ in range(4):
        plan = kernel.plan(arguments())
        assert plan.maps % 64 == 0
        plan.launch()
        arguments_data = argument_bytes(driver.launches[-1], [8, 8, 8, 4, 4])
        assert [int.from_bytes(data, "little") for data in arguments_data] == [4096, 1 << 20, 1 << 24, 40, 72]


def test_maps_are_encoded_once_per_address_and_shape() -> None:
    driver = FakeDriver()
    kernel = loaded(kernel_manifest(), driver)
    for call_arguments in (arguments(), arguments(), arguments(a=8192), arguments(rows=48), arguments()):
        kernel.plan(call_arguments)
    assert len(driver.map_requests) == 3 + 2 + 3


def test_strides_are_those_of_the_tensor() -> None:
    driver = FakeDriver()
    kernel = loaded(kernel_manifest(strided=True), driver)
    kernel.plan(arguments() | {"a": view(4096, "bf16", (40, 72), (80, 1))})
    assert driver.map_requests[0].strides == (160,)
    kernel.plan(arguments(rows=1) | {"a": view(4096, "bf16", (1, 72), (3, 1))})  # a single row, which needs no row stride
    assert driver.map_requests[3].strides == (144,)


def test_an_axis_of_extent_one_gets_a_valid_stride() -> None:
    spec = TensorMapSpec("a", (64, 64), 128)
    map_strides = {
        stride: request_of(spec, TensorView(4096, "bf16", (1, 72), (stride, 1)), "k").strides for stride in (72, 80, 3, 0)
    }
    assert map_strides == {72: (144,), 80: (160,), 3: (144,), 0: (144,)}


@pytest.mark.parametrize(
    ("a", "given"),
    [
        (view(4098, "bf16", (40, 72), (72, 1)), "address 0x1002"),
        (view(4096, "bf16", (40, 72), (76, 1)), "strides [76, 1]"),
        (view(4096, "bf16", (40, 72), (144, 2)), "strides [144, 2]"),
    ],
)
def test_tensors_that_cannot_have_a_map_are_refused_by_name(a: TensorView, given: str) -> None:
    driver = FakeDriver()
    with pytest.raises(LaunchError) as caught:
        loaded(kernel_manifest(strided=True), driver).plan(arguments() | {"a": a})
    assert (caught.value.code, caught.value.argument) == ("E0918", "a") and given in str(caught.value)
    assert not driver.launches


@pytest.mark.parametrize(
    "a",
    [
        view(1 << 50, "bf16", (40, 72), (1 << 39, 1)), view(4096, "bf16", (40, 72), (0, 1)),
        view(1 << 50, "bf16", (40, 72), (-72, 1)), view(4096, "bf16", (0, 72)), view(4096, "bf16", (40, (1 << 32) + 8)),
    ],
)  # fmt: skip
def test_tensors_beyond_hardware_limits_are_refused(a: TensorView) -> None:
    with pytest.raises(LaunchError, match="it cannot have a tensor map"):
        request_of(TensorMapSpec("a", (8, 64), 128), a, "demo")


def test_a_driver_error_is_reported() -> None:
    with pytest.raises(DriverError, match="cuTensorMapEncodeTiled"):
        loaded(kernel_manifest(), FakeDriver(fail={"cuTensorMapEncodeTiled": "CUDA_ERROR_INVALID_VALUE"})).plan(arguments())


def test_the_driver_is_called_as_its_bindings_require() -> None:
    """With the real types and enumerations, and a call that returns its arguments."""
    api = pytest.importorskip("cuda.bindings.driver")
    calls: list[tuple[Any, ...]] = []

    class Api:
        def __getattr__(self, name: str) -> Any:
            return getattr(api, name)

        def cuTensorMapEncodeTiled(self, *call_arguments: Any) -> tuple[Any, Any]:
            calls.append(call_arguments)
            tensor_map_struct = api.CUtensorMap()
            tensor_map_struct.opaque = [api.cuuint64_t(index + 1) for index in range(16)]
            return api.CUresult.CUDA_SUCCESS, tensor_map_struct

    driver = CudaDriver.__new__(CudaDriver)
    vars(driver).update(_api=Api(), _success=api.CUresult.CUDA_SUCCESS)
    for dtype in MAP_ELEMENTS:
        request = TensorMapRequest(4096, dtype, (72, 40), (144,), (64, 128), 128)
        assert driver.encode_tensor_map(request) == struct.pack("<16Q", *range(1, 17))
    kind, rank, address, dims, strides, box, steps, interleave, swizzle, _, fill = calls[MAP_ELEMENTS.index("bf16")]
    assert (kind, rank, address) == (api.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, 4096)
    assert [list(map(int, values)) for values in (dims, strides, box, steps)] == [[72, 40], [144], [64, 128], [1, 1]]
    assert [int(values) for values in (interleave, swizzle, fill)] == [0, 3, 0]  # none, 128 bytes, zeros


def test_launches_of_a_series_have_their_own_maps() -> None:
    driver = FakeDriver()
    series = Series(loaded(kernel_manifest(), driver), [arguments(), arguments(a=8192)])
    shapes: dict[str, tuple[int, ...]] = {"a": (24, 72), "b": (72, 24, 72), "out": (24,)}
    fewer = series.at(shapes, {}, {})
    whole = series.at({"a": (40, 72), "b": (72, 40, 72), "out": (40,)}, {}, {})
    for numbers, rows in ((None, 40), (fewer, 24), (whole, 40), (fewer, 24)):
        if numbers is not None:
            series.use(numbers)
        for index, pointer in enumerate((4096, 8192)):
            series.launch(index, 0)
            expected = TensorMapRequest(pointer, "bf16", (72, rows), (144,), (64, 128), 128)
            assert sent(series.kernel, driver.launches[-1])[0] == FakeDriver().encode_tensor_map(expected)


@pytest.mark.parametrize("strided", [False, True])
def test_the_emulator_encodes_the_same_maps(strided: bool) -> None:
    full, shapes = kernel_manifest(strided), {"a": (40, 72), "b": (72, 40, 72)}
    steps = {"a": (80, 1) if strided else (72, 1), "b": (40 * 72, 72, 1)}
    dtypes = {"a": "bf16", "b": "f16"}
    memory = Memory()
    regions = {name: memory.allocate(name, np.zeros(72 * 40 * 72, np.uint16), writable=False) for name in shapes}
    for spec in full.tensor_maps:
        name = spec.tensor
        decoded = TensorMap.decode(tensor_map(spec, full, regions, {"T": 40, "K": 72, "S": 80, "Z": 1}))
        request = request_of(spec, view(regions[name].address, dtypes[name], shapes[name], steps[name]), "demo")
        assert decoded == TensorMap(request.pointer, 2, request.dims, request.strides, request.box, request.swizzle)


def test_a_manifest_with_maps_round_trips() -> None:
    full = kernel_manifest()
    assert manifest_from_json(to_json(full)) == full


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("tensor_maps", 0, "tensor"), "out", "tensor_maps[0]"), (("tensor_maps", 0, "tensor"), "b", "tensor_maps"),
        (("tensor_maps", 0, "box"), [64], "box"), (("tensor_maps", 0, "box"), [257, 64], "box"),
        (("tensor_maps", 0, "box"), [128, 32], "swizzle"), (("tensor_maps", 0, "swizzle"), 96, "swizzle"),
        (("tensor_maps", 0, "swizzle"), True, "swizzle"), (("tensor_maps",), [], "calling convention"),
        (("abi", 5, "kind"), "pointer", "calling convention"), (("tensors", 0, "access"), "inout", "tensor_maps[0]"),
        (("tensors", 0, "dtype"), "bool", "tensor_maps[0]"), (("tensor_maps", 0, "more"), 1, "unknown field"),
    ],
)  # fmt: skip
def test_maps_of_a_manifest_are_checked(path: tuple[Any, ...], value: Any, message: str) -> None:
    data = copy.deepcopy(to_json(kernel_manifest()))
    container = data
    for key in path[:-1]:
        container = container[key]
    container[path[-1]] = value
    with pytest.raises(ValueError, match=message.replace("[", r"\[")):
        manifest_from_json(data)
