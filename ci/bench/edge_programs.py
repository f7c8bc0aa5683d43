"""Programs with shifts, casts and masks at the edges of dtypes: what is touched and stored, and keep the verdicts.

`python ci/bench/edge_programs.py --count 5000` judges the next 5,000, `--first 0 --count 10 --output /tmp` ten of its own;
`ci/bench/results/edge_programs.json` has the verdicts. The enumerator runs each that is accepted, as written and as prepared;
every tenth is lowered and run on the MLIR block machine beside the interpreter. Exit status 1 if anything is wrong.
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

from tests.programs.edge_programs import judge, program  # noqa: E402

PORTION = 100
"""Programs after which verdicts are written, so that a campaign that is ended keeps what it has."""
LOWERED = 10  # every so manyth


def main() -> int:
    """Exit status 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, help="number of the first program; default: the next one")
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--output", type=Path, default=ROOT / "ci" / "bench" / "results")
    parser.add_argument("--show", type=int, metavar="NUMBER", help="print one program and its verdict")
    arguments = parser.parse_args()
    path = arguments.output / "edge_programs.json"
    with TemporaryDirectory() as folder:
        if arguments.show is not None:
            print(program(arguments.show).text, judge(arguments.show, Path(folder), machine=True), sep="\n")
            return 0
        first = verdicts.following(path) if arguments.first is None else arguments.first
        kept: dict[str, Any] = {"noted": [], "counts": {}}
        for start in range(first, first + arguments.count, PORTION):
            size = min(PORTION, first + arguments.count - start)
            counts, noted = portion(start, size, Path(folder))
            kept = verdicts.add(path, start, size, counts, noted)
    print(*(f"{count:7} {name}" for name, count in kept["counts"].items()), sep="\n")
    return 1 if kept["noted"] else 0


def portion(first: int, count: int, folder: Path) -> tuple[Counter[str], list[dict[str, Any]]]:
    """Verdicts of so many programs; noted are those that are wrong or a mistake of the compiler's."""
    counts: Counter[str] = Counter()
    noted: list[dict[str, Any]] = []
    for number in range(first, first + count):
        one = judge(number, folder, machine=number % LOWERED == 0)
        counts[f"refused, {one.detail}" if one.kind == "refused" else one.kind] += 1
        counts["a mask is dropped"] += one.dropped
        counts["lowered and run"] += one.lowered
        if one.kind in ("wrong", "internal"):
            noted.append({"number": number, "kind": one.kind, "detail": one.detail})
    return counts, noted


if __name__ == "__main__":
    sys.exit(main())
