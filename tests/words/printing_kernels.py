"""Kernels that print, on the interpreter and, as PTX of several architectures, on the emulator."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from tests.programs.machines import manifest
from tests.words.kernels import ARCHITECTURES, Array
from tilec.artifact.records import Manifest
from tilec.codegen.ptx import to_ptx
from tilec.emulator import emulate
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Function
from tilec.lowering import lower
from tilec.passes.prover import prove
from tilec.passes.schedule import choose, prepare
from tilec.target.schedule import Overrides
from tilec.target.targets import Target

HEAD = '"""Prints."""\n\nimport tilec as tl\n\n\nclass N(tl.Dim):\n    """blocks"""\n\n\n@tl.kernel\n'


def kernel(body: str, parameters: str = "x: tl.In[tl.f32, N], out: tl.Out[tl.f32, N]", head: str = HEAD) -> str:
    """The source of a kernel `k` with this body."""
    lines = "\n".join(f"    {line}" for line in body.strip("\n").split("\n"))
    return f"{head}def k({parameters}):\n{lines}\n"


def loaded(text: str) -> Function:
    """The proven kernel."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "k.py"
        path.write_text(text, encoding="utf-8")
        function = load_kernel(path, {}, root=Path(folder))
    prove(function)
    return function


def interpreted(text: str, arrays: Mapping[str, Array]) -> list[str]:
    """The lines of the interpreter."""
    found: list[str] = []
    run(loaded(text), {name: array.copy() for name, array in arrays.items()}, printed=found.append)
    return found


def compiled(
    text: str, target: Target, wanted: Overrides, change: Callable[[Function], object] = lambda _: None
) -> tuple[str, Manifest]:
    """PTX and manifest; `change` may spoil the prepared function."""
    schedule = choose(loaded(text), target, wanted)
    prepared = prepare(loaded(text), target, schedule)
    change(prepared)
    code = lower(prepared, target)
    return to_ptx(code.mlir, target), manifest(loaded(text), code, target, schedule)


def emulated(
    text: str, arrays: Mapping[str, Array], target: Target, wanted: Overrides, values: Mapping[str, int], seed: int = 0
) -> list[str]:
    """The lines of the emulator, in the order in which they were written."""
    ptx, launched = compiled(text, target, wanted)
    report = emulate(ptx, launched, {name: array.copy() for name, array in arrays.items()}, values, seed=seed)
    assert report.clean and not report.notes, (report.faults or report.notes)[0]
    return report.printed


def agreed(text: str, arrays: Mapping[str, Array], values: Mapping[str, int], warps: tuple[int, ...] = (1, 4)) -> list[str]:
    """The lines of the interpreter, which the emulator prints too: on every architecture, with several numbers of warps, in
    several orders of the threads."""
    expected = interpreted(text, arrays)
    for target in ARCHITECTURES:
        for count in warps:
            for seed in range(2):
                found = emulated(text, arrays, target, Overrides(warps=count), values, seed)
                assert sorted(found) == sorted(expected), (target, count, seed)
    return expected


def vector(count: int) -> dict[str, Array]:
    """The tensors of the usual parameters."""
    return {"x": np.arange(count, dtype=np.float32) - 1.5, "out": np.zeros(count, np.float32)}
