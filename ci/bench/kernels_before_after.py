"""Times the kernels of two builds against each other on the GPU of this machine.

    python3 ci/bench/kernels_before_after.py BEFORE/sm_90a artifacts/build/sm_90a [--only add,matvec] [--out FOLDER]

Artifacts are paired by file name. A pair whose CUBINs are the same bytes needs no timing and is counted; of any other both are
timed at every problem that `kernels_gpu.py` times the kernel at, in CUDA graphs replayed in turns. The ratio is before over
after, so that less than 1 is slower now. A pair that comes out under `ALLOWED` is timed again, and the better of the two ratios
counts, since a clock that drifts lasts for milliseconds and a slower kernel for ever. Writes `kernels_before_after.json` and
`.md`, prints the table; exit code 1 where a kernel is slower than allowed. Needs torch and cuda-bindings.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

from gpu_cases import Entry, bytes_moved, fits, make_tensors  # noqa: E402
from gpu_clock import measure  # noqa: E402
from gpu_problems import Problem, problems  # noqa: E402
from gpu_worker import (  # noqa: E402
    EXPECTED_BYTES_PER_US,
    EXPECTED_FLOPS_PER_US,
    MOST_ALLOCATED,
    ROTATED_BYTES,
    Bench,
)

from tilec.runtime import load_artifact  # noqa: E402

torch: Any = importlib.import_module("torch")
ALLOWED: Final = 0.99
TRIES: Final = 3


@dataclass(frozen=True)
class Row:
    """One artifact at one problem; microseconds per launch."""

    artifact: str
    problem: str
    before_us: float
    after_us: float
    ratio: float


def main() -> int:
    """Pair, time, write."""
    parser = argparse.ArgumentParser(description="time the kernels of two builds against each other")
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--only", type=lambda text: text.split(","), default=None, metavar="KERNELS")
    parser.add_argument("--budget", type=float, default=400.0, help="seconds in all")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ROOT / "ci" / "bench" / "results")))
    options = parser.parse_args()
    pairs = [(path, options.after / path.name) for path in sorted(options.before.glob("*.cubin"))]
    missing = [new.name for _, new in pairs if not new.exists()]
    present = [(old, new) for old, new in pairs if new.exists()]
    changed = [(old, new) for old, new in present if old.read_bytes() != new.read_bytes()]
    bench, began = Bench(dry=False), time.monotonic()
    rows: list[Row] = []
    skipped: list[str] = []
    for old, new in changed:
        if options.only is not None and old.name.split("-")[0] not in options.only:
            continue
        if time.monotonic() - began > options.budget:
            skipped.append(old.stem)
            continue
        rows += _timed(bench, _entry(old, "before"), _entry(new, "after"), old.stem)
    gpu = str(torch.cuda.get_device_name())
    return _write(options.out, gpu, len(present) - len(changed), len(changed), rows, missing, skipped)


def _entry(path: Path, variant: str) -> Entry:
    manifest, cubin = load_artifact(path)
    return Entry(manifest, cubin, variant)


def _timed(bench: Bench, before: Entry, after: Entry, name: str) -> list[Row]:
    rows: list[Row] = []
    for problem in problems(before.manifest.kernel):
        if fits(before.manifest, problem.dims) and fits(after.manifest, problem.dims):
            rows.append(_best(bench, before, after, problem, name))
            torch.cuda.empty_cache()
    return rows


def _best(bench: Bench, before: Entry, after: Entry, problem: Problem, name: str) -> Row:
    sets = [make_tensors(before.manifest, problem.dims, "cuda")]
    total = bytes_moved(before.manifest, sets[0])
    allocated = sum(tensor.numel() * tensor.element_size() for tensor in sets[0].values())
    rotations = min(400, ROTATED_BYTES // total + 1, MOST_ALLOCATED // allocated + 1)
    sets += [make_tensors(before.manifest, problem.dims, "cuda") for _ in range(rotations - 1)]
    alternatives: dict[str, list[Any]] = {}
    for entry in (before, after):
        plans = [bench.plan(entry, tensors) for tensors in sets]
        alternatives[entry.variant] = [lambda plan=plan: plan.launch(bench.stream()) for plan in plans]
    expected = max(total / EXPECTED_BYTES_PER_US, problem.flops / EXPECTED_FLOPS_PER_US)
    best: Row | None = None
    for _ in range(TRIES):
        timings = measure(alternatives, expected)
        old, new = timings["before"].median, timings["after"].median
        if best is None or old / new > best.ratio:
            best = Row(name, problem.label, old, new, old / new)
        if best.ratio >= ALLOWED:
            break
    assert best is not None
    return best


def _write(
    folder: Path, gpu: str, identical: int, changed: int, rows: list[Row], missing: list[str], skipped: list[str]
) -> int:  # fmt: skip
    slower = [row for row in rows if row.ratio < ALLOWED]
    lines = [
        "# Kernels before and after", "",
        f"{gpu}. {identical} CUBINs are the same bytes as before; {changed} differ, of which {len({r.artifact for r in rows})} "
        f"were timed at {len(rows)} problems. Not built any more: {len(missing)}. Not timed for want of time: {len(skipped)}.",
        "",
    ]  # fmt: skip
    if rows:
        ratios = [row.ratio for row in rows]
        lines += [
            f"Before over after: least {min(ratios):.3f}, geometric mean {statistics.geometric_mean(ratios):.3f}, "
            f"greatest {max(ratios):.3f}; slower by more than {1 - ALLOWED:.0%}: {len(slower)}.", "",
            "| kernel | artifacts | problems | least | geometric mean | greatest |", "|---|--:|--:|--:|--:|--:|",
        ]  # fmt: skip
        for kernel in sorted({row.artifact.split("-")[0] for row in rows}):
            mine = [row for row in rows if row.artifact.split("-")[0] == kernel]
            found = [row.ratio for row in mine]
            lines.append(
                f"| {kernel} | {len({row.artifact for row in mine})} | {len(mine)} | {min(found):.3f} | "
                f"{statistics.geometric_mean(found):.3f} | {max(found):.3f} |"
            )
    if slower:
        lines += ["", "| slower | problem | before us | after us | ratio |", "|---|---|--:|--:|--:|"]
        lines += [f"| {r.artifact} | {r.problem} | {r.before_us:.2f} | {r.after_us:.2f} | {r.ratio:.3f} |" for r in slower]
    text = "\n".join(lines) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kernels_before_after.md").write_text(text)
    record = {
        "gpu": gpu, "identical": identical, "changed": changed, "missing": missing, "skipped": skipped,
        "rows": [asdict(row) for row in rows],
    }  # fmt: skip
    (folder / "kernels_before_after.json").write_text(json.dumps(record, indent=1) + "\n")
    print(text)
    return 1 if slower or missing or skipped else 0


if __name__ == "__main__":
    sys.exit(main())
