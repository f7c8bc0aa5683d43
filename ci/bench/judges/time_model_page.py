"""The page of the result `time_model`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ci.bench.markdown import grid, page

HALVES: Final = {False: "fit", True: "held out"}
WORST: Final = 25


def page_of(data: Mapping[str, Any]) -> str:
    """Distribution of errors, the worst rows, what bounds what, constants, predictions, and every row."""
    goal = f"{data['goal']:.0%}"
    misses = [row for row in data["rows"] if abs(row["error"]) > data["goal"]]
    return page([
        "# The model of time against measurements", "",
        "Predicted by `tilec/cost_model` from each kernel's own schedule, without running it. Errors are (predicted -",
        "measured) / measured. *fit*: constants were fitted to these rows; *held out*: to none of them. The form of the",
        "model was chosen with all rows in sight, so held-out rows check its constants, not its form.", "",
        *grid(("rows", "card", "half", "rows", "median signed", "median", "90 %", "worst", f"within {goal}"),
              map(_group, data["groups"]), left=3), "",
        f"{len(misses)} of {len(data['rows'])} rows of today's machine code are off by more than {goal}. The worst:", "",
        *_rows(sorted(misses, key=lambda row: -abs(row["error"]))[:WORST]), "",
        "## Choosing a tile by predicted times", "",
        "How much longer the candidate takes that the model would choose than the fastest that was measured.", "",
        *grid(("rows", "shapes", "mean", "worst"), ((one["source"], one["shapes"], f"{one['mean']:.1%}", f"{one['worst']:.1%}")
              for one in data["choices"])), "",
        "## What bounds the measured launches", "",
        *grid(("rows", "bound", "launches"), ((source, bound, count) for source, bounds in data["bounds"].items()
              for bound, count in bounds.items()), left=2), "",
        "## Predictions for cards that nobody has measured", "",
        "*Predicted*, never compared with a measurement. Of the choices, the fastest is shown.", "",
        *grid(("card", "schedule", "what", "shape", "choice", "us", "TFLOP/s", "bound"), map(_prediction, data["predicted"]),
              left=5), "",
        "## Constants", "",
        *grid(("constant", "value", "fitted"), ((name, f"{value:.4g}", "yes" if name in data["fitted"] else "")
              for name, value in data["constants"].items())), "",
        "## Every row", "", *_rows(data["rows"]),
    ])  # fmt: skip


def _group(one: Mapping[str, Any]) -> Sequence[str]:
    source = one["source"] + (", overlapped" if one.get("overlapped") else "")
    numbers = [
        f"{one[name]:+.1%}" if name == "bias" else f"{one[name]:.1%}" for name in ("bias", "median", "p90", "worst", "within")
    ]
    return [source, one.get("card", "both"), HALVES[one["held_out"]], str(one["count"]), *numbers]


def _rows(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    cells = (
        (row["card"], row["name"], row["shape"], HALVES[row["held_out"]], row["bound"], f"{row['measured_us']:.2f}",
         f"{row['predicted_us']:.2f}", f"{row['error']:+.1%}")
        for row in rows
    )  # fmt: skip
    return grid(("card", "launch", "shape", "half", "bound", "measured, us", "predicted, us", "error"), cells, left=5)


def _prediction(one: Mapping[str, Any]) -> Sequence[str]:
    return [
        f"{one['card']} ({one['arch']})", one["schedule"], one["what"], one["shape"], one["choice"],
        f"{one['predicted_us']:.1f}", f"{one['tflops']:.0f}", one["bound"],
    ]  # fmt: skip
