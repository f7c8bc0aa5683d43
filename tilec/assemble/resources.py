"""Reads registers, spills, stack and static shared memory from the assembler's verbose report."""

from __future__ import annotations

import re
from typing import Final

from tilec.artifact.records import Resources
from tilec.diagnostics.diagnostic import CompileError, Diagnostic

_REGISTERS: Final = re.compile(r"[Uu]sed (\d+) registers")
_STACK: Final = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_SHARED: Final = re.compile(r"Used \d+ registers.*?(\d+) bytes smem")
_SERIALIZED: Final = "wgmma.mma_async instructions are serialized"


def one_by_one(report: str) -> bool:
    """Whether the assembler serialized `wgmma` instructions (its notes C7510 and following)."""
    return _SERIALIZED in report


def parse(report: str) -> Resources:
    """Resources of the one kernel in the report (dynamic shared memory 0); CompileError E0604 if the report does not describe
    exactly one."""
    used, stack = _REGISTERS.search(report), _STACK.findall(report)
    if used is None or len(stack) != 1:
        raise CompileError(
            Diagnostic(
                "E0604",
                "the assembler's report does not describe one kernel",
                notes=tuple(report.splitlines()[:12]),
                hint="install the versions that `pip install 'tilec[compiler]'` pins",
            )
        )
    frame, stores, loads = (int(number) for number in stack[0])
    shared = _SHARED.search(report)
    return Resources(int(used[1]), stores + loads, frame, int(shared[1]) if shared else 0, 0)
