"""Disassembly of machine code, for tests and dumps; nothing in a build depends on it."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.toolchain import find_nvdisasm

_INSTRUCTION: Final = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.MULTILINE)


def disassemble(cubin: bytes) -> str:
    """SASS of a CUBIN; CompileError E0601 if no disassembler is installed, E0605 if it cannot read the file."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kernel.cubin").write_bytes(cubin)
        process = subprocess.run(
            [find_nvdisasm(), "-c", Path(folder, "kernel.cubin")], capture_output=True, text=True, check=False
        )
    if process.returncode:
        raise CompileError(
            Diagnostic("E0605", "the disassembler cannot read the CUBIN", notes=(process.stderr.strip()[-400:],))
        )
    return process.stdout


def instructions(sass: str) -> Counter[str]:
    """The number of occurrences of each full opcode (`LDG.E.128.CONSTANT`)."""
    return Counter(_INSTRUCTION.findall(sass))
