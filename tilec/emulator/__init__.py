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
| `memory`, `access`, `races`, `strong`, `synchronise` | bytes and poison, checked accesses, what happens before what |
| `launch`, `finish`, `faults`, `errors` | launches and reports |

Values: integer and float arithmetic is exact as the PTX ISA defines it; the approximate ones (`.approx`) are computed in f64
and rounded once, where a chip may differ by the error that the PTX ISA states. Subnormals are kept unless `.ftz` is there.
Poison: a register that nobody wrote, memory that nobody wrote and undefined results are poison; poison that decides an address,
a branch, a store or a byte of an output is a fault, poison that is dropped is not. A register's poison is one bit for the whole
register. Memory is sequentially consistent within one schedule; what weaker orders could do is found as a race instead.
"""

from tilec.emulator.errors import KINDS, Fault, Limits, Report, UnsupportedPtx
from tilec.emulator.launch import emulate, run
from tilec.emulator.machine import Machine as Launch
from tilec.emulator.memory import Memory
from tilec.emulator.parser import parse

__all__ = ["KINDS", "Fault", "Launch", "Limits", "Memory", "Report", "UnsupportedPtx", "emulate", "parse", "run"]
