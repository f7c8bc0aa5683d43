"""The weights of a model, by destination tensor on the device: name, dtype, shape, and the checkpoint tensors in it.

A destination is a tensor in the form that the step's kernels read and the step declares (`engine/models/qwen3/qwen3.step`): one
checkpoint tensor, or several concatenated along the rows.

Weights are read as chunks of bytes, so that gigabytes reach the device without a second copy on the host, or as arrays.

Quantised weights (`engine.formats`) whose format the step declares stay as they are: their codes, scales and zero points are
destinations of their own, repacked one tensor at a time where files have another order. So are a head's that the format has as
codes and files in 16 bits (`engine.formats.coded_head`). All others are dequantised in f32 and rounded to the dtype of the
device, some rows at a time.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from engine.checkpoint.json_file import show
from engine.checkpoint.safetensors_file import SafetensorsFile
from engine.checkpoint.shards import open_checkpoint
from engine.errors import ModelError, UsageError
from engine.formats.reading import read_quantization
from engine.models.config import ModelConfig
from engine.models.families import family_of
from engine.models.steps import model_step
from tilec.step.expressions import StepError
from tilec.step.formats import SCALES, SIXTEEN_BIT, ZEROS, coded_head, stored_as
from tilec.step.graph import ITEM_BYTES
from tilec.step.step import Step, Weight
from tilec.target.dtypes import bf16, f8e4m3, f16, f32, numpy_dtype, u8, u32

if TYPE_CHECKING:
    from engine.formats.quantised import Quantised
    from engine.formats.quantization import Quantization

NUMPY_TYPES: Final = {dtype.name: numpy_dtype(dtype) for dtype in (bf16, f16)}
"""NumPy dtype of each dtype that a model may run in."""

DEVICE_TYPES: Final = NUMPY_TYPES | {dtype.name: numpy_dtype(dtype) for dtype in (f8e4m3, f32, u32, u8)}
"""NumPy dtype of each dtype that a destination may have: f8e4m3 for codes, f32 for their scales; u32 for codes of four bits, u8
for their zero points."""

FILE_DTYPES: Final = {dtype.safetensors: dtype.name for dtype in (bf16, f16)}
"""Dtypes that a model may run in by their names in files."""

FILE_ITEM_BYTES: Final = bf16.bytes
"""Bytes per element of either of them."""

CACHE_SCALE: Final = re.compile(r"model\.layers\.\d+\.self_attn\.(?:[kv]_scale|k_proj\.k_scale|v_proj\.v_scale)")
"""Tensors of quantised folders that are not read: scales of a cache of 8 bits. The cache has 16."""

LARGEST: Final = {bf16.name: float.fromhex("0x1.fep127"), f16.name: 65504.0}
"""The largest finite number of each dtype that a model may run in."""

PACKAGE: Final = __name__.partition(".")[0]

EMBEDDING: Final = "model.embed_tokens.weight"

SMALL: Final = 1 << 16
"""Mean bytes of a destination's pieces below which they are joined before they are chunks, each of which costs its reader."""

STRIP: Final = 1 << 20
"""Elements that are dequantised at a time, if a row has no more."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A checkpoint tensor and the byte offset of its first element in the destination. The scales of a weight have its name and
    `SCALES` after it, zero points `ZEROS`, whatever they are called in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]

    @property
    def is_scales(self) -> bool:
        return self.name.endswith(SCALES)

    @property
    def suffix(self) -> str:
        """What its name has after that of the weight."""
        return next((suffix for suffix in (SCALES, ZEROS) if self.name.endswith(suffix)), "")


@dataclass(frozen=True, slots=True)
class Destination:
    """A row-major tensor on the device: the concatenation of `pieces` along an axis. If it stacks `items`, such as experts,
    each has as many pieces, which are concatenated so, and the items are the first axis."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    axis: int = 0
    items: int = 0

    @property
    def bytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]


def destinations(config: ModelConfig, dtype: str, weight_format: str = SIXTEEN_BIT) -> tuple[Destination, ...]:
    """The destinations of a model in the order in which it uses them, with its linear weights in a format of its step.
    UsageError unless `dtype` is bf16 or f16, and if the sizes of the model or its step do not fit the format."""
    if dtype not in NUMPY_TYPES:
        raise UsageError(f"weights cannot be {show(dtype)}", fix=f"use one of {', '.join(NUMPY_TYPES)}")
    try:
        step = model_step(config, 1, dtype, weight_format=weight_format)
    except StepError as error:
        raise UsageError(str(error), fix=f"ask for weights in `{SIXTEEN_BIT}`") from None
    return destinations_of(step)


def destinations_of(step: Step) -> tuple[Destination, ...]:
    """The destinations of a step, in the order in which it uses them."""
    return tuple(
        Destination(weight.name, weight.dtype, weight.shape, _pieces(weight), weight.axis, weight.items)
        for weight in step.weights()
    )


def _pieces(weight: Weight) -> tuple[Piece, ...]:
    """The tensors of a weight, each at its offset in the destination."""
    item_bytes, pieces = ITEM_BYTES[weight.dtype], list[Piece]()
    of_item, each, offset = len(weight.rows) // (weight.items or 1), prod(weight.shape[1:]) * item_bytes, 0
    for number, (name, shape) in enumerate(weight.rows):
        if number % of_item == 0:
            offset = number // of_item * each
        pieces.append(Piece(name, weight.dtype, shape, offset))
        offset += prod(shape[weight.axis :]) * item_bytes
    return tuple(pieces)


class Weights(ABC):
    """Weights from files (`WeightPlan`) or from a generator (`engine.tools.dummy_weights`). Reads are thread-safe. `dtype` is
    that of the model, and `weight_format` the format of its linear weights."""

    def __init__(self, config: ModelConfig, dtype: str, weight_format: str = SIXTEEN_BIT) -> None:
        self.dtype, self.weight_format = dtype, weight_format
        self.destinations = destinations(config, dtype, weight_format)
        self._by_name = {destination.name: destination for destination in self.destinations}
        self._pieces = {piece.name: piece for destination in self.destinations for piece in destination.pieces}

    @property
    def bytes(self) -> int:
        """Bytes of all destinations."""
        return sum(destination.bytes for destination in self.destinations)

    def __getitem__(self, name: str) -> Destination:
        return self._by_name[name]

    def chunks(self, name: str, limit_bytes: int) -> Iterator[tuple[int, memoryview]]:
        """The bytes of a destination in ascending order, as (byte offset in the destination, read-only view of at most
        `limit_bytes` bytes). ModelError if a tensor cannot be converted; ValueError if `limit_bytes` is below one element."""
        destination = self._by_name[name]
        if limit_bytes < destination.pieces[0].item_bytes:
            raise ValueError(f"a chunk of {limit_bytes} bytes holds no element")
        limit, offset = limit_bytes // destination.pieces[0].item_bytes, 0
        if destination.axis or destination.bytes < SMALL * len(destination.pieces):  # rows alternate, or pieces are tiny
            runs = _split(self.array(name), limit)
        else:
            runs = (run for piece in destination.pieces for run in self._parts(piece, limit))
        for run in runs:
            yield offset, run.view(np.uint8).data.toreadonly()
            offset += run.nbytes

    def array(self, name: str) -> NDArray[Any]:
        """A whole destination, read-only, in the NumPy dtype of its own; a view of the file if possible."""
        destination = self._by_name[name]
        first = destination.pieces[0]
        if len(destination.pieces) == 1:
            return self._whole(first).reshape(destination.shape)
        of_item = len(destination.pieces) // (destination.items or 1)
        whole = np.empty((destination.items or 1, *destination.shape[-len(first.shape) :]), DEVICE_TYPES[destination.dtype])
        for item, own in enumerate(whole):
            pieces = destination.pieces[item * of_item : (item + 1) * of_item]
            np.concatenate([self.tensor(piece.name) for piece in pieces], axis=destination.axis, out=own)
        whole.flags.writeable = False
        return whole.reshape(destination.shape)

    def tensor(self, name: str) -> NDArray[Any]:
        """A checkpoint tensor by its own name, before concatenation; otherwise as `array`."""
        piece = self._pieces[name]
        return self._whole(piece).reshape(piece.shape)

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """The names that `tensor` accepts."""
        return tuple(self._pieces)

    def _whole(self, piece: Piece) -> NDArray[Any]:
        """All elements of a piece, flat and read-only."""
        parts = list(self._parts(piece, piece.elements))
        elements = parts[0] if len(parts) == 1 else np.concatenate(parts)
        elements.flags.writeable = False
        return elements

    @abstractmethod
    def _parts(self, piece: Piece, limit: int) -> Iterator[NDArray[Any]]:
        """The elements of a piece in order, as flat arrays of at most `limit` elements in the NumPy dtype of the piece."""


class WeightPlan(Weights):
    """The weights of a model folder, validated before the first byte is read: every tensor that the model needs is there, in
    the shape of the config and in a usable dtype, and there is no other tensor."""

    def __init__(
        self, config: ModelConfig, dtype: str, files: Mapping[str, SafetensorsFile], folder: str, convert: bool,
        quantization: Quantization | None = None, weight_format: str | None = None,
    ) -> None:  # fmt: skip
        """`weight_format` None means the format of the files if the step declares it, and otherwise 16 bits."""
        named = [(name, shape) for weight in model_step(config, 1, dtype).weights() for name, shape in weight.rows]
        self.quantised, of_files = dict[str, "Quantised"](), SIXTEEN_BIT
        if quantization is not None:
            from engine.formats.kept import kept_format  # late, as others below: weights of 16 bits do without all formats
            from engine.formats.quantised import quantised_weights

            self.quantised = quantised_weights(quantization, named, files)
            of_files = kept_format(config, dtype, self.quantised)
        super().__init__(config, dtype, of_files if weight_format is None else weight_format)
        self._files = files
        declaration = family_of(config.model_type).declaration()
        stored, head = (one(declaration, self.weight_format) for one in (stored_as, coded_head))
        if stored not in (SIXTEEN_BIT, of_files):
            what = f"weights in `{self.weight_format}` are asked for, and the files do not have every linear layer's so"
            fix = f"ask for `{of_files}`, or write a folder with `python -m {PACKAGE}.quantize --to {stored}`"
            raise ModelError(what, where=folder, fix=fix)
        source = EMBEDDING if config.tie_word_embeddings else head
        if head is not None and source is not None and head not in self.quantised and source in files:
            from engine.formats.coded_head import coded

            own = coded((config.vocab_size, config.hidden_size), source, files)
            self.quantised[head] = own
        self._refuse_missing(folder)
        for piece in self._from_files():
            if piece.name not in self.quantised:
                self._refuse_misfit(self._files[piece.name], piece, convert)
        self._refuse_extra(config)

    @classmethod
    def for_model(
        cls, config: ModelConfig, folder: str | PathLike[str], dtype: str | None = None, *, convert: bool = False,
        weight_format: str | None = None, **own: Any,
    ) -> Self:  # fmt: skip
        """Map the checkpoint of a folder and check it against the config. `convert` allows bf16 files for f16 weights and the
        reverse, rounded to nearest. Without `dtype`, weights are bf16, or f16 if the model is: the embedding table of a
        quantised folder decides, whose config.json may name another dtype. Without `weight_format`, quantised weights stay as
        they are if the step declares their format; `16bit` dequantises them. ModelError names the file and the tensor that is
        damaged or does not fit, and the key of `quantization_config` that is not supported. `own`: arguments of a subclass."""
        files = open_checkpoint(folder)
        quantization = read_quantization(folder)
        if dtype is None:
            dtype = "f16" if config.dtype == "f16" else "bf16"
            table = files.get(EMBEDDING)
            if quantization is not None and table is not None:
                dtype = FILE_DTYPES.get(table.tensors[EMBEDDING].dtype, dtype)
        return cls(config, dtype, files, fspath(folder), convert, quantization, weight_format, **own)

    def _from_files(self) -> Iterator[Piece]:
        """The pieces that have the name of a weight in the files: all but scales and zero points."""
        return (piece for piece in self._pieces.values() if not piece.suffix)

    def _refuse_missing(self, folder: str) -> None:
        names = (piece.name for piece in self._from_files())
        missing = [name for name in names if name not in self._files and name not in self.quantised]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            what = f"tensor {show(missing[0])}{more} is in none of the safetensors files"
            raise ModelError(what, where=folder, fix="download the files again, all of one model")

    def _refuse_misfit(self, file: SafetensorsFile, piece: Piece, convert: bool) -> None:
        tensor = file.tensors[piece.name]
        if tensor.shape != piece.shape:
            what = f"tensor {show(tensor.name)} has shape {list(tensor.shape)}, and config.json asks for {list(piece.shape)}"
            raise ModelError(what, where=file.path, fix="take config.json and the weights of one model")
        dtype = FILE_DTYPES.get(tensor.dtype)
        if dtype is None:
            what = f"tensor {show(tensor.name)} is {tensor.dtype}, and weights must be {' or '.join(FILE_DTYPES)}"
            raise ModelError(what, where=file.path, fix="save the model in bfloat16 first")
        if dtype != self.dtype and not convert:
            what = f"tensor {show(tensor.name)} is {dtype}, and {self.dtype} weights are asked for"
            raise ModelError(what, where=file.path, fix=f"ask for {dtype}, or allow the conversion")

    def _refuse_extra(self, config: ModelConfig) -> None:
        known = {
            *(piece.name for piece in self._from_files()),
            *(name for weight in self.quantised.values() for name in weight.tensors),
        }
        extra = [name for name in self._files if name not in known and not (self.quantised and CACHE_SCALE.fullmatch(name))]
        lm_head = "lm_head.weight"
        if config.tie_word_embeddings and lm_head in extra:  # tied models may store lm_head too; transformers ignores it
            file = self._files[lm_head]
            self._refuse_misfit(file, Piece(lm_head, self.dtype, (config.vocab_size, config.hidden_size), 0), convert=True)
            extra.remove(lm_head)
        if extra:
            more = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
            family = family_of(config.model_type).tokenizer.family
            what = f"tensor {show(extra[0])}{more} is not one of a {family} model of {config.num_hidden_layers} layers"
            raise ModelError(what, where=self._files[extra[0]].path, fix="take config.json and the weights of one model")

    def _parts(self, piece: Piece, limit: int) -> Iterator[NDArray[Any]]:
        if piece.suffix or piece.dtype != self.dtype:
            yield from _split(self._kept(piece), limit)
        elif piece.name in self.quantised:
            yield from self._dequantised(piece, limit)
        else:
            yield from self._read(piece, limit)

    def _kept(self, piece: Piece) -> NDArray[Any]:
        """A part of a weight that stays in its format; ModelError if a product of a scale could overflow the dtype of the
        model, to which the weight is dequantised at prefill."""
        from engine.formats.kept import largest_code, part

        name = piece.name.removesuffix(piece.suffix)
        weight = self.quantised[name]
        found = part(weight, piece.suffix).view(DEVICE_TYPES[piece.dtype])
        bad = np.abs(found.astype(np.float32)) > LARGEST[self.dtype] / largest_code(weight) if piece.is_scales else None
        if bad is not None and bad.any():
            file = self._files[next(weight.tensors)]
            what = f"tensor {show(name)} has the scale {float(found[bad][0]):g}, whose products {self.dtype} cannot hold"
            raise ModelError(what, where=file.path, fix="ask for bf16" if self.dtype == "f16" else "download the file again")
        return found

    def _read(self, piece: Piece, limit: int) -> Iterator[NDArray[Any]]:
        """As `_parts`, of a weight that has 16 bits in the file."""
        file = self._files[piece.name]
        data = file.data(piece.name)
        file_dtype = FILE_DTYPES[file.tensors[piece.name].dtype]
        for begin in range(0, len(data), limit * FILE_ITEM_BYTES):
            part = np.frombuffer(data[begin : begin + limit * FILE_ITEM_BYTES], NUMPY_TYPES[file_dtype])
            yield part if file_dtype == self.dtype else self._converted(part, file, piece.name)

    def _dequantised(self, piece: Piece, limit: int) -> Iterator[NDArray[Any]]:
        """As `_parts`, of a quantised weight."""
        from engine.formats.dequantise import rows

        weight = self.quantised[piece.name]
        form = weight.form()
        count, columns = form.shape
        strip = max(1, STRIP // columns)
        file = self._files[next(weight.tensors)]
        for begin in range(0, count, strip):
            exact = rows(form, begin, min(begin + strip, count)).ravel()
            rounded = self._rounded(exact, file, piece.name)
            for first in range(0, rounded.size, limit):
                yield rounded[first : first + limit]

    def _converted(self, part: NDArray[Any], file: SafetensorsFile, name: str) -> NDArray[Any]:
        """Elements rounded to the other dtype; ModelError if a finite one overflows."""
        return self._rounded(part.astype(np.float32), file, name)

    def _rounded(self, exact: NDArray[np.float32], file: SafetensorsFile, name: str) -> NDArray[Any]:
        """f32 rounded to nearest in the dtype of the weights; ModelError if a finite one overflows."""
        with np.errstate(over="ignore"):
            rounded = exact.astype(NUMPY_TYPES[self.dtype])
        overflowed = np.isfinite(exact) & ~np.isfinite(rounded.astype(np.float32))
        if overflowed.any():
            what = f"tensor {show(name)} holds {float(exact[overflowed][0]):g}, which {self.dtype} cannot hold"
            raise ModelError(what, where=file.path, fix="ask for the dtype of the file")
        return rounded


def _split(elements: NDArray[Any], limit: int) -> Iterator[NDArray[Any]]:
    """An array as flat views of at most `limit` elements."""
    flat = elements.reshape(-1)
    return (flat[begin : begin + limit] for begin in range(0, flat.size, limit))
