"""`quant_method: gptq` of 4 and 8 bits: codes with a scale and a zero point for groups of columns, which may be permuted.

A module has `qweight` I32 (K * bits / 32, N), whose fields run along K; `qzeros` I32 (K / group, N * bits / 32), whose fields
run along N; `scales` (K / group, N) in f16, bf16 or f32; and `g_idx` I32 (K), the group of each column, which may be absent.
`W^T[k, n] = (q - z) * s[g_idx[k], n]` (Frantar et al., GPTQ, 2022; GPTQModel, `model_dequant`).

Zero points are stored minus one in version 1, and as they are in version 2. Files that say `gptq` may hold either. Symmetric
weights, whose zero point is 2^(bits - 1), tell it themselves; the others are read as `checkpoint_format` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.formats.fields import Fields
from engine.formats.forms import Form, Int4, Int8
from engine.formats.nibbles import by_group, packed, transposed, unpacked
from engine.formats.quantization import Quantization, every_linear
from engine.formats.stored import DAMAGED, SCALES, Stored

INERT: Final = (
    "act_group_aware", "backend", "batch_size", "block_name_to_quantize", "cache_block_outputs", "damp_auto_increment",
    "damp_percent", "dataset", "disable_exllama", "exllama_config", "lm_head", "max_input_length", "meta",
    "model_file_base_name", "model_name_or_path", "model_seqlen", "module_name_preceding_first_block",
    "modules_in_block_to_quantize", "mse", "pad_token_id", "static_groups", "tokenizer", "true_sequential", "use_cuda_fp16",
    "use_exllama",
)  # fmt: skip
"""Keys of how the weights were made or are run elsewhere."""

STRIP: Final = 256
"""Rows whose columns are permuted at a time."""


@dataclass(frozen=True, slots=True)
class Gptq:
    """The scheme: `group` is the number of columns with one scale, -1 for all; `permuted` modules must have a `g_idx`."""

    bits: int
    group: int
    symmetric: bool
    second_version: bool
    permuted: bool

    @property
    def suffixes(self) -> tuple[str, ...]:
        return "qweight", "qzeros", "scales", "g_idx"

    @property
    def unused(self) -> tuple[str, ...]:
        return ()

    def check(self, stored: Stored) -> None:
        """Headers of a module; ModelError if one does not fit."""
        rows, columns = stored.shape
        fields = 32 // self.bits
        stored.check("qweight", ["I32"], (columns // fields, rows), why=f"columns / {fields}, rows of the weight")
        stored.check_multiple("qweight", 1, fields)
        stored.check_multiple("qweight", 0, fields)
        groups = stored.check_groups(stored.columns_of(self.group), "scales")
        stored.check("scales", SCALES, (groups, rows), why="groups of columns, rows")
        stored.check("qzeros", ["I32"], (groups, rows // fields), why=f"groups of columns, rows / {fields}")
        if self.permuted or stored.has("g_idx"):
            stored.check("g_idx", ["I32"], (columns,))

    def form(self, stored: Stored) -> Form:
        """The module's weight, repacked; ModelError for a scale that is no number, or bad groups or zero points."""
        group, order, words = stored.columns_of(self.group), self._order(stored), self.words(stored)
        found = self._zeros(stored)
        zeros = None if found is None else transposed(found)
        scales = stored.scales("scales", (1 << self.bits) - 1, transpose=True)
        if self.bits == 4:
            return Int4(permuted_words(words, order), scales, group, zeros, order)
        values = permuted(words.view(np.uint8), order)
        values ^= 0x80  # unsigned codes to signed ones, minus 128
        signed = None if zeros is None else (zeros ^ 0x80).view(np.int8)
        return Int8(values.view(np.int8), scales, group, signed, order)

    def kept_group(self, stored: Stored) -> int | None:
        """The columns that share a scale; None unless codes have four bits and columns their order. ModelError for bad
        groups."""
        return stored.columns_of(self.group) if self.bits == 4 and self._order(stored) is None else None

    def scales_dtype(self, stored: Stored) -> str:
        """Of the file, by its name there."""
        return stored.dtype("scales")

    def words(self, stored: Stored) -> NDArray[np.uint32]:
        """Codes in the order of the file, (N, K * bits / 32)."""
        return transposed(stored.array("qweight"))

    def group_scales(self, stored: Stored) -> NDArray[Any]:
        """(K / group, N), a view of the file; ModelError for one that is no number."""
        return stored.scales("scales", (1 << self.bits) - 1)

    def group_zeros(self, stored: Stored) -> NDArray[np.uint8]:
        """(K / group, N); ModelError for others than the config says."""
        found = self._zeros(stored)
        return np.full(stored.array("scales").shape, 1 << (self.bits - 1), np.uint8) if found is None else found

    def _order(self, stored: Stored) -> NDArray[np.int32] | None:
        return column_order(stored, "g_idx", stored.columns_of(self.group)) if stored.has("g_idx") else None

    def _zeros(self, stored: Stored) -> NDArray[np.uint8] | None:
        """Zero points (K / group, N); None if all are 2^(bits - 1)."""
        fields = unpacked(stored.array("qzeros"), self.bits)
        middle, mask = 1 << (self.bits - 1), (1 << self.bits) - 1
        if not self.symmetric:
            return fields if self.second_version else (fields + np.uint8(1)) & np.uint8(mask)
        first = int(fields.flat[0])
        if first not in (middle, middle - 1) or (fields != first).any():
            bad = np.argwhere(fields != (first if first in (middle, middle - 1) else middle - 1))[0]
            what = f"holds the zero point {fields[tuple(bad)]} at {[int(i) for i in bad]}, and `sym` says that all are"
            stored.refuse("qzeros", f"{what} {middle - 1} (version 1) or all {middle} (version 2)", DAMAGED)
        return None


def read(fields: Fields) -> Quantization:
    """What a config says; ModelError names the key that is not supported."""
    fields.one_of("quant_method", "gptq")
    bits, group = fields.one_of("bits", 4, 8), fields.group_size("group_size")
    symmetric, permuted_columns = fields.flag("sym", True), fields.flag("desc_act", False)
    name = "checkpoint_format" if fields.get("checkpoint_format") is not None else "format"
    version = fields.one_of(name, "gptq", "gptq_v2", "gemm", default="gptq")
    fields.one_of("pack_dtype", "int32", default="int32")
    dynamic = fields.object("dynamic")
    for pattern in dynamic.names() if dynamic is not None else ():
        if not pattern.startswith("-:") and dynamic is not None and dynamic.get(pattern):
            dynamic.refuse(pattern, "empty: modules with other options are not supported")
    fields.ignore("format", *INERT)
    skipped = fields.strings("modules_to_not_convert")
    fields.finish()
    return every_linear("gptq", Gptq(bits, group, symmetric, version == "gptq_v2", permuted_columns), skipped)


def column_order(stored: Stored, suffix: str, group: int) -> NDArray[np.int32] | None:
    """The columns sorted by their groups in `suffix`, None if they are in order; ModelError unless each group has `group`."""
    g_idx = stored.array(suffix).view(np.int32).astype(np.int64)
    groups = stored.shape[1] // group
    bad = (g_idx < 0) | (g_idx >= groups)
    if bad.any():
        index = int(bad.argmax())
        stored.refuse(suffix, f"holds {g_idx[index]} at [{index}], and groups are numbered from 0 to {groups - 1}")
    counts = np.bincount(g_idx, minlength=groups)
    if (counts != group).any():
        number = int((counts != group).argmax())
        stored.refuse(suffix, f"gives group {number} {counts[number]} columns, and every group has {group}")
    return by_group(g_idx)


def permuted(codes: NDArray[np.uint8], order: NDArray[np.int32] | None) -> NDArray[np.uint8]:
    """Bytes (N, K) with their columns in an order; the same array if there is none."""
    return codes if order is None else np.take(codes, order, axis=1)


def permuted_words(words: NDArray[Any], order: NDArray[np.int32] | None) -> NDArray[np.uint32]:
    """Words of 4-bit fields along K with their columns in an order; the same array if there is none."""
    if order is None:
        return words
    result = np.empty_like(words)
    for begin in range(0, len(words), STRIP):
        result[begin : begin + STRIP] = packed(permuted(unpacked(words[begin : begin + STRIP], 4), order))
    return result
