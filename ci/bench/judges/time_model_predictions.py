"""What the model of time predicts for cards that nobody here has measured: products and attention as they are shipped, and what
others measured on such cards with kernels of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from ci.bench.judges.time_model_rows import Kernels, Values, attention_values
from ci.bench.kernels.attention_names import GROUP, HEADS
from tilec.cost_model.cards import CARDS, Card
from tilec.cost_model.estimate import Estimate
from tilec.tuning.prediction import predict

PREDICTED: Final = ("b200", "rtx5090")
PRODUCT, ATTENTION = "product", "causal attention"
DEEP: Final = tuple((8192, 8192, depth) for depth in (1024, 2048, 4096))
"""Products that others measured on a B200 (`ELSEWHERE`), in addition to the cubes."""
SHAPES: Final = (
    *((size, size, size) for size in (1024, 2048, 4096, 8192, 16384)),
    *DEEP,
    *((rows, *layer) for rows in (512, 2048) for layer in ((6144, 2560), (2560, 4096), (19456, 2560), (2560, 9728))),
)
LENGTHS: Final = (512, 2048, 8192, 32768)
WIDTH: Final = 128


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What others measured on a card: of what, at which shape, TFLOP/s, with whose kernel and where that is written."""

    card: str
    what: str
    shape: str
    tflops: float
    source: str


_GLUON: Final = "Triton, tutorial gluon 14-multicta"
ELSEWHERE: Final = (
    *(
        Elsewhere("b200", PRODUCT, f"8192 x 8192 x {depth}", tflops, f"{_GLUON}: {whose}")
        for depth, own, cublas in ((1024, 1306, 1344), (2048, 1380, 1374), (4096, 1444, 1432), (8192, 1302, 1348))
        for whose, tflops in (("its kernel", own), ("cuBLAS", cublas))
    ),
    Elsewhere("b200", PRODUCT, "4096 x 4096 x 4096", 1540, "ThunderKittens, README of educational_b200"),
    Elsewhere("b200", ATTENTION, "32768 tokens", 1613, "arXiv 2603.05451, its best shape, not said to be this one"),
)


def predictions(made: Kernels) -> list[dict[str, Any]]:
    """A row for each card and shape: the fastest choice, its time, rate and bound."""
    return [row for name in PREDICTED for row in _of_card(made, name)]


def elsewhere(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What others measured, each with the prediction for our kernel at the same shape."""
    rates = {(row["card"], row["what"], row["shape"]): row["tflops"] for row in rows}
    return [
        {
            "card": CARDS[one.card].name, "what": one.what, "shape": one.shape, "measured_tflops": one.tflops,
            "source": one.source, "predicted_tflops": rates[CARDS[one.card].name, one.what, one.shape],
        }
        for one in ELSEWHERE
    ]  # fmt: skip


def _of_card(made: Kernels, name: str) -> Iterator[dict[str, Any]]:
    card = CARDS[name]
    for m, n, k in SHAPES:
        yield _row(made, card, PRODUCT, f"{m} x {n} x {k}", 2.0 * m * n * k)
    for tokens in LENGTHS:
        yield _row(made, card, ATTENTION, f"{tokens} tokens", 4 * WIDTH * HEADS * GROUP * tokens * (tokens + 1) / 2)


def values_of(what: str, shape: str) -> tuple[str, Values]:
    """The kernel of a predicted row, and the values of its launch."""
    numbers = [int(part) for part in shape.split() if part.isdecimal()]
    if what == PRODUCT:
        return "matmul", dict(zip("MNK", numbers, strict=True))
    return "flash_attention", attention_values(*numbers)


def _row(made: Kernels, card: Card, what: str, shape: str, flops: float) -> dict[str, Any]:
    found = _all(made, card, *values_of(what, shape))
    best = min(found, key=lambda name: found[name].microseconds)
    one = found[best]
    rate = flops / one.microseconds * 1e6
    return {
        "card": card.name, "arch": card.arch, "what": what, "shape": shape, "choice": best,
        "predicted_us": round(one.microseconds, 2), "tflops": round(rate / 1e12, 1), "bound": one.bound,
        "clock_ghz": round(one.clock / 1e9, 2), "of_peak": round(rate / card.products, 3),
        "of_clock": round(rate / (2 * card.multiprocessors * max(card.tensor, card.mma) * one.clock), 3),
        "choices": {name: round(each.microseconds, 2) for name, each in found.items()},
    }  # fmt: skip


def _all(made: Kernels, card: Card, kernel: str, values: Values) -> dict[str, Estimate]:
    """The time of each specialisation that build.toml has for the card's architecture."""
    return {name: predict((one.on(card, values),), card)[0] for name, one in made.shipped(kernel, card.arch).items()}
