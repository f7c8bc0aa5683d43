"""What must hold of predicted times whatever the constants are, on random launches, cards and calibrations."""

from __future__ import annotations

import dataclasses
import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cost_model.planned_launches import H200, ONE_TILE, PERSISTENT, PINGPONG, launch, matmul, product
from tilec.cost_model.calibration import CALIBRATION, FITTED, Calibration
from tilec.cost_model.cards import CARDS, Card
from tilec.cost_model.cycles import LOOP_RESOURCES, scheduled
from tilec.cost_model.estimate import Prepared, estimate
from tilec.target.schedule import Overrides

EXTENTS = st.integers(1, 40).map(lambda count: 64 * count)
SCHEDULES = st.sampled_from([PINGPONG, PERSISTENT, ONE_TILE])
FACTORS = st.floats(1.0, 4.0)


@st.composite
def launches(draw: st.DrawFn) -> Prepared:
    """A product of random extents with one of three schedules."""
    return launch(matmul(128, 128, draw(SCHEDULES)), product(draw(EXTENTS), draw(EXTENTS), draw(EXTENTS)))


def time(ready: Prepared, card: Card = H200, known: Calibration = CALIBRATION) -> float:
    return estimate(ready, card, known).microseconds


@given(launches(), FACTORS)
def test_a_card_with_more_of_anything_is_not_slower(ready: Prepared, factor: float) -> None:
    better = [
        dataclasses.replace(H200, memory=H200.memory * factor), dataclasses.replace(H200, tensor=H200.tensor * factor),
        dataclasses.replace(H200, watts=H200.watts * factor),
    ]  # fmt: skip
    assert all(time(ready, card) <= time(ready) * (1 + 1e-6) for card in better)


@given(launches(), FACTORS)
def test_a_constant_that_costs_more_does_not_make_it_faster(ready: Prepared, factor: float) -> None:
    costs = ("node", "start", "latency", "next_block", "gap", "copy_issue", "store_cycles", "tail", "mac_joules")
    for name in costs:
        dearer = dataclasses.replace(CALIBRATION, **{name: getattr(CALIBRATION, name) * factor})
        assert time(ready, known=dearer) >= time(ready) * (1 - 1e-6), name


@given(EXTENTS, EXTENTS, EXTENTS, SCHEDULES)
def test_deeper_products_take_longer(m: int, n: int, k: int, overrides: Overrides) -> None:
    made = matmul(128, 128, overrides)
    assert time(launch(made, product(m, n, k))) < time(launch(made, product(m, n, k + 64)))


@given(launches())
def test_no_launch_is_faster_than_its_roofline(ready: Prepared) -> None:
    """Unique bytes over the nominal bandwidth, multiply-adds over the nominal rate."""
    found = estimate(ready, H200)
    bytes_time = (ready.traffic.read + ready.traffic.written) / H200.memory
    product_time = ready.multiply_adds / (H200.tensor * H200.multiprocessors * H200.clock)
    assert found.microseconds > 1e6 * max(bytes_time, product_time)
    assert 0.5 * H200.clock <= found.clock <= H200.clock
    assert found.bound in found.parts


@given(launches())
def test_an_overlapped_launch_is_not_slower(ready: Prepared) -> None:
    assert estimate(ready, H200, overlapped=True).microseconds <= time(ready)


@given(launches(), st.sampled_from(sorted(LOOP_RESOURCES)), st.floats(0, 1))
def test_loops_that_take_less_of_a_resource_are_not_slower(ready: Prepared, resource: str, factor: float) -> None:
    card = dataclasses.replace(H200, watts=1e9)  # at one clock
    whole, less = estimate(ready, card), estimate(ready, card, scale={resource: factor})
    assert less.microseconds <= whole.microseconds
    assert less.parts[resource] == pytest.approx(factor * whole.parts[resource])
    assert {**less.parts, resource: 0} == {**whole.parts, resource: 0}


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 9))
def test_blocks_go_to_the_slot_that_is_free_first(lengths: list[int], slots: int) -> None:
    ends = [0.0] * slots
    for length in lengths:
        heapq.heappush(ends, heapq.heappop(ends) + length)
    found = scheduled(np.array(lengths, dtype=float), slots)
    assert found == max(ends)
    assert max(max(lengths), sum(lengths) / slots) <= found <= sum(lengths) / slots + max(lengths)


def test_more_power_is_needed_for_the_highest_clock() -> None:
    """A long product throttles, a short one does not."""
    long, short = (launch(matmul(128, 128, PINGPONG), product(side, side, side)) for side in (4096, 256))
    assert estimate(long, H200).clock < 0.9 * H200.clock
    assert estimate(short, H200).clock == H200.clock
    unlimited = dataclasses.replace(H200, watts=1e6)
    assert estimate(long, unlimited).clock == H200.clock


@pytest.mark.parametrize("card", CARDS.values(), ids=list(CARDS))
def test_every_card_names_its_sources(card: Card) -> None:
    assert "datasheet" in card.source or "whitepaper" in card.source
    assert card.measured is (card.arch == "sm_90a")


def test_every_fitted_constant_is_one() -> None:
    assert {*FITTED} <= {field.name for field in dataclasses.fields(Calibration)}
