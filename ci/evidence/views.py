"""Derived figures of results that are not in their JSON directly: ratios, bests, means.

A view maps the JSON of a result to a tree of figures by name; `view.` in a path of `ci/evidence/values.py` refers to it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from ci.bench.engine.lengths_report import goal_figures, missed
from tilec.cost_model.cards import CARDS

SMALL_M: Final = 128
"""Small-M products have fewer rows than this."""
SHIPPED_ATTENTION: Final = "128x128_copytma_consumers2_stages2"
OVERLAPPED: Final = ", overlapped"
UNMERGED: Final = " and not merged"
STEP_BYTES: Final = {"qwen3-4b": 8_050_415_616, "qwen3-32b": 63_978_164_224}
"""Bytes of a decode step after 18 tokens: weights and cache. Computed (`engine/graph/traffic.py`), not measured."""
SLOT_BYTES: Final = 36 * 2 * 8 * 128 * 2
"""Bytes of a slot of the 4B model's cache: layers, keys and values, heads, width, bytes of an element."""
READ_RATE: Final = 4.58e12
"""Bytes per second that decode with long caches is held to: kernels that only read weights have 4.5 to 4.7 TB/s on an H200
(docs/decisions.md)."""
NOMINAL: Final = {"NVIDIA H100 80GB HBM3": CARDS["h100"].memory, "NVIDIA H200": CARDS["h200"].memory}
"""Nominal memory bandwidth in bytes per second by the name that a driver gives a GPU."""
Tree = dict[str, Any]


def least_and_mean(ratios: Iterable[float]) -> dict[str, float]:
    """The least ratio, their geometric mean, and the greatest ratio."""
    found = list(ratios)
    return {"least": min(found), "mean": math.exp(sum(map(math.log, found)) / len(found)), "most": max(found)}


def kernels_gpu(data: Tree) -> Tree:
    """By kernel, the ratio of its fastest variant to the library at sizes that have a floor, in bf16; and rates in TB/s by
    kernel and size, of the fastest plain launch."""
    best: dict[tuple[str, str], Tree] = {}
    for row in data["records"]:
        key = row["kind"] == "timed" and row["dtype"] == "bf16" and (row["kernel"], row["label"])
        if key and (key not in best or row["us"] < best[key]["us"]):
            best[key] = row
    kernels = {kernel for kernel, _ in best}
    with_floor = {
        kernel: [row for (name, _), row in best.items() if name == kernel and row["floor"] is not None] for kernel in kernels
    }
    rates: dict[str, dict[str, float]] = {}
    for (kernel, label), row in best.items():
        rates.setdefault(kernel, {})[label] = row["bytes"] / row["us"] / 1e6
    ratios = {kernel: least_and_mean(row["ratio"] for row in rows) for kernel, rows in with_floor.items() if rows}
    return {"ratios": ratios, "tb_s": rates}


def products(data: Tree) -> Tree:
    """Ratios to cuBLAS by rows (`many`, `few`): of the best candidate, of the best one launched with overlap (`overlapped`),
    and of Triton; and the best read's time over that of the overlapped candidate (`read`) and of cuBLAS (`cublas_read`)."""
    found: Tree = {}
    groups = {
        "many": [r for r in data["rows"] if r["shape"][0] >= SMALL_M],
        "few": [r for r in data["rows"] if r["shape"][0] < SMALL_M],
    }
    for name, rows in groups.items():
        chosen: dict[str, list[float]] = {"best": [], "overlapped": [], "triton": [], "read": [], "cublas_read": []}
        for row in rows:
            us: Mapping[str, float] = row["us"]
            library = us["cuBLAS"]
            ours = {key: library / value for key, value in us.items() if key not in ("cuBLAS", "Triton")}
            overlapped = max(ratio for key, ratio in ours.items() if key.endswith(OVERLAPPED))
            chosen["best"].append(max(ratio for key, ratio in ours.items() if OVERLAPPED not in key))
            chosen["overlapped"].append(overlapped)
            chosen["triton"] += [library / us["Triton"]] if "Triton" in us else []
            chosen["read"].append(row["read_us"] / library * overlapped)
            chosen["cublas_read"].append(row["read_us"] / library)
        found[name] = {series: least_and_mean(ratios) for series, ratios in chosen.items() if ratios}
    found["shapes"] = {"x".join(map(str, row["shape"])): _best(row["us"]) for row in data["rows"]}
    return found


def _best(us: Mapping[str, float]) -> dict[str, float]:
    """Of one shape, the ratio to cuBLAS of the fastest candidate with all its launches, alone or overlapped."""
    ours = {key: value for key, value in us.items() if key not in ("cuBLAS", "Triton") and not key.endswith(UNMERGED)}
    return {"best": max(us["cuBLAS"] / value for value in ours.values())}


def attention(data: Tree) -> Tree:
    """The shipped tile, relative to cuDNN: over all lengths, and by the number of tokens."""
    ratios = {str(row["tokens"]): row["us"]["cuDNN"] / row["us"][SHIPPED_ATTENTION] for row in data["rows"]}
    return {**least_and_mean(ratios.values()), "tokens": ratios}


def engine_check(data: Tree) -> Tree:
    """The logits' error relative to float32, divided by that of transformers: the worst of all prompts, for the last token
    (`prefill`) and as the mean of decode steps (`decode`); and decode's share of the roofline, by model."""
    decode = [row["decode_mean"] / row["transformers_mean"] for row in data["errors"]]
    prefill = [row["prefill"] for row in data["errors"]]
    found: Tree = {"decode": max(decode), "prefill": max(prefill), "worst": max(*decode, *prefill)} if decode else {}
    rates = {speed["model"]: speed["decode_at_18_tok_s"] for speed in data["speed"]}
    nominal = NOMINAL[data["device"]]
    shares = {name: rates[name] * STEP_BYTES[name] / nominal for name in rates.keys() & STEP_BYTES.keys()}
    return found | {"roofline": shares, "nominal_gb_s": nominal / 1e9}


def batch_check(data: Tree) -> Tree:
    """The rate of eight sequences over that of one, for the 4B model at 18 and at 2048 tokens; the share of the read rate that
    one sequence has after 8192."""
    rates = data["qwen3-4b"]["tok_s"]
    ratios = {slots: rates[slots]["8"] / rates[slots]["1"] for slots in ("18", "2048")}
    return {
        "eight_over_one": ratios["18"],
        "eight_over_one_at_2048": ratios["2048"],
        "of_read": of_read(rates["8192"]["1"], 8192),
    }


def of_read(rate: float, slots: int) -> float:
    """The share of `READ_RATE` that decode of the 4B model has, at `rate` tokens per second after `slots` tokens."""
    return rate * (STEP_BYTES["qwen3-4b"] + (slots - 18) * SLOT_BYTES) / READ_RATE


def cache_check(data: Tree) -> Tree:
    """The share of the read rate that decode of the 4B model has after 32768 tokens, with a cache of 16 bits."""
    return {"of_read": of_read(data["models"]["qwen3-4b"]["speed"]["16bit"]["decode_at_32768_tok_s"], 32768)}


def cold_start(data: Tree) -> Tree:
    """Medians over all runs, in seconds."""
    return {name: statistics.median(run[name] for run in data["runs"]) for name in data["runs"][0]}


def lengths(data: Tree) -> Tree:
    """By model, the worst figure of each goal of `lengths_report` and the number of its lengths that miss it."""
    found: Tree = {}
    for model in data["models"]:
        rows = goal_figures(model["rows"], model["chunk"])
        goals = ("over_longer", "over_line", "first_over_second")
        found[model["model"]] = {"lengths": len(rows)} | {
            name: {"worst": max(row[name] for row in rows), "missed": sum(name in missed(row) for row in rows)}
            for name in goals
        }
    return found


def torch_ops(data: Tree) -> Tree:
    """Microseconds that a call of `tilec.op` costs more than a bare launch, as the mean of three kernels."""
    us = data["microseconds"]
    overlapped = [us[f"tilec.op {name}"] - us[f"bare launch of {name}"] for name in ("add", "rms_norm", "add_rms_norm")]
    return {"over_bare": statistics.mean(overlapped)}


def mender(data: Tree) -> Tree:
    """The number of fixed mistakes, among those by authors and in each draw of generated ones."""
    count = {name: sum(row["outcome"] == "fixed" for row in rows) for name, rows in data["generated"].items()}
    return {"corpus": sum(row["outcome"] == "fixed" for row in data["corpus"]), "generated": count}


VIEWS: Final[dict[str, Callable[[Tree], Tree]]] = {
    "kernels_gpu": kernels_gpu, "products": products, "attention": attention, "engine_check": engine_check,
    "engine_large": engine_check, "engine_llama": engine_check, "batch_check": batch_check, "cache_check": cache_check,
    "cold_start": cold_start, "lengths": lengths,
    "torch_ops": torch_ops, "mender": mender,
}  # fmt: skip
