"""A safetensors file with a validated header; its tensors are memory-mapped, not copied.

Layout (https://github.com/huggingface/safetensors, section "Format"): 8 bytes with the length of the header, little-endian;
the header, a JSON object from tensor name to dtype, shape and [begin, end) in the data; the data, every byte of which belongs
to exactly one tensor. The header is validated against the file before any of it is used:

1. the header fits in the file and in 16 MiB, and is a JSON object without duplicate keys;
2. every dtype is known, every shape is a list of sizes, and `end - begin` is the size of that dtype and shape;
3. sorted by `begin`, the tensors follow each other without gap or overlap, from the first byte of the data to the last.

If another process truncates a mapped file, this process dies of SIGBUS; the reader cannot prevent that.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO, Final, NoReturn, cast

from engine.checkpoint.folder_file import open_file
from engine.checkpoint.json_file import parse_object, show
from engine.errors import ModelError
from tilec.target.dtypes import DTYPES

HEADER_LIMIT: Final = 1 << 24
"""Maximum bytes of a header. The reference implementation accepts 100 MB, which a hostile header expands to gigabytes of
objects; that of a Qwen3 of 32 billion parameters has less than 100 kB."""

DIMENSIONS_LIMIT: Final = 32

OTHERS: Final = {"F8_E8M0": 1, "U64": 8, "F64": 8, "C64": 8}
"""Bytes per element of dtypes of the format that tiles cannot have, where that is a whole number."""
ITEM_BYTES: Final = {dtype.safetensors: dtype.bytes for dtype in DTYPES.values()} | OTHERS
"""Bytes per element of each dtype whose size is a whole number of bytes."""

AGAIN: Final = "download the file again"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a file: row-major elements at bytes [`begin`, `end`) of the file; `dtype` is named as in the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsFile:
    """A mapped file. `tensors` is in the order of the data. The mapping lives as long as any view returned by `data`."""

    def __init__(self, path: Path) -> None:
        """Map the file and validate its header; ModelError names the file and, if one is invalid, the tensor."""
        self.path = path
        try:
            with open_file(path, AGAIN) as file:
                size = os.fstat(file.fileno()).st_size
                header = _read_header(file, path, size)
                self._view = memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:  # ValueError: the file became empty before it was mapped
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise ModelError(f"cannot be read: {reason}", where=path, fix="make it a readable file") from None
        self.tensors = _tensors(header.entries, path, header.data_begin, size)

    def data(self, name: str) -> memoryview:
        """The bytes of a tensor: a read-only view of the mapped file."""
        tensor = self.tensors[name]
        return self._view[tensor.begin : tensor.end]


@dataclass(frozen=True, slots=True)
class _Header:
    entries: dict[str, object]
    data_begin: int  # byte of the file


def _read_header(file: BinaryIO, path: Path, size: int) -> _Header:
    """The header's JSON object, not yet validated."""
    if size < 8:
        raise ModelError(f"is truncated: {size} bytes, and the length of the header alone takes 8", where=path, fix=AGAIN)
    length = int.from_bytes(file.read(8), "little")
    if length > HEADER_LIMIT:
        what = f"is not a safetensors file: its first 8 bytes announce a header of {length} bytes, over {HEADER_LIMIT}"
        raise ModelError(what, where=path, fix=AGAIN)
    if length > size - 8:
        what = f"is truncated: its header takes {length} bytes, and {size - 8} are there"
        raise ModelError(what, where=path, fix=AGAIN)
    return _Header(parse_object(file.read(length), path, "the header"), 8 + length)


def _tensors(entries: dict[str, object], path: Path, data_begin: int, size: int) -> dict[str, Tensor]:
    """The tensors in the order of the data; ModelError unless they cover it exactly."""
    entries.pop("__metadata__", None)  # free text
    tensors = sorted(
        (_tensor(name, entry, path, data_begin) for name, entry in entries.items()),
        key=lambda tensor: (tensor.begin, tensor.end),
    )
    covered, before = data_begin, ""
    for tensor in tensors:
        if tensor.end > size:
            what = f"is truncated: tensor {show(tensor.name)} ends at byte {tensor.end}, and the file has {size}"
            raise ModelError(what, where=path, fix=AGAIN)
        if tensor.begin != covered:
            how = "overlaps" if tensor.begin < covered else "leaves a gap after"
            after = show(before) if before else "the header"
            what = f"tensor {show(tensor.name)} begins at byte {tensor.begin} and {how} {after}, which ends at byte {covered}"
            raise ModelError(what, where=path, fix=AGAIN)
        covered, before = tensor.end, tensor.name
    if covered != size:
        raise ModelError(f"has {size - covered} bytes after the last tensor", where=path, fix=AGAIN)
    return {tensor.name: tensor for tensor in tensors}


def _tensor(name: str, entry: object, path: Path, data_begin: int) -> Tensor:
    """A validated entry of the header; ModelError if it violates the format."""

    def refuse(what: str) -> NoReturn:
        raise ModelError(f"tensor {show(name)}: {what}", where=path, fix=AGAIN)

    def sizes(key: str, longest: int) -> tuple[int, ...]:
        value = fields.get(key)
        numbers = cast("list[object]", value) if isinstance(value, list) else [None]
        valid = [number for number in numbers if type(number) is int and 0 <= number < 1 << 63]
        if len(valid) < len(numbers) or len(numbers) > longest:
            refuse(f"its {key} is {show(cast('object', value))}, not a list of at most {longest} sizes")
        return tuple(valid)

    if not isinstance(entry, dict):
        refuse(f"its entry is {show(entry)}, not an object")
    fields = cast("dict[str, object]", entry)
    dtype = fields.get("dtype")
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        refuse(f"its dtype {show(dtype)} is not supported")
    shape = sizes("shape", DIMENSIONS_LIMIT)
    offsets = sizes("data_offsets", 2)
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        refuse(f"its data_offsets {list(offsets)} are not the first byte and the byte after the last")
    begin, end = offsets
    if end - begin != prod(shape) * ITEM_BYTES[dtype]:
        expected = f"{dtype} of shape {list(shape)} takes {prod(shape) * ITEM_BYTES[dtype]}"
        refuse(f"its data_offsets span {end - begin} bytes, and {expected}")
    return Tensor(name, dtype, shape, data_begin + begin, data_begin + end)
