"""Small kernels of one expression, on the interpreter and, as PTX of several architectures, on the emulator.

In: an expression of the tiles `a`, `b`, their dtypes and a shape. Out: the result of the interpreter, once the emulator has
computed the same bits from the PTX of every architecture that matters (any NaN equals any other).
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.programs.machines import manifest
from tilec import interpreter
from tilec.codegen.ptx import to_ptx
from tilec.diagnostics.diagnostic import CompileError
from tilec.emulator import emulate
from tilec.frontend import load_kernel
from tilec.interpreter.dtypes import numpy_dtype
from tilec.ir.core import Function
from tilec.ir.types import DTYPES
from tilec.lowering import lower
from tilec.passes.prover import prove
from tilec.passes.schedule import choose, prepare
from tilec.target.schedule import Overrides
from tilec.target.targets import MAIN_TARGETS, SM_80, Target

Array = NDArray[Any]
ARCHITECTURES = (SM_80, *MAIN_TARGETS)


def shape_text(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))


@dataclass(frozen=True)
class One:
    """`expression` of `a`, `b`, ..., which have the dtypes and the shapes, stored as `dtype` of `shape`."""

    expression: str
    dtype: str
    shape: tuple[int, ...]
    inputs: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def text(self) -> str:
        """The kernel's source."""
        names = "abcd"[: len(self.inputs)]
        parameters = [f"{n}_: tl.In[tl.{d}, {shape_text(s)}]" for n, (d, s) in zip(names, self.inputs, strict=True)]
        lines = [f"{n} = tl.load({n}_, {(0,) * len(s)}, shape={s})" for n, (_, s) in zip(names, self.inputs, strict=True)]
        body = [*lines, f"tl.store(out, {(0,) * len(self.shape)}, {self.expression})"]
        head = f"def k({', '.join(parameters)}, out: tl.Out[tl.{self.dtype}, {shape_text(self.shape)}]):\n    tl.grid(1)\n    "
        return '"""One expression."""\n\nimport tilec as tl\n\n\n@tl.kernel\n' + head + "\n    ".join(body) + "\n"

    def function(self) -> Function:
        """The proven kernel."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "k.py"
            path.write_text(self.text, encoding="utf-8")
            function = load_kernel(path, {}, root=Path(folder))
        prove(function)
        return function

    def arrays(self, inputs: tuple[Array, ...]) -> dict[str, Array]:
        named = {f"{n}_": np.ascontiguousarray(a).reshape(s) for n, a, (_, s) in zip("abcd", inputs, self.inputs, strict=False)}
        return {**named, "out": np.ones(self.shape, numpy_dtype(DTYPES[self.dtype]))}

    def interpreted(self, *inputs: Array) -> Array:
        """The result of the interpreter."""
        arrays = self.arrays(inputs)
        with np.errstate(all="ignore"):
            interpreter.run(self.function(), arrays)
        return arrays["out"]

    def ptx(self, target: Target, warps: int = 2) -> tuple[str, Any]:
        """The PTX of one architecture, and what launches it."""
        schedule = choose(self.function(), target, Overrides(warps=warps))
        function = prepare(self.function(), target, schedule)
        code = lower(function, target)
        return to_ptx(code.mlir, target), manifest(self.function(), code, target, schedule)

    def emulated(self, target: Target, *inputs: Array, warps: int = 2) -> Array:
        """The result of the emulator."""
        text, launched = self.ptx(target, warps)
        report = emulate(text, launched, self.arrays(inputs), {}, seed=0)
        assert report.clean and not report.notes, (report.faults or report.notes)[0]
        return report.tensors["out"]

    def agreed(self, *inputs: Array, warps: int = 2) -> Array:
        """The result of the interpreter, which the emulator computes too on every architecture."""
        expected, seen = self.interpreted(*inputs), set[str]()
        for target in ARCHITECTURES:
            body = re.sub(r"(?m)^(?:\.target|\.version|//).*\n", "", self.ptx(target, warps)[0])
            if body not in seen:
                assert_same(self.emulated(target, *inputs, warps=warps), expected)
            seen.add(body)
        return expected


def assert_same(found: Array, expected: Array) -> None:
    """The same bits, but any NaN for a NaN."""
    assert found.dtype == expected.dtype and found.shape == expected.shape
    if found.dtype.kind in "iub":
        np.testing.assert_array_equal(found, expected)
        return
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), nan)
    bits = f"u{found.dtype.itemsize}"
    np.testing.assert_array_equal(found.view(bits)[~nan], expected.view(bits)[~nan])


def refusal(text: str) -> str:
    """The refusal of a kernel's source: code, message and hint."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "k.py"
        path.write_text(text, encoding="utf-8")
        try:
            load_kernel(path, {}, root=Path(folder))
        except CompileError as error:
            (only,) = error.diagnostics
            return f"{only.code}: {only.message}; {only.hint}"
    raise AssertionError("the kernel is accepted")
