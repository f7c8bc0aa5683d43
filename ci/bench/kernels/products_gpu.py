"""Candidates of the matrix product, torch's and Triton's on this machine's GPU."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from ci.bench.kernels.candidates import CUBLAS, OVERLAPPED, TRITON, UNMERGED
from ci.bench.kernels.candidates_gpu import ALLOWED, Candidates, Size
from ci.bench.kernels.clock import Timing, measure
from ci.bench.kernels.launch import Tensors
from ci.bench.kernels.regimes import regimes
from ci.bench.kernels.triton_products import TritonProducts

torch: Any = importlib.import_module("torch")

CUBES: Final = tuple((size, size, size) for size in (1024, 2048, 4096, 8192))
LAYERS: Final = {
    "4B": ((6144, 2560), (2560, 4096), (19456, 2560), (2560, 9728)),
    "32B": ((10240, 5120), (5120, 8192), (51200, 5120), (5120, 25600)),
}
IN_REGIMES: Final = (*CUBES[:3], *((rows, 2560, k) for rows in (128, 385, 401, 512) for k in (4096, 9728)))
"""Shapes that are timed on a cool and on a hot chip too: cubes, and rows that give few tiles or do not fill them."""
READ_RATE: Final = 4.33e12
"""Bytes per second of the best read measured on an H200, for the floor of small-M products."""
ROUNDS: Final = 9
KEPT: Final = 4
"""Candidates of a shape, the best of a first round, that are timed."""
Plans = Sequence[Sequence[Any]]


class ProductsBench(Candidates):
    """The candidates on the device. Sizes are M, N and K; for small M, reading the weights dominates."""

    ODD = ((1, 8, 8), (72, 136, 200), (129, 264, 72), (1000, 1000, 1000), (300, 2560, 648), (1024, 1024, 1024))
    TIMED = (
        *CUBES, *((2048, *layer) for layer in LAYERS["4B"]), (512, 2560, 9728), (128, 2560, 9728), (8192, 19456, 2560),
        (16384, 16384, 16384), *((512, *layer) for layer in LAYERS["4B"][:3]),
        *((rows, *layer) for rows in (512, 2048) for layer in LAYERS["32B"]),
        (128, 2560, 4096), *((rows, 2560, k) for rows in (385, 401) for k in (4096, 9728)),
        *((rows, *layer) for rows in (16, 32, 64) for layer in LAYERS["4B"]),
    )  # fmt: skip

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        super().__init__(folder, names)
        torch.backends.cuda.matmul.allow_tf32 = False
        self._triton: TritonProducts | None = None  # made when it is timed: compiling takes a while

    def tensors(self, size: Size) -> Tensors:
        """Normally distributed inputs; a poisoned output."""
        m, n, k = size
        a, b = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in ((m, k), (n, k)))
        return {"a": a, "b": b, "out": torch.full((m, n), math.nan, device="cuda", dtype=torch.bfloat16)}

    def error_of(self, tensors: Mapping[str, Any]) -> Callable[[], tuple[float, float]]:
        """A function that returns the current error of `out` against float32, and the allowed error."""
        a, b = tensors["a"], tensors["b"]
        truth = a.float() @ b.float().T
        size = float(truth.norm())
        allowed = ALLOWED * float(((a @ b.T).float() - truth).norm()) / size
        return lambda: (float((tensors["out"].float() - truth).norm()) / size, allowed)

    def row(self, size: Size) -> dict[str, Any]:
        """Microseconds of each candidate at one shape."""
        m, n, k = size
        moved, flops = 2 * (m * k + n * k + m * n), 2.0 * m * n * k
        sets, expected = self.sets(size, moved), max(flops / 6e8, moved / 4e6)
        plans = {name: self.planned(name, sets) for name in self.entries}
        wrong = self._wrong({name: one[:1] for name, one in plans.items()}, sets[0], False)
        first = measure({name: self._runs(one) for name, one in plans.items()}, expected, rounds=1)
        best = {name: plans[name] for name in sorted(plans, key=lambda name: first[name].median)[:KEPT]}
        runs = {name: self._runs(one) for name, one in best.items()}
        runs |= {name + OVERLAPPED: self._runs(one, True) for name, one in best.items()}
        split = {name: [plan[:1] for plan in one] for name, one in best.items() if len(one[0]) > 1}
        runs |= {name + UNMERGED: self._runs(one, True) for name, one in split.items()}
        runs[CUBLAS] = [partial(torch.matmul, one["a"], one["b"].T, out=one["out"]) for one in sets]
        wrong += self._wrong(best, sets[-1], True)
        self._triton = self._triton or TritonProducts()
        configuration, runs[TRITON] = self._triton.best(sets, expected, self.error_of(sets[0]))
        times = measure(runs, expected, rounds=ROUNDS)
        more = {"regimes": regimes(measure, self._fastest(runs, times), expected)} if size in IN_REGIMES else {}
        torch.cuda.empty_cache()
        found = {"shape": size, "us": {name: time.median for name, time in times.items()}, "wrong": wrong, "flops": flops}
        return found | {"read_us": 2 * n * k / READ_RATE * 1e6, "triton": configuration} | more

    def _fastest(self, runs: Mapping[str, Any], times: Mapping[str, Timing]) -> dict[str, Any]:
        """torch's product, and the fastest candidate of those launched without and with overlap."""
        ours = [name for name in runs if name not in (CUBLAS, TRITON) and not name.endswith(UNMERGED)]
        groups = ([name for name in ours if name.endswith(OVERLAPPED) is overlap] for overlap in (False, True))
        chosen = [min(names, key=lambda name: times[name].median) for names in groups]
        return {name: runs[name] for name in (CUBLAS, *chosen)}

    def _runs(self, plans: Plans, overlap: bool = False) -> list[Callable[[], object]]:
        return [partial(self.launch, one, overlap) for one in plans]

    def _wrong(self, plans: Mapping[str, Plans], tensors: Mapping[str, Any], overlap: bool) -> list[str]:
        """The candidates whose result on a set of tensors, that of the last launch, is wrong, with the error."""
        error_of, found = self.error_of(tensors), list[str]()
        for name, launches in plans.items():
            tensors["out"].fill_(math.nan)
            for one in launches:
                self.launch(one, overlap)
            self.device.synchronize()
            error, allowed = error_of()
            if not error <= allowed:
                found.append(f"{name}{OVERLAPPED * overlap}: {error:.2e}")
        return found
