"""The tensors of one quantised module as they lie in the files, and the checks that all formats share.

A check names file, tensor and place. Headers are checked against the shape that `config.json` gives the weight before any data
is read; data are checked when a weight is repacked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final, NoReturn

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from engine.checkpoint.json_file import show
from engine.checkpoint.safetensors_file import SafetensorsFile
from engine.errors import ModelError

NUMPY: Final[Mapping[str, np.dtype[Any]]] = {
    "BF16": np.dtype(ml_dtypes.bfloat16), "F16": np.dtype("<f2"), "F32": np.dtype("<f4"), "F8_E4M3": np.dtype("u1"),
    "I8": np.dtype("i1"), "U8": np.dtype("u1"), "I32": np.dtype("<u4"), "I64": np.dtype("<i8"),
}  # fmt: skip
"""NumPy dtypes by names in files; words of packed fields are read as unsigned, and e4m3 as its codes."""

SCALES: Final = ("BF16", "F16", "F32")
PIECE: Final = 1 << 20
"""Elements that a check looks at a time."""

ONE_MODEL: Final = "take config.json and the weights of one model"
DAMAGED: Final = "download the file again, or take the bf16 checkpoint"


@dataclass(frozen=True, slots=True)
class Stored:
    """A module by its name, and the files of its tensors by their full names. `shape` is (N, K) of its weight."""

    name: str
    shape: tuple[int, int]
    files: Mapping[str, SafetensorsFile]

    def has(self, suffix: str) -> bool:
        return f"{self.name}.{suffix}" in self.files

    def dtype(self, suffix: str) -> str:
        """The dtype of one of the tensors, by its name in the file."""
        name = f"{self.name}.{suffix}"
        return self.files[name].tensors[name].dtype

    def refuse(self, suffix: str, what: str, fix: str = DAMAGED) -> NoReturn:
        """ModelError for one of the tensors."""
        file = self.files[f"{self.name}.{suffix}"]
        raise ModelError(f"tensor {show(f'{self.name}.{suffix}')} {what}", where=file.path, fix=fix)

    def check(self, suffix: str, dtypes: Sequence[str], *shapes: Sequence[int], why: str = "") -> None:
        """ModelError unless a tensor is there, in one of the dtypes and shapes. `why` says what the first shape comes from."""
        name = f"{self.name}.{suffix}"
        if name not in self.files:
            other = next(file for tensor, file in self.files.items() if tensor.startswith(f"{self.name}."))
            what = f"the quantised module {show(self.name)} has no tensor {show(name)} in any file of the folder"
            raise ModelError(what, where=other.path, fix="download the files again, all of one model")
        tensor = self.files[name].tensors[name]
        if tensor.dtype not in dtypes:
            self.refuse(suffix, f"is {tensor.dtype}, and must be {' or '.join(dtypes)} in this format", ONE_MODEL)
        if all(tensor.shape != tuple(shape) for shape in shapes):
            turned = tensor.shape == tuple(reversed(shapes[0])) and len(shapes[0]) > 1
            reason = f" ({why})" if why else ""
            what = f"has shape {list(tensor.shape)}{', transposed' if turned else ''}, and must have {list(shapes[0])}{reason}"
            self.refuse(suffix, what, "write it as the format has it" if turned else ONE_MODEL)

    def columns_of(self, group: int) -> int:
        """Columns of a group of a config, where -1 stands for a whole row."""
        return self.shape[1] if group == -1 else group

    def check_groups(self, group: int, suffix: str) -> int:
        """The number of groups in a row; ModelError if the last would be cut, as by splitting a model over GPUs."""
        columns = self.shape[1]
        if columns % group:
            what = f"has groups of {group} columns, and {columns} columns cut one: the weight was split inside a group"
            self.refuse(suffix, what, "split at multiples of the group, or take the unsplit model")
        return columns // group

    def check_multiple(self, suffix: str, axis: int, of: int) -> None:
        """ModelError unless the weight's rows (axis 0) or columns (1) are a multiple of the elements of a word."""
        size = self.shape[axis]
        if size % of:
            what = f"packs {of} {('rows', 'columns')[axis]} a word, and the weight has {size}: padded words are not supported"
            self.refuse(suffix, what, "take a model whose sizes are multiples, or the bf16 weights")

    def array(self, suffix: str) -> NDArray[Any]:
        """A tensor, a read-only view of its file."""
        name = f"{self.name}.{suffix}"
        file = self.files[name]
        tensor = file.tensors[name]
        return np.frombuffer(file.data(name), NUMPY[tensor.dtype]).reshape(tensor.shape)

    def scales(self, suffix: str, largest: float, transpose: bool = False) -> NDArray[Any]:
        """Scales, as a copy if transposed: finite, and so small that a code of at most `largest` stays finite in f32."""
        scales = self.array(suffix)
        magnitude = np.abs(scales.astype(np.float32))
        bad = ~(magnitude <= np.finfo(np.float32).max / np.float32(largest))  # also true of NaN
        if bad.any():
            indices = [int(index) for index in np.argwhere(bad)[0]]
            value = float(scales[tuple(indices)])
            self.refuse(suffix, f"holds {value:g} at {indices}, and its products with codes up to {largest:g} must be finite")
        return np.ascontiguousarray(scales.T) if transpose else scales

    def e4m3(self, suffix: str) -> NDArray[np.uint8]:
        """Codes of a tensor; ModelError if one is NaN."""
        codes = self.array(suffix)
        flat = codes.reshape(-1)
        for begin in range(0, flat.size, PIECE):
            bad = flat[begin : begin + PIECE] & 0x7F == 0x7F
            if bad.any():
                indices = [int(index) for index in np.unravel_index(begin + int(bad.argmax()), codes.shape)]
                self.refuse(suffix, f"holds NaN (code {codes[tuple(indices)]:#04x}) at {indices}")
        return codes

    def scalar(self, suffix: str) -> np.float32:
        """An f32 tensor of one element; ModelError if it is not finite."""
        value = np.float32(self.array(suffix).reshape(()))
        if not np.isfinite(value):
            self.refuse(suffix, f"is {value}, and must be finite")
        return value


def check_e4m3_blocks(stored: Stored, weight: str, scale: str, block: tuple[int, int]) -> None:
    """Headers of e4m3 codes and of their scales for blocks, or ModelError."""
    rows, columns = stored.shape
    grid = (ceil(rows / block[0]), ceil(columns / block[1]))
    stored.check(weight, ["F8_E4M3"], stored.shape)
    stored.check(scale, SCALES, grid, why=f"a scale for each {block[0]}x{block[1]} block of {rows}x{columns}")
