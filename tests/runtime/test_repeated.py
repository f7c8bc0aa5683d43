"""Repeated launches: the bytes of a plan of the same tensors, and each clause about the address that is given."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
from fake_driver import FakeDriver, argument_bytes
from launch_contracts import loaded, manifest, tensor, view

from tilec.artifact.records import AbiSlot, Manifest, ScalarSpec, TensorMapSpec
from tilec.ir.expr import sym
from tilec.runtime import LaunchError
from tilec.runtime.repeated import Repeated

SIZES = [8, 8, 8, 4, 4, 4]
SCALARS = {"a": 0.5, "b": -2.0}
ARGUMENTS: dict[str, Any] = {
    "p": view(1 << 16, "f32", (10,)), "grad": view(1 << 12, "f32", (10,)), "m": view(1 << 20, "f32", (10,)), **SCALARS,
}  # fmt: skip


def step_manifest(**changes: Any) -> Manifest:
    """A step of an optimizer: two tensors that are written, and one that is read."""
    tensors = (
        tensor("p", "inout", "f32", sym("T")),
        tensor("grad", "in", "f32", sym("T")),
        tensor("m", "inout", "f32", sym("T")),
    )
    scalars = tuple(ScalarSpec(name, "f32") for name in SCALARS)
    return replace(manifest(tensors, scalars, no_alias=(("p", "grad"), ("p", "m"), ("grad", "m"))), **changes)


def repeated(changed: Manifest) -> tuple[Repeated, Any, FakeDriver]:
    driver = FakeDriver()
    kernel = loaded(changed, driver)
    return Repeated(kernel.plan(ARGUMENTS), "grad"), kernel, driver


def test_it_sends_what_a_plan_does() -> None:
    launches, kernel, driver = repeated(step_manifest())
    for pointer, scalars in (
        (1 << 12, (0.5, -2.0)),
        (1 << 13, (1.0, float("inf"))),
        (1 << 30, (-0.0, 3.4e38)),
        (1 << 13, (1.0, 2.0)),
    ):
        launches.launch(9, pointer, scalars)
        own = driver.launches[-1]
        sent = argument_bytes(own, SIZES)
        given = ARGUMENTS | {"grad": replace(ARGUMENTS["grad"], pointer=pointer)} | dict(zip(SCALARS, scalars, strict=True))
        plan = kernel.plan(given)
        plan.launch(9)
        assert sent == argument_bytes(driver.launches[-1], SIZES)
        assert replace(own, parameters=0) == replace(driver.launches[-1], parameters=0)


@pytest.mark.parametrize(
    ("pointer", "code"),
    [
        (0, "E0914"),
        (4096 + 4, "E0908"),
        (4096 + 1, "E0908"),
        (2**64 - 32, "E0914"),
        (1 << 16, "E0909"),
        ((1 << 16) + 32, "E0909"),
        ((1 << 16) - 32, "E0909"),
        (1 << 20, "E0909"),
        ((1 << 20) - 16, "E0909"),
        ((1 << 16) - 48, None),
        ((1 << 16) + 48, None),
    ],
)
def test_the_address_is_checked_at_every_launch(pointer: int, code: str | None) -> None:
    launches, _, driver = repeated(step_manifest())
    launches.launch(0, 1 << 12, (1.0, 1.0))
    for _ in range(2):
        if code is None:
            launches.launch(0, pointer, (1.0, 1.0))
            continue
        with pytest.raises(LaunchError) as caught:
            launches.launch(0, pointer, (1.0, 1.0))
        assert caught.value.code == code
    assert len(driver.launches) == (3 if code is None else 1)


def test_other_kernels_are_refused() -> None:
    base = step_manifest()
    maps = replace(base, tensor_maps=(TensorMapSpec("grad", (8,), 32),), abi=(*base.abi, AbiSlot("tensor_map", "grad")))
    integers = replace(base, scalars=(ScalarSpec("a", "f32"), ScalarSpec("b", "i32")))
    for changed, value in ((maps, -2.0), (integers, 3)):
        kernel = loaded(changed, FakeDriver())
        plan = kernel.plan(ARGUMENTS | {"b": value})
        with pytest.raises(ValueError, match="tensor maps, or scalars that are not f32"):
            Repeated(plan, "grad")


def test_a_launch_is_one_function_of_python() -> None:
    """Besides the driver's."""
    launches, _, _ = repeated(step_manifest())
    called: list[str] = []
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    try:
        launches.launch(0, 1 << 13, (1.0, 1.0))
    finally:
        sys.setprofile(None)
    assert [name for name in called if name not in ("_maybe_fail", "__init__")] == ["launch", "launch"]
