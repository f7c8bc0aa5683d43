"""The reference semantics of the tile IR, in NumPy: a kernel and arrays go in, the arrays hold what the kernel writes.

Blocks run one after the other in any order that is asked for. Products and float reductions accumulate in f32, 16-bit float
arithmetic is done in f32 and rounded once per operation, and every operation has a value for all operands
(`tilec/ir/SEMANTICS.md`). An access outside its tensor or a broken precondition is an `InterpreterError`; `Accesses` records
who touched what, and finds races and elements never written.
"""

from tilec.interpreter.accesses import Accesses
from tilec.interpreter.errors import InterpreterError
from tilec.interpreter.run import run

__all__ = ["Accesses", "InterpreterError", "run"]
