"""`quant_method: awq` in AutoAWQ's order `gemm`, the official Qwen3-*-AWQ: 4 bits with zero points for groups of columns.

A module has `qweight` I32 (K, N / 8), `qzeros` I32 (K / group, N / 8) and `scales` (K / group, N) in bf16, f16 or f32. Field
`i` of word `j` is column `8j + ORDER[i]` of the transposed weight, `W^T[k, n] = (q - z) * s` (Lin et al., AWQ, 2023; AutoAWQ,
`packing_utils`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.formats.fields import Fields
from engine.formats.forms import Form, Int4
from engine.formats.nibbles import columns_to_rows, transposed, unpacked
from engine.formats.quantization import Quantization, every_linear
from engine.formats.stored import SCALES, Stored

ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7)
"""The column, of the eight in a word, that each field is."""

INERT: Final = (
    "backend", "do_fuse", "exllama_config", "fuse_max_seq_len", "modules_to_fuse", "dataset", "tokenizer", "damp_percent",
    "true_sequential", "desc_act", "sym", "act_group_aware", "meta", "model_seqlen", "block_name_to_quantize",
    "module_name_preceding_first_block", "batch_size", "pad_token_id", "max_input_length", "cache_block_outputs",
    "modules_in_block_to_quantize", "max_calib_samples", "max_calib_seq_len", "duo_scaling", "apply_clip",
    "n_parallel_calib_samples",
)  # fmt: skip
"""Keys of how the weights were made or are run elsewhere. transformers writes some of GPTQ's, which AWQ does not have."""


@dataclass(frozen=True, slots=True)
class Awq:
    """The scheme: `group` is the number of columns with one scale, -1 for all."""

    group: int

    @property
    def suffixes(self) -> tuple[str, ...]:
        return "qweight", "qzeros", "scales"

    @property
    def unused(self) -> tuple[str, ...]:
        return ()

    def check(self, stored: Stored) -> None:
        """Headers of a module; ModelError if one does not fit."""
        rows, columns = stored.shape
        stored.check("qweight", ["I32"], (columns, rows // 8), why="columns of the weight, rows / 8")
        stored.check_multiple("qweight", 0, 8)
        stored.check_multiple("qweight", 1, 8)
        groups = stored.check_groups(stored.columns_of(self.group), "scales")
        stored.check("qzeros", ["I32"], (groups, rows // 8), why="groups of columns, rows / 8")
        stored.check("scales", SCALES, (groups, rows), why="groups of columns, rows")

    def form(self, stored: Stored) -> Form:
        """The module's weight, repacked; ModelError for a scale that is no number."""
        scales, zeros = stored.scales("scales", 15, transpose=True), transposed(self.group_zeros(stored))
        return Int4(self.words(stored), scales, self.kept_group(stored), zeros)

    def kept_group(self, stored: Stored) -> int:
        """The columns that share a scale."""
        return stored.columns_of(self.group)

    def scales_dtype(self, stored: Stored) -> str:
        """Of the file, by its name there."""
        return stored.dtype("scales")

    def words(self, stored: Stored) -> NDArray[np.uint32]:
        """Codes, repacked, (N, K / 8)."""
        return columns_to_rows(stored.array("qweight"), ORDER)

    def group_scales(self, stored: Stored) -> NDArray[Any]:
        """(K / group, N), a view of the file; ModelError for one that is no number."""
        return stored.scales("scales", 15)

    def group_zeros(self, stored: Stored) -> NDArray[np.uint8]:
        """(K / group, N)"""
        fields = unpacked(stored.array("qzeros"), 4)
        zeros = np.empty_like(fields)
        for field, column in enumerate(ORDER):
            zeros[:, column::8] = fields[:, field::8]
        return zeros


def read(fields: Fields) -> Quantization:
    """What a config says; ModelError names the key that is not supported."""
    fields.one_of("quant_method", "awq")
    fields.one_of("w_bit" if fields.get("bits") is None and fields.get("w_bit") is not None else "bits", 4)
    fields.one_of("version" if fields.get("version") is not None else "format", "gemm", default="gemm")
    fields.one_of("zero_point", True)
    old = fields.get("group_size") is None and fields.get("q_group_size") is not None
    group = fields.group_size("q_group_size" if old else "group_size")
    fields.ignore("format", *INERT)
    skipped = fields.strings("modules_to_not_convert")
    fields.finish()
    return every_linear("awq", Awq(group), skipped)
