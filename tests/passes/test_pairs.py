"""Halving the rows of a tile between the blocks of a pair: what a block then has, and kernels that cannot be halved."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import shipped
from tests.tensor_products import source
from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import load_kernel
from tilec.ir.core import Function
from tilec.ir.ops import Load, Mma, Store
from tilec.ir.text.printer import print_function
from tilec.ir.verifier import verify
from tilec.passes.schedule import choose, prepare
from tilec.passes.schedule.specialization import pairs
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A, SM_100A, SM_120A, Target

HEAD = '''
from tilec import Dim, In, Out, arange, astype, bf16, bid, cdiv, f32, grid, load, max, mma, requires, store, zeros
class M(Dim): """rows"""
class N(Dim): """columns"""
class K(Dim): """depth"""
import tilec
@tilec.kernel
'''
KERNEL = """def kernel(
    a: In[bf16, M, K], b: In[bf16, N, K], s: In[f32, M], t: In[f32, N], out: Out[bf16, M, N], other: Out[f32, N]
):
    grid(cdiv(M, 256), cdiv(N, 128))
    requires(K % 8 == 0 and N % 8 == 0)
    m, n = bid(0), bid(1)
    acc = zeros((256, 128), f32)
    for i in range(cdiv(K, 64)):
        x = load(a, (m, i), shape=(256, 64), pad=0)
        y = load(b, (n, i), shape=(128, 64), pad=0)
        acc = mma(x, y.T, acc)
    BODY
    store(out, (m, n), astype(acc, bf16), mask=True)
"""
ROWS = "acc = acc * load(s, m, shape=256, pad=0)[:, None] + load(t, n, shape=128, pad=0)[None, :]"
TWICE = "acc = acc - max(acc, axis=1)[:, None]"
REFUSED = [
    ("acc = acc - max(acc, axis=0)[None, :]", "`reduce` goes across the rows"),
    ("acc = acc + astype(arange(256), f32)[:, None]", "`iota` does not work on a half of the rows"),
    ("acc = acc + acc.reshape(64, 512).reshape(256, 128)", "`reshape` does not work on a half of the rows"),
    ("store(other, n, load(t, n, shape=128, pad=0), mask=True)", "both blocks of a pair would write"),
]
"""What a kernel does with the product, and why its rows cannot be halved."""


def written(folder: Path, body: str) -> Function:
    path = folder / "kernel.py"
    path.write_text(HEAD + KERNEL.replace("BODY", body))
    return load_kernel(path, {})


def test_a_block_has_half_of_the_rows(tmp_path: Path) -> None:
    function = pairs.halve(written(tmp_path, ROWS))
    verify(function)
    assert function.cluster == 2
    loads = [op.result.tile.shape for op in function.body.walk() if isinstance(op, Load)]
    assert loads == [(128, 64), (128, 64), (128,), (128,)]  # of a, b, s and t: of b and t all
    assert [op.result.tile.shape for op in function.body.walk() if isinstance(op, Mma)] == [(128, 128)]
    assert [op.tile.tile.shape for op in function.body.walk() if isinstance(op, Store)] == [(128, 128)]
    once = print_function(function)
    assert print_function(pairs.halve(function)) == once
    moved = [load.offsets[0] for load in function.body.walk() if isinstance(load, Load) and load.source.name in ("a", "s")]
    assert all(offset.fits for offset in moved)


@pytest.mark.parametrize("body", [ROWS, TWICE, "pass"])
def test_kernels_that_keep_their_rows_are_pairs(body: str, tmp_path: Path) -> None:
    wanted = Overrides(copy="tma", cluster=2)
    assert prepare(written(tmp_path, body), SM_100A, wanted).cluster == 2
    assert choose(written(tmp_path, body), SM_100A, wanted).cluster == 2


@pytest.mark.parametrize(("body", "reason"), REFUSED)
def test_kernels_that_cannot_be_halved_are_refused(body: str, reason: str, tmp_path: Path) -> None:
    function = written(tmp_path, body)
    before = print_function(function)
    with pytest.raises(CompileError) as refused:
        choose(function, SM_100A, Overrides(copy="tma", cluster=2))
    assert refused.value.diagnostics[0].code == "E0809"
    assert reason in refused.value.diagnostics[0].message
    assert print_function(function) == before


def test_rows_that_fill_no_pair_are_refused() -> None:
    with pytest.raises(CompileError, match="128 rows; a pair has a multiple of 256"):
        choose(source("bf16", 128, 128), SM_100A, Overrides(copy="tma", cluster=2))


def test_kernels_without_products_are_refused() -> None:
    with pytest.raises(CompileError, match="it multiplies no matrices"):
        choose(shipped.load("rms_norm"), SM_100A, Overrides(copy="tma", cluster=2))


def test_back_to_back_products_are_refused() -> None:
    with pytest.raises(CompileError, match="no pairs of blocks"):
        choose(shipped.load("flash_attention"), SM_100A, Overrides(copy="tma", cluster=2))


@pytest.mark.parametrize("target", [SM_90A, SM_120A], ids=str)
@pytest.mark.parametrize("wanted", [Overrides(copy="tma", cluster=2), Overrides(cluster=2)])
def test_pairs_are_of_products_in_tensor_memory(target: Target, wanted: Overrides) -> None:
    with pytest.raises(CompileError, match="pairs of blocks whose products are not those in tensor memory"):
        choose(source("bf16", 256, 128), target, wanted)


def test_a_multiprocessor_has_one_block_of_a_pair() -> None:
    with pytest.raises(CompileError, match="2 blocks of pairs on a multiprocessor"):
        choose(source("bf16", 256, 64), SM_100A, Overrides(copy="tma", cluster=2, blocks=2))


def test_threads_do_not_copy_operands_of_pairs() -> None:
    with pytest.raises(CompileError, match="pairs of blocks whose products are not those in tensor memory"):
        choose(source("bf16", 256, 128), SM_100A, Overrides(cluster=2, copy="cp_async"))
