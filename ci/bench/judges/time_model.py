"""The model of time (`tilec/cost_model`) against every measured product and attention, and what it predicts for other cards.

    python ci/bench/judges.py time_model          compare, and predict sm_100a and sm_120a
    python ci/bench/judges.py time_model --fit    print constants fitted to half of the shapes

Measured rows are those of `products.json`, `attention.json` and the records of `tilec tune` (`time_model_rows`); no row is left
out. Half of the shapes, by a checksum of their text, are held out: no constant was fitted to them. Errors are (predicted -
measured) / measured. Needs no GPU. Predictions for cards that nobody here has measured are predictions; what others measured on
them with kernels of their own is in the same page.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ci.bench.front import Outcome
from ci.bench.judges.time_model_decode import decode_data
from ci.bench.judges.time_model_fit import fitted, rounded
from ci.bench.judges.time_model_goals import goals
from ci.bench.judges.time_model_page import page_of
from ci.bench.judges.time_model_predictions import elsewhere, predictions
from ci.bench.judges.time_model_rows import EARLIER, Row, all_rows, kernels
from tilec.cost_model.calibration import CALIBRATION, FITTED
from tilec.cost_model.cards import CARDS
from tilec.tuning.prediction import predict

GOAL: Final = 0.1
"""Error of every row that the model is meant to stay below."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("--fit", action="store_true", help="print fitted constants, and write nothing")


def measure(options: argparse.Namespace) -> Outcome | int:
    """Predict every row."""
    with kernels() as made:
        predicted, rows = predictions(made), all_rows(made)
        if options.fit:
            found = rounded(fitted([row for row in rows if not row.held_out]))
            print("\n".join(f"{name} = {getattr(found, name):.3g}" for name in FITTED))
            return 0
        compared, decode = [_compared(row) for row in rows], decode_data()
        data = {
            "constants": dataclasses.asdict(CALIBRATION), "fitted": list(FITTED), "goal": GOAL,
            "rows": [row for row in compared if row["source"] != EARLIER],
            "summary": _summaries(compared), "groups": _groups(compared), "bounds": _bounds(compared),
            "choices": _choices(compared), "predicted": predicted, "elsewhere": elsewhere(predicted),
            "goals": goals(made, predicted, decode["predicted"]), "decode": decode,
        }  # fmt: skip
    return Outcome(data, {f"{options.name}.md": page_of(data)})


def _compared(row: Row) -> dict[str, Any]:
    found = predict(row.prepared, CARDS[row.card], overlapped=row.overlapped)
    microseconds = sum(one.microseconds for one in found)
    return {
        "source": row.source, "card": row.card, "name": row.name, "shape": row.shape, "overlapped": row.overlapped,
        "held_out": row.held_out, "measured_us": round(row.measured, 3), "predicted_us": round(microseconds, 3),
        "error": round(microseconds / row.measured - 1, 4), "bound": found[0].bound,
        "clock_ghz": round(found[0].clock / 1e9, 3),
    }  # fmt: skip


def _groups(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The distribution of errors by source, card and half, and of all rows of today's machine code."""
    keys = dict.fromkeys((row["source"], row["card"], row["overlapped"], row["held_out"]) for row in rows)
    found = [
        {"source": source, "card": card, "overlapped": overlapped, "held_out": held_out}
        | summary(row for row in rows if _key(row) == (source, card, overlapped, held_out))
        for source, card, overlapped, held_out in keys
    ]
    return [*found, *({"source": "all"} | one for one in _summaries(rows).values())]


def _summaries(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The distribution over all rows of today's machine code, of each half."""
    today = [row for row in rows if row["source"] != EARLIER]
    return {
        name: {"held_out": half} | summary(row for row in today if row["held_out"] is half)
        for name, half in (("fit", False), ("held_out", True))
    }


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["source"], row["card"], row["overlapped"], row["held_out"]


def summary(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Count, median signed error, and of sizes of errors median, 90th percentile, worst, share within the goal."""
    errors: list[float] = [row["error"] for row in rows]
    sizes: list[float] = sorted(abs(error) for error in errors)
    return {
        "count": len(sizes), "bias": round(statistics.median(errors), 4), "median": round(statistics.median(sizes), 4),
        "p90": round(sizes[int(0.9 * (len(sizes) - 1))], 4), "worst": round(sizes[-1], 4),
        "within": round(sum(size <= GOAL for size in sizes) / len(sizes), 4),
    }  # fmt: skip


def _bounds(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """How many rows of each source each resource bounds."""
    sources = dict.fromkeys(row["source"] for row in rows if row["source"] != EARLIER)
    return {source: dict(Counter(row["bound"] for row in rows if row["source"] == source).most_common()) for source in sources}


def _choices(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """By source: how much longer the candidate takes that the model would choose than the fastest that was measured, as mean
    and worst fractions over the shapes with more than one candidate."""
    found: list[dict[str, Any]] = []
    plain = [row for row in rows if row["source"] != EARLIER and not row["overlapped"]]
    for source in dict.fromkeys(row["source"] for row in plain):
        by_shape: dict[str, list[Mapping[str, Any]]] = {}
        for row in plain:
            if row["source"] == source:
                by_shape.setdefault(row["shape"], []).append(row)
        regrets: list[float] = [
            min(same, key=lambda row: row["predicted_us"])["measured_us"] / min(row["measured_us"] for row in same) - 1
            for same in by_shape.values()
            if len(same) > 1
        ]
        mean = round(statistics.fmean(regrets), 4)
        found.append({"source": source, "shapes": len(regrets), "mean": mean, "worst": round(max(regrets), 4)})
    return found
