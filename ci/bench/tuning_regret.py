"""How well measurements of some shapes choose for others: records of `tilec tune` in, the regret of four ways to choose out.

    python ci/bench/tuning_regret.py kernels_src/tuning/matmul-sm_90a.jsonl [--out ci/bench/results]

Each shape is held out in turn, everything else is done without it (which candidates are kept too), and the way is asked for
that shape. The regret is how much longer its choice takes than the fastest of all candidates. The ways: the candidate that was
fastest at the nearest shape; one candidate for all; the cost as build.toml declares it, which knows no measurement; that cost
with fitted weights, which the build uses (`tilec.tuning.fit`). Writes `tuning_regret.json` and `.md`. No GPU needed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

ROOT: Final = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from tilec.project.buildfile import read_build_file  # noqa: E402
from tilec.step.expressions import parse  # noqa: E402
from tilec.tuning.fit import Measured, fit  # noqa: E402
from tilec.tuning.records import Shape, read_records  # noqa: E402

KEEP: Final = 8
EXTENTS: Final = {"out[0]": "M", "out[1]": "N", "a[1]": "K"}
"""Of `matmul`, in the words of its cost."""


@dataclass(frozen=True)
class Data:
    """Times `[candidate, shape]`, terms of the cost `[candidate, shape, term]`, artifacts by candidate, and the shapes."""

    times: Any
    terms: Any
    alike: list[str]
    shapes: list[Shape]


def main() -> int:
    """Read, hold out, report."""
    parser = argparse.ArgumentParser(description="regret of ways to choose a tile for a shape that was not measured")
    parser.add_argument("records", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "ci/bench/results")
    options = parser.parse_args()
    data = read(options.records)
    ways: dict[str, Callable[[Data, list[int], int], int]] = {
        "the fastest at the nearest measured shape": nearest, "one candidate for all shapes": single,
        "the declared cost, no measurement": declared, "the declared cost with fitted weights": fitted,
    }  # fmt: skip
    best = data.times.min(axis=0)
    every = range(len(data.shapes))
    rows: dict[str, list[float]] = {}
    for name, way in ways.items():
        picks = [way(data, [one for one in every if one != shape], shape) for shape in every]
        rows[name] = [float(data.times[pick][shape] / best[shape]) - 1 for shape, pick in enumerate(picks)]
    record = {
        "records": options.records.name, "device": read_records(options.records).device, "candidates": len(data.times),
        "shapes": [dict(shape) for shape in data.shapes], "regret": rows,
    }  # fmt: skip
    lines = [
        f"# Regret of a choice for a shape that was held out: `{options.records.name}`", "",
        f"{len(data.times)} candidates at {len(every)} shapes on {record['device']}.", "",
        "| choice by | mean | worst |", "|---|--:|--:|",
        *(f"| {name} | {statistics.fmean(found):.1%} | {max(found):.0%} |" for name, found in rows.items()),
    ]  # fmt: skip
    (options.out / "tuning_regret.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    (options.out / "tuning_regret.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    return 0


def read(path: Path) -> Data:
    """The candidates that were measured at every shape that any was measured at."""
    records = read_records(path)
    tuned = next(one.tuned for one in read_build_file(ROOT / "build.toml").served if one.tuned.kernel == "matmul")
    known = {line["candidate"]: line for line in map(json.loads, path.read_text().splitlines()) if "candidate" in line}
    counts = {name: sum(name in times for times in records.times.values()) for name in known}
    names = [name for name, count in counts.items() if count >= max(counts.values()) - 9]
    shapes = [shape for shape, times in records.times.items() if all(name in times for name in names)]

    def values(name: str, shape: Shape) -> list[float]:
        line = known[name]
        given = dict(shape)
        extents = {extent: given[dim] for extent, dim in EXTENTS.items()}
        env: dict[str, Any] = {**line["constants"], **extents, "at_once": 132 * line["schedule"].get("blocks", 1)}
        return [1.0, *(float(parse(text).value(env)) for text in tuned.terms.values())]

    return Data(
        np.array([[records.times[shape][name][0] for shape in shapes] for name in names]),
        np.array([[values(name, shape) for shape in shapes] for name in names]),
        [repr(sorted(known[name]["constants"].items())) for name in names],
        shapes,
    )


def nearest(data: Data, others: list[int], shape: int) -> int:
    """By the logarithms of the extents."""

    def distance(one: int) -> float:
        pairs = zip(data.shapes[one], data.shapes[shape], strict=True)
        return sum(math.log2(mine[1] / yours[1]) ** 2 for mine, yours in pairs)

    return int(np.argmin(data.times[:, min(others, key=distance)]))


def single(data: Data, others: list[int], shape: int) -> int:
    """The one with the least mean regret."""
    return int(np.argmin(np.mean(data.times[:, others] / data.times[:, others].min(axis=0), axis=1)))


def declared(data: Data, others: list[int], shape: int) -> int:
    """The sum of the terms."""
    return int(np.argmin(data.terms[:, shape, 1:].sum(axis=1)))


def fitted(data: Data, others: list[int], shape: int) -> int:
    """As the build has it."""
    found = fit(Measured(data.times[:, others], data.terms[:, others], data.alike), KEEP)
    costs = [float(data.terms[one][shape] @ np.array(weights)) for one, weights in zip(found.kept, found.weights, strict=True)]
    return found.kept[int(np.argmin(costs))]


if __name__ == "__main__":
    sys.exit(main())
