"""The aligned version of a kernel: which preconditions it has, that both versions compute the same as the interpreter at sizes
that are theirs, and that wide accesses really need what it requires."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.programs.machines import manifest
from tilec.codegen import to_ptx
from tilec.diagnostics.diagnostic import CompileError
from tilec.emulator.launch import emulate
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.aligned import ALIGNED, aligned_text, read_aligned
from tilec.ir.types import DTYPES
from tilec.lowering import lower
from tilec.passes.prover import positive_divisions, prove
from tilec.passes.prover.aliasing import launch_checks
from tilec.passes.schedule import choose, prepare
from tilec.passes.schedule.notes import aligned_version, notes
from tilec.target.dtypes import numpy_dtype
from tilec.target.targets import SM_80, SM_90A, Target

HEAD = '''"""As users write them: no word on multiples."""
import tilec as tl


class B(tl.Dim):
    """batches"""


class M(tl.Dim):
    """rows"""


class N(tl.Dim):
    """columns"""


class K(tl.Dim):
    """depth"""


class S(tl.Dim):
    """a stride"""


'''
PRODUCT = """@tl.kernel
def product(a: tl.In[tl.bf16, M, K], b: tl.In[tl.bf16, N, K], out: tl.Out[tl.bf16, M, N]):
    tl.grid(tl.cdiv(M, 64), tl.cdiv(N, 64))
    m, n = tl.bid(0), tl.bid(1)
    acc = tl.zeros((64, 64), tl.f32)
    for k in range(tl.cdiv(K, 64)):
        acc = tl.mma(tl.load(a, (m, k), shape=(64, 64), pad=0), tl.load(b, (n, k), shape=(64, 64), pad=0).T, acc)
    tl.store(out, (m, n), acc.astype(tl.bf16), mask=True)
"""
TURNED = """@tl.kernel
def turned(x: tl.In[tl.bf16, B, M, N], out: tl.Out[tl.bf16, B, N, M]):
    tl.grid(tl.cdiv(M, 64), tl.cdiv(N, 64), B)
    i, j, b = tl.bid(0), tl.bid(1), tl.bid(2)
    v = tl.load(x, (b, i, j), shape=(1, 64, 64), pad=0)
    tl.store(out, (b, j, i), v.permute((0, 2, 1)), mask=True)
"""
STRIDED = """@tl.kernel
def strided(x: tl.In[tl.f32, M, N, tl.Strides[S, 1]], out: tl.Out[tl.f32, M, 512]):
    tl.grid(M)
    tl.store(out, (tl.bid(0), 0), tl.load(x, (tl.bid(0), 0), shape=(1, 512), pad=0))
"""
BYTES = """@tl.kernel
def narrowed(x: tl.In[tl.f32, M, N], out: tl.Out[tl.i8, M, N]):
    tl.grid(M, tl.cdiv(N, 1024))
    v = tl.load(x, (tl.bid(0), tl.bid(1)), shape=(1, 1024), pad=0)
    tl.store(out, (tl.bid(0), tl.bid(1)), v.astype(tl.i8), mask=True)
"""
STATED = PRODUCT.replace("    tl.grid", "    tl.requires(K % 8 == 0, N % 8 == 0)\n    tl.grid")
WINDOW = """@tl.kernel
def window(x: tl.In[tl.f32, M, N], out: tl.Out[tl.f32, M, 512]):
    tl.grid(M)
    tl.store(out, (tl.bid(0), 0), tl.load(x, offset=(tl.bid(0), 1), shape=(1, 512), pad=0))
"""
"""Begins at column 1, which no multiple changes."""
CASES = {
    PRODUCT: "K % 8 == 0 and N % 8 == 0",
    TURNED: "",  # adjacent threads load and store adjacent elements of both sides anyway
    STRIDED: "S % 4 == 0",
    BYTES: "N % 16 == 0",
    STATED: "",
    WINDOW: "",
}


@dataclass(frozen=True)
class Made:
    """A kernel as far as PTX, and what its launcher checks."""

    function: Any
    described: Any
    ptx: str
    checks: tuple[str, ...]

    def emulated(self, arrays: dict[str, Any], dims: dict[str, int]) -> tuple[bool, Any]:
        report = emulate(self.ptx, self.described, arrays, dims)
        return report.clean, report.tensors["out"]


def write(folder: Path, text: str) -> Path:
    path = folder / (re.findall(r"def (\w+)", text)[0] + ".py")
    path.write_text(HEAD + text)
    return path


def make(path: Path, constants: dict[str, Any], target: Target = SM_90A) -> Made:
    def function() -> Any:
        return load_kernel(path, constants, root=path.parent)

    proven = function()
    prove(proven)
    schedule = choose(function(), target)
    scheduled = prepare(proven, target, schedule, positive=frozenset(op.operands[1] for op in positive_divisions(proven)))
    code = lower(scheduled, target, min_blocks=schedule.blocks)
    checks = tuple(check.text for check in launch_checks(function()))
    return Made(function(), manifest(scheduled, code, target, schedule), to_ptx(code.mlir, target), checks)


def precondition(path: Path, constants: dict[str, Any], target: Target = SM_90A) -> str:
    function = load_kernel(path, constants, root=path.parent)
    prepared = prepare(function, target, choose(load_kernel(path, constants, root=path.parent), target))
    return aligned_version(prepared, notes(prepared, target))


@pytest.mark.parametrize("target", [SM_90A, SM_80], ids=str)
@pytest.mark.parametrize("text", CASES, ids=["product", "turned", "strided", "bytes", "stated", "window"])
def test_its_precondition_widens_all_that_multiples_can(text: str, target: Target, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    assert precondition(path, {}, target) == CASES[text]
    if not CASES[text]:
        return
    prepared = prepare(load_kernel(path, {ALIGNED: CASES[text]}, root=tmp_path), target)
    assert [note for note in notes(prepared, target) if note.kind == "narrow_access"] == []
    assert precondition(path, {ALIGNED: CASES[text]}, target) == ""  # no version of a version


def inputs(m: int, n: int, k: int) -> dict[str, Any]:
    random, dtype = np.random.default_rng(m + n + k), numpy_dtype(DTYPES["bf16"])
    shapes = {"a": (m, k), "b": (n, k), "out": (m, n)}
    return {name: random.integers(-2, 3, shape).astype(dtype) for name, shape in shapes.items()}


SIZES = [(64, 64, 64, True), (70, 72, 136, True), (70, 65, 64, False), (3, 8, 67, False), (64, 64, 68, False), (1, 1, 1, False)]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Made, Made]:
    path = write(tmp_path_factory.mktemp("product"), PRODUCT)
    return make(path, {}), make(path, {ALIGNED: CASES[PRODUCT]})


@pytest.mark.parametrize(("m", "n", "k", "fits"), SIZES)
def test_both_are_right_at_their_sizes(both: tuple[Made, Made], m: int, n: int, k: int, fits: bool) -> None:
    dims, arrays = {"M": m, "N": n, "K": k}, inputs(m, n, k)
    expected = {name: array.copy() for name, array in arrays.items()}
    run(both[0].function, expected)
    for version in both if fits else both[:1]:
        clean, found = version.emulated(arrays, dims)
        assert clean and (found == expected["out"]).all()


@pytest.mark.parametrize(("n", "k"), [(64, 65), (64, 66), (64, 68), (65, 64), (68, 64)])
def test_without_its_precondition_it_would_be_wrong(both: tuple[Made, Made], n: int, k: int) -> None:
    """Forced upon sizes that it does not fit, past its launch checks, its accesses are at no multiples of 16 bytes."""
    arrays = inputs(64, n, k)
    expected = {name: array.copy() for name, array in arrays.items()}
    run(both[0].function, expected)
    clean, found = both[1].emulated(arrays, {"M": 64, "N": n, "K": k})
    assert not clean or not (found == expected["out"]).all()


def test_its_code_is_wide_and_its_launches_are_checked(both: tuple[Made, Made]) -> None:
    general, aligned = both
    assert "wgmma.mma_async" in aligned.ptx and "cp.async.cg" in aligned.ptx and "wgmma" not in general.ptx
    assert set(aligned.checks) - set(general.checks) == {"requires(K % 8 == 0)", "requires(N % 8 == 0)"}
    assert aligned.function.constants == {ALIGNED: CASES[PRODUCT]} and not general.function.constants


OTHER_TEXTS = ("", "K % 8 == 0 or 1", "K % 8 == 0 and ", "N % 8 == 0 and K % 8 == 0", "K % 0 == 0", "Z % 8 == 0", 8)


@pytest.mark.parametrize("text", OTHER_TEXTS)
def test_other_texts_are_refused(text: Any, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="E0212"):
        load_kernel(write(tmp_path, PRODUCT), {ALIGNED: text}, root=tmp_path)


def test_texts_are_read_as_written() -> None:
    assert read_aligned(aligned_text({"N": 8, "K": 16})) == {"K": 16, "N": 8}
    for text in ("K % 8 == 0 and K % 8 == 0", " and ".join(f"K{number:03} % 2 == 0" for number in range(200)), None):
        with pytest.raises(ValueError, match="is no precondition"):
            read_aligned(text)
