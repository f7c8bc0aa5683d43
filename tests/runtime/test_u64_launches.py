"""Scalars and tensors of u64 at a launch: numbers from 2^63 on are passed, checked and read as they are, others are refused."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
from fake_driver import FakeDriver, argument_bytes
from launch_contracts import loaded, manifest, tensor

from tilec.artifact.manifest_reader import manifest_from_json
from tilec.artifact.records import LaunchCheck, Manifest, ScalarSpec, ValueCheck, to_json
from tilec.ir.expr import Expr, binary, const, sym
from tilec.runtime import LaunchError, TensorView
from tilec.untrusted.strict_json import LARGEST_OF_MANIFEST, parse

N, P = sym("N"), sym("P")
ENDS = (0, 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1)


def contract(condition: Expr, high: int = 2**64) -> Manifest:
    """A tensor of u64 whose elements are from 2^63 to below `high`, and a scalar."""
    return manifest(
        (tensor("x", "in", "u64", N),), (ScalarSpec("P", "u64"),), grid=(const(1),), dims=("N",),
        launch_checks=(LaunchCheck(condition, str(condition)),),
        value_checks=(ValueCheck("x", const(2**63), const(high), False),),
    )  # fmt: skip


def planned(given: Manifest, number: Any, values: Any) -> Any:
    arguments = {"x": TensorView(0x1000, "u64", (len(values),), (1,)), "P": number}
    return loaded(given, driver := FakeDriver()).plan(arguments, values={"x": values}), driver


@pytest.mark.parametrize("kind", [int, np.uint64, np.array])
@pytest.mark.parametrize("number", ENDS)
def test_every_number_arrives(number: int, kind: Any) -> None:
    given = kind(number) if kind is not np.array else np.array(number, np.uint64)
    plan, driver = planned(contract(binary(">=", P, const(0))), given, np.array([2**63], np.uint64))
    plan.launch(0)
    sizes = [4 if slot.kind == "dim" else 8 for slot in plan.kernel.manifest.abi]
    sent = argument_bytes(driver.launches[-1], sizes)
    slot_index = next(index for index, slot in enumerate(plan.kernel.manifest.abi) if slot.kind == "scalar")
    assert sent[slot_index] == struct.pack("<Q", number)


@pytest.mark.parametrize("number", [-1, -(2**63), 2**64, 2**70, np.int64(-1), np.int8(-1), True, 1.0, "1", None])
def test_other_numbers_are_refused(number: Any) -> None:
    with pytest.raises(LaunchError, match=r"E0912.*`P`") as caught:
        planned(contract(binary(">=", P, const(0))), number, np.array([2**63], np.uint64))
    assert type(number) not in (int, np.int64, np.int8) or "0 to 18446744073709551615 (`u64`)" in str(caught.value)


def test_conditions_see_the_number() -> None:
    for number in ENDS:
        given = contract(binary("<=", binary("+", P, const(1)), const(2**63 + 1)))
        if number + 1 <= 2**63 + 1:
            planned(given, number, np.array([2**63], np.uint64))
        else:
            with pytest.raises(LaunchError, match="E0910"):
                planned(given, number, np.array([2**63], np.uint64))


def test_stored_numbers_are_checked_as_they_are() -> None:
    given = contract(binary(">=", P, const(0)), 2**64 - 1)
    planned(given, 0, np.array([2**63, 2**64 - 2], np.uint64))
    for outside in (0, 2**63 - 1, 2**64 - 1):
        with pytest.raises(LaunchError, match=rf"E0913.*value {outside} at index \[1\]"):
            planned(given, 0, np.array([2**63, outside], np.uint64))
    with pytest.raises(LaunchError, match="E0913"):  # the same bits with a sign
        planned(given, 0, np.array([2**63, 2**63], np.uint64).view(np.int64))


def test_a_manifest_has_them_all() -> None:
    given = contract(binary("<=", P, const(2**64 - 1)))
    text = json.dumps(to_json(given)).encode()
    assert manifest_from_json(parse(text, limit=len(text), largest=LARGEST_OF_MANIFEST)) == given
    with pytest.raises(ValueError, match="a number in it is too large"):
        parse(text, limit=len(text))  # every other text has signed integers
    for number, is_read in ((2**64, True), (2**64 + 1, False), (-(2**63), True), (-(2**63) - 1, False)):
        text = f"[{number}]".encode()
        if is_read:
            assert parse(text, limit=99, largest=LARGEST_OF_MANIFEST) == [number]
        else:
            with pytest.raises(ValueError, match="a number in it is too large"):
                parse(text, limit=99, largest=LARGEST_OF_MANIFEST)
