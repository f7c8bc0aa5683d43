"""Checks one mutant in five of every kernel of the library: refused, or verified to be in bounds and race-free over all blocks.

Writes `library_mutations.json` and `library_mutations.md`, prints the table; exit code 1 if the interpreter refutes an accepted
mutant.
"""

from __future__ import annotations

import argparse
from typing import Final

from ci.bench.front import Outcome
from ci.bench.judges.mutations import arguments, examined
from tests.mutation.library_kernels import NAMES, LibraryKernels

__all__ = ["arguments", "measure"]

ONE_IN: Final = 5
"""All would be more than 5,000, some of which take the interpreter a minute."""


def measure(options: argparse.Namespace) -> Outcome:
    """Check the mutants; status 1 if the interpreter refutes an accepted one."""
    return examined("library_mutations.md", "Mutants of the library's kernels", NAMES, LibraryKernels(), options, ONE_IN)
