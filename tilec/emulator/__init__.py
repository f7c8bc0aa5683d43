"""A PTX emulator: runs a kernel's PTX on the CPU and says what it does wrong. It judges what the code generator made of a
proven kernel, so it shares no code with the passes, the lowering or the interpreter: it knows the PTX ISA and the manifest.

    report = emulate(ptx_text, manifest, tensors, values, seed=0)      # a kernel of ours
    report = run(parse(text), entry, grid, block, arguments, memory)   # any PTX; a Memory() and what it allocated
    report.tensors, report.faults, report.statistics, report.clean

`errors.KINDS` lists what can be a fault. Anything unknown raises `UnsupportedPtx`; nothing is guessed. Seed 0 runs all in lock
step, other seeds interleave warps and blocks at random, each the same way every time.

| where | what |
|---|---|
| `lexer`, `operand_parser`, `parser`, `syntax` | PTX text to data |
| `registry`, `instructions/` | one family of instructions a file: from data to steps |
| `frame`, `program`, `machine`, `schedule` | registers, guards, lanes, who runs next |
| `memory`, `access`, `races`, `replicas`, `strong`, `synchronise` | bytes, poison, checked accesses, what happens before what |
| `launch`, `finish`, `faults`, `errors` | launches and reports |

Values: integer and float arithmetic is exact as the PTX ISA defines it; the approximate ones (`.approx`) are computed in f64
and rounded once, where a chip may differ by the error that the PTX ISA states. Subnormals are kept unless `.ftz` is there. What
the PTX ISA leaves open (bits of a NaN, tininess before or after rounding) and where a chip departs from its text (bit fields of
64 bits) is as an sm_90 chip has it: 594 instructions over 2048 operands each, bit for bit (`ci/bench/ptx_semantics_gpu.py`).
Not held against a chip: arithmetic of f64, `.ftz` with a directed rounding or `div`, other chips' choices.
Poison: a register that nobody wrote, memory that nobody wrote and undefined results are poison; poison that decides an address,
a branch, a store or a byte of an output is a fault, poison that is dropped is not. A register's poison is whole but for halves
that mov packs and takes apart (`halves`). Memory is sequentially consistent within one schedule; what weaker orders could do is
found as a race instead. Races are judged by what happens before what, so that no schedule has to show them; one of equal values
is a race too, but where a store that is named as one that replicates meets itself (`replicas`). Blamed too much, never too
little: what several blocks have read, or several lanes written, counts as one access of them all (`races`); lanes of one warp
that read a word in turn and pass it on in turn share a time (`readers`).

Tensor cores and asynchronous instructions (`matrices`, `in_flight`, `proxies`, `transaction_barrier`): what they do not show.
- Products are summed in f64 and rounded once; a chip cuts terms off below the largest and may differ by 2^-22 of the sum of
  magnitudes per instruction (`matrices.formats`). Poison spreads from an element to its row or column of the result.
- A copy reads its source when it starts and writes its destination as late as it may: a program that is wrong only when a copy
  is early, or reads its source late, is found by the watch on bytes in flight, not by the value.
- `wgmma` computes at once; its accumulators are poison until they are waited for. Four warps of a warpgroup run its
  instructions together. A register that is changed between fence and product to the value it had is not seen.
- The missing proxy fence is found for reads of shared memory through the async proxy, and for mbarriers that it counts on. That
  bulk copies overwrite what the generic proxy read or wrote, and global memory through the async proxy, need none here. A fence
  by a third thread that learnt of the write through an mbarrier only is not followed (`proxies`): such a program would be
  blamed.
- A wait on an mbarrier sleeps until the phase is complete: time limits and spurious returns of `try_wait` do not happen.
- A block that ends under a bulk load into its shared memory, or a thread that ends under its bulk store, is a fault; a thread
  that ends under a `cp.async` of its own is not, but its bytes stay in flight for whoever touches them.
- A barrier with a count asks for that many threads, whichever they are (`instructions.barriers`): warps that meet at a count
  that is too small take turns, which shows as a race of what the barrier was to order.
- Refused by name: `.relaxed` on an mbarrier, clusters of several blocks, multicast, im2col, bulk reductions, tensor maps
  changed on the device, sparse products, `wmma`, `tcgen05`. Timing, occupancy, bank conflicts and register pressure
  (`setmaxnreg`) are not modelled.
"""

from tilec.emulator.errors import KINDS, Fault, Limits, Report, UnsupportedPtx
from tilec.emulator.launch import emulate, run
from tilec.emulator.machine import Machine as Launch
from tilec.emulator.memory import Memory
from tilec.emulator.parser import parse

__all__ = ["KINDS", "Fault", "Launch", "Limits", "Memory", "Report", "UnsupportedPtx", "emulate", "parse", "run"]
