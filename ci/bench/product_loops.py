"""Products in loops with odd bounds and steps, under every schedule that each may have, and keep the verdicts.

`python ci/bench/product_loops.py --count 300` judges the next 300 kernels, `--first 0 --count 10 --output /tmp` ten of its own;
`ci/bench/results/product_loops.json` has the verdicts by schedule. Each kernel is proven, prepared under every schedule, and
run at four launches by a machine that follows which boxes are summed where (`tests/programs/copy_machine.py`). Exit status 1
if anything is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import verdicts  # noqa: E402

from tests.programs.product_loops import judge, kernel  # noqa: E402

PORTION = 10
"""Kernels after which verdicts are written, so that a campaign that is ended keeps what it has."""


def main() -> int:
    """Exit status 1 if a sum is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, help="number of the first kernel; default: the next one")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--output", type=Path, default=ROOT / "ci" / "bench" / "results")
    parser.add_argument("--show", type=int, metavar="NUMBER", help="print one kernel and its verdicts")
    arguments = parser.parse_args()
    path = arguments.output / "product_loops.json"
    with TemporaryDirectory() as folder:
        if arguments.show is not None:
            print(kernel(arguments.show).text, *judge(arguments.show, Path(folder)), sep="\n")
            return 0
        first = verdicts.following(path) if arguments.first is None else arguments.first
        kept: dict[str, Any] = {"noted": []}
        for start in range(first, first + arguments.count, PORTION):
            size = min(PORTION, first + arguments.count - start)
            counts, noted = portion(start, size, Path(folder))
            kept = verdicts.add(path, start, size, counts, noted)
    print(*(f"{count:7} {name}" for name, count in kept["counts"].items()), sep="\n")
    return 1 if any(one["kind"] == "wrong" for one in kept["noted"]) else 0


def portion(first: int, count: int, folder: Path) -> tuple[Counter[str], list[dict[str, Any]]]:
    """Verdicts of so many kernels; noted are those that are wrong or a mistake of the compiler's."""
    counts: Counter[str] = Counter()
    noted: list[dict[str, Any]] = []
    for number in range(first, first + count):
        for one in judge(number, folder):
            counts[f"{one.kind}, {one.schedule}" if one.schedule else one.kind] += 1
            counts[f"all {one.kind}"] += 1
            counts["launches"] += one.launches
            if one.kind in ("wrong", "internal"):
                noted.append({"number": number, "schedule": one.schedule, "kind": one.kind, "detail": one.detail})
    return counts, noted


if __name__ == "__main__":
    sys.exit(main())
