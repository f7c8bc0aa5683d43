"""A PTX emulator: runs a kernel's PTX on the CPU and reports faults. It checks the code generated for a proven kernel, so it
shares no code with the passes, the lowering or the interpreter: its sources are the PTX ISA and the manifest.

    report = emulate(ptx_text, manifest, tensors, values, seed=0)      # a kernel of this compiler
    report = run(parse(text), entry, grid, block, arguments, memory)   # any PTX; a Memory() and its allocations
    report.tensors, report.faults, report.notes, report.statistics, report.clean

`errors.KINDS` lists the kinds of fault, `errors.NOTES` those of notes. An unknown construct raises `UnsupportedPtx`; nothing is
guessed. Seed 0 runs all lanes in lock step. Any other seed interleaves warps and blocks at random, reproducibly. The blocks of
a cluster are always resident together; clusters come from `.reqnctapercluster` or an argument of `run`.

| where | what |
|---|---|
| `ptx/` | PTX text to data |
| `machine/`: `launch_state` | what a launch is: program, shape, limits |
| `wave`, `registers`, `memory`, `windows`, `faults` | lanes, values and poison, bytes, state spaces, what went wrong |
| `locator`, `accesses`, `schedule` | checked addresses, checked loads and stores, which lanes run next |
| `ordering/` | happens-before order, races, proxies, bytes in flight |
| `cluster_shape`, `pending`, `cluster_windows` | clusters: what a launch has, those not started, shared memory of peers |
| `matrices/` | operands and products of tensor cores |
| `instructions/` | instruction families, and what each keeps between its steps: a `Subsystem` in a file of its own |
| `machine/machine` | the state of a launch: all of these as typed attributes |
| `registry`, `program`, `execution`, `deadlock`, `finish`, `launch` | decode a program, run it on that state, report |

Parts of the state get the others that they need when they are made, and know nothing of `Machine`; instructions see all of it.

Values: integer and float arithmetic is exact as the PTX ISA defines it. Approximate operations (`.approx`) are computed in
f64 and rounded once; a chip may differ by the error bound of the PTX ISA. Subnormals are kept unless `.ftz` is given. Where
the PTX ISA leaves a result open (bits of a NaN, tininess before or after rounding) or a chip departs from its text (64-bit
bit fields), the emulator follows sm_90: 594 instructions over 2048 operands each agree bit for bit
(`ci/bench/judges.py ptx_semantics_gpu`). Not compared with a chip: f64 arithmetic, `.ftz` with a directed rounding or `div`,
other chips.
Poison: registers and memory that were never written and undefined results are poison. Poison that decides an address, a
branch, a store or an output byte is a fault; poison whose value is discarded is not. A register is poisoned as a whole,
except for the quarters that mov packs and unpacks, prmt selects and bfi inserts (`halves`).
Memory is sequentially consistent within one schedule; the effects of weaker orders are reported as races instead. A race is a
pair of conflicting accesses without a happens-before order, so no schedule has to exhibit it. Unordered writes of equal
values are a race too, except for a store marked as replicating that conflicts only with itself (`replicas`). The detector
prefers false positives to false negatives: reads by several blocks, or writes by several lanes, count as one access by all of
them (`races`), and lanes of one warp that read the same word share one timestamp (`readers`).

Limits of the model of tensor cores and asynchronous instructions (`matrices`, `in_flight`, `proxies`, `transaction_barrier`):
- Products are summed in f64 and rounded once. A chip truncates terms relative to the largest one and may differ by 2^-22 of
  the sum of magnitudes per instruction (`matrices.formats`). Poison spreads from an element to its row or column of the
  result.
- A copy reads its source when it is issued and writes its destination as late as possible. The check on bytes in flight, not
  the value, finds a program that is wrong only if a copy writes early or reads its source late: source and destination of
  every copy, and the operands of `wgmma` in shared memory, are in flight until the wait that completes them.
- `wgmma` computes when it is issued; its accumulators are poison until the wait. The four warps of a warpgroup execute its
  instructions together. A register that is overwritten with its old value between `wgmma.fence` and `wgmma.mma_async` is not
  detected.
- A missing proxy fence is found between a generic write and an access through the async proxy, a read or a write, of shared
  or global memory, and for mbarriers on which bulk copies count. Bulk copies that overwrite bytes which the generic proxy only
  read need no fence here. A fence by a third thread that learned of the write only through an mbarrier is not
  recognized (`proxies`): a correct program of that kind is reported.
- A wait on an mbarrier blocks until the phase completes; time limits of `try_wait` are not modelled. Under a seed other than
  0, `try_wait` sometimes returns before the phase completes.
- A block that exits during a bulk load into its shared memory, or a thread that exits during its bulk store, is a fault. A
  thread that exits during its own `cp.async` is not, but the bytes stay in flight for any other access.
- A barrier with a count completes at that number of threads, whichever they are (`instructions.barriers`). If the count is
  too small, the warps complete it in several rounds, and the accesses that the barrier should order are reported as races.
  A thread that arrives without knowing that the last phase, of other threads, is complete is a fault: two groups of warps that
  share one barrier are found in every schedule in which both use it.
- A branch marked `.uni` that only some of the active threads of a warp take, and members of a warp-wide instruction that name
  each other but different masks, are faults where the threads execute it in one step. Other schedules can part them.
- Clusters: a shared address has the block's rank from bit 24 up (`cluster_windows`), also that of a variable. Order of memory
  follows the scopes: mbarrier operations without a scope are `.cta`, so they order no plain accesses of two blocks, although
  chips may. Two operations of the async proxy, such as a copy into a stage and the next, need less: a chain of signals of any
  order and scope between them suffices (`clocks`).
- A thread must pass a barrier of the cluster, or know what a peer did, before it accesses the peer's shared memory, and every
  access by a peer must be ordered before the block exits (`cluster_exits`). Both are found in every schedule. Waits through an
  address in another block's window, which the ISA does not have, are faults.
- `clusterlaunchcontrol`: blocks start in small waves, so that some are left to cancel. The 16 bytes of an answer have the
  emulator's own encoding. Only here is a fence needed between generic reads and the next write through the async proxy.
- `red.async` takes effect when it is issued; a missing wait is found as a race.
- `cp.async.mbarrier.arrive` completes the copies of its threads at once, so a read before the wait on its mbarrier is reported
  only as far as it races with the copy's thread.
- Rejected with `UnsupportedPtx`: `.blocksareclusters` with several blocks, im2col, gather and scatter, bulk reductions,
  tensor maps modified on the device, sparse products, `wmma`, and of tcgen05 what the next list says. Timing, occupancy and
  bank conflicts are not modelled.
- `setmaxnreg` moves registers between warpgroups (`register_pool`): a shortage is a deadlock. Whether a program needs more
  registers than it owns is not modelled, because registers of PTX are virtual.

Limits of the model of tensor memory and tcgen05 (`tensor_memory_state`, `tensor_order`, `tensor_queue`), which no chip checked:
- Each block has a tensor memory of its own. Blocks of one SM, and their competition for columns, are not modelled. Under a seed
  an alloc returns any free columns.
- mma, cp and shift of a cluster are performed in the order of issue: at the commit that tracks them or, under a seed, at random
  earlier. They are complete once a thread acquires the mbarrier phase of a commit, ld and st once their warp waits. Until then
  a conflicting use of the cells or of the operands in shared memory is a fault, except for the pairs that the ISA pipelines.
- Notes (`Report.notes`, kinds in `NOTES`) are departures from the ISA's text that programs in use make and that change nothing
  here: a missing `tcgen05.fence`, a register of `tcgen05.ld` used before its wait (its value is then the loaded one), scale
  factors or A overwritten by later instructions of the thread that issued the mma. A strict caller demands that there are none.
- An mbarrier phase that a commit completes orders, for those who acquire it, the tcgen05 operations of the commit and the last
  writes of their operands in shared memory; it does not order other accesses of the committing thread. `tcgen05.fence` lets
  relaxed signals order all accesses of the thread, not only those of tcgen05.
- A register that `tcgen05.st` reads may be overwritten before its wait without a fault.
- tf32 operands lose their low 13 bits. No text says how chips round f16 results, or treat the upper half of their cells (here
  zero), subnormals, and the first row of a shift (here unchanged). Layouts E, F, G and B, MN-major tf32, scale factors
  beyond 128 rows and those of pairs follow CUTLASS and the ISA's text, whose figures were not available.
- Not supported: `.ashift`, masks of zero columns and shifts of B (`.ws`), A in tensor memory for `.ws` with M below 128 and in
  formats of 4 or 6 bits in `f8f6f4`, scale factors of pairs with M 128, `cp.4x256b`, copies that unpack, K 96, nonzero base
  offsets of descriptors.
"""

from tilec.emulator.errors import KINDS, NOTES, Fault, Limits, Report, UnsupportedPtx
from tilec.emulator.launch import emulate, run
from tilec.emulator.machine.memory import Memory
from tilec.emulator.ptx.parser import parse

__all__ = ["KINDS", "NOTES", "Fault", "Limits", "Memory", "Report", "UnsupportedPtx", "emulate", "parse", "run"]
