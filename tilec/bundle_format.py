"""The bytes of a bundle: what the packer writes and the loader expects, to the last byte.

    header    64 bytes, little-endian: magic (8), format (u32), header size (u32), file size (u64), manifest offset (u64),
              manifest size (u64), blobs offset (u64), number of blobs (u32), zero (12)
    manifest  canonical JSON: ASCII, keys sorted, no spaces
    blobs     CUBINs in the order of their sha256, each at the next multiple of 128, zeros between
    trailer   sha256 of everything before it

One content has exactly one encoding: offsets follow from sizes, the order of blobs from their digests, the order of kernels
from their names. So a bundle is reproducible, and a loader that compares needs no rule about holes or overlaps.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

MAGIC: Final = b"\x89tilec\r\n"
"""The first byte is no ASCII and the line end is one that text modes change, so a mangled transfer shows at once."""
FORMAT: Final = 1
HEADER: Final = struct.Struct("<8sIIQQQQI12x")
TRAILER: Final = hashlib.sha256().digest_size
ALIGN: Final = 128
MAX_FILE: Final = 1 << 30
MAX_MANIFEST: Final = 32 << 20
MAX_BLOBS: Final = 1 << 16
SUFFIX: Final = ".bundle"
NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_+=\-]{0,199}", re.ASCII)
"""Of an artifact: nothing a file system takes for a path."""
MODEL: Final = re.compile(r"[a-z0-9]([a-z0-9_\-]|\.(?=[a-z0-9])){0,63}", re.ASCII)
STEP: Final = re.compile(r"[a-z0-9_]{1,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Header:
    """The fields of the header; sizes and offsets in bytes from the start of the file."""

    format: int
    header_size: int
    file_size: int
    manifest_offset: int
    manifest_size: int
    blobs_offset: int
    blobs: int

    def encode(self) -> bytes:
        """The 64 bytes."""
        return HEADER.pack(
            MAGIC, self.format, self.header_size, self.file_size, self.manifest_offset, self.manifest_size, self.blobs_offset,
            self.blobs,
        )  # fmt: skip


def aligned(offset: int) -> int:
    """The next multiple of `ALIGN`."""
    return -(-offset // ALIGN) * ALIGN


def canonical(data: Any) -> bytes:
    """The one JSON text of `data`; ValueError for NaN and infinities."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")


def layout(manifest_size: int, sizes: Iterable[int]) -> tuple[Header, list[int]]:
    """The header of a bundle with blobs of these sizes, and the offset of each."""
    start = at = aligned(HEADER.size + manifest_size)
    end = HEADER.size + manifest_size
    offsets: list[int] = []
    for size in sizes:
        offsets.append(at)
        end = at + size
        at = aligned(end)
    header = Header(FORMAT, HEADER.size, end + TRAILER, HEADER.size, manifest_size, start, len(offsets))
    return header, offsets


def encode(description: Mapping[str, Any], blobs: Mapping[str, bytes]) -> bytes:
    """A bundle: `description` is the manifest without `blobs`, which are CUBINs by their hex sha256."""
    order = sorted(blobs)
    # The manifest holds offsets and its size moves the blobs, so the offsets it holds count from the first blob.
    _, offsets = layout(0, (len(blobs[digest]) for digest in order))
    table = [
        {"sha256": digest, "offset": offset - aligned(HEADER.size), "size": len(blobs[digest])}
        for digest, offset in zip(order, offsets, strict=True)
    ]
    manifest = canonical({**description, "blobs": table})
    header, offsets = layout(len(manifest), (len(blobs[digest]) for digest in order))
    out = bytearray(header.encode() + manifest)
    for digest, offset in zip(order, offsets, strict=True):
        out += bytes(offset - len(out))
        out += blobs[digest]
    return bytes(out + hashlib.sha256(out).digest())
