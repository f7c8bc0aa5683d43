"""Size limits of everything that tilec reads, so that processing of every input ends: it is accepted, or rejected with one
clear error.

Each number has its reason here. They are far above what kernels and projects need (the figures for ours are given where they
were measured) and far below what takes minutes or exhausts a machine.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Final

# The prover. A step is about one isl operation; 200,000 of them take about a second.

QUERY_STEPS: Final = 200_000
"""Steps of one query to isl; a query that needs more is undecided, never a proof."""
KERNEL_STEPS: Final = 4_000_000
"""Steps of all queries for one kernel."""
MAX_CASES: Final = 1_000
"""Cases that one linear query is split into. Each is a separate query."""
MAX_SYSTEM: Final = 400_000
"""Constraints times unknowns of one query: isl stores them as a dense matrix, on which each step is slow."""
MAX_TERMS: Final = 20_000
"""Products of terms in one multiplication of two polynomials."""
MAX_DEGREE: Final = 64
"""Factors of one term: no real index expression has more."""
MAX_VALUE_BITS: Final = 64 * MAX_DEGREE
"""Bits of the bounds of a value in the prover: those of `MAX_DEGREE` factors. Repeated squaring doubles them with every
line."""

# Kernel files. The largest of ours has 142 operations after inlining (first specialisations).

MAX_SOURCE_BYTES: Final = 1 << 20
"""Bytes of one kernel file."""
MAX_SOURCE_LINES: Final = 20_000
"""Lines of one kernel file."""
MAX_MODULES: Final = 256
"""Files that one kernel depends on."""
MAX_IMPORT_DEPTH: Final = 32
"""Depth of nested imports; each uses some frames of Python's stack."""
MAX_NAME: Final = 200
"""Characters of a name in a kernel file. Ours have at most 40; file systems accept 255 bytes including prefixes and
suffixes."""
MAX_OPERATIONS: Final = 10_000
"""Operations of a kernel after inlining of tile functions."""
MAX_INLINED: Final = 10_000
"""Calls of tile functions in a kernel, counted after inlining; functions without operations cost time too."""
MAX_REPEATED: Final = 10_000
"""Repetitions of loops over constants and tuples in a kernel."""
MAX_TUPLE: Final = 1_000
"""Items of a tuple in a kernel."""
MAX_LITERAL_BITS: Final = 128
"""Bits of an integer in a kernel file; no dtype has more than 64."""
MAX_HOST_DEPTH: Final = 60
"""Nesting of a launch expression; manifest readers accept up to 64."""
MAX_HOST_SIZE: Final = 2_000
"""Operators of a launch expression, which is stored as a tree: `n = n + n` doubles it."""

# The build file. Ours has some 600 lines; its largest entry has 36 specialisations.

MAX_BUILD_BYTES: Final = 1 << 20
"""Bytes of `build.toml`."""
MAX_KEY_PARTS: Final = 40
"""Parts of a dotted key."""
_PART: Final = r"""(?:[\w\-]+|"[^"\n]*"|'[^'\n]*')"""
LONG_KEY: Final = re.compile(rf"(?<![\w\-])(?:{_PART}[ \t]*\.[ \t]*){{{MAX_KEY_PARTS}}}")
"""Matches a longer key in TOML text: `tomllib` takes time and memory quadratic in the number of parts."""
MAX_TABLES: Final = 1_000
"""Tables of one kind in the build file."""
MAX_SPECIALISATIONS: Final = 10_000
"""Combinations of constants of one kernel entry or one step."""
MAX_REQUESTS: Final = 200_000
"""Combinations of constants in all entries, and in all models and steps."""


def read_file(path: Path, limit: int) -> bytes:
    """At most `limit + 1` bytes of a regular file; OSError for anything else, so that it never blocks on a pipe or a device."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "it is not a regular file")
        return file.read(limit + 1)
