"""What `ranks_check` found, as tables, and whether it is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ci.bench.markdown import grid

MOST_APART: Final = 2.0
"""The mean distance of rows of logits between one GPU and two, over that of rows in two orders of sums on one GPU. Means,
because where two experts are almost equally likely, rounding chooses between them."""
MOST_OF_A_ROW: Final = 1.0
"""The distance of any row: that of logits without relation is 1.4."""
MOST_SECONDS: Final = 1.0
"""From the kill of a rank to the error, and to the end of all processes."""

Record = Mapping[str, Any]


def right(found: Record) -> bool:
    """Whether nothing failed and all that was measured is as it should be. What was not measured yet is not compared."""
    return not found["failed"] and not wrong(found)


def wrong(found: Record) -> list[str]:
    """What is not as it should be, a line each."""
    lines = list[str]()
    sums = found.get("all_reduce")
    if sums is not None and not sums["same"]:
        lines.append("all_reduce: the bits of sums differ")
    for model, record in found["models"].items():
        lines += [f"{model}: {what}" for what in _wrong_model(record)]
    repeats = found.get("repeats")
    if repeats is not None and repeats["equal"] != repeats["repeats"]:
        lines.append(f"repeats: {repeats['equal']} of {repeats['repeats']} decode steps have the same bits")
    for kill in found.get("kill", {}).get("kills", []):
        if max(kill["seconds"], kill["gone_seconds"]) > MOST_SECONDS or "SIGKILL" not in kill["message"]:
            lines.append(f"kill: rank {kill['rank']}: {kill['gone_seconds']:.2f} s, `{kill['message']}`")
    planted = found.get("planted", {})
    if {"right", "mistaken"} <= planted.keys() and not planted["mistaken"] > 2 * planted["right"]:
        lines.append("planted: logits do not show that a rank has the weights of another")
    return lines


def _wrong_model(record: Record) -> list[str]:
    lines = list[str]()
    for key, name in (("one", "one GPU"), ("two", "two GPUs")):
        one = record.get(key, {})
        if not one.get("finite", True):
            lines.append(f"logits on {name} are not finite")
        if not one.get("same", True):
            lines.append(f"prompts on {name} differ in their bits")
        if not one.get("rows", {}).get("same", True):
            lines.append(f"a row on {name} has other bits among others than alone")
    each, rounding = record.get("apart"), record.get("one", {}).get("rounding")
    if each and rounding and not mean(each) <= MOST_APART * mean(rounding):
        lines.append(f"logits are {mean(each):.4f} apart, and rounding does {mean(rounding):.4f}")
    if each and not max(each) < MOST_OF_A_ROW:
        lines.append(f"a row of logits is {max(each):.4f} apart")
    return lines


def mean(values: Sequence[float]) -> float:
    """The mean of some numbers."""
    return sum(values) / len(values)


def report(found: Record) -> list[str]:
    """The tables of all that was measured so far."""
    lines = ["# Two GPUs compared with one, random weights", ""]
    lines += _sums(found["all_reduce"]) if "all_reduce" in found else []
    for name, record in found["models"].items():
        lines += [f"## {name}", "", *_model(record)]
    if "repeats" in found:
        repeats = found["repeats"]
        lines += [f"{repeats['equal']} of {repeats['repeats']} decode steps on two GPUs have the same bits.", ""]
    kills = found.get("kill", {}).get("kills", [])
    lines += ["## A rank is killed", ""] if kills else []
    for kill in kills:
        lines += [f"Rank {kill['rank']}: after {kill['seconds']:.3f} s `{kill['message']}`, all processes are gone after"]
        lines += [f"{kill['gone_seconds']:.3f} s.", ""]
    planted = found.get("planted", {})
    if {"right", "mistaken"} <= planted.keys():
        lines += [f"Logits of a few layers are {planted['right']:.4f} from those of one GPU, and if a rank has the weights of"]
        lines += [f"another {planted['mistaken']:.4f}.", ""]
    lines += [f"Wrong: {line}." for line in wrong(found)]
    return lines + [f"Failed: {error}." for error in found["failed"].values()]


def _sums(sums: Record) -> list[str]:
    header = ("bytes", "kernel of prompts, us", "kernel of decode, us", "NCCL, us", "GB/s of the faster of ours")
    keys = ("all_reduce_us", "all_reduce_add_us", "nccl_us")
    rows = [[one["bytes"], *(_number(one.get(key), 1) for key in keys), _number(one["GB_s"], 0)] for one in sums["sizes"]]
    lines = ["## All-reduce", "", *grid(header, rows), ""]
    meet = _number(sums.get("meet_us"), 1)
    return [*lines, f"A meet alone: {meet} us. {sums['repeats']} sums with delays: same bits {sums['same']}.", ""]


def _model(record: Record) -> list[str]:
    one, two = (record.get(key, {}) for key in ("one", "two"))
    lines = _compared(one.get("speed", {}), two.get("speed", {}), "")
    loads = [f"{name} in {part['load_s']:.1f} s" for name, part in (("one", one), ("two", two)) if "load_s" in part]
    lines += [f"Loaded: {', '.join(loads)}."] if loads else []
    if record.get("apart"):
        apart = record["apart"]
        lines += [f"Logits are {mean(apart):.4f} apart in the mean, {max(apart):.4f} at most."]
    if one.get("rounding"):
        rounding = one["rounding"]
        lines += [f"On one GPU, in two orders of sums, {mean(rounding):.4f} and {max(rounding):.4f}."]
    for name, part in (("one GPU", one), ("two GPUs", two)):
        lines += [f"{part['again']} prompts on {name} have the same bits: {part['same']}."] if "same" in part else []
    lines += ["", *_compared(one.get("rows", {}), two.get("rows", {}), "rows over pages")]
    for name, part in (("one GPU", one), ("two GPUs", two)):
        if "rows" in part:
            lines += [f"A row on {name} has the same bits alone and among others: {part['rows']['same']}."]
    return [*lines, ""]


def _compared(one: Record, two: Record, title: str) -> list[str]:
    """A table of what one GPU and two take, as far as it is known."""
    rows = list[list[str]]()
    for key in [*one, *(key for key in two if key not in one)]:
        if key == "same":
            continue
        values = [float(part[key]) if key in part else None for part in (one, two)]
        first, second = values
        gain = None if first is None or second is None else second / first if key.endswith("tok_s") else first / second
        rows.append([key, *(_number(value, 2) for value in values), _number(gain, 2)])
    return [*grid((title, "one GPU", "two GPUs", "times as fast"), rows), ""] if rows else []


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
