"""Writes safetensors files tensor by tensor: those of a shard are made one after another and kept in a file until all are made.

The library `safetensors` writes headers and files. It takes all tensors of a file at once, so those that are made here go to a
scratch file first, which is mapped: memory holds one tensor, and the disk twice the tensors of one shard for a while.
"""

from __future__ import annotations

import json
import mmap
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from math import prod
from typing import Any, Final, cast

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from engine.checkpoint.shards import SINGLE_FILE
from tilec.untrusted.output import OpenOutput, write_all

SCRATCH: Final = "scratch"
METADATA: Final = {"format": "pt"}
"""What transformers asks for in a header."""


@dataclass(frozen=True, slots=True)
class Module:
    """Tensors that are written together: dtypes and shapes by name, and what makes their arrays. `mapped` arrays are views of a
    file; the others are new, and freed once they are written."""

    tensors: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]
    make: Callable[[], Mapping[str, NDArray[Any]]]
    mapped: bool

    @property
    def bytes(self) -> int:
        return sum(dtype.itemsize * prod(shape) for dtype, shape in self.tensors.values())


def shards(modules: Sequence[Module], limit: int) -> list[list[Module]]:
    """Modules in order, in shards of at most `limit` bytes; a larger one has its own shard."""
    found: list[list[Module]] = []
    size = limit + 1
    for module in modules:
        size += module.bytes
        if size > limit:
            found.append([])
            size = module.bytes
        found[-1].append(module)
    return found


def shard_names(count: int) -> list[str]:
    """The names of Hugging Face's format."""
    if count == 1:
        return [SINGLE_FILE]
    return [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]


def write_shard(folder: OpenOutput, name: str, modules: Sequence[Module]) -> None:
    """Write one file; OSError, and what making a tensor raises."""
    with folder.new(SCRATCH) as scratch:
        arrays = dict(_arrays(scratch, modules))
        try:
            safetensors.numpy.save_file(arrays, folder.path / name, METADATA)  # pyright: ignore[reportUnknownMemberType]
        except safetensors.SafetensorError as error:  # of a disk that has become full, for example
            raise OSError(str(error)) from None
        mode = stat.S_IMODE(os.fstat(scratch.fileno()).st_mode)
        os.chmod(name, mode, dir_fd=folder.handle)  # the library makes files that their owner alone can read
    folder.remove(SCRATCH)


Made = tuple[str, np.dtype[Any], tuple[int, ...]]
"""Name, dtype and shape of a tensor in the scratch file."""


def _append(scratch: FileIO, module: Module) -> list[Made]:
    """Make a module's tensors and write them to the end of the file; they are freed when this returns."""
    arrays = module.make()
    for array in arrays.values():
        write_all(scratch, cast("bytes", np.ascontiguousarray(array).view(np.uint8).data.cast("B")))
    return [(name, array.dtype, array.shape) for name, array in arrays.items()]


def _arrays(scratch: FileIO, modules: Sequence[Module]) -> Iterator[tuple[str, NDArray[Any]]]:
    """All tensors, in files: those that are made now are appended to the scratch file."""
    made: list[Made] = []
    for module in modules:
        if module.mapped:
            yield from module.make().items()
        else:
            made += _append(scratch, module)
    if made:
        data = memoryview(mmap.mmap(scratch.fileno(), 0, access=mmap.ACCESS_READ))
        begin = 0
        for name, dtype, shape in made:
            end = begin + dtype.itemsize * prod(shape)
            yield name, np.frombuffer(data[begin:end], np.uint8).view(dtype).reshape(shape)
            begin = end


def index(parts: Mapping[str, Sequence[Module]]) -> bytes:
    """`model.safetensors.index.json` of shards by name."""
    weight_map = {name: shard for shard, modules in parts.items() for module in modules for name in module.tensors}
    total = sum(module.bytes for modules in parts.values() for module in modules)
    keys = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    return (json.dumps(keys, indent=2) + "\n").encode()
