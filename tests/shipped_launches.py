"""Launches of every shipped kernel: sizes with partial tiles, inputs within the contract, and the float64 reference."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tests import shipped
from tilec.ir.core import Access, Function

Array = NDArray[Any]

SIZES: dict[str, list[dict[str, float | str]]] = {
    "add": [{"N": 1}, {"N": 4096}, {"N": 4904}],
    "rms_norm": [{"T": 3, "eps": 1e-6}, {"T": 2, "H": 2560, "E": "f16", "eps": 1e-6}],
    "add_rms_norm": [{"T": 2, "eps": 1e-5}],
    "add_rms_norm_splits": [{"T": 3, "eps": 1e-5}, {"T": 2, "H": 2560, "S": 3, "E": "f16", "eps": 1e-6}],
    "embedding": [{"T": 3, "V": 7}],
    "gather_row": [{"T": 5}],
    "argmax_reduce": [{"B": 3, "P": 77}],
    "argmax_blocks": [{"B": 2, "V": 1504, "P": 2}],
    "advance": [{"vocab_size": 1000}, {"vocab_size": 3}],
    "matvec": [{"N": 3, "B": 1}, {"N": 37, "B": 4}],
    "matvec_add": [{"N": 6, "B": 1}, {"N": 36, "B": 8}],
    "matvec_add_scaled": [{"N": 8, "P": 2}],
    "embedding_scaled": [{"V": 7}],
    "scaled_matvec_rows": [{"B": 8, "N": 32, "eps": 1e-6}, {"B": 4, "N": 16, "eps": 1e-6}],
    "scaled_matvec_silu_mul_rows": [{"B": 8, "I": 32, "I2": 64, "eps": 1e-6}, {"B": 2, "I": 16, "I2": 32, "eps": 1e-6}],
    "matvec_add_scaled_rows": [{"B": 8, "N": 32, "P": 2}, {"B": 4, "N": 16, "P": 1}],
    "scaled_matvec_argmax_rows": [{"B": 8, "V": 160, "P": 3, "eps": 1e-6}, {"B": 2, "V": 64, "P": 4, "eps": 1e-6}],
    "embedding_scaled_rows": [{"B": 3, "V": 7}],
    "advance_rows": [{"B": 3, "vocab_size": 1000}, {"B": 2, "vocab_size": 3}],
    "next_ids": [{"T": 3, "vocab_size": 1000}, {"T": 1, "vocab_size": 3}],
    "scaled_matvec": [{"N": 8, "eps": 1e-6}],
    "scaled_matvec_silu_mul": [{"I": 8, "I2": 16, "eps": 1e-6}],
    "scaled_matvec_fp8": [{"N": 128, "eps": 1e-6}, {"N": 256, "E": "f16", "eps": 1e-6}],
    "scaled_matvec_silu_mul_fp8": [{"I": 128, "I2": 256, "eps": 1e-6}],
    "matvec_add_fp8": [{"N": 128, "B": 1}],
    "matvec_add_scaled_fp8": [{"N": 128, "P": 32}, {"N": 128, "P": 32, "E": "f16"}],
    "scaled_matvec_rows_fp8": [{"B": 8, "N": 128, "eps": 1e-6}, {"B": 4, "N": 256, "E": "f16", "eps": 1e-6}],
    "scaled_matvec_silu_mul_rows_fp8": [{"B": 8, "I": 128, "I2": 256, "eps": 1e-6}],
    "matvec_add_scaled_rows_fp8": [{"B": 8, "N": 128, "P": 8}, {"B": 2, "N": 256, "P": 16, "E": "f16"}],
    "scaled_matvec_int4": [{"N": 48, "eps": 1e-6}, {"N": 16, "E": "f16", "F": "f16", "eps": 1e-6}],
    "scaled_matvec_silu_mul_int4": [{"I": 16, "I2": 32, "eps": 1e-6}, {"I": 32, "I2": 64, "E": "f16", "eps": 1e-6}],
    "matvec_add_int4": [{"N": 32, "B": 1}, {"N": 16, "B": 1, "E": "f16", "F": "f16"}],
    "matvec_add_scaled_int4": [{"N": 32, "P": 8}, {"N": 16, "P": 4, "E": "f16", "F": "f16"}],
    "scaled_matvec_rows_int4": [{"B": 8, "N": 32, "eps": 1e-6}, {"B": 4, "N": 48, "E": "f16", "F": "f16", "eps": 1e-6}],
    "scaled_matvec_silu_mul_rows_int4": [
        {"B": 8, "I": 32, "I2": 64, "eps": 1e-6},
        {"B": 2, "I": 16, "I2": 32, "E": "f16", "eps": 1e-6},
    ],
    "matvec_add_scaled_rows_int4": [{"B": 8, "N": 32, "P": 2}, {"B": 2, "N": 48, "P": 3, "E": "f16", "F": "f16"}],
    "dequantise_int4": [{"N": 64, "K": 384}, {"N": 32, "K": 128, "E": "f16", "F": "f16"}],
    "dequantise_fp8": [{"N": 256, "K": 384}, {"N": 128, "K": 128, "E": "f16"}],
    "dequantise_each_fp8": [{"X": 3, "N": 256, "K": 128}, {"X": 2, "N": 128, "K": 384, "E": "f16"}],
    "dequantise_each_int4": [{"X": 3, "N": 64, "K": 256}, {"X": 2, "N": 32, "K": 128, "E": "f16", "F": "f16"}],
    "route_experts": [{"T": 3}, {"T": 2, "E": "f16", "NORMALIZE": False}],
    "experts_silu_mul": [
        {"T": 1, "X": 9, "I": 4, "I2": 8, "eps": 1e-6},
        {"T": 2, "X": 3, "I": 2, "I2": 4, "GROUP": 16, "E": "f16", "eps": 1e-6},
    ],
    "experts_silu_mul_fp8": [{"T": 1, "X": 3, "I": 128, "I2": 256, "eps": 1e-6}],
    "experts_add_fp8": [{"T": 1, "X": 3, "N": 128, "E": "f16"}],
    "experts_add_scaled_fp8": [
        {"T": 1, "X": 3, "N": 128, "P": 32},
        {"T": 2, "X": 3, "N": 128, "P": 8, "GROUP": 16, "E": "f16"},
    ],
    "experts_silu_mul_int4": [
        {"T": 1, "X": 9, "I": 16, "I2": 32, "eps": 1e-6},
        {"T": 2, "X": 3, "I": 16, "I2": 32, "GROUP": 16, "E": "f16", "F": "f16", "eps": 1e-6},
    ],
    "experts_add_int4": [{"T": 1, "X": 9, "N": 32}, {"T": 2, "X": 3, "N": 16, "E": "f16", "F": "f16"}],
    "experts_add_scaled_int4": [
        {"T": 1, "X": 9, "N": 32, "P": 8},
        {"T": 2, "X": 3, "N": 16, "P": 1, "GROUP": 16, "E": "f16", "F": "f16"},
    ],
    "experts_down": [{"T": 1, "X": 9, "N": 8}, {"T": 2, "X": 3, "N": 16, "K": 384, "ROWS": 8, "BLOCK": 128, "E": "f16"}],
    "experts_down_fp8": [{"T": 1, "X": 3, "N": 128}, {"T": 1, "X": 3, "N": 128, "K": 384, "BLOCK": 128, "E": "f16"}],
    "experts_down_int4": [{"T": 1, "X": 9, "N": 32}, {"T": 2, "X": 3, "N": 16, "K": 384, "SPLIT": 3, "E": "f16", "F": "f16"}],
    "experts_add": [{"T": 1, "X": 9, "N": 8}, {"T": 2, "X": 3, "N": 4, "E": "f16"}],
    "experts_add_scaled": [{"T": 1, "X": 9, "N": 8, "P": 2}, {"T": 2, "X": 3, "N": 16, "P": 1, "GROUP": 16, "E": "f16"}],
    "matvec_argmax": [{"V": 27, "P": 3, "B": 1}, {"V": 6, "P": 4, "B": 1}, {"V": 140, "P": 3, "B": 4}],
    "matmul": [
        {"M": 130, "N": 136, "K": 136},
        {"M": 5, "N": 8, "K": 200, "E": "f16"},
        {"M": 130, "N": 200, "K": 328, "BM": 128, "BN": 192},
    ],
    "matmul_silu_mul": [
        {"M": 130, "I": 136, "K": 136},
        {"M": 5, "I": 8, "K": 200, "E": "f16"},
        {"M": 130, "I": 200, "K": 328, "BM": 128, "BN": 64},
    ],
    "matmul_few": [
        {"M": 18, "N": 136, "K": 136},
        {"M": 5, "N": 8, "K": 200, "E": "f16"},
        {"M": 34, "N": 136, "K": 136, "BM": 32},
        {"M": 70, "N": 72, "K": 328, "BM": 64},
        {"M": 130, "N": 104, "K": 200, "BM": 128, "BN": 96},
    ],
    "matmul_silu_mul_few": [
        {"M": 18, "I": 72, "K": 136},
        {"M": 5, "I": 8, "K": 200, "E": "f16"},
        {"M": 70, "I": 136, "K": 328, "BM": 64},
        {"M": 258, "I": 72, "K": 200, "BM": 256},
    ],
    "matmul_split": [
        {"M": 34, "N": 136, "K": 328},
        {"M": 66, "N": 72, "K": 520, "BM": 64, "S": 3},
        {"M": 3, "N": 8, "K": 1352, "E": "f16", "S": 8},
        {"M": 34, "N": 72, "K": 520, "BM": 32, "S": 3},
    ],
    "matmul_few_fp8": [{"M": 18, "N": 128, "K": 1024}, {"M": 37, "N": 256, "K": 512, "BM": 32, "E": "f16"}],
    "matmul_silu_mul_few_fp8": [
        {"M": 18, "I": 128, "I2": 256, "K": 1024},
        {"M": 37, "I": 128, "I2": 256, "K": 512, "BM": 32, "E": "f16"},
    ],
    "matmul_split_fp8": [{"M": 18, "N": 128, "K": 1536}, {"M": 3, "N": 128, "K": 1024, "BM": 32, "S": 8, "E": "f16"}],
    "matmul_few_int4": [{"M": 18, "N": 32, "K": 1024}, {"M": 37, "N": 48, "K": 512, "BM": 32, "E": "f16", "F": "f16"}],
    "matmul_silu_mul_few_int4": [
        {"M": 18, "I": 32, "I2": 64, "K": 1024},
        {"M": 37, "I": 16, "I2": 32, "K": 512, "BM": 32, "E": "f16", "F": "f16"},
    ],
    "matmul_split_int4": [
        {"M": 18, "N": 32, "K": 1536},
        {"M": 3, "N": 16, "K": 1024, "BM": 32, "S": 8, "E": "f16", "F": "f16"},
    ],
    "quantise_rows": [{"M": 21, "K": 256}, {"M": 3, "K": 128, "E": "f16"}],
    "matmul_fp8": [{"M": 70, "N": 128, "K": 384}, {"M": 130, "N": 256, "K": 640, "BM": 128, "AHEAD": 1, "E": "f16"}],
    "matmul_silu_mul_fp8": [{"M": 70, "I": 128, "K": 384}, {"M": 130, "I": 128, "K": 640, "BM": 128, "AHEAD": 1, "E": "f16"}],
    "qk_norm_rope_kv": [{"T": 2, "HEADS": 6, "HQ": 2, "HKV": 2, "P": 9, "S": 11, "eps": 1e-6}],
    "topk_blocks": [{"B": 2, "V": 1500, "P": 2, "K": 4}],
    "sample_token": [{"B": 2, "P": 5, "K": 7, "S": 9}],
    "sample_maxima": [{"B": 3, "V": 2056, "GROUPS": 65, "NUMBERS": 8, "FACTORS": 4}],
    "sample_rows": [{"B": 3, "V": 2056, "GROUPS": 65, "NUMBERS": 8, "FACTORS": 4}],
    "sample_report": [{"B": 3, "V": 2056, "GROUPS": 65, "NUMBERS": 8}],
    "flash_attention": [{"T": 20, "HKV": 1, "G": 2, "S": 128, "past": 60, "scale": 0.09}],
    "decode_attention": [{"B": 2, "HKV": 2, "G": 4, "S": 96, "P": 2, "scale": 0.09}],
    "decode_attention_wide": [{"B": 2, "HKV": 2, "G": 16, "S": 96, "P": 2, "scale": 0.09}],
    "decode_merge": [{"B": 1, "HKV": 1, "G": 2}],
    "rotary_decode_attention": [
        {"B": 2, "HKV": 2, "G": 4, "S": 128, "P": 2, "R": 50, "eps": 1e-6, "scale": 0.09},
        {"B": 1, "HKV": 2, "G": 16, "S": 128, "P": 2, "R": 50, "eps": 1e-6, "scale": 0.09},
    ],
    "rotary_decode_attention_kv": [
        {"B": 2, "HKV": 2, "G": 4, "S": 256, "R": 50, "eps": 1e-6, "scale": 0.09},
        {"B": 1, "HKV": 2, "G": 16, "S": 128, "R": 50, "eps": 1e-6, "scale": 0.09},
    ],
    "decode_merge_kv": [{"B": 2, "HKV": 1, "G": 2, "S": 8, "R": 9, "eps": 1e-6}],
    "rope_kv": [{"T": 2, "HEADS": 6, "HQ": 2, "HKV": 2, "R": 9, "S": 11}],
    "rope_decode_attention": [{"B": 2, "HKV": 2, "G": 4, "S": 128, "P": 2, "R": 50, "scale": 0.09}],
    "rope_decode_attention_kv": [{"B": 2, "HKV": 2, "G": 4, "S": 256, "R": 50, "scale": 0.09}],
    "rope_merge_kv": [{"B": 2, "HKV": 1, "G": 4, "S": 8, "R": 9}],
    "qk_norm_rope_kv_c8": [{"T": 2, "HEADS": 6, "HQ": 2, "HKV": 2, "P": 9, "S": 11, "eps": 1e-6, "GROUP": 1}],
    "rotary_decode_attention_c8": [{"B": 2, "HKV": 2, "G": 4, "S": 256, "P": 2, "R": 50, "eps": 1e-6, "scale": 0.09}],
    "rotary_decode_attention_kv_c8": [{"B": 2, "HKV": 2, "G": 4, "S": 256, "R": 50, "eps": 1e-6, "scale": 0.09}],
    "decode_merge_kv_c8": [{"B": 2, "HKV": 1, "G": 2, "S": 8, "R": 9, "eps": 1e-6}],
    "rope_kv_c8": [{"T": 2, "HEADS": 6, "HQ": 2, "HKV": 2, "R": 9, "S": 11, "GROUP": 1}],
    "rope_decode_attention_c8": [{"B": 2, "HKV": 2, "G": 4, "S": 256, "P": 2, "R": 50, "scale": 0.09}],
    "rope_decode_attention_kv_c8": [{"B": 2, "HKV": 2, "G": 4, "S": 256, "R": 50, "scale": 0.09}],
    "rope_merge_kv_c8": [{"B": 2, "HKV": 1, "G": 4, "S": 8, "R": 9}],
    "dequantise_c8": [{"S": 32, "HKV": 8, "filled": 11}, {"S": 16, "HKV": 16, "filled": 16, "E": "f16"}],
    "chunk_starts": [{"T": 70}, {"T": 1}],
    "paged_decode_attention": [
        {"T": 3, "HKV": 2, "G": 4, "PAGES": 9, "MAX": 6, "ITEMS": 6, "blocks": 5, "scale": 0.09},
        {"T": 1, "HKV": 1, "G": 8, "PAGES": 3, "MAX": 2, "ITEMS": 1, "blocks": 1, "scale": 0.09, "E": "f16"},
        {"T": 3, "HKV": 2, "G": 5, "PAGES": 9, "MAX": 6, "ITEMS": 6, "blocks": 5, "scale": 0.09, "ROWS": 32},
    ],
    "paged_decode_attention_wide": [
        {"T": 3, "HKV": 2, "G": 16, "PAGES": 9, "MAX": 6, "ITEMS": 6, "blocks": 5, "scale": 0.09},
        {"T": 1, "HKV": 1, "G": 11, "PAGES": 3, "MAX": 2, "ITEMS": 1, "blocks": 1, "scale": 0.09, "E": "f16"},
    ],
    "paged_decode_attention_c8": [
        {"T": 3, "HKV": 2, "G": 4, "PAGES": 9, "MAX": 6, "ITEMS": 6, "blocks": 5, "scale": 0.09},
        {"T": 1, "HKV": 1, "G": 8, "PAGES": 3, "MAX": 2, "ITEMS": 1, "blocks": 1, "scale": 0.09, "E": "f16"},
    ],
    "paged_merge": [{"T": 3, "HKV": 1, "G": 2, "ITEMS": 19}, {"T": 2, "HKV": 2, "G": 3, "ITEMS": 12, "HEADS": 4}],
    "paged_merge_wide": [{"T": 3, "HKV": 1, "G": 16, "ITEMS": 19}, {"T": 2, "HKV": 2, "G": 11, "ITEMS": 12}],
    "paged_gather": [
        {"HKV": 2, "PAGES": 5, "MAX": 3, "S": 160, "filled": 130},
        {"HKV": 1, "PAGES": 2, "MAX": 1, "S": 128, "filled": 2},
    ],
    "paged_gather_c8": [
        {"HKV": 2, "PAGES": 5, "MAX": 3, "S": 160, "filled": 130},
        {"HKV": 1, "PAGES": 2, "MAX": 1, "S": 128, "filled": 2},
    ],
    "packed_flash_attention": [{"T": 20, "HKV": 1, "G": 2, "S": 384, "scale": 0.09}],
    "paged_flash_attention": [{"T": 20, "HKV": 1, "G": 2, "PAGES": 5, "MAX": 3, "past": 169, "scale": 0.09}],
    "experts_sort": [{"T": 70, "P": 2}, {"T": 3, "P": 1}],
    "experts_tiles": [{"P": 3, "S": 150}, {"P": 70, "S": 131, "BM": 128}],
    "experts_gather": [{"T": 3, "P": 1, "S": 25}, {"T": 67, "P": 2, "S": 130, "BM": 64, "E": "f16"}],
    "experts_matmul": [
        {"S": 3, "X": 2, "N": 136, "K": 136},
        {"S": 2, "X": 3, "N": 8, "K": 200, "E": "f16"},
        {"S": 2, "X": 2, "N": 136, "K": 328, "BM": 128},
    ],
    "experts_matmul_silu_mul": [
        {"S": 3, "X": 2, "I": 104, "K": 136},
        {"S": 2, "X": 3, "I": 8, "K": 200, "E": "f16"},
        {"S": 2, "X": 2, "I": 72, "K": 328, "BM": 128},
    ],
    "experts_matmul_few": [{"S": 3, "X": 2, "N": 72, "K": 328}, {"S": 5, "X": 3, "N": 8, "K": 200, "E": "f16"}],
    "experts_matmul_silu_mul_few": [{"S": 3, "X": 2, "I": 72, "K": 328}, {"S": 5, "X": 3, "I": 8, "K": 200, "E": "f16"}],
    "experts_matmul_few_fp8": [{"S": 3, "X": 2, "N": 128, "K": 1536}, {"S": 5, "X": 3, "N": 256, "K": 768, "E": "f16"}],
    "experts_matmul_silu_mul_few_fp8": [
        {"S": 3, "X": 2, "I": 128, "I2": 256, "K": 1024},
        {"S": 4, "X": 3, "I": 128, "I2": 256, "K": 512, "E": "f16"},
    ],
    "experts_matmul_few_int4": [
        {"S": 3, "X": 2, "N": 64, "K": 1536},
        {"S": 5, "X": 3, "N": 128, "K": 768, "E": "f16", "F": "f16"},
    ],
    "experts_matmul_silu_mul_few_int4": [
        {"S": 3, "X": 2, "I": 64, "I2": 128, "K": 1024},
        {"S": 4, "X": 3, "I": 128, "I2": 256, "K": 512, "E": "f16", "F": "f16"},
    ],
    "experts_matmul_fp8": [
        {"S": 3, "X": 2, "N": 128, "K": 256},
        {"S": 2, "X": 3, "N": 256, "K": 384, "E": "f16"},
        {"S": 2, "X": 2, "N": 128, "K": 384, "BM": 128},
    ],
    "experts_matmul_silu_mul_fp8": [
        {"S": 3, "X": 2, "I": 128, "K": 256},
        {"S": 2, "X": 3, "I": 128, "K": 384, "E": "f16"},
        {"S": 2, "X": 2, "I": 256, "K": 384, "BM": 128},
    ],
    "experts_sum": [{"T": 2, "R": 40}, {"T": 1, "R": 3, "E": "f16"}],
    "experts_combine": [{"T": 2, "R": 40, "eps": 1e-6}, {"T": 1, "R": 3, "E": "f16", "eps": 1e-5}],
}
"""Dims, scalars and the relevant constants. If a kernel allows it, a block is partly out of bounds."""

EXTRA: dict[str, Callable[[Mapping[str, Any]], tuple[Any, ...]]] = {
    "topk_blocks": lambda env: (env["BLOCK"], env["K"]),
    "argmax_blocks": lambda env: (env["BLOCK"],),
    "decode_attention": lambda env: (env["P"], env["BN"]),
    "decode_attention_wide": lambda env: (env["P"], env["BN"]),
    "rotary_decode_attention": lambda env: (env["P"], env["BN"]),
    "rope_decode_attention": lambda env: (env["P"], env["BN"]),
    "rotary_decode_attention_c8": lambda env: (env["P"], env["BN"]),
    "rope_decode_attention_c8": lambda env: (env["P"], env["BN"]),
    "dequantise_c8": lambda env: (env["SLOTS"],),
    "matvec_argmax": lambda env: (env["P"], env["ROWS"]),
    "scaled_matvec_argmax_rows": lambda env: (env["P"], env["ROWS"]),
    "matvec_add_scaled": lambda env: (env["ROWS"],),
    "matvec_add_scaled_fp8": lambda env: (env["ROWS"],),
    "matmul_split": lambda env: (env["S"], env["BK"]),
    "matmul_split_fp8": lambda env: (env["S"], 128 * env["SPLIT"]),
    "matmul_split_int4": lambda env: (env["S"], 128 * env["SPLIT"]),
    "matvec_add_scaled_rows": lambda env: (env["ROWS"],),
    "matvec_add_scaled_rows_fp8": lambda env: (env["ROWS"],),
    "matvec_add_scaled_rows_int4": lambda env: (env["ROWS"],),
    "route_experts": lambda env: (env["C"], env["NORMALIZE"]),
    "sample_report": lambda env: (env["TOP"],),
    **dict.fromkeys(("experts_add_scaled", "experts_add_scaled_fp8", "experts_add_scaled_int4"), lambda env: (env["GROUP"],)),
    "chunk_starts": lambda env: (env["CHUNK"],),
    **dict.fromkeys(
        ("paged_decode_attention", "paged_decode_attention_wide", "paged_decode_attention_c8"), lambda env: (env["CHUNK"],)
    ),
    "experts_sort": lambda env: (env["X"], env["BLOCK"]),
    "experts_tiles": lambda env: (env["BM"], env["S"]),
    "experts_gather": lambda env: (env["X"], env["BM"], env["S"]),
}
"""Arguments of a reference besides the kernel's inputs and scalars."""

REFERENCES = (
    "reference", "reference_attention", "reference_experts", "reference_experts_tiles", "reference_pages", "reference_sampling",
    "reference_stacks",
)  # fmt: skip
"""The modules next to the kernels that have their references."""

NUMPY = {
    "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f8e4m3": ml_dtypes.float8_e4m3fn, "i32": np.int32,
    "u32": np.uint32, "u8": np.uint8,
}  # fmt: skip


def launch_values(function: Function, size: dict[str, float | str]) -> dict[str, float]:
    """Constants, dims and scalars of a launch by name."""
    return {key: value for key, value in (function.constants | size).items() if not isinstance(value, str)}


def reference(name: str) -> Any:
    """The kernel's reference, from the modules next to the kernels."""
    sys.path.insert(0, str(shipped.ROOT / "kernels_src"))
    try:
        modules = [importlib.import_module(module) for module in REFERENCES]
    finally:
        sys.path.pop(0)
    return next(getattr(module, name) for module in modules if hasattr(module, name))


def make_arrays(function: Function, env: dict[str, float], seed: int = 0) -> dict[str, Array]:
    """Random inputs within the kernel's value facts; tensors that are only written are poisoned."""
    random = np.random.default_rng([seed, *map(ord, function.name)])
    ints = {name: int(value) for name, value in env.items()}
    facts = {fact.tensor: fact for fact in function.values}
    arrays: dict[str, Array] = {}
    for parameter in function.parameters:
        if parameter.access is None:
            continue
        tensor = parameter.value.tensor
        shape, dtype = tuple(dim.evaluate(ints) for dim in tensor.dims), NUMPY[tensor.dtype.name]
        if parameter.access is Access.OUT:
            arrays[parameter.name] = np.full(shape, -1 if tensor.dtype.is_integer else np.nan).astype(dtype)
        elif function.name.endswith("_int4") and tensor.dtype.name in ("u32", "u8"):  # words of fields, and fields
            arrays[parameter.name] = random.integers(0, 1 << 32 if tensor.dtype.bits == 32 else 16, shape, dtype)
        elif tensor.dtype.is_integer:
            fact = facts.get(parameter.name)
            low, high = (fact.low.evaluate(ints), fact.high.evaluate(ints)) if fact else (0, 1000)
            distinct = fact is not None and fact.distinct
            arrays[parameter.name] = (low + random.choice(high - low, shape, replace=not distinct)).astype(dtype)
        elif tensor.dtype.name == "f8e4m3":  # every code but NaN's
            codes = random.integers(0, 254, shape, np.uint8)
            arrays[parameter.name] = (codes + (codes >= 127).astype(np.uint8)).view(dtype)
        else:
            codes = parameter.name in ("a_scales", "b_scales", "w_scales")  # whose products would leave f16
            arrays[parameter.name] = (random.normal(size=shape) * (2.0**-6 if codes else 1.0)).astype(dtype)
    if function.name == "packed_flash_attention":
        arrays["firsts"], arrays["lasts"] = reference("prompts_in_slots")(ints["T"], ints["S"], ints["BN"])
    elif (
        function.name.removesuffix("_wide").removesuffix("_c8") == "paged_decode_attention"
    ):  # rows that end inside a tile, at a chunk's end, and with one token
        arrays["lengths"][:] = [41, 256 + 64, 1][: ints["T"]]
        arrays["starts"] = reference("chunk_starts")(arrays["lengths"], ints["CHUNK"])
    elif (
        function.name.removesuffix("_wide") == "paged_merge"
    ):  # rows of more items than a block reads at once, of one, of none; items of nobody
        arrays["starts"][:] = [0, 10, 11, 11][: ints["T"] + 1]
        arrays["sums"] = np.abs(arrays["sums"]) + 1
    elif "decode_attention" in function.name:  # one sequence ends inside a tile, the second fills its slots
        known = [41, int(env["S"])][: int(env["B"])]
        arrays["lengths"][: len(known)] = known
    if "a_scales" in arrays:
        for name in ("a_scales", "b_scales"):
            arrays[name] = np.abs(arrays[name]) / 8
    elif "w_scales" in arrays:
        scales = arrays["w_scales"]
        arrays["w_scales"] = ((0.5 + np.abs(scales)) * np.float32(2.0**-9)).astype(scales.dtype)
    for name in ("scales", "k_scales", "v_scales"):  # as of rows whose greatest element is some ones
        if name in arrays:
            arrays[name] = ((0.5 + np.abs(arrays[name])) * np.float32(2.0**-9)).astype(np.float32)
    if function.name.removesuffix("_c8") in ("decode_merge", "decode_merge_kv", "rope_merge_kv"):
        arrays["sums"] = np.abs(arrays["sums"]) + 1
    if "squares" in arrays and not function.name.startswith("embedding"):
        groups = 16 if function.name.removesuffix("_fp8").endswith("_rows") else int(env.get("GROUP", 1))
        arrays["squares"] = np.abs(arrays["squares"]) * groups
    if function.name.startswith("experts_matmul"):
        arrays["tiles"][-1] = ints["X"]  # of nobody
    if function.name == "experts_tiles":
        arrays["counts"] *= random.random(arrays["counts"].shape) < 0.005
        arrays["counts"] %= 200
    if function.name == "experts_gather":  # as `experts_sort` and `experts_tiles` leave them
        sort, tiles = reference("experts_sort"), reference("experts_tiles")
        arrays |= dict(
            zip(("order", "ranks", "counts", "begins"), sort(arrays["experts"], ints["X"], ints["BLOCK"]), strict=True)
        )
        arrays |= dict(zip(("starts", "tiles"), tiles(arrays["counts"], ints["BM"], ints["S"]), strict=True))
    if function.name in ("sample_maxima", "sample_rows", "sample_report"):
        _sampled_rows(function, arrays, random)
    if function.name == "sample_token":  # as `topk_blocks` leaves them
        arrays["best"][:] = -np.sort(-arrays["best"], axis=2)
        arrays["indices"][:] = random.permuted(np.arange(arrays["indices"].size)).reshape(arrays["indices"].shape)
        for name, low, high in (("temperature", 0.1, 2), ("top_p", 0.05, 1), ("uniforms", 0, 1)):
            arrays[name][:] = random.uniform(low, high, arrays[name].shape)
    return arrays


def _sampled_rows(function: Function, arrays: dict[str, Array], random: np.random.Generator) -> None:
    """Parameters that the engine allows: of a row with all, of one with none, and of one that cuts within the first tokens."""
    numbers = arrays["numbers"]
    numbers[:, :3] = [[1500, 1 << 29, 1 << 12], [numbers.shape[0] << 20, 1 << 30, 0], [20, 1 << 30, 0]][: len(numbers)]
    numbers[:, 5:] = [[2, 100, 3], [5, 0, 2], [1, 3, 0]][: len(numbers)]
    if "state" in arrays:
        marks = random.choice([0, 1, 2, 1 << 24, (1 << 24) + 3, 1 << 25, 1 << 26], arrays["state"].shape)
        arrays["state"] = marks.astype(np.int32)
    if "positions" in arrays:
        arrays["positions"][:] = random.integers(5, 40, arrays["positions"].shape)
    if "factors" in arrays:
        arrays["factors"] = random.uniform(0.5, 2, arrays["factors"].shape).astype(np.float32)
    if function.name == "sample_rows":
        taken = [arrays[name] for name in ("logits", "state", "bias", "numbers", "factors", "positions")]
        arrays["maxima"] = reference("sample_maxima")(*taken).astype(np.float32)
    if "token" in arrays and function.name == "sample_report":
        arrays["token"][:] = [17, 2147483647, 40][: len(arrays["token"])]


def expected(function: Function, arrays: dict[str, Array], env: dict[str, float]) -> dict[str, Array]:
    """The reference's result for each tensor that the kernel writes, in float64, from the inputs before the launch."""
    inputs = [arrays[p.name] for p in function.parameters if p.access in (Access.IN, Access.INOUT)]
    scalars = [env[p.name] for p in function.parameters if p.access is None]
    found = reference(function.name)(*inputs, *scalars, *EXTRA.get(function.name, lambda _: ())(env))
    written = [p.name for p in function.parameters if p.access in (Access.OUT, Access.INOUT)]
    return dict(zip(written, found if isinstance(found, tuple) else (found,), strict=True))
