"""Launches in a series: they share the numbers but not the pointers, and none accesses more than was checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from fake_driver import FakeDriver, argument_bytes
from launch_contracts import SCHEDULE, embedding_like, loaded, manifest, tensor, view
from launch_contracts import T as rows

from tilec.ir.expr import sym
from tilec.runtime import Kernel, LaunchError, ValueBounds
from tilec.runtime.series import Series

TEN_ROWS = {"x": view(4096, "f32", (10,))}
OTHER_ADDRESS = {"x": view(8192, "f32", (10,))}


def grid_of_rows() -> Series:
    driver = FakeDriver()
    kernel = loaded(replace(manifest((tensor("x", "out", "f32", rows),)), grid=(sym("T"),)), driver)
    return Series(kernel, [TEN_ROWS, OTHER_ADDRESS])


def sent(series: Series, index: int) -> tuple[tuple[int, int, int], int, int]:
    """Grid, pointer and extent of one launch."""
    driver = series.kernel.device.driver
    series.launch(index, 7)
    launch = driver.launches.pop()
    pointer, extent = argument_bytes(launch, [8, 4])
    return launch.grid, int.from_bytes(pointer, "little"), int.from_bytes(extent, "little")


def test_every_launch_has_its_pointer_and_the_numbers_of_all() -> None:
    series = grid_of_rows()
    assert [sent(series, 0), sent(series, 1)] == [((10, 1, 1), 4096, 10), ((10, 1, 1), 8192, 10)]
    shorter = series.at({"x": (3,)}, {}, {})
    assert sent(series, 1) == ((10, 1, 1), 8192, 10)  # until they are used
    series.use(shorter)
    assert [sent(series, 0), sent(series, 1)] == [((3, 1, 1), 4096, 3), ((3, 1, 1), 8192, 3)]
    series.use(series.at({"x": (10,)}, {}, {}))
    assert sent(series, 1) == ((10, 1, 1), 8192, 10)


@pytest.mark.parametrize(("blocks", "max_blocks"), [(None, 3), (2, 6)])
def test_persistent_blocks_are_limited_to_those_that_run_at_once(blocks: int | None, max_blocks: int) -> None:
    schedule = {**SCHEDULE, "persistent": True, "blocks": blocks}
    kernel_manifest = replace(manifest((tensor("x", "out", "f32", rows),)), grid=(sym("T"),), schedule=schedule)
    driver = FakeDriver(multiprocessors=3)
    kernel = loaded(kernel_manifest, driver)
    kernel({"x": view(4096, "f32", (10,))})
    kernel({"x": view(4096, "f32", (2,))})
    assert [launch.grid for launch in driver.launches] == [(max_blocks, 1, 1), (2, 1, 1)]
    series = Series(kernel, [TEN_ROWS, OTHER_ADDRESS])
    assert sent(series, 1) == ((max_blocks, 1, 1), 8192, 10)
    series.use(series.at({"x": (2,)}, {}, {}))
    assert sent(series, 1) == ((2, 1, 1), 8192, 2)


def test_no_tensor_extends_beyond_what_was_checked() -> None:
    series = grid_of_rows()
    with pytest.raises(LaunchError, match="reaches beyond what was checked") as caught:
        series.at({"x": (11,)}, {}, {})
    assert caught.value.code == "E0914"
    assert sent(series, 0) == ((10, 1, 1), 4096, 10)


@pytest.mark.parametrize("shape", [(10, 1), (0,)])
def test_the_contract_is_checked_for_other_extents(shape: tuple[int, ...]) -> None:
    with pytest.raises(LaunchError):
        grid_of_rows().at({"x": shape}, {}, {})


def in_parts(kernel: Kernel, arguments: Sequence[Mapping[str, Any]]) -> Series:
    """A series that is made in parts, after each of which its maker may do something else."""
    making, pauses = Series.in_parts(kernel, arguments), 0
    while True:
        try:
            next(making)
        except StopIteration as made:
            assert pauses == len(arguments)
            return made.value
        pauses += 1


MAKERS = (Series, in_parts)


@pytest.mark.parametrize("made", MAKERS)
def test_launches_must_be_alike(made: Callable[..., Series]) -> None:
    kernel = loaded(manifest((tensor("x", "out", "f32", rows),)), FakeDriver())
    with pytest.raises(LaunchError, match="differ in shapes"):
        made(kernel, [TEN_ROWS, {"x": view(8192, "f32", (9,))}])


@pytest.mark.parametrize("made", MAKERS)
def test_each_launch_is_checked_fully(made: Callable[..., Series]) -> None:
    kernel = loaded(manifest((tensor("x", "out", "f32", rows),)), FakeDriver())
    with pytest.raises(LaunchError, match="aligned"):
        made(kernel, [TEN_ROWS, {"x": view(8192 + 1, "f32", (10,))}])


def test_a_series_in_parts_has_the_same_launches() -> None:
    kernel = grid_of_rows().kernel
    for made in MAKERS:
        series = made(kernel, [TEN_ROWS, OTHER_ADDRESS])
        assert [sent(series, index) for index in (0, 1)] == [((10, 1, 1), 4096, 10), ((10, 1, 1), 8192, 10)]


def test_evidence_about_stored_integers_is_required_again() -> None:
    kernel_manifest = embedding_like()
    kernel = loaded(kernel_manifest, FakeDriver())
    arguments = {
        spec.name: view(
            1 << (20 + number), spec.dtype, tuple(64 if dim.constant is None else dim.constant for dim in spec.dims)
        )
        for number, spec in enumerate(kernel_manifest.tensors)
    }
    arguments |= {spec.name: 1 for spec in kernel_manifest.scalars}
    names = {check.tensor for check in kernel_manifest.value_checks}
    bounds = {name: ValueBounds(0, 1, True) for name in names}
    series = Series(kernel, [arguments], bounds)
    shapes = {spec.name: arguments[spec.name].shape for spec in kernel_manifest.tensors}
    scalars = {spec.name: 1 for spec in kernel_manifest.scalars}
    assert series.at(shapes, scalars, bounds).grid == series.grid
    with pytest.raises(LaunchError) as caught:
        series.at(shapes, scalars, {})
    assert caught.value.code == "E0913"
