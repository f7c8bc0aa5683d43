"""Decode steps by their bytes and launches, against those that were measured, and what that predicts for other cards.

A step of one sequence reads every weight once, and the filled slots of the cache. Its time is modelled as bytes over a share of
the nominal bandwidth, plus a gap for each launch. Both numbers are fitted by least squares of relative errors to the steps that
`FITTED_TO` measured; the others, of other models or in other runs, are held out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ci.bench.judges.time_model_rows import card_called, recorded
from ci.evidence import ROOT
from tilec.cost_model.cards import CARDS
from tilec.project.read.buildfile import BuildFile, read_build_file
from tilec.project.read.models import Model
from tilec.step.step import Step
from tilec.target.targets import SM_90A

MEASURED: Final = ("engine_check", "engine_large", "engine_llama")
"""Results with decode speeds at a number of filled slots."""
FITTED_TO: Final = ("engine_check", "engine_llama")
"""The results whose steps the two numbers are fitted to."""
FILLED: Final = (18, 512, 2048)
PREDICTED: Final = (
    ("b200", "qwen3-4b"),
    ("b200", "qwen3-8b"),
    ("b200", "qwen3-32b"),
    ("rtx5090", "qwen3-0.6b"),
    ("rtx5090", "qwen3-4b"),
)
SIZE: Final = 2
"""Bytes of an element of weights and cache."""
SLOTS: Final = 4096
UNUSED: Final = {"rms_norm_eps": 1e-6, "rope_theta": 1e6}
"""Numbers of a model on which neither bytes nor launches depend."""


@dataclass(frozen=True, slots=True)
class Decode:
    """A step: the model's, on a card, with so many slots filled; `tokens_per_second` as measured, 0 if it was not."""

    card: str
    model: str
    filled: int
    tokens_per_second: float
    bytes: int
    launches: int

    @property
    def ideal(self) -> float:
        """Seconds that its bytes take at the nominal bandwidth."""
        return self.bytes / CARDS[self.card].memory


def decode_data() -> dict[str, Any]:
    """The fitted numbers, measured steps with errors, and predictions, as the JSON of the result has them."""
    build = read_build_file(ROOT / "build.toml")
    models = {model.name: model for model in build.models}
    found = list(_measured(build, models))
    measured = [one for _, one in found]
    share, gap = _fitted([one for name, one in found if name in FITTED_TO])
    rows = [
        _row(one, share, gap)
        | {
            "measured_tok_s": round(one.tokens_per_second, 1),
            "error": round(_speed(one, share, gap) / one.tokens_per_second - 1, 4),
        }
        for one in measured
    ]
    predicted = [
        _row(_step(build, models[name], card, filled, 0.0), share, gap) for card, name in PREDICTED for filled in FILLED
    ]
    return {"bandwidth_share": round(share, 4), "gap_us": round(1e6 * gap, 3), "rows": rows, "predicted": predicted}


def _measured(build: BuildFile, models: Mapping[str, Model]) -> Iterator[tuple[str, Decode]]:
    """Each measured step, after the name of its result."""
    for name in MEASURED:
        data = recorded(name)
        card = card_called(data["device"])
        for speed in data["speed"]:
            for filled in FILLED:
                yield name, _step(build, models[speed["model"]], card, filled, speed[f"decode_at_{filled}_tok_s"])
    data = recorded("bench_4b")
    for cell in data["cells"]:
        filled = cell["pp"] + cell["tg"] // 2
        speed = cell["decode_tokens_per_second"]["median"]
        yield "bench_4b", _step(build, models[data["model"]["name"]], card_called(data["device"]), filled, speed)


def _step(build: BuildFile, model: Model, card: str, filled: int, tokens_per_second: float) -> Decode:
    numbers = {name: int(value) for name, value in model.config.items() if isinstance(value, int)}
    hidden, inner, width = numbers["hidden_size"], numbers["intermediate_size"], numbers["head_dim"]
    queries, keys, layers = (numbers[f"num_{what}"] for what in ("attention_heads", "key_value_heads", "hidden_layers"))
    layer = hidden * width * (2 * queries + 2 * keys) + 3 * hidden * inner
    weights = layers * layer + hidden * numbers["vocab_size"]
    cache = 2 * layers * keys * width * filled
    return Decode(card, model.name, filled, tokens_per_second, SIZE * (weights + cache), _launches(build, model, filled))


def _launches(build: BuildFile, model: Model, filled: int) -> int:
    family = build.families[model.family]
    numbers = {**UNUSED, **model.config, **family.tunings[SM_90A].numbers}
    step = Step(family.declaration, numbers, tied=True, dtype="bf16", max_seq_len=max(SLOTS, 2 * filled))
    return len(step.graph("decode", "argmax", past=filled).ops)


def _speed(one: Decode, share: float, gap: float) -> float:
    """Predicted tokens per second."""
    return 1 / (one.ideal / share + gap * one.launches)


def _fitted(rows: list[Decode]) -> tuple[float, float]:
    """The share of the bandwidth, and seconds for each launch."""
    matrix = np.array([[one.ideal, one.launches] for one in rows]) * np.array([[one.tokens_per_second] for one in rows])
    inverse, gap = np.linalg.lstsq(matrix, np.ones(len(rows)), rcond=None)[0]
    return float(1 / inverse), float(gap)


def _row(one: Decode, share: float, gap: float) -> dict[str, Any]:
    return {
        "card": CARDS[one.card].name, "model": one.model, "filled": one.filled, "megabytes": round(one.bytes / 1e6, 1),
        "launches": one.launches,
        "predicted_tok_s": round(_speed(one, share, gap), 1), "floor_tok_s": round(1 / one.ideal, 1),
    }  # fmt: skip
