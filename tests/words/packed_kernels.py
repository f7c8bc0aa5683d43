"""Kernels with tensors of 4-bit elements, on the interpreter and, as PTX, on the emulator; and the packing, by NumPy alone.

`pack` and `unpack` share no code with the compiler: numbers of packed dtypes are those of ml_dtypes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tests.programs.machines import manifest
from tilec import interpreter
from tilec.codegen.ptx import to_ptx
from tilec.emulator import emulate
from tilec.frontend import load_kernel
from tilec.ir.core import Function
from tilec.lowering import lower
from tilec.passes.prover import prove
from tilec.passes.schedule import choose, prepare
from tilec.target.schedule import Overrides
from tilec.target.targets import Target

Array = NDArray[Any]
NUMPY: dict[str, Any] = {"u4": ml_dtypes.uint4, "i4": ml_dtypes.int4, "f4e2m1": ml_dtypes.float4_e2m1fn}
HEAD = '''"""A kernel."""

import tilec as tl


class N(tl.Dim):
    """rows"""


class K(tl.Dim):
    """columns"""


class H(tl.Dim):
    """half of a number of elements"""


class S(tl.Dim):
    """half of a stride"""


@tl.kernel
'''


def unpack(packed: Array, dtype: str) -> Array:
    """Numbers of ml_dtypes, of twice as many elements along the last axis."""
    codes = np.stack([packed & 15, packed >> 4], axis=-1).astype(np.uint8)
    return codes.reshape(*packed.shape[:-1], -1).view(NUMPY[dtype])


def pack(numbers: Array) -> Array:
    """Bytes of numbers of a packed dtype of ml_dtypes."""
    codes = numbers.view(np.uint8) & 15
    return codes[..., 0::2] | codes[..., 1::2] << 4


def some_bytes(shape: tuple[int, ...], seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def kernel(body: str, constants: dict[str, Any] | None = None) -> Function:
    """The proven kernel of a source without its head."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "k.py"
        path.write_text(HEAD + body, encoding="utf-8")
        function = load_kernel(path, constants or {}, root=Path(folder))
    prove(function)
    return function


def interpreted(
    body: str, arrays: dict[str, Array], constants: dict[str, Any] | None = None, **scalars: int
) -> dict[str, Array]:
    """The tensors after a launch on the interpreter."""
    after = {name: array.copy() if array.flags.c_contiguous else array for name, array in arrays.items()}
    with np.errstate(all="ignore"):
        interpreter.run(kernel(body, constants), after, scalars)
    return after


def emulated(
    body: str, target: Target, arrays: dict[str, Array], constants: dict[str, Any] | None = None, warps: int | None = None,
    **scalars: int,
) -> dict[str, Array]:  # fmt: skip
    """The tensors after a launch of the PTX of an architecture on the emulator."""
    schedule = choose(kernel(body, constants), target, Overrides(warps=warps))
    function = prepare(kernel(body, constants), target, schedule)
    code = lower(function, target)
    launched = manifest(kernel(body, constants), code, target, schedule)
    given = {name: array.copy() for name, array in arrays.items()}
    report = emulate(to_ptx(code.mlir, target), launched, given, dict(scalars), seed=0)
    assert report.clean and not report.notes, (report.faults or report.notes)[0]
    return report.tensors
