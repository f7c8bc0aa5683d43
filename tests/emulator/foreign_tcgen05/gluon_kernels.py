"""Gluon kernels written for these tests: pairs of CTAs (`cta_group::2`), and tiles handed out by cluster launch control."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    clc,
    tcgen05_commit,
    tcgen05_mma,
)
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma


@gluon.jit
def matmul_pair(a_desc, b_desc, c_desc, k, STAGES: gl.constexpr):
    """`a @ b.T` of (m, k) and (n, k); a cluster of two CTAs makes one tile; grid (m / BM, n / BN) counts clusters."""
    BM: gl.constexpr = a_desc.block_shape[0]
    BK: gl.constexpr = a_desc.block_shape[1]
    BN: gl.constexpr = b_desc.block_shape[0]
    row = gl.program_id(0) * BM
    column = gl.program_id(1) * BN
    a_bufs = gl.allocate_shared_memory(a_desc.dtype, [STAGES, BM, BK], a_desc.layout)
    b_bufs = gl.allocate_shared_memory(b_desc.dtype, [STAGES, BN, BK], b_desc.layout)
    ready = mbarrier.allocate_mbarrier(batch=STAGES, two_ctas=True)
    empty = mbarrier.allocate_mbarrier(batch=STAGES)
    done = mbarrier.allocate_mbarrier()
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    mbarrier.init(done, count=1)
    acc_layout: gl.constexpr = TensorMemoryLayout(
        block=(BM // 2, BN), col_stride=1, cga_layout=c_desc.layout.cga_layout, two_ctas=True
    )
    acc = allocate_tensor_memory(gl.float32, [BM, BN], acc_layout)
    steps = gl.cdiv(k, BK)
    for i in gl.static_range(STAGES - 1):
        mbarrier.expect(ready.index(i), a_desc.nbytes_per_cta + b_desc.nbytes_per_cta, pred=i < steps)
        tma.async_load(a_desc, [row, i * BK], ready.index(i), a_bufs.index(i), pred=i < steps)
        tma.async_load(b_desc, [column, i * BK], ready.index(i), b_bufs.index(i), pred=i < steps)
    for i in range(steps):
        ahead = i + STAGES - 1
        slot = ahead % STAGES
        # The slot was last read by product `ahead - STAGES`, the one before this.
        mbarrier.wait(empty.index(slot), (ahead // STAGES - 1) & 1, pred=(ahead >= STAGES) & (ahead < steps))
        mbarrier.expect(ready.index(slot), a_desc.nbytes_per_cta + b_desc.nbytes_per_cta, pred=ahead < steps)
        tma.async_load(a_desc, [row, ahead * BK], ready.index(slot), a_bufs.index(slot), pred=ahead < steps)
        tma.async_load(b_desc, [column, ahead * BK], ready.index(slot), b_bufs.index(slot), pred=ahead < steps)
        here = i % STAGES
        mbarrier.wait(ready.index(here), (i // STAGES) & 1)
        tcgen05_mma(a_bufs.index(here), b_bufs.index(here).permute((1, 0)), acc, use_acc=i > 0, mbarriers=[empty.index(here)])
    tcgen05_commit(done)
    mbarrier.wait(done, 0)
    out = gl.allocate_shared_memory(c_desc.dtype, c_desc.block_shape, c_desc.layout)
    out.store(acc.load().to(c_desc.dtype))
    fence_async_shared()
    tma.async_store(c_desc, [row, column], out)
    tma.store_wait(0)


@gluon.jit
def matmul_clc(a_desc, b_desc, c_desc, k, tiles_n):
    """`a @ b.T` of (m, k) and (n, k); grid (tiles,), a tile per block id, ids beyond the running blocks taken over by `clc`."""
    BM: gl.constexpr = a_desc.block_shape[0]
    BK: gl.constexpr = a_desc.block_shape[1]
    BN: gl.constexpr = b_desc.block_shape[0]
    a_buf = gl.allocate_shared_memory(a_desc.dtype, [BM, BK], a_desc.layout)
    b_buf = gl.allocate_shared_memory(b_desc.dtype, [BN, BK], b_desc.layout)
    out = gl.allocate_shared_memory(c_desc.dtype, c_desc.block_shape, c_desc.layout)
    answer = gl.allocate_shared_memory(gl.int64, [2], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    answered = mbarrier.allocate_mbarrier()
    ready = mbarrier.allocate_mbarrier()
    done = mbarrier.allocate_mbarrier()
    mbarrier.init(answered, count=1)
    mbarrier.init(ready, count=1)
    mbarrier.init(done, count=1)
    acc = allocate_tensor_memory(gl.float32, [BM, BN], TensorMemoryLayout(block=(BM, BN), col_stride=1))
    tile = gl.program_id(0)
    active = gl.to_tensor(True)
    phase = gl.to_tensor(0)
    turn = gl.to_tensor(0)
    while active:
        mbarrier.expect(answered, 16)
        clc.try_cancel(answer, answered)
        row = tile // tiles_n * BM
        column = tile % tiles_n * BN
        for start in range(0, k, BK):
            mbarrier.expect(ready, a_desc.nbytes_per_cta + b_desc.nbytes_per_cta)
            tma.async_load(a_desc, [row, start], ready, a_buf)
            tma.async_load(b_desc, [column, start], ready, b_buf)
            mbarrier.wait(ready, phase)
            tcgen05_mma(a_buf, b_buf.permute((1, 0)), acc, use_acc=start > 0, mbarriers=[done])
            mbarrier.wait(done, phase)
            phase ^= 1
        tma.store_wait(0)
        out.store(acc.load().to(c_desc.dtype))
        fence_async_shared()
        tma.async_store(c_desc, [row, column], out)
        mbarrier.wait(answered, turn)
        turn ^= 1
        following = clc.load_result(answer)
        active = following.is_canceled()
        if active:
            tile = following.program_id(0)
    tma.store_wait(0)
