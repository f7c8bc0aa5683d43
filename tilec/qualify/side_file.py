"""The side file of a bundle, `NAME.qualify`: launches and what they must write. Written by `prepare`, read strictly.

    magic     8 bytes; its first byte is not ASCII
    size      of the header (u64, little-endian)
    header    canonical JSON: where it comes from, and for each artifact its launches
    data      the expected values of each result in the order of the header: runs of elements (first, count as u64), then the
              stored bits of those elements
    trailer   sha256 of everything before it

A file is data from elsewhere. Every size is compared with the file's before anything is allocated, every number has bounds, and
nothing in it is executed. Sizes of launches are checked again by the launch contract, contents are made by `recipe`.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from tilec.artifact.bundle_format import NAME, canonical
from tilec.qualify.recipe import KINDS
from tilec.target.dtypes import DTYPES
from tilec.untrusted.regular_file import read_regular
from tilec.untrusted.strict_json import parse

MAGIC: Final = b"\x89tilecq\n"
FORMAT: Final = 1
SUFFIX: Final = ".qualify"
SIZE: Final = struct.Struct("<Q")
TRAILER: Final = hashlib.sha256().digest_size
MAX_FILE: Final = 1 << 29
MAX_HEADER: Final = 32 << 20
MAX_ARTIFACTS: Final = 1 << 12
MAX_LAUNCHES: Final = 64
"""Maximum launches of one artifact."""
MAX_NUMBER: Final = 1 << 48
"""Bound of sizes, strides and integer scalars of a launch."""
DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
PARAMETER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}", re.ASCII)
Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Expected:
    """What a launch leaves in a tensor: `bits` of the elements in `runs`, (first, count) in row-major order. An element may
    differ by `relative` of itself plus `absolute`; integers must be equal. `whole`: all elements are there."""

    tensor: str
    dtype: str
    relative: float
    absolute: float
    whole: bool
    runs: NDArray[np.uint64]
    bits: Array

    def positions(self) -> NDArray[np.int64]:
        """Numbers of the elements, ascending, as (count,)."""
        parts = [np.arange(int(first), int(first) + int(count)) for first, count in self.runs]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: `values` are dims, strides and integer scalars, `scalars` the floats; `kind` and `inputs` belong to `recipe`
    (`inputs` is its digest). `bytes` and `products` are its work for a roofline (products None: unknown). `timed`: it is at a
    shape of the model."""

    name: str
    values: Mapping[str, int]
    scalars: Mapping[str, float]
    kind: str
    inputs: str
    bytes: int
    products: int | None
    timed: bool
    expected: tuple[Expected, ...] = ()
    reference: str = ""
    """What the NumPy reference of the project said of the expected values; empty if it was not asked."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The launches of one artifact, for the tile IR with the digest `tir`; `left_out` are launches that were not prepared, as
    `NAME: REASON`."""

    name: str
    tir: str
    launches: tuple[Launch, ...]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SideFile:
    """All of a side file. `bundle` is the sha256 of the bundle that it was prepared from, `tilec` the version that did it,
    `checker` says what computed the expected values."""

    bundle: str
    tilec: str
    checker: str
    entries: Mapping[str, Entry] = field(default_factory=dict[str, Entry])
    digest: str = ""


class Malformed(ValueError):
    """Not a side file, or a damaged one; the text ends a sentence that begins with its name."""


def default_path(bundle: Path) -> Path:
    """Where the side file of a bundle is, if nothing else is said: next to it."""
    return bundle.with_suffix(SUFFIX)


def encode(side: SideFile) -> bytes:
    """The bytes of a side file; the same contents give the same bytes."""
    data = bytearray()
    artifacts: list[dict[str, Any]] = []
    for name in sorted(side.entries):
        entry = side.entries[name]
        launches: list[dict[str, Any]] = []
        for launch in entry.launches:
            rows: list[dict[str, Any]] = []
            for one in launch.expected:
                data += one.runs.astype("<u8").tobytes() + np.ascontiguousarray(one.bits).tobytes()
                rows.append({
                    "tensor": one.tensor, "dtype": one.dtype, "relative": float(one.relative), "absolute": float(one.absolute),
                    "whole": one.whole, "runs": len(one.runs), "count": int(one.bits.size),
                })  # fmt: skip
            launches.append({
                "name": launch.name, "values": dict(launch.values), "scalars": dict(launch.scalars), "kind": launch.kind,
                "inputs": launch.inputs, "bytes": launch.bytes, "products": launch.products, "timed": launch.timed,
                "expected": rows, "reference": launch.reference,
            })  # fmt: skip
        artifacts.append({"name": name, "tir": entry.tir, "launches": launches, "left_out": list(entry.left_out)})
    header = canonical(
        {"format": FORMAT, "bundle": side.bundle, "tilec": side.tilec, "checker": side.checker, "artifacts": artifacts}
    )
    body = MAGIC + SIZE.pack(len(header)) + header + bytes(data)
    return body + hashlib.sha256(body).digest()


def read(path: Path) -> SideFile:
    """Read and check a side file. OSError if it cannot be read, Malformed if it is not one."""

    def check(size: int, head: bytes) -> None:
        if head[: len(MAGIC)] != MAGIC:
            raise Malformed("is not a file of launches")

    try:
        data = read_regular(path, MAX_FILE, check)
    except Malformed:
        raise
    except ValueError as error:
        raise Malformed(str(error)) from None
    return decode(data)


def decode(data: bytes) -> SideFile:
    """The side file in these bytes; Malformed if they are not one."""
    start = len(MAGIC) + SIZE.size
    if len(data) < start + TRAILER or data[: len(MAGIC)] != MAGIC:
        raise Malformed("is not a file of launches")
    if hashlib.sha256(memoryview(data)[:-TRAILER]).digest() != data[-TRAILER:]:
        raise Malformed("is damaged: its digest does not match its bytes")
    (size,) = SIZE.unpack_from(data, len(MAGIC))
    if size > min(MAX_HEADER, len(data) - start - TRAILER):
        raise Malformed("is damaged: its header is larger than the file")
    try:
        header = parse(data[start : start + size], limit=MAX_HEADER, canonical=True)
        found = _Reader(memoryview(data)[start + size : -TRAILER]).side_file(header)
    except (ValueError, OverflowError) as error:
        raise Malformed(f"is damaged: {error}"[:500]) from None
    return SideFile(found.bundle, found.tilec, found.checker, found.entries, hashlib.sha256(data).hexdigest())


class _Reader:
    """Reads the header's records; takes the data in order."""

    def __init__(self, data: memoryview) -> None:
        self.data, self.taken = data, 0

    def side_file(self, header: Any) -> SideFile:
        if not isinstance(header, dict) or cast("dict[str, Any]", header).get("format") != FORMAT:
            raise ValueError(f"this tilec reads format {FORMAT}")
        fields = _fields(header, "format", "bundle", "tilec", "checker", "artifacts")
        entries: dict[str, Entry] = {}
        for data in _list(fields["artifacts"], MAX_ARTIFACTS):
            entry = self.entry(data)
            if entry.name in entries or (entries and entry.name < next(reversed(entries))):
                raise ValueError("its artifacts are not in order")
            entries[entry.name] = entry
        if self.taken != len(self.data):
            raise ValueError("there are bytes after its last value")
        return SideFile(_digest(fields["bundle"]), _text(fields["tilec"]), _text(fields["checker"]), entries)

    def entry(self, data: Any) -> Entry:
        fields = _fields(data, "name", "tir", "launches", "left_out")
        name = fields["name"]
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ValueError("an artifact's name is not one")
        launches = tuple(self.launch(one) for one in _list(fields["launches"], MAX_LAUNCHES))
        left_out = tuple(_text(one) for one in _list(fields["left_out"], 4 * MAX_LAUNCHES))
        return Entry(name, _digest(fields["tir"]), launches, left_out)

    def launch(self, data: Any) -> Launch:
        names = ("name", "values", "scalars", "kind", "inputs", "bytes", "products", "timed", "expected", "reference")
        fields = _fields(data, *names)
        kind, products = fields["kind"], fields["products"]
        if kind not in KINDS:
            raise ValueError("a launch has inputs of no known kind")
        values = {name: _integer(value) for name, value in _table(fields["values"]).items()}
        scalars = {name: _float(value) for name, value in _table(fields["scalars"]).items()}
        if products is not None:
            products = _integer(products, 1 << 62)
        return Launch(
            _text(fields["name"]), values, scalars, kind, _digest(fields["inputs"]), _integer(fields["bytes"], 1 << 62),
            products, _bool(fields["timed"]), tuple(self.expected(one) for one in _list(fields["expected"], 64)),
            _text(fields["reference"]),
        )  # fmt: skip

    def expected(self, data: Any) -> Expected:
        fields = _fields(data, "tensor", "dtype", "relative", "absolute", "whole", "runs", "count")
        dtype = fields["dtype"]
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise ValueError("a result has no known dtype")
        relative, absolute = _float(fields["relative"]), _float(fields["absolute"])
        if relative < 0 or absolute < 0:
            raise ValueError("a tolerance is negative")
        runs = np.frombuffer(self.take(16 * _natural(fields["runs"])), "<u8").reshape(-1, 2)
        count = _natural(fields["count"])
        bits = np.frombuffer(self.take(count * DTYPES[dtype].bytes), DTYPES[dtype].storage)
        _check_runs(runs, count)
        return Expected(_parameter(fields["tensor"]), dtype, relative, absolute, _bool(fields["whole"]), runs, bits)

    def take(self, size: int) -> memoryview:
        if size > len(self.data) - self.taken:
            raise ValueError("it has fewer bytes than its header says")
        self.taken += size
        return self.data[self.taken - size : self.taken]


def _check_runs(runs: NDArray[np.uint64], count: int) -> None:
    """Runs are in order, apart, not empty, below `MAX_NUMBER`, and have `count` elements."""
    if runs.size and (int(runs.max()) >= MAX_NUMBER or int(runs[:, 1].min()) < 1):
        raise ValueError("a run of elements is empty or too large")
    first, length = runs[:, 0].astype(np.int64), runs[:, 1].astype(np.int64)
    if np.any(first[1:] <= (first + length)[:-1]) or sum(length.tolist()) != count:
        raise ValueError("runs of elements overlap, or are not as many as their values")


def _fields(data: Any, *names: str) -> dict[str, Any]:
    table = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    if set(table) != set(names):
        raise ValueError(f"a record does not have exactly {', '.join(names)}")
    return table


def _list(data: Any, limit: int) -> list[Any]:
    found = cast("list[Any]", data) if isinstance(data, list) else None
    if found is None or len(found) > limit:
        raise ValueError(f"a list is none, or has more than {limit} entries")
    return found


def _table(data: Any) -> dict[str, Any]:
    found = cast("dict[str, Any]", data) if isinstance(data, dict) else None
    if found is None or len(found) > 256:
        raise ValueError("launch values are not a table")
    for name in found:
        _parameter(name)
    return found


def _parameter(data: Any) -> str:
    if not isinstance(data, str) or not PARAMETER.fullmatch(data):
        raise ValueError("a parameter's name is not one")
    return data


def _text(data: Any) -> str:
    if not isinstance(data, str) or len(data) > 2000:
        raise ValueError("a text is none, or too long")
    return data


def _digest(data: Any) -> str:
    if not isinstance(data, str) or not DIGEST.fullmatch(data):
        raise ValueError("a digest is not one")
    return data


def _bool(data: Any) -> bool:
    if type(data) is not bool:
        raise ValueError("a flag is neither true nor false")
    return data


def _integer(data: Any, limit: int = MAX_NUMBER) -> int:
    if type(data) is not int or not -limit < data < limit:
        raise ValueError("a launch value is not an integer in range")
    return data


def _natural(data: Any) -> int:
    found = _integer(data)
    if found < 0:
        raise ValueError("a size is negative")
    return found


def _float(data: Any) -> float:
    if type(data) not in (int, float):
        raise ValueError("a scalar is not a number")
    return float(data)
