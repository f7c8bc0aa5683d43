"""Pairs of kernels, safe and unchecked, on this machine's GPU: the same bits, and how much longer the safe one takes.

Both of a pair alternate in one run, so that a chip that gets warm affects them alike. Of each the time is that of a batch of
launches over several sets of tensors, which the L2 cache does not hold together.
"""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from ci.bench.kernels.cases import fits, make_tensors
from ci.bench.kernels.launch import Bench, Entry, Tensors, find_artifacts
from ci.bench.kernels.pair_times import longer
from tilec.runtime.prepared import Prepared

torch: Any = importlib.import_module("torch")

PRODUCTS: Final = ((2048, 6144, 2560), (2048, 2560, 4096), (2048, 2560, 9728), (2048, 19456, 2560), (4096, 4096, 4096))
LENGTHS: Final = (512, 2048, 8192)
SIZES: Final[dict[str, tuple[dict[str, int], ...]]] = {
    "matmul": tuple({"M": m, "N": n, "K": k} for m, n, k in PRODUCTS),
    "matmul_silu_mul": tuple({"M": m, "I": 9728, "K": 2560} for m in LENGTHS),
    "flash_attention": tuple({"T": t, "S": t, "HKV": 8, "G": 4} for t in LENGTHS),
}
SETS: Final = 4
MICROSECONDS: Final = 4000.0
"""Of the launches of a batch."""
ROUNDS: Final = 40
Batch = Callable[[], None]


class Pairs:
    """The pairs on the device."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.gpu = self.bench.device.name

    def rows(self, tile: str, safe: Path, unchecked: Path) -> Iterator[dict[str, Any]]:
        """A row for each size that the tile divides."""
        one, other = self._entry(safe), self._entry(unchecked)
        for dims in SIZES[one.manifest.kernel]:
            if fits(other.manifest, dims):
                found = self.row(one, other, dims)
                print(tile, dims, {key: found[key] for key in ("code", "launched", "equal")}, flush=True)
                yield {"tile": tile, "dims": dims, **found}

    def _entry(self, folder: Path) -> Entry:
        (found,), broken = find_artifacts([folder / "artifacts"], self.bench.device.architecture)
        assert not broken, broken
        return found

    def row(self, safe: Entry, other: Entry, dims: dict[str, int]) -> dict[str, Any]:
        """Times of a pair at one size, and whether both have the same bits, none of them NaN."""
        sets = [make_tensors(safe.manifest, dims, "cuda") for _ in range(SETS)]
        plans = [[self.bench.plan(entry, tensors) for tensors in sets] for entry in (safe, other)]
        results: list[Any] = []
        for made in plans:
            sets[0]["out"].view(torch.uint8).fill_(0xFF)
            made[0].launch(self.bench.stream())
            results.append(sets[0]["out"].clone())
        equal = bool(torch.equal(*results)) and not bool(results[0].isnan().any())
        estimate = self._ratio(self._launches(plans[0], SETS), self._launches(plans[0], SETS), 4)[0] / SETS
        count = max(SETS, round(MICROSECONDS / estimate / SETS) * SETS)
        us, unchecked_us, code = self._ratio(self._graph(plans[0], count), self._graph(plans[1], count))
        safe_us, bare_us, launched = self._ratio(self._checked(safe, plans[0][0], sets, count), self._launches(plans[1], count))
        return {
            "equal": equal, "us": us / count, "unchecked_us": unchecked_us / count, "code": code,
            "launched_us": safe_us / count, "bare_us": bare_us / count, "launched": launched,
        }  # fmt: skip

    def _launches(self, plans: Sequence[Any], count: int) -> Batch:
        """So many launches, each packed before."""

        def run() -> None:
            stream = self.bench.stream()
            for index in range(count):
                plans[index % len(plans)].launch(stream)

        return run

    def _graph(self, plans: Sequence[Any], count: int) -> Batch:
        """The same in a CUDA graph."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._launches(plans, count)()
        return lambda: graph.replay()

    def _checked(self, entry: Entry, plan: Any, sets: Sequence[Tensors], count: int) -> Batch:
        """The same, each checked: what depends on addresses at every launch, the rest when it was prepared."""
        prepared = Prepared(self.bench.kernel(entry), plan.checked)
        pointers = [[tensors[spec.name].data_ptr() for spec in entry.manifest.tensors] for tensors in sets]
        scalars = [plan.checked.scalars[spec.name] for spec in prepared.scalars]

        def run() -> None:
            stream = self.bench.stream()
            for index in range(count):
                prepared.launch(stream, pointers[index % len(pointers)], scalars)

        return run

    def _ratio(self, one: Batch, other: Batch, rounds: int = ROUNDS) -> tuple[float, float, float]:
        """Microseconds of two batches, and the first's over the second's, minus one."""
        samples: list[tuple[float, float]] = []
        for number in range(rounds + 2):
            events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(2)]
            for which in (0, 1) if number % 2 else (1, 0):
                events[which][0].record()
                (one, other)[which]()
                events[which][1].record()
            torch.cuda.synchronize()
            first, second = (begin.elapsed_time(end) * 1e3 for begin, end in events)
            samples.append((first, second))
        kept = samples[2:]
        return statistics.median(pair[0] for pair in kept), statistics.median(pair[1] for pair in kept), longer(kept)
