"""The choices of a tuning for every length, found from a few lengths: the same as by evaluating each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilec.step.expressions import divisors, parse
from tilec.step.requests import _spans
from tilec.step.tuning import Choice, read_tuning

TILES = "cdiv(cdiv(out[0], BM) * cdiv(out[1], BN), at_once) * time"
COSTS = (
    TILES,
    "cdiv(out[0], BM) * BM * time + cdiv(out[0], BN) * at_once",
    "out[0] * time + " + TILES,
    "cdiv(out[0] + 7, BM) * time",
    "cdiv(out[0], BM + 1) * time",
    "time if out[0] < at_once else 2 * " + TILES,
    "cdiv(time * out[0], BM)",
    "time * out[1]",
    "cdiv(cdiv(out[0], BM), BN) * time",
)
AXES = ("tokens", "2 * tokens", "cdiv(tokens, 3)", "max(tokens, 9)")
ROWS = st.fixed_dictionaries(
    {"BM": st.integers(1, 40), "BN": st.integers(1, 40), "at_once": st.integers(1, 30), "time": st.integers(1, 50)}
)


def choice(cost: str, rows: list[dict[str, int]]) -> Choice:
    table = {"kernel": "k", "cost": cost, "choices": rows, "measured": "here"}
    return read_tuning([table]).choices["k"]


def cheapest(tuned_choice: Choice, shape: list[int]) -> dict[str, int]:
    """The cheapest candidate at these extents, with each row's cost computed at exactly these."""
    extents = {f"out[{axis}]": extent for axis, extent in enumerate(shape)}
    return min(tuned_choice.of, key=lambda row: tuned_choice.cost.value({**extents, **row[0], **row[1]}))[0]  # pyright: ignore[reportReturnType]


@given(st.sampled_from(COSTS), st.sampled_from(AXES), st.lists(ROWS, min_size=1, max_size=5), st.integers(1, 5))
def test_each_length_of_a_span_costs_what_its_first_does(cost: str, axis: str, rows: list[dict[str, int]], first: int) -> None:
    lengths = range(first, 100)
    tuned_choice, shapes = choice(cost, rows), {"out": [parse(axis), parse("24")]}
    spans = list(_spans(tuned_choice, shapes, lengths))
    assert [length for begin, end in spans for length in range(begin, end + 1)] == list(lengths)
    for begin, end in spans:
        least = tuned_choice.least({"out": [shapes["out"][0].value({"tokens": begin}), 24]})
        for length in range(begin, end + 1):
            assert cheapest(tuned_choice, [shapes["out"][0].value({"tokens": length}), 24]) is least


@given(
    st.sampled_from(COSTS), st.lists(ROWS, min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(1, 200), st.integers(1, 200)), min_size=1, max_size=30),
)  # fmt: skip
def test_the_choice_for_any_extents_is_the_cheapest(
    cost: str, rows: list[dict[str, int]], shapes: list[tuple[int, int]]
) -> None:
    tuned_choice = choice(cost, rows)
    for shape in shapes:
        assert tuned_choice.least({"out": list(shape)}) is cheapest(tuned_choice, list(shape))


@pytest.mark.parametrize(
    ("cost", "found"),
    [(TILES, {"BM"}), ("cdiv(out[0], BM) + cdiv(out[0], BN)", {"BM", "BN"}), ("cdiv(out[0], 64)", None), ("out[0]", None),
     ("cdiv(out[0], BM) + out[0]", None), ("cdiv(7, out[0])", None), ("out[1] * 2", set())],
)  # fmt: skip
def test_divisors(cost: str, found: set[str] | None) -> None:
    assert divisors(parse(cost).node, "out[0]") == found


def test_few_lengths_are_evaluated_where_the_cost_counts_tiles() -> None:
    tuned_choice = choice(TILES, [{"BM": size, "BN": 128, "at_once": 132, "time": size} for size in (64, 128, 256)])
    assert len(list(_spans(tuned_choice, {"out": [parse("tokens"), parse("4096")]}, range(1, 2049)))) == 32
    assert list(_spans(tuned_choice, {"out": [parse("tokens"), parse("4096")]}, (2, 4, 8))) == [(2, 2), (4, 4), (8, 8)]  # pyright: ignore[reportArgumentType]
