"""Launches at checked shapes: the same as a plan's, at other addresses, with each clause about addresses checked."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest
from fake_driver import FakeDriver, argument_bytes
from launch_contracts import embedding_like, loaded, manifest, tensor, view

from tilec.artifact.records import AbiSlot, Manifest, ScalarSpec, TensorMapSpec
from tilec.ir.expr import sym
from tilec.runtime import TRUSTED, Kernel, LaunchError
from tilec.runtime.prepared import KEPT, Prepared

KINDS = {"a": "f32", "b": "f16", "c": "bf16", "n": "i32", "flag": "bool"}
SIZES = {"f32": 4, "f16": 2, "bf16": 2, "i32": 4, "bool": 1}


def described(**changes: Any) -> Manifest:
    """Two tensors and scalars of every kind, in an argument order that the compiler does not use."""
    scalars = tuple(ScalarSpec(name, dtype) for name, dtype in KINDS.items())
    tensors = (tensor("x", "in", "f32", sym("T")), tensor("out", "out", "f32", sym("T"), align=64))
    made = manifest(tensors, scalars, no_alias=(("x", "out"),))
    order = [*made.abi[3:], made.abi[1], made.abi[2], made.abi[0]]
    return replace(made, abi=tuple(order), **changes)


SCALARS = {"a": 0.5, "b": 0.25, "c": 2.0, "n": -7, "flag": True}
ARGUMENTS = {"x": view(1 << 12, "f32", (10,)), "out": view(1 << 16, "f32", (10,)), **SCALARS}


def prepared(described: Manifest, fresh: tuple[str, ...] = ()) -> tuple[Prepared, Kernel, FakeDriver]:
    driver = FakeDriver()
    kernel = loaded(described, driver)
    return Prepared(kernel, kernel.plan(ARGUMENTS).checked, fresh), kernel, driver


def test_it_sends_what_a_plan_sends() -> None:
    made, kernel, driver = prepared(described())
    sizes = [
        SIZES[KINDS[slot.name]] if slot.kind == "scalar" else 4 if slot.kind == "dim" else 8 for slot in kernel.manifest.abi
    ]
    for pointers, floats in (((1 << 12, 1 << 16), (0.5, 0.25, 2.0)), ((1 << 20, 1 << 30), (-1.0, 3.5, float("inf")))):
        made.launch(7, pointers, floats)
        mine = driver.launches[-1]
        sent = argument_bytes(mine, sizes)
        given = dict(zip(("x", "out"), pointers, strict=True))
        tensors = {name: replace(ARGUMENTS[name], pointer=pointer) for name, pointer in given.items()}
        plan = kernel.plan(SCALARS | dict(zip("abc", floats, strict=True)) | tensors)
        plan.launch(7)
        assert sent == argument_bytes(driver.launches[-1], sizes)
        assert replace(mine, parameters=0) == replace(driver.launches[-1], parameters=0)
    assert [spec.name for spec in made.floats] == ["a", "b", "c"]


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
    made, _, driver = prepared(described())
    for _ in range(2):
        if code is None:
            made.launch(0, pointers, (1.0, 1.0, 1.0))
            continue
        with pytest.raises(LaunchError) as caught:
            made.launch(0, pointers, (1.0, 1.0, 1.0))
        assert caught.value.code == code
    assert len(driver.launches) == (2 if code is None else 0)


def test_blocks_that_go_through_the_grid_are_as_many_as_the_device_holds() -> None:
    made = described()
    persistent = replace(made, schedule=made.schedule | {"persistent": True, "blocks": 1}, grid=(sym("T"),))
    driver = FakeDriver(multiprocessors=3)
    kernel = loaded(persistent, driver)
    Prepared(kernel, kernel.plan(ARGUMENTS).checked).launch(0, (1 << 12, 1 << 16), (1.0, 1.0, 1.0))
    assert driver.launches[0].grid == (3, 1, 1)


def test_a_fresh_tensor_overlaps_nothing_that_is_alive() -> None:
    made, _, driver = prepared(described(), fresh=("out",))
    made.launch(0, (4096, 4096), (1.0, 1.0, 1.0))
    assert len(driver.launches) == 1


def test_two_slots_of_one_tensor_have_both_its_address() -> None:
    twice = described()
    made, _, driver = prepared(replace(twice, abi=(*twice.abi, AbiSlot("pointer", "x"))))
    made.launch(0, (1 << 20, 1 << 16), (1.0, 1.0, 1.0))
    sent = argument_bytes(driver.launches[0], [4, 2, 2, 4, 1, 8, 4, 8, 8])
    assert sent[7] == sent[8] == struct.pack("<Q", 1 << 20)


def test_tensor_maps_are_made_for_the_addresses() -> None:
    mapped = replace(described(), tensor_maps=(TensorMapSpec("x", (8,), 32),))
    mapped = replace(mapped, abi=(*mapped.abi, AbiSlot("tensor_map", "x")))
    made, _, driver = prepared(mapped)
    made.launch(0, (1 << 20, 1 << 16), (1.0, 1.0, 1.0))
    assert [request.pointer for request in driver.map_requests] == [1 << 12, 1 << 20]


def test_launches_with_tensor_maps_that_come_again_are_remembered_and_still_checked() -> None:
    mapped = replace(described(), tensor_maps=(TensorMapSpec("x", (8,), 32),))
    made, _, driver = prepared(replace(mapped, abi=(*mapped.abi, AbiSlot("tensor_map", "x"))))
    places = [(1 << 20, 1 << 16), (1 << 21, 1 << 16), (1 << 20, 1 << 17)]
    floats = [(0.0, 1.0, 1.0), (-0.0, 1.0, 1.0)]
    given = [(pointers, values) for pointers in places for values in floats]
    for pointers, values in (*given, *given):
        made.launch(0, pointers, values)
    sent = [argument_bytes(launch, [4, 2, 2, 4, 1, 8, 4, 8]) for launch in driver.launches]
    assert sent[: len(given)] == sent[len(given) :]
    assert len({tuple(one) for one in sent}) == len(given)
    parameters = [launch.parameters for launch in driver.launches]
    assert parameters[: len(given)] == parameters[len(given) :]
    with pytest.raises(LaunchError):
        made.launch(0, (1 << 20, 1 << 20), floats[0])  # they overlap
    for place in range(KEPT + 1):
        made.launch(0, ((1 << 22) + 64 * place, 1 << 16), floats[0])
    assert len(made._mapped) <= KEPT


def test_launches_inside_launches_have_storage_of_their_own() -> None:
    """As with two threads, if the driver releases the GIL."""
    made, _, driver = prepared(described())
    inner, places = driver.launch, list[int]()

    def nested(*arguments: Any) -> None:
        places.append(arguments[5])
        if len(places) == 1:
            made.launch(0, (1 << 21, 1 << 16), (1.0, 1.0, 1.0))
        inner(*arguments)

    made._enqueue = nested
    made.launch(0, (1 << 20, 1 << 16), (1.0, 1.0, 1.0))
    assert places[0] != places[1]
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
    made = Prepared(kernel, plan.checked)
    made.launch(0, [arguments[spec.name].pointer + 1024 for spec in kernel.manifest.tensors], [1.0] * len(made.floats))
    with pytest.raises(LaunchError, match="E0908"):
        made.launch(0, [arguments[spec.name].pointer + 1 for spec in kernel.manifest.tensors], [1.0] * len(made.floats))
    assert len(driver.launches) == 1


def names(described: Manifest) -> list[str]:
    return [spec.name for spec in (*described.tensors, *described.scalars)]
