"""Goals for cards that nobody here has measured, against predictions: whether each is met, and what bounds it if it is not.

Of a kernel that misses its goal the time that each resource alone would take is shown, and what the model predicts of other
loops: without the resource that bounds them; with the tensor cores as the only one; and the same without a power limit, at the
highest clock. All keep epilogue and memory. They are limits of the model, not schedules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ci.bench.judges.time_model_predictions import ATTENTION, PRODUCT, values_of
from ci.bench.judges.time_model_rows import Kernels
from tilec.cost_model.cards import CARDS, Card
from tilec.cost_model.cycles import LOOP_RESOURCES, TENSOR
from tilec.cost_model.estimate import Prepared, estimate


@dataclass(frozen=True, slots=True)
class Goal:
    """What is to reach `least` on a card: of a product or attention the share of the card's dense rate, at a shape; of the
    decode of a model tokens per second, at every number of filled slots that is predicted."""

    card: str
    what: str
    shape: str
    least: float


GOALS: Final = (
    Goal("b200", PRODUCT, "8192 x 8192 x 8192", 0.90),
    Goal("b200", ATTENTION, "8192 tokens", 0.70),
)
DECODE_GOALS: Final = (Goal("b200", "decode", "qwen3-32b", 82), Goal("rtx5090", "decode", "qwen3-4b", 171))


def goals(made: Kernels, rows: Sequence[Mapping[str, Any]], decode: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each goal; `rows` are the predictions of kernels, `decode` those of steps."""
    found = [_kernel(made, goal, _row(rows, goal)) for goal in GOALS]
    for goal in DECODE_GOALS:
        speeds = [
            row["predicted_tok_s"] for row in decode if (row["card"], row["model"]) == (CARDS[goal.card].name, goal.shape)
        ]
        found.append(_reached(goal, min(speeds), "tokens per second"))
    return found


def _row(rows: Sequence[Mapping[str, Any]], goal: Goal) -> Mapping[str, Any]:
    wanted = (CARDS[goal.card].name, goal.what, goal.shape)
    return next(row for row in rows if (row["card"], row["what"], row["shape"]) == wanted)


def _reached(goal: Goal, predicted: float, unit: str) -> dict[str, Any]:
    return {
        "card": CARDS[goal.card].name, "what": goal.what, "shape": goal.shape, "unit": unit, "goal": goal.least,
        "predicted": predicted, "met": predicted >= goal.least,
    }  # fmt: skip


def _kernel(made: Kernels, goal: Goal, row: Mapping[str, Any]) -> dict[str, Any]:
    card = CARDS[goal.card]
    kernel, values = values_of(goal.what, goal.shape)
    ready = made.shipped(kernel, card.arch)[row["choice"]].on(card, values)
    whole = estimate(ready, card)
    share = row["of_peak"] * whole.microseconds
    only = dict.fromkeys(LOOP_RESOURCES - {TENSOR}, 0.0)
    return _reached(goal, row["of_peak"], "of the dense rate") | {
        "choice": row["choice"], "parts_us": {name: round(time, 1) for name, time in whole.parts.items()},
        "bound": whole.bound, "clock_ghz": round(whole.clock / 1e9, 2),
        "without_bound": _limit(ready, card, {whole.bound: 0.0}, share),
        "only_tensor_cores": _limit(ready, card, only, share),
        "without_power_limit": _limit(ready, replace(card, watts=math.inf), only, share),
    }  # fmt: skip


def _limit(ready: Prepared, card: Card, scale: Mapping[str, float], share: float) -> dict[str, Any]:
    found = estimate(ready, card, scale=scale)
    return {
        "of_peak": round(share / found.microseconds, 3), "bound": found.bound, "clock_ghz": round(found.clock / 1e9, 2),
    }  # fmt: skip
