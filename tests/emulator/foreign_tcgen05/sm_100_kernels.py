"""Triton kernels written for these tests, compiled by `make_sm_100.py` for sm_100 so that their products are `tcgen05.mma`.

In: tensor descriptors (TMA) or pointers and sizes; out: results are stored through descriptors or pointers.
"""

import triton
import triton.language as tl


@triton.jit
def matmul_tma(a_desc, b_desc, c_desc, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, OUT: tl.constexpr):
    """`a @ b.T` of (m, k) and (n, k), all tiles through tensor descriptors; grid (m / BM, n / BN)."""
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, k, BK):
        a = a_desc.load([row, start])
        b = b_desc.load([column, start])
        total = tl.dot(a, b.T, total)
    c_desc.store([row, column], total.to(OUT))


@triton.jit
def matmul_tma_mn(a_desc, b_desc, c_desc, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, OUT: tl.constexpr):
    """`a.T @ b` of (k, m) and (k, n): both operands MN-major; grid (m / BM, n / BN)."""
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, k, BK):
        a = a_desc.load([start, row])
        b = b_desc.load([start, column])
        total = tl.dot(a.T, b, total)
    c_desc.store([row, column], total.to(OUT))


@triton.jit
def matmul_pointers(
    a_ptr, b_ptr, c_ptr, m, n, k, a_stride, b_stride, c_stride, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    """`a @ b` of row-major (m, k) and (k, n) into (m, n); masked loads through `cp.async`; grid (cdiv(m, BM), cdiv(n, BN))."""
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
def matmul_persistent(
    a_desc, b_desc, c_desc, m, n, k,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, OUT: tl.constexpr, PROGRAMS: tl.constexpr, WS: tl.constexpr,
):  # fmt: skip
    """`a @ b.T` of (m, k) and (n, k); grid (PROGRAMS,), each program takes every PROGRAMS-th tile, row-major over tiles."""
    tiles_n = tl.cdiv(n, BN)
    tiles = tl.cdiv(m, BM) * tiles_n
    for tile in tl.range(tl.program_id(0), tiles, PROGRAMS, flatten=False, warp_specialize=WS):
        row, column = tile // tiles_n * BM, tile % tiles_n * BN
        total = tl.zeros((BM, BN), dtype=tl.float32)
        for start in range(0, k, BK):
            a = a_desc.load([row, start])
            b = b_desc.load([column, start])
            total = tl.dot(a, b.T, total)
        c_desc.store([row, column], total.to(OUT))


@triton.jit
def matmul_scaled(
    a_desc, b_desc, c_desc, a_scale_ptr, b_scale_ptr, k,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, OUT: tl.constexpr, VEC: tl.constexpr, FORMAT: tl.constexpr,
    PACK: tl.constexpr,
):  # fmt: skip
    """`(a * a_scale) @ (b * b_scale).T`: FORMAT elements, PACK of them a byte, one scale for VEC along k.

    Scales lie packed as (rows / 128, k / VEC / 4, 32, 4, 4): of row r and group g at
    [r // 128, g // 4, r % 32, r % 128 // 32, g % 4].
    """
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros((BM, BN), dtype=tl.float32)
    groups: tl.constexpr = BK // VEC // 4
    inside = tl.arange(0, 512)
    many = tl.arange(0, groups)
    at = many[:, None] * 512 + inside[None, :]
    per_row = k // VEC // 4 * 512
    for start in range(0, k, BK):
        a = a_desc.load([row, start // PACK])
        b = b_desc.load([column, start // PACK])
        shift = start // VEC // 4 * 512
        sa_tile = tl.arange(0, BM // 128)[:, None, None] * per_row + (row // 128) * per_row + shift + at[None, :, :]
        sb_tile = tl.arange(0, BN // 128)[:, None, None] * per_row + (column // 128) * per_row + shift + at[None, :, :]
        sa = tl.load(a_scale_ptr + sa_tile).reshape(BM // 128, groups, 32, 4, 4).trans(0, 3, 2, 1, 4).reshape(BM, BK // VEC)
        sb = tl.load(b_scale_ptr + sb_tile).reshape(BN // 128, groups, 32, 4, 4).trans(0, 3, 2, 1, 4).reshape(BN, BK // VEC)
        total = tl.dot_scaled(a, sa, FORMAT, b.T, sb, FORMAT, total)
    c_desc.store([row, column], total.to(OUT))


@triton.jit
def attention(
    q_desc, k_desc, v_desc, o_desc, length, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, OUT: tl.constexpr, WS: tl.constexpr,
):  # fmt: skip
    """Causal attention; q, k, v, o are (heads * length, D); length a multiple of BM, BM of BN; grid (length / BM, heads)."""
    head = tl.program_id(1)
    first = tl.program_id(0) * BM
    base = head * length
    rows = first + tl.arange(0, BM)
    q = q_desc.load([base + first, 0])
    top = tl.full([BM], -float("inf"), dtype=tl.float32)
    weight = tl.zeros([BM], dtype=tl.float32)
    total = tl.zeros([BM, D], dtype=tl.float32)
    for start in tl.range(0, first + BM, BN, warp_specialize=WS):
        key = k_desc.load([base + start, 0])
        scores = tl.dot(q, key.T) * (scale * 1.4426950408889634)
        columns = start + tl.arange(0, BN)
        scores = tl.where(columns[None, :] <= rows[:, None], scores, -1.0e30)
        new_top = tl.maximum(top, tl.max(scores, 1))
        p = tl.exp2(scores - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        weight = weight * shrink + tl.sum(p, 1)
        total = total * shrink[:, None]
        value = v_desc.load([base + start, 0])
        total = tl.dot(p.to(OUT), value, total)
        top = new_top
    o_desc.store([base + first, 0], (total / weight[:, None]).to(OUT))
