"""The binary format of a bundle, as the packer writes it and the loader requires it, exact to the byte.

    header    64 bytes, little-endian: magic (8), format (u32), header size (u32), file size (u64), manifest offset (u64),
              manifest size (u64), blobs offset (u64), number of blobs (u32), zero (12)
    manifest  canonical JSON: ASCII, keys sorted, no spaces
    blobs     CUBINs in the order of their sha256, each at the next multiple of 128, zeros between
    texts     at the next multiple of 128 after the blobs, one after the other, compressed as one stream (xz container without
              its own check, LZMA2 with `FILTERS`): the proofs of the kernels in the order of their sha256, then tile IR and PTX
              of the CUBINs in the order of theirs
    trailer   sha256 of everything before it

The proofs of a kernel are the obligations of its manifest as canonical JSON. They are most of a manifest, they repeat each
other, and no launch needs them. So the manifest of a bundle has each kernel's manifest without `obligations`, and the digest of
its proofs instead; kernels with the same obligations share them. CUBINs are not compressed: a loader takes one by its offset,
and a registry stores one that two bundles share once.

A launcher does not read the texts, so it hashes their compressed bytes with the file and does not decompress them. Proofs are
first in the stream, so that reading them decompresses nothing else. The manifest's `texts` has the size of the stream, and the
sha256 and size of each text and of each kernel's proofs; kernels refer to their texts by `digests`. Each content has exactly
one encoding: offsets are determined by sizes, the order of blobs by their digests, the order of kernels by their names. A
bundle is therefore reproducible, and a loader that compares bytes needs no rules for gaps or overlaps.

Format 3, which is read too, has no proofs among its texts: the obligations are in the kernels' manifests.
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
FORMAT: Final = 4
"""Version 2 added the texts, version 3 the step and its tuning, version 4 moved the proofs to the texts."""
WITH_OBLIGATIONS: Final = 3
"""The format whose kernels have their obligations in their manifests."""
FORMATS: Final = (WITH_OBLIGATIONS, FORMAT)
"""All formats that are read."""
HEADER: Final = struct.Struct("<8sIIQQQQI12x")
TRAILER: Final = hashlib.sha256().digest_size
ALIGN: Final = 128
MAX_FILE: Final = 1 << 30
MAX_MANIFEST: Final = 32 << 20
MAX_BLOBS: Final = 1 << 16
MAX_TEXTS: Final = 1 << 28
"""Maximum decompressed bytes of all texts of a bundle: a stream of a few bytes can expand to any size."""
MAX_PROOFS: Final = MAX_MANIFEST
"""Maximum decompressed bytes of all proofs of a bundle, which are part of `MAX_TEXTS`."""
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


def proofs_of(manifest: dict[str, Any]) -> bytes:
    """Removes the obligations from an artifact's manifest, as JSON data, and returns them as text."""
    return canonical(manifest.pop("obligations"))


def layout(manifest_size: int, sizes: Iterable[int], texts: int = 0, form: int = FORMAT) -> tuple[Header, list[int]]:
    """The header of a bundle of format `form` with blobs of these sizes and `texts` bytes of compressed texts; the offset of
    each blob, and last the offset of the texts."""
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
    return Header(form, HEADER.size, end + TRAILER, HEADER.size, manifest_size, start, blobs), offsets


def compress(texts: Mapping[str, bytes], proofs: Mapping[str, bytes] | None = None) -> bytes:
    """Proofs and texts by hex sha256 as one stream, each in the order of their digests; empty for no texts."""
    first = proofs or {}
    if not texts and not first:
        return b""
    joined = b"".join([*(first[digest] for digest in sorted(first)), *(texts[digest] for digest in sorted(texts))])
    return lzma.compress(joined, format=lzma.FORMAT_XZ, check=lzma.CHECK_NONE, filters=FILTERS)


def expand(stream: bytes, entries: Iterable[tuple[str, int]], *, whole: bool = True) -> dict[str, bytes]:
    """The texts of a stream by digest; `entries` are digest and size in order. ValueError if the stream does not match them
    exactly, or without `whole` does not begin with them: then nothing after them is decompressed."""
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
        if whole and ((not reader.eof and reader.decompress(rest, max_length=1)) or not reader.eof or reader.unused_data):
            raise ValueError("its texts are not as long as its manifest says")
    except lzma.LZMAError as error:
        raise ValueError(f"its texts cannot be expanded: {error}") from None
    return found


def encode(
    description: Mapping[str, Any], blobs: Mapping[str, bytes], texts: Mapping[str, bytes] | None = None,
    proofs: Mapping[str, bytes] | None = None,
) -> bytes:  # fmt: skip
    """A bundle. `description` is the manifest without `blobs` and `texts`; `blobs` are CUBINs by their hex sha256, `texts` tile
    IR and PTX by theirs, and `proofs` the proofs of the kernels by theirs. A description with obligations in its kernels'
    manifests has no proofs: None, and its format is `WITH_OBLIGATIONS`."""
    order = sorted(blobs)
    written = dict(texts or {})
    stream = compress(written, proofs)
    # The manifest contains offsets, and its size moves the blobs; its offsets are therefore relative to the first blob.
    _, offsets = layout(0, (len(blobs[digest]) for digest in order))
    table = [
        {"sha256": digest, "offset": offset - aligned(HEADER.size), "size": len(blobs[digest])}
        for digest, offset in zip(order, offsets[:-1], strict=True)
    ]
    described: dict[str, Any] = {"entries": _entries(written), "size": len(stream)}
    described |= {} if proofs is None else {"proofs": _entries(proofs)}
    manifest = canonical({**description, "blobs": table, "texts": described})
    form = WITH_OBLIGATIONS if proofs is None else FORMAT
    header, offsets = layout(len(manifest), (len(blobs[digest]) for digest in order), len(stream), form)
    out = bytearray(header.encode() + manifest)
    for digest, offset in zip(order, offsets[:-1], strict=True):
        out += bytes(offset - len(out))
        out += blobs[digest]
    if stream:
        out += bytes(offsets[-1] - len(out)) + stream
    return bytes(out + hashlib.sha256(out).digest())


def _entries(texts: Mapping[str, bytes]) -> list[dict[str, Any]]:
    return [{"sha256": digest, "size": len(texts[digest])} for digest in sorted(texts)]
