"""A product of f32 operands against a float64 reference: right within the rounding of operands to tf32, and wrong beyond it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec.frontend import load_kernel
from tilec.ir.core import Function
from tilec.project.trial.coarse import TF32_PRODUCT, least_tolerances
from tilec.project.trial.trial import Trial, TrialRequest, trials

KERNEL = '''"""A product, and a copy."""

import tilec as tl


class M(tl.Dim):
    """rows"""


class K(tl.Dim):
    """depth"""


@tl.kernel
def product(a: tl.In[tl.f32, M, K], b: tl.In[tl.f32, 16, K], out: tl.Out[tl.f32, M, 16], same: tl.Out[tl.f32, M, 16]):
    tl.grid(tl.cdiv(M, 16))
    acc = tl.zeros((16, 16), tl.f32)
    for k in range(tl.cdiv(K, 16)):
        x = tl.load(a, (tl.bid(0), k), shape=(16, 16), pad=0)
        y = tl.load(b, (0, k), shape=(16, 16), pad=0)
        acc = tl.mma(x, y.T, acc, tf32=True)
    tl.store(out, (tl.bid(0), 0), acc, mask=True)
    tl.store(same, (tl.bid(0), 0), tl.load(a, (tl.bid(0), 0), shape=(16, 16), pad=0) * 3.0, mask=True)
'''
REFERENCE = '''"""In f64."""

import ml_dtypes
import numpy as np


def product(a, b):
    first = np.zeros((a.shape[0], 16))
    first[:, : min(16, a.shape[1])] = a[:, :16]
    wide = (a ROUNDED).astype("float64") @ (b ROUNDED).astype("float64").T
    return wide, first * 3.0 * SCALE
'''


def trial(folder: Path, depth: int, rounded: str = "", scale: str = "1.0") -> Trial:
    kernel, reference = folder / "product.py", folder / "reference.py"
    kernel.write_text(KERNEL, encoding="utf-8")
    reference.write_text(REFERENCE.replace("ROUNDED", rounded).replace("SCALE", scale), encoding="utf-8")
    request = TrialRequest(kernel, folder, {}, {"M": 200, "K": depth}, reference=(reference, "product"))
    (found,) = trials(request)
    return found


@pytest.mark.parametrize("depth", [33, 136, 1024])
def test_the_rounding_of_operands_is_allowed(depth: int, tmp_path: Path) -> None:
    found = trial(tmp_path, depth)
    assert found.right, found
    assert (found.written[0].error or 0) > 0.05  # operands are rounded


def test_a_coarser_product_is_wrong(tmp_path: Path) -> None:
    found = trial(tmp_path, 1024, ".astype(ml_dtypes.bfloat16)")
    assert (found.written[0].error or 0) > 1 and not found.right


def test_other_results_keep_the_tolerance_of_their_dtype(tmp_path: Path) -> None:
    found = trial(tmp_path, 136, scale="1.0002")
    assert [(one.error or 0) > 1 for one in found.written] == [False, True]


def test_results_that_the_product_reaches(tmp_path: Path) -> None:
    assert least_tolerances(_function(tmp_path)) == {"out": TF32_PRODUCT}


def _function(folder: Path) -> Function:
    path = folder / "product.py"
    path.write_text(KERNEL, encoding="utf-8")
    return load_kernel(path, {}, root=folder)
