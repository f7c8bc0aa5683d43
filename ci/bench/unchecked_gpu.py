"""Times shipped kernels beside the same without masks on this machine's GPU; `unchecked.py` builds both and calls this.

    python3 ci/bench/unchecked_gpu.py FOLDER [--only matmul] [--out FOLDER]

Each pair of folders `KERNEL_safe_TILE` and `KERNEL_unchecked_TILE` is timed in turns, in one run, at sizes that its tile
divides. `code`: both in CUDA graphs, so that the kernels alone differ. `launched`: from the host, one after the other, in
batches of `MICROSECONDS` that begin on an idle stream, so that what the host takes for the first launch counts; the safe one's
contract is checked whenever it is launched, as `tilec.op` does, the other's arguments are packed once and handed to the driver.
Each number is the median of the ratios of neighbours in time, so that a chip that gets warm hits both. Random data; results
must be equal bit by bit. Writes `unchecked.json` and `.md`; exit code 1 where two results differ.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

from unchecked import SAFE, UNCHECKED  # noqa: E402

PRODUCTS: Final = ((2048, 6144, 2560), (2048, 2560, 4096), (2048, 2560, 9728), (2048, 19456, 2560), (4096, 4096, 4096))
LENGTHS: Final = (512, 2048, 8192)
SIZES: Final[dict[str, tuple[dict[str, int], ...]]] = {
    "matmul": tuple({"M": m, "N": n, "K": k} for m, n, k in PRODUCTS),
    "matmul_silu_mul": tuple({"M": m, "I": 9728, "K": 2560} for m in LENGTHS),
    "flash_attention": tuple({"T": t, "S": t, "HKV": 8, "G": 4} for t in LENGTHS),
}
SETS: Final = 4
"""Tensors that launches walk through, so that the L2 cache does not hold them all."""
MICROSECONDS: Final = 4000.0
"""Of launches between two events."""
ROUNDS: Final = 40
Batch = Callable[[], None]


def main() -> int:
    """Time all pairs, report; the exit status."""
    parser = argparse.ArgumentParser(description="shipped kernels beside the same without masks")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="candidates whose names hold this")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ROOT / "ci/bench/results")))
    options = parser.parse_args()
    bench = Bench()
    rows = [
        row
        for safe, other in pairs(options.folder, options.only)
        for row in bench.rows(safe.name.partition(f"{SAFE}_")[2], bench.entry(safe), bench.entry(other))
    ]
    return report({"gpu": bench.gpu, "rounds": ROUNDS, "rows": rows}, options.out)


def pairs(folder: Path, only: str) -> Iterator[tuple[Path, Path]]:
    """The folders of each kernel and tile."""
    for safe in sorted(folder.glob(f"*_{SAFE}_*{only}*" if only else f"*_{SAFE}_*")):
        other = safe.with_name(safe.name.replace(f"_{SAFE}_", f"_{UNCHECKED}_"))
        if other.exists():
            yield safe, other


class Bench:
    """The pairs on the device."""

    def __init__(self) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.cases = importlib.import_module("gpu_cases")
        self.worker = importlib.import_module("gpu_worker").Bench(False)
        self.prepared: Any = importlib.import_module("tilec.runtime.prepared").Prepared
        self.gpu: str = self.worker.device.name

    def entry(self, folder: Path) -> Any:
        """The one artifact of a folder."""
        (found,), broken = self.cases.find_artifacts([folder / "artifacts"], self.worker.device.architecture)
        assert not broken, broken
        return found

    def rows(self, tile: str, safe: Any, other: Any) -> Iterator[dict[str, Any]]:
        """A row for each size that the tile divides."""
        for dims in SIZES[safe.manifest.kernel]:
            if self.cases.fits(other.manifest, dims):
                found = self.row(safe, other, dims)
                name = f"{safe.manifest.kernel} {tile.partition('_')[0]}"
                print(name, dims, {key: found[key] for key in ("code", "launched", "equal")}, flush=True)
                yield {"kernel": safe.manifest.kernel, "tile": tile, "dims": dims, **found}

    def row(self, safe: Any, other: Any, dims: dict[str, int]) -> dict[str, Any]:
        """Times of one pair at one size."""
        sets = [self.cases.make_tensors(safe.manifest, dims, "cuda") for _ in range(SETS)]
        plans = [[self.worker.plan(entry, tensors) for tensors in sets] for entry in (safe, other)]
        results: list[Any] = []
        for made in plans:
            sets[0]["out"].view(self.torch.uint8).fill_(0xFF)
            made[0].launch(self.worker.stream())
            results.append(sets[0]["out"].clone())
        equal = bool(self.torch.equal(*results)) and not bool(results[0].isnan().any())
        estimate = self.ratios([self.launches(plans[0], SETS)] * 2, 3)[0] / SETS
        count = max(SETS, round(MICROSECONDS / estimate / SETS) * SETS)
        us, unchecked_us, code = self.ratios([self.graph(made, count) for made in plans])
        checked, bare = self.checked(safe, sets, count), self.launches(plans[1], count)
        launched_us, bare_us, launched = self.ratios([checked, bare])
        return {
            "equal": equal, "us": us / count, "unchecked_us": unchecked_us / count, "code": code,
            "launched_us": launched_us / count, "bare_us": bare_us / count, "launched": launched,
        }  # fmt: skip

    def launches(self, plans: Sequence[Any], count: int) -> Batch:
        """So many launches, each a call of the driver."""

        def run() -> None:
            stream = self.worker.stream()
            for place in range(count):
                plans[place % len(plans)].launch(stream)

        return run

    def graph(self, plans: Sequence[Any], count: int) -> Batch:
        """The same in a CUDA graph."""
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            self.launches(plans, count)()
        return lambda: graph.replay()

    def checked(self, entry: Any, sets: Sequence[dict[str, Any]], count: int) -> Batch:
        """The same, each checked: what depends on addresses as it is launched, the rest when it was prepared."""
        manifest = entry.manifest
        launch = self.worker.plan(entry, sets[0]).checked
        prepared = self.prepared(self.worker.kernel(entry), launch)
        pointers = [[tensors[spec.name].data_ptr() for spec in manifest.tensors] for tensors in sets]
        floats = [launch.scalars[spec.name] for spec in prepared.floats]

        def run() -> None:
            stream = self.worker.stream()
            for place in range(count):
                prepared.launch(stream, pointers[place % len(pointers)], floats)

        return run

    def ratios(self, batches: Sequence[Batch], rounds: int = ROUNDS) -> tuple[float, float, float]:
        """Microseconds of two batches, and the median of the first's over the second's next to it, less one."""
        events = [[self.torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in batches]
        samples: list[list[float]] = []
        for number in range(rounds + 2):
            for which in (0, 1) if number % 2 else (1, 0):
                events[which][0].record()
                batches[which]()
                events[which][1].record()
            self.torch.cuda.synchronize()
            samples.append([begin.elapsed_time(end) * 1e3 for begin, end in events])
        samples = samples[2:]
        first, second = (statistics.median(each) for each in zip(*samples, strict=True))
        # Neighbours of two rounds, in both orders: whichever is second finds a warmer chip.
        among = [(a[0] * b[0] / (a[1] * b[1])) ** 0.5 for a, b in zip(samples[::2], samples[1::2], strict=False)]
        return first, second, statistics.median(among or [first / second]) - 1


def report(record: dict[str, Any], folder: Path) -> int:
    """Write and print the table; the exit status."""
    rows = record["rows"]
    lines = [f"# What safety costs at run time, {record['gpu']}, bf16", ""]
    lines += [
        "Shipped kernels beside the same text without masks, at sizes that tiles divide: how much longer the safe one takes.",
        f"Code: both in CUDA graphs. Launched: from the host, batches of {MICROSECONDS / 1e3:.0f} ms that begin on an idle",
        "stream; the safe one's contract is checked at every launch, the other's arguments are packed once.",
        "",
        "| kernel | tile | size | safe, us | unchecked, us | code | launched |",
        "|---|---|---|--:|--:|--:|--:|",
    ]
    for row in rows:
        size, tile = " x ".join(map(str, row["dims"].values())), row["tile"].partition("_")[0]
        numbers = f"{row['us']:.1f} | {row['unchecked_us']:.1f} | {row['code']:+.2%} | {row['launched']:+.2%}"
        lines.append(f"| {row['kernel']} | {tile} | {size} | {numbers} |")
    for what in ("code", "launched"):
        found = [row[what] for row in rows]
        within = sum(one <= 0.005 for one in found)
        spread = f"{min(found):+.2%} to {max(found):+.2%}, median {statistics.median(found):+.2%}"
        lines += ["", f"{what.capitalize()}: {within} of {len(found)} within 0.5 %; {spread}."]
    wrong = [f"{row['kernel']} {row['tile']} at {row['dims']}" for row in rows if not row["equal"]]
    lines += [f"- not the same bits: {text}" for text in wrong]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "unchecked.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    (folder / "unchecked.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    return int(bool(wrong) or not rows)


if __name__ == "__main__":
    sys.exit(main())
