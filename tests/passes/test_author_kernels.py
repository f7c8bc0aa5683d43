"""Kernels by authors that the prover once could not prove: each is accepted now, and a wrong variant of each is refused with a
failing launch. Both verdicts are checked by running every block at small sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.passes.texts import verdict_of

HEAD = '''
from typing import Literal
import tilec
from tilec import (Const, Dim, In, InOut, Out, arange, bid, cdiv, f32, gather, grid, i32, load, maximum, minimum, num_blocks,
                   requires, scatter, store, values, where)
class B(Dim): """segments"""
class D(Dim): """columns"""
class M(Dim): """rows"""
class N(Dim): """columns"""
class T(Dim): """rows of all segments"""
class V(Dim): """rows of a table"""
@tilec.kernel
'''

SCALAR_DIM = """def kernel(ids: In[i32, N], x: In[f32, V, 4], out: Out[f32, N, 4], N: i32):
    grid(N)
    values(ids, 0, V)
    store(out, (bid(0), 0), load(x, (load(ids, bid(0)), 0), shape=(1, 4)))
"""
SCALAR_SLOTS = """def kernel(slots: In[i32, T], x: In[f32, T, 4], out: InOut[f32, V, 4], T: i32):
    grid(T)
    values(slots, 0, V, distinct=True)
    store(out, (load(slots, bid(0)), 0), load(x, (bid(0), 0), shape=(1, 4)))
"""
FLAT = """def kernel(x: In[f32, M, N], out: Out[f32, Literal["M * N"]]):
    grid(M, N)
    store(out, bid(0) * N + bid(1), load(x, (bid(0), bid(1))))
"""
TILES = """def kernel(x: In[f32, M, N], out: Out[f32, M, N], programs: i32):
    grid(programs)
    requires(M * N <= 2**20, programs <= 64)
    down, across = cdiv(M, 2), cdiv(N, 3)
    for t in range(bid(0), down * across, programs):
        i, j = t // across, t % across
        store(out, (i, j), load(x, (i, j), shape=(2, 3), pad=0), mask=True)
"""
GROUPED = """def kernel(x: In[f32, M, N], out: Out[f32, M, N], programs: i32):
    grid(programs)
    requires(M * N <= 2**20, programs <= 64)
    down, across = cdiv(M, 2), cdiv(N, 3)
    for t in range(bid(0), down * across, programs):
        first = t // (4 * across) * 4
        rows = minimum(down - first, 4)
        i, j = first + t % (4 * across) % rows, t % (4 * across) // rows
        store(out, (i, j), load(x, (i, j), shape=(2, 3), pad=0), mask=True)
"""
LANES = """def kernel(x: In[f32, Literal["M * 16"]], out: Out[f32, Literal["M * 16"]], M: i32):
    grid(M)
    requires(M <= 2**20)
    p = bid(0) * 16 + (arange(16) ^ (bid(0) & 7))
    scatter(out, p, gather(x, p))
"""
ITERATIONS = """def kernel(x: In[f32, M, 16], out: Out[f32, M, 16]):
    grid(M)
    for j in range(16):
        store(out, (bid(0), j ^ 5), load(x, (bid(0), j)))
"""
MASKS = """def kernel(x: In[f32, 64], out: Out[f32, M], k: i32):
    grid(M)
    a = load(x, k & -8 & 63) + load(x, ~k & 7) + load(x, k >> 3 & 7 | 32) + load(x, minimum(1 << (k & 7), 63))
    store(out, bid(0), a + load(x, ((k ^ -1) >> 31) + 1))
"""
SEGMENTS = """def kernel(cu: In[i32, Literal["B + 1"]], x: In[f32, T, 2], out: Out[f32, T, 2], B: i32):
    grid(B)
    values(cu, 0, T + 1, sorted=True, ends=True)
    for j in range(load(cu, bid(0)), load(cu, bid(0) + 1)):
        store(out, (j, 0), load(x, (j, 0), shape=(1, 2)))
"""
SEGMENT_TILES = """def kernel(cu: In[i32, Literal["B + 1"]], x: In[f32, T, 2], out: Out[f32, T, 2], B: i32):
    grid(B)
    values(cu, 0, T + 1, sorted=True, ends=True)
    end = load(cu, bid(0) + 1)
    columns = arange(2)[None, :]
    for j in range(load(cu, bid(0)), end, 4):
        rows = (j + arange(4))[:, None]
        scatter(out, (where(rows < end, rows, T), columns), gather(x, (rows, columns), pad=0), mask=True)
"""
STRIDED_TILES = """def kernel(cu: In[i32, Literal["B + 1"]], x: In[f32, T], out: Out[f32, T], blocks: i32):
    requires(1 <= blocks, blocks <= 64)
    grid(blocks, B)
    values(cu, 0, T + 1, sorted=True, ends=True)
    begin, end = load(cu, bid(1)), load(cu, bid(1) + 1)
    for j in range(bid(0), cdiv(end - begin, 2), num_blocks(0)):
        rows = begin + j * 2 + arange(2)
        scatter(out, where(rows < end, rows, T), gather(x, rows, pad=0), mask=True)
"""
STRIDED_ROWS = """def kernel(cu: In[i32, Literal["B + 1"]], x: In[f32, T, 2], out: Out[f32, T, 2], blocks: i32):
    requires(1 <= blocks, blocks <= 64)
    grid(B, blocks)
    values(cu, 0, T + 1, sorted=True, ends=True)
    for j in range(load(cu, bid(0)) + bid(1), load(cu, bid(0) + 1), blocks):
        store(out, (j, 0), load(x, (j, 0), shape=(1, 2)))
"""
RAGGED_TILES = """def kernel(cu: In[i32, Literal["B + 1"]], x: In[f32, T, N], out: Out[f32, T, N], B: i32):
    across = cdiv(N, 2)
    grid(B * across)
    values(cu, 0, T + 1, sorted=True, ends=True)
    b, n = bid(0) // across, bid(0) % across
    begin, end = load(cu, b), load(cu, b + 1)
    columns = (n * 2 + arange(2))[None, :]
    rows = begin + arange(2)
    own = load(x, offset=(begin, n * 2), shape=(2, 2), pad=0)
    scatter(out, (where(rows < end, rows, T)[:, None], columns), own, mask=True)
    for j in range(1, cdiv(end - begin, 2)):
        rows = begin + j * 2 + arange(2)
        scatter(out, (where(rows < end, rows, T)[:, None], columns), own, mask=True)
"""
BUTTERFLY = """def kernel(x: In[f32, Literal["M * 8"]], out: Out[f32, Literal["M * 8"]], s: i32):
    grid(M)
    requires(0 <= s, s < 3)
    i = bid(0) * 8 + arange(8)
    store(out, bid(0), gather(x, i) + gather(x, i ^ (1 << s)))
"""
ROUNDED_UP = """def kernel(x: In[f32, N], lengths: In[i32, M], out: Out[f32, M], k: i32):
    requires(k >= 1)
    grid(M)
    total = f32(0)
    for j in range(minimum(cdiv(load(lengths, bid(0)), k), N)):
        total = total + load(x, j)
    store(out, bid(0), total)
"""
CSR = """def kernel(indptr: In[i32, Literal["M + 1"]], col: In[i32, T], val: In[f32, T], x: In[f32, N], y: Out[f32, M]):
    grid(M)
    values(indptr, 0, T + 1, sorted=True)
    values(col, 0, N)
    total = f32(0)
    for k in range(load(indptr, bid(0)), load(indptr, bid(0) + 1)):
        total = total + load(val, k) * load(x, load(col, k))
    store(y, bid(0), total)
"""
CARRIED = """def kernel(x: In[f32, N], flags: In[i32, M], out: Out[f32, M]):
    grid(1)
    c = i32(0)
    for j in range(M):
        store(out, j, load(x, minimum(maximum(c, 0), N - 1)))
        c = where(load(flags, j) > 0, minimum(c + 1, N), c)
"""
ACCEPTED = {
    name.lower(): text
    for name, text in globals().items()
    if name.isupper() and isinstance(text, str) and text.startswith("def kernel")
}
REFUSED = {
    "scalar dim, wrong range": (SCALAR_DIM, "values(ids, 0, V)", "values(ids, 0, V + 1)", "E0301"),
    "scalar dim, slots not distinct": (SCALAR_SLOTS, ", distinct=True", "", "E0401"),
    "flat, wrong stride": (FLAT, "* N", "* M", "E0302"),
    "tiles, ids swapped": (TILES, "t // across, t % across", "t % across, t // across", "E0403"),
    "tiles, one short": (TILES, "down * across, programs", "down * across - 1, programs", "E0403"),
    "tiles, wrong step": (TILES, "across, programs):", "across, 4):", "E0401"),
    "tiles, step of any size": (TILES, "across, programs):", "across, M - 1):", "E0305"),
    "lanes, a bit lost": (LANES, "arange(16) ^", "arange(16) &", "E0404"),
    "turns, out of the block": (ITERATIONS, "j ^ 5", "j ^ 21", "E0302"),
    "turns, a bit lost": (ITERATIONS, "j ^ 5", "(j ^ 5) & 14", "E0404"),
    "masks, one too many": (MASKS, "& 7 | 32", "& 7 | 64", "E0301"),
    "masks, sign": (MASKS, "(k ^ -1) >> 31) + 1", "(k ^ -1) >> 31)", "E0301"),
    "segments, not sorted": (SEGMENTS, "sorted=True, ends=True", "", "E0401"),
    "segments, past the end": (SEGMENTS, "bid(0) + 1)):", "bid(0) + 1) + 1):", "E0302"),
    "segments, wrong bound": (SEGMENTS, "T + 1, sorted", "T + 2, sorted", "E0302"),
    "strided rows, any step": (STRIDED_ROWS, "bid(0) + 1), blocks)", "bid(0) + 1), 3)", "E0401"),
    "strided tiles, past the end": (STRIDED_TILES, "gather(x, rows, pad=0)", "gather(x, rows)", "E0303"),
    "ragged tiles, not sorted": (RAGGED_TILES, "sorted=True, ends=True", "", "E0401"),
    "ragged tiles, into the next segment": (RAGGED_TILES, "rows < end", "rows <= end", "E0401"),
    "ragged tiles, not bounded": (RAGGED_TILES, "where(rows < end, rows, T)", "rows", "E0401"),
    "ragged tiles, columns overlap": (RAGGED_TILES, "n * 2 + arange", "n + arange", "E0401"),
    "ragged tiles, the first rows twice": (RAGGED_TILES, "range(1, cdiv", "range(0, cdiv", "E0404"),
    "butterfly, a stage too many": (BUTTERFLY, "s < 3", "s < 4", "E0303"),
    "rounded up, any divisor": (ROUNDED_UP, "k >= 1", "k >= -1", "E0305"),
    "csr, wrong bound": (CSR, "values(indptr, 0, T + 1", "values(indptr, 0, T + 2", "E0301"),
    "carried, not clamped": (CARRIED, "minimum(maximum(c, 0), N - 1)", "c", "E0301"),
    "segments, first row left out": (SEGMENTS, "range(load(cu, bid(0))", "range(load(cu, bid(0)) + 1", "E0403"),
    "segments, every second row": (SEGMENTS, "bid(0) + 1)):", "bid(0) + 1), 2):", "E0403"),
    "strided tiles, one short": (STRIDED_TILES, "cdiv(end - begin, 2)", "(end - begin) // 2", "E0403"),
    "strided rows, first left out": (STRIDED_ROWS, "+ bid(1)", "+ bid(1) + 1", "E0403"),
    "ragged tiles without ends": (RAGGED_TILES, ", ends=True", "", "E0403"),
    "ragged tiles, one short": (RAGGED_TILES, "cdiv(end - begin, 2)", "(end - begin) // 2", "E0403"),
    "ragged tiles, a row short": (RAGGED_TILES, "rows < end", "rows < end - 1", "E0403"),
    "segment tiles, a row short": (SEGMENT_TILES, "rows < end,", "rows < end - 1,", "E0403"),
    "segments without ends": (SEGMENTS, ", ends=True", "", "E0403"),
    "strided tiles without ends": (STRIDED_TILES, ", ends=True", "", "E0403"),
}
UNDECIDED = {
    "ragged tiles, columns left out": (RAGGED_TILES, "n * 2 + arange", "n * 3 + arange", "E0306"),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted_and_nothing_goes_wrong(tmp_path: Path, name: str) -> None:
    verdict = verdict_of(tmp_path, HEAD + ACCEPTED[name])
    assert verdict.kind == "accepted", verdict.diagnostics or verdict.fault
    assert verdict.launches


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_launch_that_goes_wrong(tmp_path: Path, name: str) -> None:
    text, old, new, code = REFUSED[name]
    assert old in text
    verdict = verdict_of(tmp_path, HEAD + text.replace(old, new))
    assert verdict.kind == "refused_confirmed", verdict
    assert code in verdict.codes
    assert not verdict.wrong_examples


@pytest.mark.parametrize("name", UNDECIDED)
def test_refused_if_segments_omit_rows(tmp_path: Path, name: str) -> None:
    text, old, new, code = UNDECIDED[name]
    assert old in text
    verdict = verdict_of(tmp_path, HEAD + text.replace(old, new))
    assert verdict.kind == "refused_confirmed", verdict
    assert code in verdict.codes
