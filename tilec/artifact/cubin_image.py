"""Reads the headers of a CUBIN: takes the bytes of an image, returns its architecture and kernels, or raises ValueError.

A CUBIN is a 64-bit little-endian ELF file (System V ABI, ELF header and section headers) of machine 190. The architecture is in
`e_flags`: in bits 8 to 15 if the ABI version is 8 or newer, in bits 0 to 7 before (LLVM, include/llvm/BinaryFormat/ELF.h). The
code of the kernel `f` is the section `.text.f`. Only headers are read, regardless of the size of the image, and every offset is
checked against that size first.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

HEADER_SIZE: Final = 64
SECTION: Final = struct.Struct("<IIQQQQIIQQ")
"""Section header: name, type, flags, address, offset, size, link, info, alignment, entry size."""
MACHINE_CUDA: Final = 190
ABI_SM_IN_BYTE_1: Final = 8
SECTION_CODE: Final = 1
"""SHT_PROGBITS."""
SECTION_STRINGS: Final = 3
"""SHT_STRTAB."""
MAX_SECTIONS: Final = 256
"""An image of one kernel has 15 to 30."""
MAX_NAMES: Final = 1 << 16
"""Maximum size of the section name table in bytes."""
PREFIX: Final = b".text."


@dataclass(frozen=True, slots=True)
class Image:
    """`arch` is the number of the architecture, such as 90; `entries` are the names of functions with code."""

    arch: int
    entries: frozenset[str]


def read_image(image: bytes | memoryview) -> Image:
    """Reads the headers of a CUBIN; ValueError if the image is not a CUBIN, or has headers that point outside it."""
    head = bytes(image[:HEADER_SIZE])
    if len(head) < HEADER_SIZE or head[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", head, 18)[0] != MACHINE_CUDA:
        raise ValueError("is not a CUBIN")
    flags: int = struct.unpack_from("<I", head, 48)[0]
    arch = flags >> 8 & 0xFF if head[8] >= ABI_SM_IN_BYTE_1 else flags & 0xFF
    (table_offset,) = struct.unpack_from("<Q", head, 40)
    size, count, strings = struct.unpack_from("<HHH", head, 58)
    if size != SECTION.size or not strings < count <= MAX_SECTIONS or table_offset + count * size > len(image):
        raise ValueError("is a CUBIN without a table of sections")
    sections = list(SECTION.iter_unpack(image[table_offset : table_offset + count * size]))
    names = _inside(image, sections[strings], SECTION_STRINGS)
    if len(names) > MAX_NAMES:
        raise ValueError("is a CUBIN whose sections have too long names")
    table = bytes(names)
    found: set[str] = set()
    for section in sections:
        if section[1] == SECTION_CODE and table.startswith(PREFIX, section[0]):
            end = table.find(b"\0", section[0])
            _inside(image, section, SECTION_CODE)
            if end >= 0:
                found.add(table[section[0] + len(PREFIX) : end].decode("utf-8", "replace"))
    return Image(arch, frozenset(found))


def _inside(image: bytes | memoryview, section: tuple[int, ...], kind: int) -> bytes | memoryview:
    """The bytes of a section."""
    offset, size = section[4], section[5]
    if section[1] != kind or offset + size > len(image):
        raise ValueError("is a CUBIN with a section outside of it")
    return image[offset : offset + size]


def check_image(image: bytes | memoryview | Image, arch: str, entry: str) -> None:
    """Raises ValueError if an image is not for `arch` (such as `sm_90a`) or has no code for the kernel `entry`. Headers have
    the number of an architecture and not its suffix, which the manifest states."""
    read = image if isinstance(image, Image) else read_image(image)
    if f"sm_{read.arch}" != arch.rstrip("af"):
        raise ValueError(f"is for sm_{read.arch}, not for {arch}")
    if entry not in read.entries:
        raise ValueError(f"has no entry `{entry}`")
