"""The simulation of loads: costs that give back what they were fitted to, times that follow from them, and what the number of
tokens between two steps does to first tokens."""

from __future__ import annotations

from typing import Any

import pytest

from ci.bench.engine.load_simulation import CACHE_SECONDS, CONTEXT, SECONDS, Costs, line, simulated
from ci.bench.engine.load_traffic import Asked, arrivals, summary
from engine.paged_prompts import Piece

RECORD = {
    "prefill_ms": {"512": {"pages": 8.0}, "2048": {"pages": 26.0}, "8192": {"pages": 130.0}},
    "tok_s": {"8": {"greedy": 3000.0}, "32": {"greedy": 10_000.0}, "128": {"greedy": 22_000.0}, "256": {"greedy": 26_000.0}},
}


@pytest.fixture(scope="module")
def costs() -> Costs:
    return Costs.fitted(RECORD)


def piece(first: int, tokens: int) -> Piece:
    return Piece((), first, range(tokens))


def test_costs_give_back_what_they_were_fitted_to(costs: Costs) -> None:
    assert costs.of_prompts([piece(0, 512)]) == pytest.approx(8e-3)
    assert costs.of_prompts([piece(0, 2048)]) == pytest.approx(26e-3)
    assert sum(costs.of_prompts([piece(first, 2048)]) for first in range(0, 8192, 2048)) == pytest.approx(130e-3)
    for rows in (8, 32, 128, 256):
        assert costs.of_step(rows, rows * CONTEXT) == pytest.approx(rows / RECORD["tok_s"][str(rows)]["greedy"])
    assert costs.of_step(33, 0) == costs.of_step(64, 0) == pytest.approx((2 * costs.steps[32] + costs.steps[128]) / 3)
    together, alone = costs.of_prompts([piece(0, 100), piece(64, 100)]), costs.of_prompts([piece(0, 256)])
    assert together == pytest.approx(alone + costs.pair * (100 * 50 + 100 * 114 - 256 * 128))


def test_times_of_a_request_alone_follow_from_costs(costs: Costs) -> None:
    """Steps are enqueued before the tokens of those before them are read, so that only the device's time counts."""
    [seen] = simulated([Asked(1.0, tuple(range(512)), 5)], costs, 4096)
    assert seen.to_first == pytest.approx(8e-3 + sum(SECONDS[one] for one in ("submit", "launch", "read", "joined")))
    gaps = [after - before for before, after in zip(seen.times, seen.times[1:], strict=False)]
    step = costs.of_step(1, 512)
    assert gaps[0] == pytest.approx(step + SECONDS["joined"] + SECONDS["step"] + SECONDS["read"], abs=3e-4)
    assert gaps[1:] == pytest.approx([step + CACHE_SECONDS * number for number in (1, 2, 3)], abs=1e-6)


def test_more_tokens_between_steps_give_first_tokens_sooner_and_longer_gaps(costs: Costs) -> None:
    asked = arrivals(16.0, 6.0, 1)
    found: dict[int, Any] = {tokens: summary(simulated(asked, costs, tokens)) for tokens in (512, 2048, 4096)}
    first = [one["first_ms"]["p95"] for one in found.values()]
    gaps = [one["gap_ms"]["p99"] for one in found.values()]
    assert first == sorted(first, reverse=True) and first[1] > 1.03 * first[2]
    assert gaps == sorted(gaps) and gaps[2] < 3 * 26 + 10, "two launches and a step, and no third"
    assert {one["requests_digest"] for one in found.values()} == {found[512]["requests_digest"]}
    assert line("a", "16", found[4096]).split()[3] == "|"
