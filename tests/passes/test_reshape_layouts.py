"""A reshape keeps every element in its register if the digits of the layout divide the new axes."""

from __future__ import annotations

import itertools
from math import prod

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tilec.atoms.mma_sync import WarpGrid, accumulator
from tilec.ir.layouts.blocked_layouts import natural, reshaped, row_major
from tilec.ir.layouts.layout import Digit, Layout


def position(coordinates: tuple[int, ...], shape: tuple[int, ...]) -> int:
    """Row-major position of coordinates; a coordinate past the end of an axis wraps."""
    return sum(c % extent * step for c, extent, step in zip(coordinates, shape, row_major(shape), strict=True))


def assert_same_threads(
    layout: Layout, source: tuple[int, ...], reshaped_layout: Layout, target: tuple[int, ...], warps: int
) -> None:
    assert reshaped_layout.problem(target, warps) is None
    for register, lane, warp in itertools.product(range(layout.num_registers), range(32), range(warps)):
        before = position(layout.coordinates(register, lane, warp), source)
        assert position(reshaped_layout.coordinates(register, lane, warp), target) == before


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ((128,), (2, 64)),
        ((4, 64), (256,)),
        ((2, 3, 64), (6, 64)),
        ((6, 64), (3, 2, 64)),
        ((32, 8), (8, 32)),
        ((1, 512), (4, 1, 128)),
        ((16, 16), (16, 1, 16)),
        ((2560,), (20, 128)),
        ((20, 128), (2560,)),
        ((64,), (64, 1)),
        ((1000,), (125, 8)),
        ((125, 8), (1, 1000)),
        ((4, 1000), (2, 2, 1000)),
        ((24, 100), (24, 1, 100)),
    ],
)
@pytest.mark.parametrize("warps", [1, 4])
def test_these_reshapes_rename_registers(source: tuple[int, ...], target: tuple[int, ...], warps: int) -> None:
    layout = natural(source, warps)
    reshaped_layout = reshaped(layout, source, target)
    assert reshaped_layout is not None
    assert_same_threads(layout, source, reshaped_layout, target, warps)
    back = reshaped(reshaped_layout, target, source)
    assert back is not None
    assert_same_threads(reshaped_layout, target, back, source, warps)


def test_an_axis_that_ends_inside_a_digit_is_refused() -> None:
    assert reshaped(natural((96,), 1), (96,), (32, 3)) is None
    assert reshaped(natural((6, 64), 1), (6, 64), (2, 3, 64)) is None  # pairs of rows, which do not divide an axis of 3
    assert reshaped(Layout(1, (Digit(3, 0, 1),), (Digit(32, 0, 3),), ()), (96,), (24, 4)) is None


def test_a_position_past_an_inner_axis_does_not_reach_the_next_row() -> None:
    layout = natural((4, 1000), 4)
    assert layout.wraps((4, 1000))
    assert reshaped(layout, (4, 1000), (4000,)) is None
    assert reshaped(layout, (4, 1000), (4, 125, 8)) is None


def test_fragments_of_heads_split_and_join() -> None:
    layout = accumulator(64, 64, WarpGrid(2, 2))
    reshaped_layout = reshaped(layout, (64, 64), (4, 16, 64))
    assert reshaped_layout is not None
    assert_same_threads(layout, (64, 64), reshaped_layout, (4, 16, 64), 4)
    flat = reshaped(layout, (64, 64), (4096,))
    assert flat is not None
    assert_same_threads(layout, (64, 64), flat, (4096,), 4)


extents = st.lists(st.sampled_from([1, 2, 3, 4, 5, 7, 8, 12, 16, 25, 40, 100]), min_size=1, max_size=4)


@settings(deadline=None)
@given(extents, extents, st.sampled_from([1, 2, 4]))
def test_any_reshape_is_right_or_refused(source: list[int], target: list[int], warps: int) -> None:
    assume(prod(source) <= 4096)
    while prod(target) > 1 and prod(source) % prod(target):
        target.pop()
    shape = (*source,)
    new = (prod(source) // prod(target), *target) if prod(source) % prod(target) == 0 else (prod(source),)
    layout = natural(shape, warps)
    reshaped_layout = reshaped(layout, shape, new)
    if reshaped_layout is not None:
        assert_same_threads(layout, shape, reshaped_layout, new, warps)
