"""Instruction families, one file each: register layouts of operands, supported shapes, and the emitted PTX.

| family | what | targets |
|---|---|---|
| `mma_sync` | MMA on register fragments, by a warp | all |
| `ldmatrix` | fragments from shared memory | all |
| `cp_async` | asynchronous copies into shared memory, by all threads | all |
| `tma` | copies of boxes into and from shared memory, by one thread | all |
| `mbarrier` | full and empty barriers of pipeline stages | all |
| `wgmma` | MMA from shared memory, by a warpgroup | sm_90a |
| `tcgen05` | MMA from shared into tensor memory, by one thread; loads from there | sm_100a |
| `election` | one thread of a warp | all |
| `stmatrix` | accumulators to shared memory, by a warp | all |

In: tile types, and a thread's SSA values. Out: layouts for the schedule, operations for lowering. A new family of
matrix instructions is its value in `tilec.target.families` and a file here, with its operations in `tilec.lowering.total`; the
schedule chooses it, and a rule in `tilec.lowering` calls it. The emulator, an independent checker, has its own description of
the instructions.
"""
