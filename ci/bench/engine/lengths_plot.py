"""Draws the times of `lengths` as one picture: a curve for each model, both axes logarithmic, first prompts as rings.

    python -m ci.bench.engine.lengths_plot lengths.json lengths.svg

Looks like the pictures of `engine.bench`. Needs matplotlib.
"""

from __future__ import annotations

import importlib
import io
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from engine.tools.bench.plot import ROOF, SETTINGS

COLORS: Final = ("#1f5fa8", "#d1762b", "#2f8f5b", "#8a4fa3", "#b03a48", "#5b6b2f")
TICKS: Final = (1, 4, 16, 64, 256, 512, 1024, 2048, 4096, 8192)


def drawing(data: Mapping[str, Any]) -> str:
    """The picture as SVG, the same for the same data and version of matplotlib."""
    matplotlib: Any = importlib.import_module("matplotlib")
    figures: Any = importlib.import_module("matplotlib.figure")
    with matplotlib.rc_context(SETTINGS):
        figure = figures.Figure(figsize=(11, 6.4), layout="constrained")
        axes = figure.subplots()
        models = sorted(data["models"], key=lambda model: parameters(model["model"]), reverse=True)
        for model, color in zip(models, COLORS, strict=False):
            tokens = [row["tokens"] for row in model["rows"]]
            medians = [row["median"] for row in model["rows"]]
            axes.plot(tokens, medians, color=color, marker="o", markersize=2.5, linewidth=1.2, label=model["model"])
            firsts = [row["first"] for row in model["rows"]]
            axes.plot(tokens, firsts, color=color, marker="o", markersize=5, fillstyle="none", linestyle="", linewidth=0.6)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(TICKS, [str(tick) for tick in TICKS])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter("{x:g}")
        axes.grid(True, color="#e4e4e4", linewidth=0.8)
        axes.set(xlabel="tokens of the prompt", ylabel="milliseconds to the first token")
        axes.legend(loc="upper left", frameon=False, fontsize=9)
        figure.suptitle("Prefill by length, bf16, one GPU", weight="bold", parse_math=False)
        note = "medians; rings: the first prompt of a length in its process"
        figure.supxlabel(note, fontsize=8, color=ROOF, parse_math=False)
        out = io.BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue().decode()


def parameters(name: str) -> float:
    """Billions of parameters, as in a model's name; 0 if it names none."""
    found = re.search(r"([\d.]+)b\b", name)
    return float(found[1]) if found else 0.0


if __name__ == "__main__":
    source, picture = map(Path, sys.argv[1:])
    picture.write_text(drawing(json.loads(source.read_text(encoding="utf-8"))), encoding="utf-8")
