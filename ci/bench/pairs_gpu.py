"""Times products whose blocks work in pairs beside the same alone; `pairs.py` makes them and calls this.

    python3 ci/bench/pairs_gpu.py FOLDER [--only 128x256] [--out FOLDER]

Each is first run at sizes with an even number of rows of tiles, in a child process (`products_gpu.py`); one that is wrong is
left out. At each shape all are timed in turns, as there. Writes `pairs.json` and `.md`; exit code 1 where one was wrong.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any, Final

from pairs import PAIRED
from products_gpu import LAYERS, OVERLAPPED, Bench, arguments, built, checked, checks

CUBLAS: Final = "cuBLAS"
SHAPES: Final = (
    *((512, *layer) for layer in LAYERS["4B"]),
    *((2048, *layer) for layer in LAYERS["4B"]),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (2048, 5120, 25600),
    (2048, 51200, 5120),
)
"""M, N and K."""
EVEN: Final = ((512, 2560, 648), (1024, 1024, 1024))


def main() -> int:
    """Check, time, report; the exit status."""
    options = arguments("products of pairs of blocks that share their weights").parse_args()
    if options.check is not None:
        for name in options.check:
            print("@" + json.dumps(checked(options.folder, name, shapes=EVEN)), flush=True)
        return 0
    names = built(options)
    wrong = {name: text for name, text in checks(options.folder, names, __file__).items() if text}
    bench = Bench(options.folder, [name for name in names if name not in wrong])
    return report({"wrong": wrong, "rows": [bench.row(shape) for shape in SHAPES], "gpu": bench.gpu}, options.out)


def report(record: dict[str, Any], folder: Path) -> int:
    """Write and print the table; the exit status."""
    rows = record["rows"]
    names = sorted({name for row in rows for name in row["us"] if name.endswith(PAIRED)})
    lines = [f"# Pairs of blocks that share their weights by multicast, bf16, {record['gpu']}", ""]
    lines += [
        "Time of the same tile in blocks of their own over the time in pairs, in the same run: above 1, pairs are faster."
    ]
    lines += [
        "Behind it, the speed in pairs and alone beside cuBLAS. All as the engine launches them: each may begin while what"
    ]
    lines += ["is before it ends. The pairs are PTX edited by `ci/bench/pairs.py`.", ""]
    lines += ["| M x N x K | " + " | ".join(name.removesuffix(PAIRED) for name in names) + " |", "|---|" + "---|" * len(names)]
    for row in rows:
        cells = [" x ".join(map(str, row["shape"])), *(cell(row["us"], name) for name in names)]
        lines.append(f"| {' | '.join(cells)} |")
    means = [math.exp(sum(math.log(gain(row["us"], name)) for row in rows) / len(rows)) for name in names]
    lines += ["| geometric mean | " + " | ".join(f"{mean:.3f}" for mean in means) + " |"]
    wrong = [*(f"{name}: {text}" for name, text in record["wrong"].items()), *(text for row in rows for text in row["wrong"])]
    lines += ["", *(f"- wrong: {text}" for text in wrong)] if wrong else []
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pairs.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    (folder / "pairs.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    return int(bool(wrong))


def gain(us: dict[str, float], name: str) -> float:
    """How much faster pairs are."""
    return us[name.removesuffix(PAIRED) + OVERLAPPED] / us[name + OVERLAPPED]


def cell(us: dict[str, float], name: str) -> str:
    """What the table says of a candidate at a shape."""
    alone = us[CUBLAS] / us[name.removesuffix(PAIRED) + OVERLAPPED]
    return f"{gain(us, name):.3f} ({alone * gain(us, name):.3f}, {alone:.3f})"


if __name__ == "__main__":
    sys.exit(main())
