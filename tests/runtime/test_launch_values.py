"""Value obligations: each kind of evidence, and the errors for missing or wrong evidence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_driver import FakeDriver
from hypothesis import given, settings
from hypothesis import strategies as st
from launch_contracts import V, embedding_like, manifest, tensor, view

from tilec.artifact.records import ValueCheck
from tilec.ir.expr import const
from tilec.runtime import TRUSTED, Device, Kernel, LaunchError, ValueBounds


def scatter_like(distinct: bool) -> Any:
    tensors = (tensor("ids", "in", "i32", const(4)), tensor("table", "in", "f32", V))
    checks = (ValueCheck("ids", const(0), V, distinct),)
    return manifest(tensors, dims=("V",), value_checks=checks, grid=(const(1),))


def plan(ids: Any, vocabulary: int, *, distinct: bool = False, stored: list[int] | None = None, **options: Any) -> Any:
    device = Device(FakeDriver())
    kernel = Kernel(scatter_like(distinct), b"", device)
    ids_array = device.from_numpy(np.array([0, 0, 0, 0] if stored is None else stored, np.int32))
    values = {} if ids is None else {"ids": ids}
    return kernel.plan({"ids": ids_array, "table": device.empty((vocabulary,), "f32")}, values=values, **options)


four_integers = st.lists(st.integers(-3, 12), min_size=4, max_size=4)


@settings(max_examples=150, deadline=None)
@given(ids=four_integers, vocabulary=st.integers(1, 12), distinct=st.booleans(), on_device=st.booleans())
def test_values_are_accepted_exactly_when_they_comply(ids: list[int], vocabulary: int, distinct: bool, on_device: bool) -> None:
    complies = all(0 <= v < vocabulary for v in ids) and not (distinct and len(set(ids)) < 4)

    def run() -> Any:
        if on_device:
            return plan(None, vocabulary, distinct=distinct, stored=ids, check_values=True)
        return plan(ids, vocabulary, distinct=distinct)

    check_plan(run, complies)


def check_plan(run: Callable[[], Any], complies: bool) -> None:
    """A plan trusts no assertion if values comply, and is refused, naming the tensor, if they do not."""
    if complies:
        assert run().trusted == ()
        return
    with pytest.raises(LaunchError) as caught:
        run()
    assert (caught.value.code, caught.value.argument) == ("E0913", "ids")


def test_out_of_range_value_is_named_with_its_index() -> None:
    with pytest.raises(LaunchError) as caught:
        plan(np.array([0, 1, 9, 2]), 5)
    assert caught.value.given == "value 9 at index [2]"
    assert caught.value.required.startswith("0 <= value < 5")


def test_nothing_known_is_an_error() -> None:
    with pytest.raises(LaunchError, match="range of the stored values is unknown"):
        plan(None, 5)


def test_trust_is_recorded() -> None:
    assert plan(TRUSTED, 5).trusted == ("ids",)


@pytest.mark.parametrize(
    ("bounds", "distinct", "accepted"),
    [
        (ValueBounds(0, 5), False, True), (ValueBounds(1, 4), False, True), (ValueBounds(-1, 5), False, False),
        (ValueBounds(0, 6), False, False), (ValueBounds(0, 5), True, False), (ValueBounds(0, 5, True), True, True),
    ],
)  # fmt: skip
def test_stated_bounds(bounds: ValueBounds, distinct: bool, accepted: bool) -> None:
    if accepted:
        plan(bounds, 5, distinct=distinct)
        return
    with pytest.raises(LaunchError) as caught:
        plan(bounds, 5, distinct=distinct)
    assert (caught.value.code, caught.value.argument) == ("E0913", "ids")


def rows(ids: Any, *, stored: list[int] | None = None, **options: Any) -> Any:
    """A launch of a kernel that declares `values(ids, 0, 5, distinct_in_rows=True)` of two rows of two numbers."""
    tensors = (tensor("ids", "in", "i32", const(2), const(2)),)
    checks = (ValueCheck("ids", const(0), const(5), False, distinct_in_rows=True),)
    device = Device(FakeDriver())
    kernel = Kernel(manifest(tensors, dims=(), value_checks=checks, grid=(const(1),)), b"", device)
    ids_array = device.from_numpy(np.array([0, 0, 0, 0] if stored is None else stored, np.int32).reshape(2, 2))
    return kernel.plan({"ids": ids_array}, values={} if ids is None else {"ids": ids}, **options)


@settings(max_examples=100, deadline=None)
@given(ids=st.lists(st.integers(0, 5), min_size=4, max_size=4), on_device=st.booleans())
def test_rows_are_accepted_exactly_when_their_numbers_differ(ids: list[int], on_device: bool) -> None:
    complies = all(v < 5 for v in ids) and ids[0] != ids[1] and ids[2] != ids[3]
    options: dict[str, Any] = {"stored": ids, "check_values": True} if on_device else {}
    check_plan(lambda: rows(None if on_device else np.array(ids).reshape(2, 2), **options), complies)


def test_equal_numbers_of_a_row_are_named() -> None:
    with pytest.raises(LaunchError, match="two stored values of a row are equal") as caught:
        rows(np.array([[1, 3], [4, 4]]))
    assert caught.value.given == "value 4 at flat indices 2 and 3"
    assert caught.value.required == "0 <= value < 5, distinct in each row"


@pytest.mark.parametrize(
    ("bounds", "accepted"),
    [
        (ValueBounds(0, 5, distinct_in_rows=True), True), (ValueBounds(0, 5, distinct=True), True), (ValueBounds(0, 5), False),
        (ValueBounds(0, 6, distinct_in_rows=True), False),
    ],
)  # fmt: skip
def test_stated_bounds_of_rows(bounds: ValueBounds, accepted: bool) -> None:
    check_plan(lambda: rows(bounds), accepted)


def test_a_callback_gets_the_word_of_rows() -> None:
    seen: list[Any] = []
    rows(lambda low, high, distinct, **words: bool(seen.append((low, high, distinct, words))) or True)
    assert seen == [(0, 5, False, {"distinct_in_rows": True})]


def test_callback_sees_the_obligation() -> None:
    seen: list[tuple[int, int, bool]] = []
    plan(lambda *obligation: bool(seen.append(obligation)) or True, 5, distinct=True)
    assert seen == [(0, 5, True)]
    with pytest.raises(LaunchError, match="refused the values"):
        plan(lambda low, high, distinct: False, 5)


def test_host_values_of_another_shape_are_no_evidence() -> None:
    with pytest.raises(LaunchError, match="not those of this tensor"):
        plan(np.zeros(3, np.int32), 5)
    with pytest.raises(LaunchError, match="not integers"):
        plan(np.zeros(4, np.float32), 5)


def test_evidence_for_a_tensor_without_obligation_is_an_error() -> None:
    kernel = Kernel(embedding_like(), b"", Device(FakeDriver()))
    arguments = {
        "ids": view(4096, "i32", (3,)), "table": view(1 << 20, "bf16", (5, 8)), "out": view(1 << 24, "bf16", (3, 8)),
        "scale": 1.0, "pos": 0,
    }  # fmt: skip
    with pytest.raises(LaunchError) as caught:
        kernel.plan(arguments, values={"ids": TRUSTED, "table": TRUSTED})
    assert (caught.value.code, caught.value.argument) == ("E0903", "table")


def offsets(ids: Any, *, ends: bool = True, distinct: bool = False, stored: list[int] | None = None, **options: Any) -> Any:
    """A launch of a kernel that declares `values(ids, 0, 5, sorted=True)` of four numbers."""
    tensors = (tensor("ids", "in", "i32", const(4)),)
    checks = (ValueCheck("ids", const(0), const(5), distinct, sorted=True, ends=ends),)
    device = Device(FakeDriver())
    kernel = Kernel(manifest(tensors, dims=(), value_checks=checks, grid=(const(1),)), b"", device)
    ids_array = device.from_numpy(np.array([0, 0, 0, 0] if stored is None else stored, np.int32))
    return kernel.plan({"ids": ids_array}, values={} if ids is None else {"ids": ids}, **options)


@settings(max_examples=150, deadline=None)
@given(ids=st.lists(st.integers(0, 5), min_size=4, max_size=4).map(lambda v: v if v[0] % 2 else sorted(v)),
       ends=st.booleans(), distinct=st.booleans(), on_device=st.booleans())  # fmt: skip
def test_sorted_values_are_accepted_exactly_when_they_are(ids: list[int], ends: bool, distinct: bool, on_device: bool) -> None:
    complies = all(v < 5 for v in ids) and ids == sorted(ids) and not (distinct and len(set(ids)) < 4)
    complies = complies and not (ends and (ids[0], ids[-1]) != (0, 4))

    def run() -> Any:
        options = {"stored": ids, "check_values": True} if on_device else {}
        return offsets(None if on_device else ids, ends=ends, distinct=distinct, **options)

    check_plan(run, complies)


def test_values_that_break_the_order_are_named() -> None:
    with pytest.raises(LaunchError) as caught:
        offsets([0, 3, 1, 4])
    assert caught.value.given == "value 3 at index 1, then 1"
    assert caught.value.required == "0 <= value < 5, none below the one before, both ends reached"
    with pytest.raises(LaunchError, match="do not reach both ends"):
        offsets([0, 1, 2, 3])


@pytest.mark.parametrize(
    ("bounds", "accepted"),
    [
        (ValueBounds(0, 5, sorted=True, ends=True), True), (ValueBounds(0, 5, sorted=True), False),
        (ValueBounds(0, 5), False), (ValueBounds(1, 5, sorted=True, ends=True), False),
    ],
)  # fmt: skip
def test_stated_order(bounds: ValueBounds, accepted: bool) -> None:
    if accepted:
        offsets(bounds)
        return
    with pytest.raises(LaunchError):
        offsets(bounds)


def test_a_callback_receives_the_order() -> None:
    seen: list[tuple[Any, Any]] = []
    offsets(lambda *positional, **keywords: bool(seen.append((positional, keywords))) or True)
    assert seen == [((0, 5, False), {"sorted": True, "ends": True})]
    with pytest.raises(LaunchError, match="refused the values"):
        offsets(lambda low, high, distinct, **keywords: False)
