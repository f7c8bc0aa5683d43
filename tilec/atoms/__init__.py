"""Instruction families: how threads hold what an instruction works on, what it fits, and how it is written; a file each.

| family | what | targets |
|---|---|---|
| `mma_sync` | products of fragments in registers | all |
| `ldmatrix` | fragments from shared memory | all |
| `cp_async` | copies into shared memory, by threads | all |
| `tma` | copies of boxes into shared memory, by one thread | all |
| `mbarrier` | waiting for such copies, and for those who read them | all |
| `wgmma` | products from shared memory, by four warps | sm_90a |

In: tile types, and the SSA values that a thread holds. Out: layouts for the schedule, operations for lowering. A new family is
a file here, its names in `tilec.target` and `tilec.codegen.legality`, and its operations in `tilec.lowering.total`; the
schedule chooses it, a rule in `tilec.lowering` calls it. The emulator, which judges the result, has its own description of
instructions.
"""
