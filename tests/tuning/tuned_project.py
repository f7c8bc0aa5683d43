"""A project whose kernel doubles a tensor, with stub candidates, and a driver that runs them on the host."""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import struct
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bundle import samples
from tests.runtime.fake_driver import FakeDriver
from tilec.artifact.records import AbiSlot, Manifest, Resources, TensorSpec, to_json
from tilec.ir.expr import cdiv, const, sym
from tilec.target.schedule import Role, Schedule

N = sym("N")
BLOCKS = (64, 128, 256)
KERNEL = '''"""Double."""
import tilec
from tilec import Const, Dim, In, Out, bid, cdiv, f32, grid, load, store


class N(Dim):
    """Elements."""


@tilec.kernel
def double(x: In[f32, N], out: Out[f32, N], *, BLOCK: Const):
    grid(cdiv(N, BLOCK))
    store(out, bid(0), 2 * load(x, bid(0), shape=BLOCK, pad=0), mask=True)
'''
REFERENCE = "def double(x):\n    return 2 * x\n"
TUNING = """
[[tuning]]
kernel = "double"
cost = { turn = "cdiv(cdiv(out[0], BLOCK), at_once) * at_once * BLOCK" }
choices = [
  { BLOCK = 64, schedule = { warps = 2 } },
  { BLOCK = 128, schedule = { warps = 2 } },
  { BLOCK = 256, schedule = { warps = 2 } },
]
shapes = [{ N = [1000, 20000, 400000] }, { N = 17000 }]
"""
BUILD = '[build]\narch = ["sm_90"]\n\n[[kernel]]\nname = "double"\n' + TUNING
SCHEDULE = Schedule((Role("all", 2),)).to_json()


def entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project as the current folder, with a store of its own."""
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    folder = make(tmp_path / "p")
    monkeypatch.chdir(folder)
    return folder


def make(root: Path, salt: int = 0) -> Path:
    """Writes the project and its built candidates; another `salt` gives other machine code."""
    (root / "kernels_src").mkdir(parents=True, exist_ok=True)
    (root / "kernels_src/double.py").write_text(KERNEL)
    (root / "kernels_src/reference.py").write_text(REFERENCE)
    (root / "build.toml").write_text(BUILD)
    folder = root / "artifacts/tune/double/warps=2/sm_90a"
    folder.mkdir(parents=True, exist_ok=True)
    source = hashlib.sha256(KERNEL.encode()).hexdigest()
    (folder / "sources.json").write_text(json.dumps({"kernels_src/double.py": source}))
    for block in BLOCKS:
        code = samples.cubin("double", 10 * block + salt)
        (folder / f"double-BLOCK={block}.cubin").write_bytes(code)
        (folder / f"double-BLOCK={block}.json").write_text(json.dumps(to_json(described(block, code))))
    return root


def described(block: int, code: bytes) -> Manifest:
    """The manifest of a candidate."""
    tensors = (TensorSpec("x", "in", "f32", (N,), None, 16), TensorSpec("out", "out", "f32", (N,), None, 16))
    abi = (AbiSlot("pointer", "x"), AbiSlot("pointer", "out"), AbiSlot("dim", "N"))
    plain = Manifest(
        kernel="double", entry="double", arch="sm_90a", constants={"BLOCK": block}, tensors=tensors, scalars=(), abi=abi,
        grid=(cdiv(N, const(block)),), block=64, cluster=1, schedule=SCHEDULE, dependent_launch=True, launch_checks=(),
        value_checks=(), no_alias=(), resources=Resources(32, 0, 0, 0, 0), obligations=(), unsafe=(), digests={}, toolchain={},
    )  # fmt: skip
    return replace(plain, digests={"cubin": hashlib.sha256(code).hexdigest(), "source": "ab"}, toolchain={"tilec": "0.1.0 x"})


def artifacts(root: Path) -> dict[str, Path]:
    """Candidates by their digests, in order of block size."""
    paths = [root / f"artifacts/tune/double/warps=2/sm_90a/double-BLOCK={block}.json" for block in BLOCKS]
    return {hashlib.sha256(path.with_suffix(".cubin").read_bytes()).hexdigest(): path for path in paths}


COPY_MICROSECONDS = 125.0
"""Time of a copy by the driver of the fake device."""


def microseconds(block: int, elements: int) -> float:
    """The duration of a launch on the fake device."""
    waves = math.ceil(math.ceil(elements / block) / 132)
    return 2.0 + waves * (0.3 + block * 0.01)


@dataclass
class HostGpu(FakeDriver):
    """Doubles on the host and has its own clock; candidates with block sizes in `wrong` write one wrong element."""

    wrong: tuple[int, ...] = ()
    faulty: tuple[int, ...] = ()
    now: float = 0.0
    runs: list[int] = field(default_factory=list[int])

    def launch(
        self, function: Any, grid: tuple[int, int, int], block: int, shared: int, stream: int, parameters: int, overlap: bool
    ) -> None:
        x, out, n = (
            int.from_bytes(ctypes.string_at(pointer, size), "little")
            for pointer, size in zip(struct.unpack("<3Q", ctypes.string_at(parameters, 24)), (8, 8, 4), strict=True)
        )
        number: int = function[0]
        code = self.images[number - 1]
        size = next(one for one in BLOCKS if code == samples.cubin("double", 10 * one))
        if size in self.faulty:
            self.fail["cuStreamSynchronize"] = "CUDA_ERROR_ILLEGAL_ADDRESS"
        if self.capturing is not None:
            self.capturing.append((size, microseconds(size, n)))  # pyright: ignore[reportArgumentType]
            return
        result = 2 * np.frombuffer(ctypes.string_at(x, 4 * n), np.float32)
        if size in self.wrong:
            result[-1] += 1
        ctypes.memmove(out, result.ctypes.data, result.nbytes)

    def copy_on_device(self, pointer: int, source: int, size: int, stream: int) -> None:
        if self.capturing is not None:
            self.capturing.append((0, COPY_MICROSECONDS))  # pyright: ignore[reportArgumentType]
            return
        super().copy_on_device(pointer, source, size, stream)

    def launch_graph(self, graph: Any, stream: int) -> None:
        self.runs.append(graph[0][0])
        self.now += sum(duration for _, duration in graph)

    def record_event(self, event: Any, stream: int) -> None:
        event[:] = [self.now + 1]

    def elapsed(self, begin: Any, end: Any) -> float:
        return (end[0] - begin[0]) / 1000
