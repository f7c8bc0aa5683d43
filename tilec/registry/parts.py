"""A bundle as the blobs that a registry stores: its manifest, its CUBINs, its compressed texts; and where each of them lies.

A bundle has exactly one encoding (`tilec.bundle_format`), so these are all of it: header, gaps and trailer follow from them.
Two bundles that hold the same CUBIN name the same blob, which a registry stores once.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from tilec.bundle_format import FORMAT, HEADER, MAGIC, MAX_BLOBS, MAX_FILE, MAX_MANIFEST, TRAILER, Header, canonical, layout
from tilec.strict_json import parse

_HEX: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Piece:
    """A blob's place in the file; `sha256` is empty for the texts, whose digest the manifest does not have."""

    sha256: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Frame:
    """All of a bundle but its blobs: the bytes it begins with, the blobs in the order of the file, the texts last where there
    are any, and the size of the file. The digest over everything ends it."""

    front: bytes
    pieces: tuple[Piece, ...]
    size: int
    config: str
    """The numbers of the model that it is for, as canonical JSON."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A bundle taken apart."""

    manifest: bytes
    blobs: tuple[memoryview, ...]
    frame: Frame


def frame_of(manifest: bytes) -> Frame:
    """What surrounds the blobs of the bundle with this manifest; ValueError where it is none, or asks for more than a bundle
    may hold. What else the manifest says is for `tilec.runtime.open_bundle` to judge."""
    data = parse(manifest, limit=MAX_MANIFEST, canonical=True)
    if not isinstance(data, dict):
        raise ValueError("it is not an object")
    table = cast("dict[str, Any]", data)
    blobs, texts, config = table.get("blobs"), table.get("texts"), table.get("config")
    if not isinstance(blobs, list) or not isinstance(texts, dict) or not isinstance(config, dict):
        raise ValueError("it has no `blobs`, `texts` and `config`")
    rows = cast("list[Any]", blobs)
    text_size = _size(cast("dict[str, Any]", texts).get("size"), "texts")
    if len(rows) > MAX_BLOBS:
        raise ValueError(f"it names {len(rows)} blobs")
    known: list[tuple[str, int]] = []
    for row in rows:
        digest = cast("dict[str, Any]", row).get("sha256") if isinstance(row, dict) else None
        if not isinstance(digest, str) or not _HEX.fullmatch(digest):
            raise ValueError("it names a blob by no digest")
        known.append((digest, _size(cast("dict[str, Any]", row).get("size"), digest[:12])))
    header, offsets = layout(len(manifest), (size for _, size in known), text_size)
    if header.file_size > MAX_FILE:
        raise ValueError(f"its bundle would have {header.file_size} bytes")
    pieces = [Piece(digest, offset, size) for (digest, size), offset in zip(known, offsets[:-1], strict=True)]
    if text_size:
        pieces.append(Piece("", offsets[-1], text_size))
    return Frame(header.encode() + manifest, tuple(pieces), header.file_size, canonical(config).decode("ascii"))


def _size(value: Any, where: str) -> int:
    if type(value) is not int or not 0 <= value <= MAX_FILE:
        raise ValueError(f"its size of {where} is none")
    return value


def split(data: bytes) -> Parts:
    """The parts of a bundle that was verified; ValueError where they do not make the same bytes again."""
    magic, *fields = HEADER.unpack(data[: HEADER.size]) if len(data) >= HEADER.size + TRAILER else (b"",)
    if magic != MAGIC or fields[0] != FORMAT:
        raise ValueError(f"is not a bundle of format {FORMAT}")
    header = Header(*fields)
    manifest = data[HEADER.size : HEADER.size + header.manifest_size]
    frame = frame_of(manifest)
    view = memoryview(data)
    parts = Parts(manifest, tuple(view[piece.offset : piece.offset + piece.size] for piece in frame.pieces), frame)
    if join(frame, parts.blobs) != data:
        raise ValueError("is not the one encoding of its contents")
    return parts


def join(frame: Frame, blobs: Iterable[bytes | memoryview]) -> bytes:
    """The bundle of these parts."""
    out = bytearray(frame.front)
    for piece, blob in zip(frame.pieces, blobs, strict=True):
        out += bytes(piece.offset - len(out))
        out += blob
    return bytes(out + hashlib.sha256(out).digest())


def is_for(config: Mapping[str, Any], numbers: Mapping[str, Any]) -> bool:
    """Whether a bundle for a model of `config` is one for a model of these numbers: it names some, and each as it is there."""
    return bool(config) and all(
        name in numbers and isinstance(value, bool) == isinstance(numbers[name], bool) and value == numbers[name]
        for name, value in config.items()
    )
