"""Triton kernels written for these tests, in the usual style of Triton's users; `make.py` compiles them to the PTX next to
them.

In: pointers and sizes; out: the results are stored through pointers. `tests/emulator/test_foreign.py` compares them with NumPy.
"""

import triton
import triton.language as tl


@triton.jit
def softmax(x_ptr, out_ptr, row_stride, columns, BLOCK: tl.constexpr):
    """Softmax of one row per program; BLOCK is at least the number of columns."""
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    inside = offsets < columns
    x = tl.load(x_ptr + row * row_stride + offsets, mask=inside, other=-float("inf")).to(tl.float32)
    numerator = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * row_stride + offsets, numerator / tl.sum(numerator, axis=0), mask=inside)


@triton.jit
def layer_norm(x_ptr, weight_ptr, bias_ptr, out_ptr, row_stride, columns, eps, BLOCK: tl.constexpr):
    """Layer norm of one row per program, in passes of BLOCK columns: mean, variance, then the result."""
    row = tl.program_id(0)
    x_ptr += row * row_stride
    out_ptr += row * row_stride
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + offsets, mask=offsets < columns, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / columns
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offsets, mask=offsets < columns, other=0.0).to(tl.float32)
        centred = tl.where(offsets < columns, x - mean, 0.0)
        squares += centred * centred
    reciprocal = 1 / tl.sqrt(tl.sum(squares, axis=0) / columns + eps)
    for start in range(0, columns, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        inside = offsets < columns
        weight = tl.load(weight_ptr + offsets, mask=inside)
        bias = tl.load(bias_ptr + offsets, mask=inside)
        x = tl.load(x_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
        tl.store(out_ptr + offsets, (x - mean) * reciprocal * weight + bias, mask=inside)


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, m, n, k, a_stride, b_stride, c_stride, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """`a @ b` of row-major (m, k) and (k, n) into (m, n); one tile of BM x BN per program."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    a_tile = a_ptr + rows[:, None] * a_stride + inner[None, :]
    b_tile = b_ptr + inner[:, None] * b_stride + columns[None, :]
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, k, BK):
        a = tl.load(a_tile, mask=(rows[:, None] < m) & (inner[None, :] < k - start), other=0.0)
        b = tl.load(b_tile, mask=(inner[:, None] < k - start) & (columns[None, :] < n), other=0.0)
        total = tl.dot(a, b, total)
        a_tile += BK
        b_tile += BK * b_stride
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c_ptr + rows[:, None] * c_stride + columns[None, :], total.to(c_ptr.dtype.element_ty), mask=inside)


@triton.jit
def attention(
    q_ptr, k_ptr, v_ptr, out_ptr, row_stride, head_stride, length, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Causal attention of one head, (heads, length, D) each, BM queries per program, keys in tiles of BN, one pass."""
    head = tl.program_id(1)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    wide = tl.arange(0, D)
    base = head * head_stride
    q = tl.load(q_ptr + base + rows[:, None] * row_stride + wide[None, :], mask=rows[:, None] < length, other=0.0)
    top = tl.full([BM], -float("inf"), dtype=tl.float32)
    weight = tl.zeros([BM], dtype=tl.float32)
    total = tl.zeros([BM, D], dtype=tl.float32)
    for start in range(0, tl.minimum((tl.program_id(0) + 1) * BM, length), BN):
        columns = start + tl.arange(0, BN)
        seen = columns < length
        key = tl.load(k_ptr + base + columns[None, :] * row_stride + wide[:, None], mask=seen[None, :], other=0.0)
        scores = tl.dot(q, key) * (scale * 1.4426950408889634)
        scores = tl.where((columns[None, :] <= rows[:, None]) & seen[None, :], scores, -1.0e30)
        new_top = tl.maximum(top, tl.max(scores, 1))
        p = tl.exp2(scores - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        weight = weight * shrink + tl.sum(p, 1)
        value = tl.load(v_ptr + base + columns[:, None] * row_stride + wide[None, :], mask=seen[:, None], other=0.0)
        total = tl.dot(p.to(value.dtype), value, total * shrink[:, None])
        top = new_top
    out = (total / weight[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + base + rows[:, None] * row_stride + wide[None, :], out, mask=rows[:, None] < length)


@triton.jit
def matmul_tma(a_desc, b_desc, c_desc, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """`a @ b.T` of (m, k) and (n, k), all tiles through tensor descriptors (TMA)."""
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, k, BK):
        a = a_desc.load([row, start])
        b = b_desc.load([column, start])
        total = tl.dot(a, b.T, total)
    c_desc.store([row, column], total.to(tl.bfloat16))
