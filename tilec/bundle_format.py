"""The bytes of a bundle: what the packer writes and the loader expects, to the last byte.

    header    64 bytes, little-endian: magic (8), format (u32), header size (u32), file size (u64), manifest offset (u64),
              manifest size (u64), blobs offset (u64), number of blobs (u32), zero (12)
    manifest  canonical JSON: ASCII, keys sorted, no spaces
    blobs     CUBINs in the order of their sha256, each at the next multiple of 128, zeros between
    texts     at the next multiple of 128 after the blobs: tile IR and PTX of the CUBINs in the order of their sha256, one after
              the other, compressed as one stream (xz container without a check of its own, LZMA2 as `FILTERS` says)
    trailer   sha256 of everything before it

The texts are for `tilec audit`: a launcher reads none, so it hashes their compressed bytes with the file and expands nothing.
The manifest's `texts` has the size of the stream and the sha256 and size of each text; kernels name theirs by `digests`.

One content has exactly one encoding: offsets follow from sizes, the order of blobs from their digests, the order of kernels
from their names. So a bundle is reproducible, and a loader that compares needs no rule about holes or overlaps.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

MAGIC: Final = b"\x89tilec\r\n"
"""The first byte is no ASCII and the line end is one that text modes change, so a mangled transfer shows at once."""
FORMAT: Final = 3
"""2 added the texts, 3 the step and its tuning."""
HEADER: Final = struct.Struct("<8sIIQQQQI12x")
TRAILER: Final = hashlib.sha256().digest_size
ALIGN: Final = 128
MAX_FILE: Final = 1 << 30
MAX_MANIFEST: Final = 32 << 20
MAX_BLOBS: Final = 1 << 16
MAX_TEXTS: Final = 1 << 28
"""Bytes of all texts of a bundle, expanded: a stream of a few bytes can ask for any number."""
MAX_MEMORY: Final = 64 << 20
"""Bytes that expanding may take beside its result; a stream can ask for 4 GiB."""
SUFFIX: Final = ".bundle"
NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_+=\-]{0,199}", re.ASCII)
"""Of an artifact: nothing a file system takes for a path."""
MODEL: Final = re.compile(r"[a-z0-9]([a-z0-9_\-]|\.(?=[a-z0-9])){0,63}", re.ASCII)
STEP: Final = re.compile(r"[a-z0-9_]{1,64}", re.ASCII)

FILTERS: Final = [
    {"id": lzma.FILTER_LZMA2, "dict_size": 1 << 23, "lc": 3, "lp": 0, "pb": 0, "mode": lzma.MODE_NORMAL, "nice_len": 128,
     "mf": lzma.MF_BT4, "depth": 64},
]  # fmt: skip
"""Every parameter is named, so that the defaults of a library decide nothing."""


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


def model_digest(config: Mapping[str, Any], step: Any) -> str:
    """What a bundle runs, as hex sha256: the numbers of its model and the syntax of its step (`Declaration.syntax`). A policy
    goes by it (`tilec.runtime.trust`), since a name is whatever a signer says."""
    return hashlib.sha256(canonical({"config": config, "step": step})).hexdigest()


def layout(manifest_size: int, sizes: Iterable[int], texts: int = 0) -> tuple[Header, list[int]]:
    """The header of a bundle with blobs of these sizes and `texts` bytes of compressed texts; the offset of each blob, and last
    that of the texts."""
    start = at = aligned(HEADER.size + manifest_size)
    end = HEADER.size + manifest_size
    offsets: list[int] = []
    for size in sizes:
        offsets.append(at)
        end = at + size
        at = aligned(end)
    blobs = len(offsets)
    offsets.append(at)
    if texts:
        end = at + texts
    return Header(FORMAT, HEADER.size, end + TRAILER, HEADER.size, manifest_size, start, blobs), offsets


def compress(texts: Mapping[str, bytes]) -> bytes:
    """Texts by hex sha256 as one stream in the order of their digests; no bytes for no texts."""
    if not texts:
        return b""
    whole = b"".join(texts[digest] for digest in sorted(texts))
    return lzma.compress(whole, format=lzma.FORMAT_XZ, check=lzma.CHECK_NONE, filters=FILTERS)


def expand(stream: bytes, entries: Iterable[tuple[str, int]]) -> dict[str, bytes]:
    """The texts of a stream by digest; `entries` are digest and size in order. ValueError where a byte is not what they say."""
    known = list(entries)
    found: dict[str, bytes] = {}
    if not known and not stream:
        return found
    try:
        reader = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=MAX_MEMORY)
        rest = stream
        for digest, length in known:  # text by text, so that the first wrong one is the last that takes room
            parts: list[bytes] = []
            left = length
            while left and not reader.eof:
                part = reader.decompress(rest, max_length=left)
                if not part and not reader.eof:
                    break
                rest = b""
                parts.append(part)
                left -= len(part)
            if left:
                raise ValueError("its texts are not as long as its manifest says")
            found[digest] = b"".join(parts)
            if hashlib.sha256(found[digest]).hexdigest() != digest:
                raise ValueError(f"text {digest[:12]} is not the one of its digest")
        if (not reader.eof and reader.decompress(rest, max_length=1)) or not reader.eof or reader.unused_data:
            raise ValueError("its texts are not as long as its manifest says")
    except lzma.LZMAError as error:
        raise ValueError(f"its texts cannot be expanded: {error}") from None
    return found


def encode(description: Mapping[str, Any], blobs: Mapping[str, bytes], texts: Mapping[str, bytes] | None = None) -> bytes:
    """A bundle: `description` is the manifest without `blobs`, which are CUBINs by their hex sha256, and without `texts`, which
    are tile IR and PTX by theirs."""
    order = sorted(blobs)
    written = dict(texts or {})
    stream = compress(written)
    # The manifest holds offsets and its size moves the blobs, so the offsets it holds count from the first blob.
    _, offsets = layout(0, (len(blobs[digest]) for digest in order))
    table = [
        {"sha256": digest, "offset": offset - aligned(HEADER.size), "size": len(blobs[digest])}
        for digest, offset in zip(order, offsets[:-1], strict=True)
    ]
    entries = [{"sha256": digest, "size": len(written[digest])} for digest in sorted(written)]
    manifest = canonical({**description, "blobs": table, "texts": {"entries": entries, "size": len(stream)}})
    header, offsets = layout(len(manifest), (len(blobs[digest]) for digest in order), len(stream))
    out = bytearray(header.encode() + manifest)
    for digest, offset in zip(order, offsets[:-1], strict=True):
        out += bytes(offset - len(out))
        out += blobs[digest]
    if stream:
        out += bytes(offsets[-1] - len(out)) + stream
    return bytes(out + hashlib.sha256(out).digest())
