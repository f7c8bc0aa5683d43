"""Candidates of a kernel on this machine's GPU: what `products_gpu` and `attention_gpu` share."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from ci.bench.kernels.children import emit, end_if_lost
from ci.bench.kernels.launch import Bench, Entry, Tensors, find_artifacts

torch: Any = importlib.import_module("torch")

KERNELS: Final = ("flash_attention", "matmul", "matmul_few", "matmul_split", "merge_splits")
"""Kernels of candidates, in launch order."""
ROTATED_BYTES: Final = 200_000_000
"""Minimum bytes that all argument sets of a size read and write, more than the L2 cache holds."""
ALLOWED: Final = 1.5
"""Allowed error, as a multiple of torch's own against the reference."""
Size = tuple[int, ...]


class Candidates:
    """The candidates on the device. `ODD` are sizes of the first check, `TIMED` those that are timed."""

    ODD: ClassVar[Sequence[Size]]
    TIMED: ClassVar[Sequence[Size]]

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.device = Bench()
        self.gpu = self.device.device.name
        self.entries: dict[str, list[Entry]] = {}
        for name in names:
            found, broken = find_artifacts([folder / name / "artifacts"], self.device.device.architecture)
            assert found and not broken, broken
            self.entries[name] = sorted(found, key=lambda entry: KERNELS.index(entry.manifest.kernel))

    @classmethod
    def check(cls, folder: Path, names: Sequence[str]) -> int:
        """In a child: tell what is wrong with each candidate at odd sizes, nothing if it is right."""
        for name in names:
            emit("begin", kernel=name)
            bench, text, size = cls(folder, [name]), "", None
            try:
                for size in cls.ODD:
                    error, allowed = bench.error(name, size)
                    if not error <= allowed:
                        text = f"at {size}: error {error:.2e}, torch's {allowed / ALLOWED:.2e}"
                        break
            except Exception as problem:
                emit("checked", kernel=name, text=f"at {size}: {problem}"[:200])
                end_if_lost(problem)
            else:
                emit("checked", kernel=name, text=text)
            emit("end", kernel=name)
        return 0

    def row(self, size: Size) -> dict[str, Any]:
        """Microseconds of each candidate at one size, and of libraries; candidates that are wrong there."""
        raise NotImplementedError

    def tensors(self, size: Size) -> Tensors:
        """Normally distributed inputs; a poisoned output."""
        raise NotImplementedError

    def error_of(self, tensors: Mapping[str, Any]) -> Callable[[], tuple[float, float]]:
        """A function that returns the current relative error of `out`, and the allowed error."""
        raise NotImplementedError

    def error(self, name: str, size: Size) -> tuple[float, float]:
        """The relative error of one launch, and the allowed error."""
        tensors = self.tensors(size)
        self.launch(self.planned(name, [tensors])[0])
        self.device.synchronize()
        return self.error_of(tensors)()

    def sets(self, size: Size, moved: int) -> list[Tensors]:
        """Sets of tensors for launches that move this many bytes each."""
        return [self.tensors(size) for _ in range(min(40, ROTATED_BYTES // moved + 2))]

    def planned(self, name: str, sets: Sequence[Tensors]) -> list[list[Any]]:
        """The launches of a candidate on several sets of tensors, which share the intermediate tensor between two launches."""
        between: Tensors = {}
        if len(self.entries[name]) > 1:
            count = self.entries[name][0].manifest.constants["S"]
            between["parts"] = torch.full((count, *sets[0]["out"].shape), math.nan, device="cuda")
        return [[self._plan(entry, between | one) for entry in self.entries[name]] for one in sets]

    def _plan(self, entry: Entry, tensors: Tensors) -> Any:
        return self.device.plan(entry, {spec.name: tensors[spec.name] for spec in entry.manifest.tensors})

    def launch(self, plans: Sequence[Any], overlap: bool = False) -> None:
        """One result; with `overlap` it may begin while the previous launch still runs."""
        for index, plan in enumerate(plans):
            plan.launch(self.device.stream(), overlap=overlap or index > 0)
