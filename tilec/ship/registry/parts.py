"""Splits a bundle into the blobs that a registry stores, and joins them: its manifest, its CUBINs and its compressed texts.

A bundle has exactly one encoding (`tilec.artifact.bundle_format`), so these determine it: header, gaps and trailer are derived
from them. Bundles that contain the same CUBIN refer to the same blob, which a registry stores once.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from tilec.artifact.bundle_format import (
    FORMAT,
    FORMATS,
    HEADER,
    MAGIC,
    MAX_BLOBS,
    MAX_FILE,
    MAX_MANIFEST,
    TRAILER,
    WITH_OBLIGATIONS,
    Header,
    canonical,
    layout,
)
from tilec.untrusted.strict_json import parse

_HEX: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Piece:
    """A blob's location in the file; `sha256` is empty for the texts, whose digest is not in the manifest."""

    sha256: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Frame:
    """All of a bundle except its blobs: the bytes before them, the blobs in the order of the file (the texts last, if there are
    any), and the size of the file. The trailer is the digest over everything before it."""

    front: bytes
    pieces: tuple[Piece, ...]
    size: int
    config: str
    """The numbers of the bundle's model, as canonical JSON."""
    form: int
    """The format of the bundle."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A bundle, split into blobs."""

    manifest: bytes
    blobs: tuple[memoryview, ...]
    frame: Frame


def frame_of(manifest: bytes) -> Frame:
    """The frame of the bundle with this manifest; ValueError if it is not a manifest, or exceeds a bundle's limits. The rest of
    the manifest is validated by `tilec.runtime.open_bundle`."""
    data = parse(manifest, limit=MAX_MANIFEST, canonical=True)
    if not isinstance(data, dict):
        raise ValueError("it is not an object")
    table = cast("dict[str, Any]", data)
    blobs, texts, config = table.get("blobs"), table.get("texts"), table.get("config")
    if not isinstance(blobs, list) or not isinstance(texts, dict) or not isinstance(config, dict):
        raise ValueError("it has no `blobs`, `texts` and `config`")
    rows = cast("list[Any]", blobs)
    stream = cast("dict[str, Any]", texts)
    text_size = _size(stream.get("size"), "texts")
    form = FORMAT if "proofs" in stream else WITH_OBLIGATIONS
    if len(rows) > MAX_BLOBS:
        raise ValueError(f"it names {len(rows)} blobs")
    known: list[tuple[str, int]] = []
    for row in rows:
        digest = cast("dict[str, Any]", row).get("sha256") if isinstance(row, dict) else None
        if not isinstance(digest, str) or not _HEX.fullmatch(digest):
            raise ValueError("it names a blob without a digest")
        known.append((digest, _size(cast("dict[str, Any]", row).get("size"), digest[:12])))
    header, offsets = layout(len(manifest), (size for _, size in known), text_size, form)
    if header.file_size > MAX_FILE:
        raise ValueError(f"its bundle would have {header.file_size} bytes")
    pieces = [Piece(digest, offset, size) for (digest, size), offset in zip(known, offsets[:-1], strict=True)]
    if text_size:
        pieces.append(Piece("", offsets[-1], text_size))
    return Frame(header.encode() + manifest, tuple(pieces), header.file_size, canonical(config).decode("ascii"), form)


def _size(value: Any, location: str) -> int:
    if type(value) is not int or not 0 <= value <= MAX_FILE:
        raise ValueError(f"its size of {location} is none")
    return value


def split(data: bytes) -> Parts:
    """The parts of a verified bundle; ValueError if joining them does not reproduce its bytes."""
    magic, *fields = HEADER.unpack(data[: HEADER.size]) if len(data) >= HEADER.size + TRAILER else (b"",)
    if magic != MAGIC or fields[0] not in FORMATS:
        raise ValueError(f"is not a bundle of format {' or '.join(map(str, FORMATS))}")
    header = Header(*fields)
    manifest = data[HEADER.size : HEADER.size + header.manifest_size]
    frame = frame_of(manifest)
    view = memoryview(data)
    parts = Parts(manifest, tuple(view[piece.offset : piece.offset + piece.size] for piece in frame.pieces), frame)
    if join(frame, parts.blobs) != data:
        raise ValueError("is not canonically encoded")
    return parts


def join(frame: Frame, blobs: Iterable[bytes | memoryview]) -> bytes:
    """The bundle made of these parts."""
    out = bytearray(frame.front)
    for piece, blob in zip(frame.pieces, blobs, strict=True):
        out += bytes(piece.offset - len(out))
        out += blob
    return bytes(out + hashlib.sha256(out).digest())


def is_for(config: Mapping[str, Any], numbers: Mapping[str, Any]) -> bool:
    """Whether a bundle's `config` matches a model's `numbers`: it is not empty, and each of its entries is equal there."""
    return bool(config) and all(
        name in numbers and isinstance(value, bool) == isinstance(numbers[name], bool) and value == numbers[name]
        for name, value in config.items()
    )
