"""What the model of time predicts for cards that nobody has measured: products and attention with the schedules of today, and
products with a declared tcgen05 schedule."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ci.bench.judges.time_model_rows import Kernels, Values, attention_values
from ci.bench.kernels.candidates import ELEMENT
from ci.bench.kernels.projects import Part
from ci.evidence import ROOT
from tilec.cost_model.cards import CARDS, Card
from tilec.cost_model.declared import ProductSchedule, product
from tilec.cost_model.estimate import Estimate, prepared
from tilec.tuning.prediction import predict

PREDICTED: Final = ("b200", "rtx5090")
SHAPES: Final = (
    *((size, size, size) for size in (1024, 2048, 4096, 8192, 16384)),
    *((rows, *layer) for rows in (512, 2048) for layer in ((6144, 2560), (2560, 4096), (19456, 2560), (2560, 9728))),
)
LENGTHS: Final = (512, 2048, 8192, 32768)
ATTENTION: Final = Part("flash_attention", f'E = "{ELEMENT}", D = 128, BM = 64, BN = 64', "schedule = { blocks = 2 }")
DECLARED: Final = (
    ProductSchedule(128, 128, 64, 6, 16), ProductSchedule(128, 192, 64, 4, 16), ProductSchedule(128, 256, 64, 4, 16),
)  # fmt: skip
"""Tiles of a block on tcgen05 with two accumulators; 512 columns of tensor memory hold two of 256."""
TODAY, DECLARED_NAME = "schedules of today", "declared tcgen05 schedule, not built"
Dims = dict[str, int]


def predictions(made: Kernels) -> list[dict[str, Any]]:
    """A row for each card and shape: the fastest choice, its time, rate and bound."""
    return [row for name in PREDICTED for row in _of_card(made, name)]


def _of_card(made: Kernels, name: str) -> Iterator[dict[str, Any]]:
    card = CARDS[name]
    for m, n, k in SHAPES:
        dims: Dims = {"M": m, "N": n, "K": k}
        yield _row(card, TODAY, "product", f"{m} x {n} x {k}", 2.0 * m * n * k, _products(made, card, dims))
        if card.arch == "sm_100a":
            yield _row(card, DECLARED_NAME, "product", f"{m} x {n} x {k}", 2.0 * m * n * k, _declared(card, dims))
    for tokens in LENGTHS:
        found = {"64 x 64": _one(made, ATTENTION, card, attention_values(tokens))}
        yield _row(card, TODAY, "causal attention", f"{tokens} tokens", 4 * 128 * 32 * tokens * (tokens + 1) / 2, found)


def _row(
    card: Card, schedule: str, what: str, shape: str, flops: float, found: Mapping[str, Estimate]
) -> dict[str, Any]:  # fmt: skip
    best = min(found, key=lambda name: found[name].microseconds)
    one = found[best]
    return {
        "card": card.name, "arch": card.arch, "schedule": schedule, "what": what, "shape": shape, "choice": best,
        "predicted_us": round(one.microseconds, 2), "tflops": round(flops / one.microseconds / 1e6, 1), "bound": one.bound,
        "clock_ghz": round(one.clock / 1e9, 2), "choices": {name: round(each.microseconds, 2) for name, each in found.items()},
    }  # fmt: skip


def _products(made: Kernels, card: Card, dims: Dims) -> dict[str, Estimate]:
    """The choices of build.toml, with the schedules that the compiler chooses for the architecture."""
    build = tomllib.loads((ROOT / "build.toml").read_text(encoding="utf-8"))
    (tuning,) = [one for one in build["tuning"] if one.get("kernel") == "matmul"]
    found: dict[str, Estimate] = {}
    for choice in tuning["choices"]:
        bm, bn, group = choice["BM"], choice["BN"], choice["GROUP"]
        part = Part("matmul", f'E = "{ELEMENT}", BM = {bm}, BN = {bn}, BK = 64, GROUP = {group}')
        found[f"{bm} x {bn}"] = _one(made, part, card, {**dims})
    return found


def _one(made: Kernels, part: Part, card: Card, values: Values) -> Estimate:
    (found,) = predict((made.scheduled(part, card.arch).on(card, values),), card)
    return found


def _declared(card: Card, dims: Dims) -> dict[str, Estimate]:
    found = {str(one): prepared(product(one, dims, card.multiprocessors), card) for one in DECLARED}
    return {name: predict((ready,), card)[0] for name, ready in found.items()}
