"""The case of prompts by length: what is timed and in which order, what misses a goal, and what a budget leaves."""

from __future__ import annotations

import random
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_cuda_backend import SMALLEST

from ci.bench.engine import lengths
from ci.bench.engine.lengths_plot import parameters
from ci.bench.engine.lengths_report import goal_figures, is_tuned, missed, on_the_line, table
from ci.bench.front import Outcome, Unfinished
from engine.backends.cuda import CudaBackend
from engine.tools.dummy_weights import dummy_weights
from tests.runtime.fake_driver import FakeDriver
from tilec.runtime import Bundle, Device

CHUNK = 2048


def rows_of(*times: tuple[int, float], first: float = 0.1) -> list[dict[str, Any]]:
    """Rows of lengths with their times; each first prompt takes `first` ms longer than the second."""
    return [{"tokens": tokens, "first": time + first, "second": time, "median": time} for tokens, time in times]


def faults(rows: list[dict[str, Any]]) -> dict[int, list[str]]:
    """The goals that lengths miss, by length."""
    found = zip(rows, goal_figures(rows, CHUNK), strict=True)
    return {row["tokens"]: names for row, one in found if (names := missed(one))}


def test_the_lengths_are_sixty_odd_and_have_every_tuned_one() -> None:
    assert 60 <= len(lengths.LENGTHS) < 70 and list(lengths.LENGTHS) == sorted(set(lengths.LENGTHS))
    tuned = {16 << power for power in range(10)} | {CHUNK * count for count in range(1, 5)}
    assert tuned == {length for length in lengths.LENGTHS if is_tuned(length, CHUNK)}
    assert {
        1,
        2,
        15,
        17,
        31,
        33,
        63,
        65,
        127,
        129,
        255,
        257,
        385,
        401,
        511,
        513,
        769,
        900,
        1023,
        1025,
        2047,
        2049,
        4097,
        8193,
    } <= {*lengths.LENGTHS}


def test_a_smooth_curve_meets_all_goals() -> None:
    assert faults(rows_of(*((length, 2.0 + length / 100) for length in lengths.LENGTHS))) == {}


@pytest.mark.parametrize(
    ("tokens", "time", "found"),
    [
        (63, 2.72, {63: ["over_longer"]}),  # 64 takes 2.64
        (65, 3.1, {65: ["over_longer", "over_line"]}),  # the line is at 2.65, and 96 takes 2.96
        (2049, 26.0, {2049: ["over_line"]}),  # the cost of a chunk
        (8193, 100.0, {8193: ["over_line"]}),  # above the last tuned length the line goes on
        (64, 2.3, {48: ["over_longer"], 63: ["over_longer"]}),  # a tuned length that is fast shows others to be slow
    ],
)
def test_cliffs_are_found(tokens: int, time: float, found: dict[int, list[str]]) -> None:
    curve = {length: 2.0 + length / 100 for length in lengths.LENGTHS} | {tokens: time}
    assert faults(rows_of(*sorted(curve.items()))) == found


def test_a_dear_first_prompt_is_found() -> None:
    assert faults(rows_of((16, 2.0), (32, 2.0), first=0.31)) == {16: ["first_over_second"], 32: ["first_over_second"]}
    assert faults(rows_of((16, 2.0), (32, 2.0), first=0.29)) == {}
    assert faults(rows_of((8192, 100.0), first=0.9)) == {}
    assert faults(rows_of((8192, 100.0), first=1.1)) == {8192: ["first_over_second"]}


def test_the_line() -> None:
    tuned = [(16, 2.0), (32, 4.0), (64, 5.0)]
    assert [on_the_line(tokens, tuned) for tokens in (1, 16, 24, 32, 48, 64, 96)] == [2.0, 2.0, 3.0, 4.0, 4.5, 5.0, 6.0]
    assert on_the_line(100, tuned[:1]) == 2.0


def test_a_table_marks_what_misses_a_goal_and_counts_it() -> None:
    page = table({"models": [{"model": "m", "chunk": CHUNK, "rows": rows_of((16, 4.0), (17, 3.0), (32, 5.0), first=0.5)}]})
    assert "| m | 3 | 1.333 at 16 | 1 | 1.000 at 32 | 0 | 0.50 at 32 | 3 |" in page
    assert "| 16 | 4.00 | 4.50 | 4.00 | **1.333** | 1.000 | **+0.50** |" in page


@pytest.fixture
def backend(bundle: Bundle) -> Iterator[CudaBackend]:
    loaded = CudaBackend(bundle, Device(FakeDriver()))
    loaded.load(SMALLEST, dummy_weights(SMALLEST, "bf16"), 4096)
    yield loaded
    loaded.close()


def test_each_length_is_timed_first_and_again_in_a_random_order(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    prefill = backend.prefill
    monkeypatch.setattr(backend, "prefill", lambda sequence, ids: (ran.append(len(ids)), prefill(sequence, ids)))  # pyright: ignore
    rows = lengths.timed(backend, SMALLEST, (1, 17, 65, 2049), lambda: False)
    assert [row["tokens"] for row in rows] == [1, 17, 65, 2049] and all(row["median"] > 0 for row in rows)
    order = [1, 17, 65, 2049]
    random.Random(0).shuffle(order)
    assert ran == [length for length in order for _ in range(4 if length == 2049 else 6)] and order != sorted(order)


class Cases:
    """Runs the case on models of two layers; the clock goes on by a second whenever it is asked."""

    def __init__(self, bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds, self.closed = 0.0, 0

        def monotonic() -> float:
            self.seconds += 1.0
            return self.seconds

        def load(*_: Any) -> CudaBackend:
            found = CudaBackend(bundle, Device(FakeDriver()))
            found.load(SMALLEST, dummy_weights(SMALLEST, "bf16"), 4096)
            return found

        monkeypatch.setattr(lengths.time, "monotonic", monotonic)
        monkeypatch.setattr(lengths, "load_on_gpu", load)
        monkeypatch.setattr(lengths, "config_of", lambda _: SMALLEST)  # pyright: ignore
        monkeypatch.setattr(lengths, "BlockWeights", lambda *_: None)  # pyright: ignore
        monkeypatch.setattr(lengths, "LENGTHS", (1, 16, 17))

    def __call__(self, budget: float | None) -> Iterator[Outcome]:
        return lengths.measure(Namespace(bundles=Path(), models="qwen3-4b,qwen3-0.6b", budget=budget, name="lengths"))


@pytest.fixture
def case(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> Cases:
    return Cases(bundle, monkeypatch)


def test_all_models_are_in_the_last_outcome(case: Cases) -> None:
    *_, last = case(None)
    assert [(model["model"], len(model["rows"]), model["chunk"]) for model in last.data["models"]] == [
        ("qwen3-4b", 3, CHUNK), ("qwen3-0.6b", 3, CHUNK),
    ]  # fmt: skip
    assert last.status == 0 and last.whole and "## qwen3-0.6b" in last.pages["lengths.md"]
    assert last.pages["lengths.svg"].count("<svg") == 1


@pytest.mark.parametrize(("budget", "found"), [(3.5, [2]), (4.5, [3]), (6.5, [3, 1]), (0.5, [])])
def test_a_budget_ends_lengths_and_what_was_timed_is_written(case: Cases, budget: float, found: list[int]) -> None:
    timed: list[int] = []
    with pytest.raises(Unfinished, match=f"^{sum(found)} of 6 lengths"):
        for one in case(budget):
            timed = [len(model["rows"]) for model in one.data["models"]]
    assert timed == found


def test_models_are_in_order_of_their_parameters() -> None:
    names = ["qwen3-4b", "qwen3-0.6b", "qwen3-32b", "qwen3-1.7b"]
    assert sorted(names, key=parameters) == ["qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-32b"] and parameters("m") == 0.0
