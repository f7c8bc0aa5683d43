"""Disassembles many CUBINs of one architecture in one run, because the disassembler takes longer to start than to read a
hundred kernels.

In: the bytes of CUBINs. Out: a text for each, with the lines that `tilec.assemble.sass.disassemble` gives for its instructions,
and addresses that continue from one CUBIN to the next. The disassembler takes one file: raw code, the concatenated `.text`
sections of all of them.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tilec.artifact.cubin_image import HEADER_SIZE, PREFIX, SECTION, read_image
from tilec.target.targets import Target
from tilec.toolchain import find_nvdisasm

_ADDRESS = re.compile(r"\s*/\*([0-9a-f]{4,})\*/")


def code(cubin: bytes) -> bytes:
    """The code of all functions, in the order of their sections."""
    assert read_image(cubin).entries
    at = int.from_bytes(cubin[40:48], "little")
    count, strings = (int.from_bytes(cubin[offset : offset + 2], "little") for offset in (60, 62))
    assert at >= HEADER_SIZE
    sections = list(SECTION.iter_unpack(cubin[at : at + count * SECTION.size]))
    names = sections[strings][4]
    return b"".join(cubin[one[4] : one[4] + one[5]] for one in sections if cubin.startswith(PREFIX, names + one[0]))


def listings(cubins: Sequence[bytes], target: Target) -> list[str]:
    """The instructions of each."""
    if not cubins:
        return []
    codes = [code(cubin) for cubin in cubins]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernels")
        path.write_bytes(b"".join(codes))
        command = [find_nvdisasm(), "--binary", target.name.replace("sm_", "SM"), path]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: list[list[str]] = [[] for _ in codes]
    end, number = 0, -1
    for line in listing.splitlines(keepends=True):
        if match := _ADDRESS.match(line):
            while int(match[1], 16) >= end:
                number += 1
                end += len(codes[number])
            found[number].append(line)
    assert all(found)
    return ["".join(lines) for lines in found]
