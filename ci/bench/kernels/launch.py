"""Built artifacts, and the device that launches them on torch tensors; the values of their scalars."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tilec.artifact.records import Manifest
from tilec.runtime import TRUSTED, Device, Kernel, LaunchError, TensorView, load_artifact

torch: Any = importlib.import_module("torch")

Tensors = dict[str, Any]
"""torch tensors by parameter name."""
EPSILON: Final = 1e-6
BLOCKS: Final = 528
"""Blocks that share the work of a kernel whose launch says how many: four for each multiprocessor of an H100 or H200."""
VOCABULARY: Final = 100
"""Smaller than the random tokens of `advance`, so that some are refused."""


def scalar_value(name: str, env: Mapping[str, int], constants: Mapping[str, Any]) -> int | float:
    """The value of each scalar parameter."""
    if "eps" in name:
        return EPSILON
    if name == "scale":
        return float(constants["D"]) ** -0.5
    if name == "vocab_size":
        return VOCABULARY
    if name == "past":
        return past(env["T"], env["MAX"] * int(constants["PAGE"]) if "MAX" in env else env["S"])
    if name == "filled" and "MAX" in env:
        return filled(env["MAX"], int(constants["PAGE"]))
    return BLOCKS if name == "blocks" else 1


def past(tokens: int, slots: int) -> int:
    """Tokens in the cache before the new ones: 0 if the slots are just the new tokens' tiles, else all slots but three."""
    return 0 if slots - tokens < 64 else slots - tokens - 3


def filled(pages: int, size: int) -> int:
    """Tokens of a sequence in so many pages: two in the last."""
    return (pages - 1) * size + 2


@dataclass(frozen=True)
class Entry:
    """One artifact on disk; `variant` distinguishes it from others of its kernel (folder and constants)."""

    manifest: Manifest
    cubin: bytes
    variant: str

    @property
    def dtype(self) -> str:
        """The element type that the kernel is specialised for, or that of the first float tensor."""
        if "E" in self.manifest.constants:
            return str(self.manifest.constants["E"])
        return next((spec.dtype for spec in self.manifest.tensors if spec.dtype[0] in "fb"), "i32")


def find_artifacts(folders: list[Path], arch: str) -> tuple[list[Entry], list[str]]:
    """Every readable artifact for `arch` below the folders, and a message for each unreadable one."""
    entries: list[Entry] = []
    broken: list[str] = []
    for folder in folders:
        for path in sorted(folder.rglob("*.json")):
            if not path.with_suffix(".cubin").exists():
                continue
            try:
                manifest, cubin = load_artifact(path)
            except LaunchError as error:
                broken.append(f"{path}: {error}")
                continue
            if manifest.arch == arch:
                constants = " ".join(f"{key}={value}" for key, value in sorted(manifest.constants.items()))
                prefix = f"{folder.name}: " if len(folders) > 1 else ""
                entries.append(Entry(manifest, cubin, f"{prefix}{constants} threads={manifest.block}"))
    return entries, broken


def arguments(manifest: Manifest, tensors: Tensors) -> dict[str, Any]:
    """Launch arguments: the tensors and the scalars."""
    shapes = {
        str(expr): extent for spec in manifest.tensors for expr, extent in zip(spec.dims, tensors[spec.name].shape, strict=True)
    }
    scalars = {spec.name: scalar_value(spec.name, shapes, manifest.constants) for spec in manifest.scalars}
    return {**tensors, **scalars}


def values_option(manifest: Manifest) -> dict[str, Any]:
    """`TRUSTED` for all value checks: the random integers are drawn inside the stated range, so timing need not check them."""
    return {check.tensor: TRUSTED for check in manifest.value_checks}


class Bench:
    """The device, with each kernel loaded once; `dry`: a processor with a driver that launches nothing."""

    def __init__(self, dry: bool = False) -> None:
        self.dry = dry
        self.device_name = "cpu" if dry else "cuda"
        if dry:
            self.device = Device(importlib.import_module("tests.runtime.fake_driver").FakeDriver())
        else:
            torch.zeros(1, device="cuda")  # makes torch's context current before `Device` looks for one
            self.device = Device()
        self._loaded: dict[int, tuple[Entry, Kernel]] = {}  # keeps the entry alive, because `id`s of deleted objects are reused

    def kernel(self, entry: Entry) -> Kernel:
        """The entry's kernel on the device."""
        if id(entry) not in self._loaded:
            self._loaded[id(entry)] = entry, Kernel(entry.manifest, entry.cubin, self.device)
        return self._loaded[id(entry)][1]

    def plan(self, entry: Entry, tensors: Tensors) -> Any:
        """A checked launch on torch tensors."""
        given = arguments(entry.manifest, tensors)
        if self.dry:
            types = {spec.name: spec.dtype for spec in entry.manifest.tensors}
            given |= {
                name: TensorView(t.data_ptr() // 256 * 256, types[name], tuple(t.shape), t.stride())
                for name, t in tensors.items()
            }
        return self.kernel(entry).plan(given, values=values_option(entry.manifest))

    def stream(self) -> int:
        """Torch's current stream, which is the capturing one inside a capture."""
        return 0 if self.dry else int(torch.cuda.current_stream().cuda_stream)

    def synchronize(self) -> None:
        """Wait for the device."""
        if not self.dry:
            torch.cuda.synchronize()
