"""The reference semantics of the tile IR, in NumPy: runs a kernel on arrays and updates them in place.

Blocks run sequentially, in any given order. Products and float reductions accumulate in f32; 16-bit float arithmetic is
computed in f32 and rounded once per operation; every operation is defined for all operands (`tilec/ir/SEMANTICS.md`). An
out-of-bounds access or a violated precondition is an `InterpreterError`. `Accesses` records the reads and writes of each
block, and finds races and elements that are never written. `run_ranks` runs a launch of several ranks, each in a thread.
"""

from tilec.interpreter.accesses import Accesses
from tilec.interpreter.errors import InterpreterError
from tilec.interpreter.ranks import run_ranks
from tilec.interpreter.run import run

__all__ = ["Accesses", "InterpreterError", "run", "run_ranks"]
