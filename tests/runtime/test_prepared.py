"""Launches at checked shapes: the same as a plan's, at other addresses, with each clause about addresses checked."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest
from fake_driver import FakeDriver, argument_bytes
from launch_contracts import embedding_like, loaded, manifest, tensor, view

from tilec.artifact.records import AbiSlot, LaunchCheck, Manifest, ScalarSpec, TensorMapSpec, ValueCheck
from tilec.ir.expr import binary, const, sym
from tilec.runtime import TRUSTED, DriverError, Kernel, LaunchError
from tilec.runtime.prepared import Prepared, free_scalars

KINDS = {"a": "f32", "b": "f16", "c": "bf16", "n": "i32", "flag": "bool"}
SIZES = {"f32": 4, "f16": 2, "bf16": 2, "i32": 4, "bool": 1}


def kernel_manifest(**changes: Any) -> Manifest:
    """Two tensors and scalars of every kind, in an argument order that the compiler does not use."""
    scalars = tuple(ScalarSpec(name, dtype) for name, dtype in KINDS.items())
    tensors = (tensor("x", "in", "f32", sym("T")), tensor("out", "out", "f32", sym("T"), align=64))
    base = manifest(tensors, scalars, no_alias=(("x", "out"),))
    order = [*base.abi[3:], base.abi[1], base.abi[2], base.abi[0]]
    return replace(base, abi=tuple(order), **changes)


SCALARS = {"a": 0.5, "b": 0.25, "c": 2.0, "n": -7, "flag": True}
GIVEN = (1.0, 1.0, 1.0, -7, True)
ARGUMENTS = {"x": view(1 << 12, "f32", (10,)), "out": view(1 << 16, "f32", (10,)), **SCALARS}


def prepared(kernel_manifest: Manifest, fresh: tuple[str, ...] = ()) -> tuple[Prepared, Kernel, FakeDriver]:
    driver = FakeDriver()
    kernel = loaded(kernel_manifest, driver)
    return Prepared(kernel, kernel.plan(ARGUMENTS).checked, fresh, free_scalars(kernel_manifest)), kernel, driver


def test_it_passes_the_arguments_of_a_plan() -> None:
    prepared_launch, kernel, driver = prepared(kernel_manifest())
    sizes = [
        SIZES[KINDS[slot.name]] if slot.kind == "scalar" else 4 if slot.kind == "dim" else 8 for slot in kernel.manifest.abi
    ]
    for pointers, scalars in (
        ((1 << 12, 1 << 16), (0.5, 0.25, 2.0, -7, True)),
        ((1 << 20, 1 << 30), (-1.0, 3.5, float("inf"), 2**31 - 1, False)),
    ):
        prepared_launch.launch(7, pointers, scalars)
        own_launch = driver.launches[-1]
        sent = argument_bytes(own_launch, sizes)
        pointers_by_name = dict(zip(("x", "out"), pointers, strict=True))
        tensors = {name: replace(ARGUMENTS[name], pointer=pointer) for name, pointer in pointers_by_name.items()}
        plan = kernel.plan(dict(zip(KINDS, scalars, strict=True)) | tensors)
        plan.launch(7)
        assert sent == argument_bytes(driver.launches[-1], sizes)
        assert replace(own_launch, parameters=0) == replace(driver.launches[-1], parameters=0)
    assert [spec.name for spec in prepared_launch.scalars] == ["a", "b", "c", "n", "flag"]


CLAUSES: dict[str, dict[str, Any]] = {
    "a launch check": {"launch_checks": (LaunchCheck(binary("<=", sym("n"), const(8)), "n is at most 8"),)},
    "the grid": {"grid": (binary("+", sym("T"), sym("n")),)},
    "an extent": {
        "tensors": (tensor("x", "in", "f32", sym("T")), tensor("out", "out", "f32", binary("+", sym("T"), sym("n"))))
    },
    "the range of stored values": {"value_checks": (ValueCheck("x", const(0), sym("n"), False),)},
}


@pytest.mark.parametrize("clause", CLAUSES)
def test_integers_that_a_clause_names_stay_as_they_were_checked(clause: str) -> None:
    assert [spec.name for spec in free_scalars(kernel_manifest(**CLAUSES[clause]))] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("pointers", "code"),
    [
        ((4096 + 4, 1 << 16), "E0908"),
        ((4096, (1 << 16) + 32), "E0908"),
        ((0, 1 << 16), "E0914"),
        ((2**64 - 32, 1 << 16), "E0914"),
        ((4096, 4096), "E0909"),
        ((4096, 4032), None),
        ((4032 + 16, 4032), "E0909"),
        ((4096 + 16, 1 << 16), None),
    ],
)
def test_addresses_are_checked_every_time(pointers: tuple[int, int], code: str | None) -> None:
    prepared_launch, _, driver = prepared(kernel_manifest())
    for _ in range(2):
        if code is None:
            prepared_launch.launch(0, pointers, GIVEN)
            continue
        with pytest.raises(LaunchError) as caught:
            prepared_launch.launch(0, pointers, GIVEN)
        assert caught.value.code == code
    assert len(driver.launches) == (2 if code is None else 0)


def test_persistent_blocks_are_limited_to_those_that_run_at_once() -> None:
    prepared_launch = kernel_manifest()
    persistent = replace(
        prepared_launch, schedule=prepared_launch.schedule | {"persistent": True, "blocks": 1}, grid=(sym("T"),)
    )
    driver = FakeDriver(multiprocessors=3)
    kernel = loaded(persistent, driver)
    Prepared(kernel, kernel.plan(ARGUMENTS).checked).launch(0, (1 << 12, 1 << 16), (1.0, 1.0, 1.0))
    assert driver.launches[0].grid == (3, 1, 1)


def test_a_fresh_tensor_is_not_checked_for_overlap() -> None:
    prepared_launch, _, driver = prepared(kernel_manifest(), fresh=("out",))
    prepared_launch.launch(0, (4096, 4096), GIVEN)
    assert len(driver.launches) == 1


def test_two_slots_of_one_tensor_both_have_its_address() -> None:
    twice = kernel_manifest()
    prepared_launch, _, driver = prepared(replace(twice, abi=(*twice.abi, AbiSlot("pointer", "x"))))
    prepared_launch.launch(0, (1 << 20, 1 << 16), GIVEN)
    sent = argument_bytes(driver.launches[0], [4, 2, 2, 4, 1, 8, 4, 8, 8])
    assert sent[7] == sent[8] == struct.pack("<Q", 1 << 20)


def mapped_manifest(**changes: Any) -> Manifest:
    """With tensor maps of both tensors, between arguments that are not."""
    maps = (TensorMapSpec("x", (8,), 32), TensorMapSpec("out", (4,), 64))
    base = kernel_manifest(tensor_maps=maps, **changes)
    return replace(base, abi=(AbiSlot("tensor_map", "x"), *base.abi, AbiSlot("tensor_map", "out")))


MAPPED_SIZES = [128, 4, 2, 2, 4, 1, 8, 4, 8, 128]


def test_tensor_maps_are_moved_and_never_encoded_again() -> None:
    """A launch sends the maps that a plan of the same tensors would have encoded."""
    prepared_launch, kernel, driver = prepared(mapped_manifest())
    assert len(driver.map_requests) == 2
    addresses = [(1 << 20, 1 << 16), (1 << 21, 1 << 16), (1 << 20, 1 << 17), (1 << 12, 1 << 16), (1 << 20, 1 << 16)]
    for pointers in (*addresses, *addresses):
        prepared_launch.launch(0, pointers, GIVEN)
        sent = argument_bytes(driver.launches[-1], MAPPED_SIZES)
        assert len(driver.map_requests) == 2 and driver.launches[-1].parameters % 8 == 0
        tensors = {name: replace(ARGUMENTS[name], pointer=one) for name, one in zip(("x", "out"), pointers, strict=True)}
        other = FakeDriver()
        plan = loaded(kernel.manifest, other).plan(dict(zip(KINDS, GIVEN, strict=True)) | tensors)
        plan.launch(0)
        assert sent == argument_bytes(other.launches[-1], MAPPED_SIZES)
    assert driver.moved[:5] == [1 << 20, 1 << 21, 1 << 20, 1 << 17, 1 << 12]
    with pytest.raises(LaunchError, match="E0909"):
        prepared_launch.launch(0, (1 << 20, 1 << 20), GIVEN)  # they overlap
    before = len(driver.moved)
    for _ in range(3):
        prepared_launch.launch(0, addresses[-1], GIVEN)
    assert len(driver.moved) == before


def test_a_map_needs_its_own_alignment_at_every_launch() -> None:
    """Also if the tensor declares less."""
    tensors = (tensor("x", "in", "f32", sym("T"), align=4), tensor("out", "out", "f32", sym("T"), align=16))
    prepared_launch, _, driver = prepared(mapped_manifest(tensors=tensors))
    for pointers, code in (((4096 + 4, 1 << 16), "E0918"), ((4096 + 2, 1 << 16), "E0908"), ((4096, 65536 + 8), "E0908")):
        with pytest.raises(LaunchError) as caught:
            prepared_launch.launch(0, pointers, GIVEN)
        assert caught.value.code == code
    assert not driver.launches and not driver.moved


def test_a_storage_whose_map_could_not_be_moved_is_not_used_again() -> None:
    prepared_launch, _, driver = prepared(mapped_manifest())
    prepared_launch.launch(0, (1 << 20, 1 << 16), GIVEN)
    driver.fail["cuTensorMapReplaceAddress"] = "CUDA_ERROR_INVALID_VALUE"
    with pytest.raises(DriverError):
        prepared_launch.launch(0, (1 << 21, 1 << 17), GIVEN)
    driver.fail.clear()
    prepared_launch.launch(0, (1 << 21, 1 << 17), GIVEN)
    maps = argument_bytes(driver.launches[-1], MAPPED_SIZES)
    assert [struct.unpack("<Q", one[:8]) for one in (maps[0], maps[-1])] == [(1 << 21,), (1 << 17,)]


def test_nested_launches_have_their_own_storage() -> None:
    """As with two threads, if the driver releases the GIL."""
    prepared_launch, _, driver = prepared(kernel_manifest())
    inner, parameter_addresses = driver.launch, list[int]()

    def nested(*arguments: Any) -> None:
        parameter_addresses.append(arguments[5])
        if len(parameter_addresses) == 1:
            prepared_launch.launch(0, (1 << 21, 1 << 16), GIVEN)
        inner(*arguments)

    prepared_launch._enqueue = nested
    prepared_launch.launch(0, (1 << 20, 1 << 16), GIVEN)
    assert parameter_addresses[0] != parameter_addresses[1]
    sent = [argument_bytes(launch, [4, 2, 2, 4, 1, 8, 4, 8])[7] for launch in driver.launches]
    assert sent == [struct.pack("<Q", 1 << 21), struct.pack("<Q", 1 << 20)]


def test_an_embedding_is_prepared_with_its_dims() -> None:
    driver = FakeDriver()
    kernel = loaded(embedding_like(), driver)
    arguments = {
        "ids": view(1 << 12, "i32", (3,)),
        "table": view(1 << 16, "bf16", (5, 8)),
        "out": view(1 << 20, "bf16", (3, 8)),
    }
    plan = kernel.plan({name: arguments.get(name, 1) for name in names(kernel.manifest)}, values={"ids": TRUSTED})
    prepared_launch = Prepared(kernel, plan.checked)
    prepared_launch.launch(
        0, [arguments[spec.name].pointer + 1024 for spec in kernel.manifest.tensors], [1.0] * len(prepared_launch.scalars)
    )
    with pytest.raises(LaunchError, match="E0908"):
        prepared_launch.launch(
            0, [arguments[spec.name].pointer + 1 for spec in kernel.manifest.tensors], [1.0] * len(prepared_launch.scalars)
        )
    assert len(driver.launches) == 1


def names(kernel_manifest: Manifest) -> list[str]:
    return [spec.name for spec in (*kernel_manifest.tensors, *kernel_manifest.scalars)]
