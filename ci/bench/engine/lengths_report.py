"""What the times of `lengths` say: three goals at each length, and their tables.

- Monotone: a prompt takes at most 1.03 times as long as any longer one.
- No cliff: at most 1.15 times the straight line between the tuned lengths on both sides, which are 16, 32, 64 and so on, and
  the multiples of a chunk. Below the first one the line is its time, and above the last one it goes on.
- No dear first prompt: at most 0.3 ms longer than the second, or 1 % of the second if that is more, by which times of long
  prompts differ anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ci.bench.markdown import grid, page

OVER_LONGER: Final = 1.03
OVER_LINE: Final = 1.15
FIRST_MS: Final = 0.3
FIRST_SHARE: Final = 0.01
SHORTEST: Final = 16
"""The first tuned length."""
SUMMARY: Final = (
    "model", "lengths", "worst over a longer one", "missed", "worst over the line", "missed", "first over second, worst ms",
    "missed",
)  # fmt: skip
"""Columns of the table of all models; `missed` is a number of lengths."""
Row = Mapping[str, Any]
GoalFigures = dict[str, float]
"""Of one length: `over_longer`, `over_line`, `first_over_second` (ms), and `first_allowed` (ms)."""


def is_tuned(tokens: int, chunk: int) -> bool:
    """Whether a length is one that tiles were chosen for."""
    return tokens % chunk == 0 or (tokens >= SHORTEST and tokens & (tokens - 1) == 0)


def on_the_line(tokens: int, tuned: Sequence[tuple[int, float]]) -> float:
    """Milliseconds of a length on the straight lines through tuned lengths and their times, ascending, at least one."""
    if tokens <= tuned[0][0] or len(tuned) == 1:
        return tuned[0][1]
    after = next((number for number, (length, _) in enumerate(tuned) if length >= tokens), len(tuned) - 1)
    (left, low), (right, high) = tuned[after - 1], tuned[after]
    return low + (high - low) * (tokens - left) / (right - left)


def goal_figures(rows: Sequence[Row], chunk: int) -> list[GoalFigures]:
    """What is held against the goals at each of a model's lengths, which ascend. Without a tuned length, nothing is above the
    line."""
    tuned = [(row["tokens"], row["median"]) for row in rows if is_tuned(row["tokens"], chunk)]
    found: list[GoalFigures] = []
    for number, row in enumerate(rows):
        longer = min((other["median"] for other in rows[number + 1 :]), default=row["median"])
        line = on_the_line(row["tokens"], tuned) if tuned else row["median"]
        found.append({
            "over_longer": row["median"] / longer, "over_line": row["median"] / line,
            "first_over_second": row["first"] - row["second"], "first_allowed": max(FIRST_MS, FIRST_SHARE * row["second"]),
        })  # fmt: skip
    return found


def missed(one: GoalFigures) -> list[str]:
    """The goals that a length does not meet, by the names of their columns."""
    return [
        name
        for name, is_met in (
            ("over_longer", one["over_longer"] <= OVER_LONGER),
            ("over_line", one["over_line"] <= OVER_LINE),
            ("first_over_second", one["first_over_second"] <= one["first_allowed"]),
        )
        if not is_met
    ]


def table(data: Mapping[str, Any]) -> str:
    """The goals of all models, then all lengths of each; what misses a goal is bold."""
    lines = ["# The time of a prompt over its length, bf16, random weights", ""]
    lines += [
        "Goals, at every length: at most 1.03 times the time of any longer prompt; at most 1.15 times the straight line",
        "between tuned lengths; the first prompt of a length at most 0.3 ms, or 1 %, longer than the second.",
        "",
        *grid(SUMMARY, [_summary(model) for model in data["models"]]),
    ]
    for model in data["models"]:
        cells = [_cells(row, one) for row, one in zip(model["rows"], goal_figures(model["rows"], model["chunk"]), strict=True)]
        header = ("tokens", "ms", "first, ms", "second, ms", "over a longer one", "over the line", "first over second, ms")
        lines += ["", f"## {model['model']}", "", *grid(header, cells)]
    return page(lines)


def _summary(model: Mapping[str, Any]) -> list[object]:
    """A model's worst figure of each goal, with its length, and the number of lengths that miss it."""
    found = goal_figures(model["rows"], model["chunk"])
    cells: list[object] = [model["model"], len(found)]
    for name, digits in (("over_longer", 3), ("over_line", 3), ("first_over_second", 2)):
        worst, tokens = max((one[name], row["tokens"]) for one, row in zip(found, model["rows"], strict=True))
        cells += [f"{worst:.{digits}f} at {tokens}", sum(name in missed(one) for one in found)]
    return cells


def _cells(row: Row, one: GoalFigures) -> list[object]:
    wrong = missed(one)
    figures = {name: f"{one[name]:.3f}" for name in ("over_longer", "over_line")}
    figures["first_over_second"] = f"{one['first_over_second']:+.2f}"
    marked = [f"**{text}**" if name in wrong else text for name, text in figures.items()]
    return [row["tokens"], *(f"{row[name]:.2f}" for name in ("median", "first", "second")), *marked]
