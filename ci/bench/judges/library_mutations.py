"""Checks every mutant of every kernel of the library: refused, or verified to be in bounds and race-free over all blocks.

Writes `library_mutations.json` and `library_mutations.md`, prints the table; exit code 1 if the interpreter refutes an accepted
mutant.
"""

from __future__ import annotations

import argparse

from ci.bench.front import Outcome
from ci.bench.judges.mutations import arguments, judged
from tests.mutation.library_kernels import NAMES, LibraryKernels

__all__ = ["arguments", "measure"]


def measure(options: argparse.Namespace) -> Outcome:
    """Check all mutants; status 1 if the interpreter refutes an accepted one."""
    return judged("library_mutations.md", "Mutants of the library's kernels", NAMES, LibraryKernels(), options)
