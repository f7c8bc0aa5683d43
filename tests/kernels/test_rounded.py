"""Bounds of a kernel's roundings: the interpreter stays within them at any seed, and what a mistake writes does not."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import ml_dtypes
import numpy as np
import pytest

from tests import shipped
from tests.campaign import chosen
from tests.kernels.numpy_torch import Tensor, modules
from tests.shipped_launches import SIZES, launch_values, make_arrays
from tilec.artifact.records import parameter_specs
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Function

Arrays = dict[str, Any]
SCALARS = {"eps": 1e-6, "scale": 128**-0.5, "past": 0, "vocab_size": 100, "filled": 1}
"""As `launch.scalar_value` gives them to a GPU."""
SMALL: dict[str, dict[str, Any]] = {
    "rotary_decode_attention": {"E": "bf16", "G": 2, "D": 128, "BN": 64, "B": 4, "HKV": 3, "S": 64, "P": 1, "R": 141},
    "rms_norm": {"E": "bf16", "H": 1024, "T": 3},
    "flash_attention": {"E": "bf16", "T": 20, "HKV": 1, "G": 2, "S": 128, "past": 105},
}
"""Launches of few numbers: the first has 24 maxima."""


@pytest.fixture(scope="module")
def checker() -> Iterator[Any]:
    """`ci.bench.kernels.cases` on NumPy."""
    names = modules()
    kept = {name: sys.modules.get(name) for name in names}
    before = {name: module for name, module in sys.modules.items() if name.startswith("ci.bench.kernels")}
    for name in before:
        del sys.modules[name]
    sys.modules.update(names)
    import ci.bench.kernels.cases as cases

    yield cases
    for name in [name for name in sys.modules if name.startswith("ci.bench.kernels")]:
        del sys.modules[name]
    for name, module in kept.items():
        if module is None:
            del sys.modules[name]
        else:
            sys.modules[name] = module
    sys.modules.update(before)


def launched(function: Function, size: dict[str, Any], seed: int) -> tuple[Any, Arrays, Arrays]:
    """A kernel's manifest as far as a checker reads it, and its tensors before and after a launch on the interpreter."""
    values = launch_values(function, SCALARS | size)
    before = make_arrays(function, values, seed)
    after = {tensor: array.copy() for tensor, array in before.items()}
    tensors, scalars = parameter_specs(function)
    run(function, after, {spec.name: values[spec.name] for spec in scalars})
    return SimpleNamespace(kernel=function.name, constants=dict(function.constants), tensors=tensors), before, after


def wrapped(arrays: Arrays) -> dict[str, Tensor]:
    return {name: Tensor(array) for name, array in arrays.items()}


def wrong(checker: Any, manifest: Any, before: Arrays, after: Arrays) -> list[str]:
    """Outputs that are not right."""
    bounded = checker.ROUNDED[manifest.kernel](manifest, wrapped(before))
    return [name for name, one in bounded.items() if not one.allows(Tensor(after[name]))]


CASES = [(name, size) for name in shipped.NAMES for size in SIZES[name]]


@pytest.mark.parametrize(("name", "size"), CASES, ids=[f"{name}-{size}" for name, size in CASES])
def test_every_shipped_kernel_is_within_its_bounds(name: str, size: dict[str, Any], checker: Any) -> None:
    given = ("eps", "scale") if name in ("paged_gather", "paged_gather_c8") else ("eps", "scale", "filled")
    size = {key: value for key, value in size.items() if key not in given}
    if name == "flash_attention":
        size |= {"past": 128 - 20 - 3}
    manifest, before, after = launched(shipped.load(name, size), size, 0)
    written = {spec.name for spec in manifest.tensors if spec.access in ("out", "inout")}
    computed = checker.stored_rows.KERNELS
    floats = {spec.name for spec in manifest.tensors if spec.name in written and spec.dtype[0] != "i"}
    bounded: dict[str, Any] = checker.ROUNDED[name](manifest, wrapped(before)) if name in checker.ROUNDED else {}
    assert not wrong(checker, manifest, before, after) if bounded else not floats
    assert floats <= {*bounded, *(("scaled", "squares") if name in computed else ())}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("seeds", chosen([range(20), range(20, 1000)], lambda seeds: len(seeds) == 20), ids=["20", "980"])
def test_a_right_kernel_is_right_at_any_seed(name: str, seeds: range, checker: Any) -> None:
    function, size = shipped.load(name, SMALL[name]), SMALL[name]
    assert not [seed for seed in seeds if wrong(checker, *launched(function, size, seed))]


MISTAKES = {
    "rotary_decode_attention": {
        "scale": ("scale * 1.4426950408889634", "scale * 1.4571219912978531"),
        "column": ("low * factor * q_low[None", "low * factor * tl.where(tl.arange(D // 2) < D // 2 - 1, q_low, 0.0)[None"),
        "mask": ("[:, None] < slot", "[:, None] <= slot"),
    },
    "rms_norm": {
        "scale": ("* (1.0 / H)", "* (1.02 / H)"),
        "column": ("tl.sum(v * v", "tl.sum(tl.where(tl.arange(H) < H - 1, v * v, 0.0)"),
    },
    "flash_attention": {
        "scale": ("scale * 1.4426950408889634", "scale * 1.4571219912978531"),
        "column": ("s = tl.mma(query, k.T", "s = tl.mma(tl.where(tl.arange(D) < D - 1, query, tl.zeros((BM, D), E)), k.T"),
        "mask": ("[None, :] <= (first", "[None, :] < (first"),
    },
}
"""In a kernel's source: a scale wrong by 1 %, the last column left out, a comparison of slots off by one."""
LAUNCHES: Final = 6
"""Launches of which one must be wrong: a GPU runs at least as many sizes. 1 % of a scale may change few numbers of 16 bits."""


@pytest.mark.parametrize("first", chosen(range(0, 60, LAUNCHES), lambda first: first == 0))
@pytest.mark.parametrize(("name", "mistake"), [(name, mistake) for name, own in MISTAKES.items() for mistake in own])
def test_a_mistake_is_wrong(name: str, mistake: str, first: int, checker: Any, tmp_path: Path) -> None:
    shutil.copytree(shipped.ROOT / "kernels_src", tmp_path / "kernels_src")
    path = tmp_path / "kernels_src" / f"{name}.py"
    old, new = MISTAKES[name][mistake]
    assert path.read_text().count(old) == 1
    path.write_text(path.read_text().replace(old, new))
    right = shipped.load(name, SMALL[name])
    function = load_kernel(path, dict(right.constants), root=tmp_path)
    seeds = range(first, first + LAUNCHES)
    missed = [seed for seed in seeds if not wrong(checker, *launched(function, SMALL[name], seed))]
    assert len(missed) < LAUNCHES


def cut_sums(a: Any, b: Any, a_scales: Any, b_scales: Any, bits: int) -> Any:
    """Products of eight bits as tensor cores of sm_90 sum them, an element at a time: 32 products and the sum so far are cut
    at a bit of this many below the largest."""
    total = np.zeros((len(a), len(b)))
    for block in range(a.shape[1] // 128):
        found = np.zeros_like(total)
        for first in range(128 * block, 128 * block + 128, 32):
            terms = np.concatenate([a[:, None, first : first + 32] * b[None, :, first : first + 32], found[..., None]], 2)
            unit = 2.0 ** (np.floor(np.log2(np.abs(terms).max(2, keepdims=True))) - bits)
            found = (np.trunc(terms / unit) * unit).sum(2)
        total += found * a_scales[block][:, None] * b_scales[:, block].repeat(128)
    return total


@pytest.mark.parametrize("depth", [384, 1152])
def test_sums_of_products_of_eight_bits_may_be_cut_and_miss_none(depth: int, checker: Any) -> None:
    draw = np.random.default_rng(depth)
    a, b = (draw.standard_normal((rows, depth)).astype(ml_dtypes.float8_e4m3fn) for rows in (64, 128))
    a_scales, b_scales = (draw.standard_normal(shape).astype(np.float32) for shape in ((depth // 128, 64), (1, depth // 128)))
    right = checker.rounded_kernels.blocks(*map(Tensor, (a, a_scales, b, b_scales)))
    wide = [one.astype(np.float64) for one in (a, b, a_scales, b_scales)]
    for dtype, narrow in (("f16", np.float16), ("bf16", ml_dtypes.bfloat16)):
        found = cut_sums(*wide, bits=12)
        missing = wide[0][:, 5:6] * wide[1][:, 5] * wide[2][0][:, None] * wide[3][0, 0]
        assert right.stored(dtype).allows(Tensor(found.astype(narrow)))
        assert not right.stored(dtype).allows(Tensor((found - missing).astype(narrow)))
