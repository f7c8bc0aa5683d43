"""The binary format of a bundle, as the packer writes it and the loader requires it, exact to the byte.

    header    64 bytes, little-endian: magic (8), format (u32), header size (u32), file size (u64), manifest offset (u64),
              manifest size (u64), blobs offset (u64), number of blobs (u32), zero (12)
    manifest  canonical JSON: ASCII, keys sorted, no spaces
    blobs     CUBINs in the order of their sha256, each at the next multiple of 128, zeros between
    texts     at the next multiple of 128 after the blobs: tile IR and PTX of the CUBINs in the order of their sha256, one after
              the other, compressed as one stream (xz container without its own check, LZMA2 with `FILTERS`)
    trailer   sha256 of everything before it

The texts are for `tilec audit`: a launcher does not read them, so it hashes their compressed bytes with the file and does not
decompress them. The manifest's `texts` has the size of the stream and the sha256 and size of each text; kernels refer to theirs
by `digests`. Each content has exactly one encoding: offsets are determined by sizes, the order of blobs by their digests, the
order of kernels by their names. A bundle is therefore reproducible, and a loader that compares bytes needs no rules for gaps or
overlaps.
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
"""The first byte is not ASCII, and text-mode transfers change the line end, so a corrupted transfer is detected at once."""
FORMAT: Final = 3
"""Version 2 added the texts, version 3 the step and its tuning."""
HEADER: Final = struct.Struct("<8sIIQQQQI12x")
TRAILER: Final = hashlib.sha256().digest_size
ALIGN: Final = 128
MAX_FILE: Final = 1 << 30
MAX_MANIFEST: Final = 32 << 20
MAX_BLOBS: Final = 1 << 16
MAX_TEXTS: Final = 1 << 28
"""Maximum decompressed bytes of all texts of a bundle: a stream of a few bytes can expand to any size."""
MAX_MEMORY: Final = 64 << 20
"""Maximum bytes of memory for decompression, in addition to its result; a stream can request 4 GiB."""
SUFFIX: Final = ".bundle"
NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_+=\-]{0,199}", re.ASCII)
"""Name of an artifact; contains no character that is special in a path."""
MODEL: Final = re.compile(r"[a-z0-9]([a-z0-9_\-]|\.(?=[a-z0-9])){0,63}", re.ASCII)
STEP: Final = re.compile(r"[a-z0-9_]{1,64}", re.ASCII)

FILTERS: Final = [
    {"id": lzma.FILTER_LZMA2, "dict_size": 1 << 23, "lc": 3, "lp": 0, "pb": 0, "mode": lzma.MODE_NORMAL, "nice_len": 128,
     "mf": lzma.MF_BT4, "depth": 64},
]  # fmt: skip
"""All parameters are explicit, so that the output does not depend on a library's defaults."""


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
    """The canonical JSON text of `data`; ValueError for NaN and infinities."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")


def model_digest(config: Mapping[str, Any], step: Any) -> str:
    """Identity of a bundle's program, as hex sha256 of the model's numbers and the syntax of its step (`Declaration.syntax`).
    Policies refer to it (`tilec.runtime.trust`), because a signer can choose any name."""
    return hashlib.sha256(canonical({"config": config, "step": step})).hexdigest()


def layout(manifest_size: int, sizes: Iterable[int], texts: int = 0) -> tuple[Header, list[int]]:
    """The header of a bundle with blobs of these sizes and `texts` bytes of compressed texts; the offset of each blob, and last
    the offset of the texts."""
    start = offset = aligned(HEADER.size + manifest_size)
    end = HEADER.size + manifest_size
    offsets: list[int] = []
    for size in sizes:
        offsets.append(offset)
        end = offset + size
        offset = aligned(end)
    blobs = len(offsets)
    offsets.append(offset)
    if texts:
        end = offset + texts
    return Header(FORMAT, HEADER.size, end + TRAILER, HEADER.size, manifest_size, start, blobs), offsets


def compress(texts: Mapping[str, bytes]) -> bytes:
    """Texts by hex sha256 as one stream in the order of their digests; empty for no texts."""
    if not texts:
        return b""
    joined = b"".join(texts[digest] for digest in sorted(texts))
    return lzma.compress(joined, format=lzma.FORMAT_XZ, check=lzma.CHECK_NONE, filters=FILTERS)


def expand(stream: bytes, entries: Iterable[tuple[str, int]]) -> dict[str, bytes]:
    """The texts of a stream by digest; `entries` are digest and size in order. ValueError if the stream does not match them
    exactly."""
    known = list(entries)
    found: dict[str, bytes] = {}
    if not known and not stream:
        return found
    try:
        reader = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=MAX_MEMORY)
        rest = stream
        for digest, length in known:  # text by text, so that memory use stops at the first wrong one
            parts: list[bytes] = []
            remaining = length
            while remaining and not reader.eof:
                part = reader.decompress(rest, max_length=remaining)
                if not part and not reader.eof:
                    break
                rest = b""
                parts.append(part)
                remaining -= len(part)
            if remaining:
                raise ValueError("its texts are not as long as its manifest says")
            found[digest] = b"".join(parts)
            if hashlib.sha256(found[digest]).hexdigest() != digest:
                raise ValueError(f"text {digest[:12]} does not match its digest")
        if (not reader.eof and reader.decompress(rest, max_length=1)) or not reader.eof or reader.unused_data:
            raise ValueError("its texts are not as long as its manifest says")
    except lzma.LZMAError as error:
        raise ValueError(f"its texts cannot be expanded: {error}") from None
    return found


def encode(description: Mapping[str, Any], blobs: Mapping[str, bytes], texts: Mapping[str, bytes] | None = None) -> bytes:
    """A bundle. `description` is the manifest without `blobs` and `texts`; `blobs` are CUBINs by their hex sha256, `texts` tile
    IR and PTX by theirs."""
    order = sorted(blobs)
    written = dict(texts or {})
    stream = compress(written)
    # The manifest contains offsets, and its size moves the blobs; its offsets are therefore relative to the first blob.
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
