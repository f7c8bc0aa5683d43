"""The page of the result `time_model`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ci.bench.markdown import grid, page
from tilec.cost_model.cards import CARDS

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
        "## Predictions for cards that nobody here has measured", "",
        "*Predicted*, from the shipped schedules; the fastest specialisation is shown. *Of peak* is the share of the dense",
        "rate of the datasheet, *of clock* that of the tensor cores at the clock that the power limit is predicted to allow.",
        "",
        *grid(("card", "what", "shape", "tile", "bound", "us", "TFLOP/s", "GHz", "of peak", "of clock"),
              map(_prediction, data["predicted"]), left=5), "",
        "What others measured there, with other kernels:", "",
        *grid(("card", "what", "shape", "source", "TFLOP/s, measured", "TFLOP/s of ours, predicted"),
              map(_elsewhere, data["elsewhere"]), left=4), "",
        "## Goals", "",
        "*Predicted*, against what these chips should reach. Of a kernel that misses its goal: the microseconds that each",
        "resource alone would take, and the share that other loops would reach: those without what bounds them, with the",
        "tensor cores as the only resource, which no schedule exceeds in this model, and the same without a power limit.",
        "`tensor_share`, fitted to Hopper, keeps the last below 0.90. These shares rest on stated energies and on Hopper's",
        "constants: where others have measured more at some shape (last column), the model is too slow there.", "",
        *grid(("card", "what", "shape", "goal", "predicted", "met", "GHz", "us by resource", "without its bound",
               "tensor cores only", "no power limit", "most that others measured"),
              ((*_goal(one), _most(data["elsewhere"], one)) for one in data["goals"]), left=3), "",
        "## Decode of one sequence", "",
        f"Bytes over {data['decode']['bandwidth_share']:.1%} of the nominal bandwidth, and {data['decode']['gap_us']:.2f} us",
        "for each launch: both fitted to the steps of `engine_check` and `engine_llama`; those of `engine_large` (14B, 32B)",
        "and of `bench_4b` are held out. The floor is all bytes at the nominal bandwidth. Errors are (predicted - measured) /",
        "measured.", "",
        *grid((*_DECODE, "measured, tok/s", "error"), map(_decoded, data["decode"]["rows"]), left=2), "",
        "*Predicted*:", "",
        *grid(_DECODE, map(_decode, data["decode"]["predicted"]), left=2), "",
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
        f"{one['card']} ({one['arch']})", one["what"], one["shape"], one["choice"], one["bound"], f"{one['predicted_us']:.1f}",
        f"{one['tflops']:.0f}", f"{one['clock_ghz']:.2f}", f"{one['of_peak']:.2f}", f"{one['of_clock']:.2f}",
    ]  # fmt: skip


def _elsewhere(one: Mapping[str, Any]) -> Sequence[str]:
    rates = (f"{one[name]:.0f}" for name in ("measured_tflops", "predicted_tflops"))
    return [one["card"], one["what"], one["shape"], one["source"], *rates]


def _goal(one: Mapping[str, Any]) -> Sequence[str]:
    digits = 2 if one["goal"] < 1 else 0
    front = [one["card"], one["what"], one["shape"], *(f"{one[name]:.{digits}f}" for name in ("goal", "predicted"))]
    if one["met"] or "parts_us" not in one:
        return [*front, "yes" if one["met"] else "no", *[""] * 5]
    parts = sorted(one["parts_us"].items(), key=lambda part: -part[1])
    return [
        *front, "no", f"{one['clock_ghz']:.2f}", ", ".join(f"{name} {time:.0f}" for name, time in parts),
        *(_share(one[name]) for name in ("without_bound", "only_tensor_cores", "without_power_limit")),
    ]  # fmt: skip


def _most(elsewhere: Sequence[Mapping[str, Any]], goal: Mapping[str, Any]) -> str:
    """The largest share of the dense rate that others measured of the same on that card, at any shape."""
    peak = next(card.products for card in CARDS.values() if card.name == goal["card"])
    rates = [row["measured_tflops"] for row in elsewhere if (row["card"], row["what"]) == (goal["card"], goal["what"])]
    return f"{1e12 * max(rates) / peak:.2f}" if rates else ""


def _share(limit: Mapping[str, Any]) -> str:
    return f"{limit['of_peak']:.2f} at {limit['clock_ghz']:.2f} GHz, by {limit['bound']}"


_DECODE: Final = ("card", "model", "filled slots", "MB", "launches", "floor, tok/s", "predicted, tok/s")


def _decode(one: Mapping[str, Any]) -> Sequence[str]:
    counts = (str(one["filled"]), f"{one['megabytes']:.0f}", str(one["launches"]))
    return [one["card"], one["model"], *counts, f"{one['floor_tok_s']:.0f}", f"{one['predicted_tok_s']:.1f}"]


def _decoded(one: Mapping[str, Any]) -> Sequence[str]:
    return [*_decode(one), f"{one['measured_tok_s']:.1f}", f"{one['error']:+.1%}"]
