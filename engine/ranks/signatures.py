"""What kernels make of a slice or a part of a sum: for each kernel the axes of its tensors.

`a[t,+k] b[n,+k] -> out[t,n]` says: a slice along `t` or `n` of an input makes the slice of the output with the same letter, and
products are added over `k`, so that slices along `k` make a part of a sum. A dot is an axis that must be whole. A star is an
axis whose elements are parts of a sum: readers add them. What is written, too or only, is after the arrow. Of a tensor with a
plus before its name the kernel adds multiples, and nothing else: given a part of a sum, it makes a part.

Contracts do not say what a kernel computes, so these lines are claims. `tests/engine/ranks/test_signatures.py` runs the kernels
on slices and compares. A kernel that is not here takes nothing but whole tensors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

WHOLE: Final = "."
SUMMANDS: Final = "*"
SUMMED: Final = "+"

_ROTARY: Final = "table[.,.] positions[t] lengths[t]"
_ATTENTION: Final = f"q_weight[.] k_weight[.] {_ROTARY}"
_CACHES: Final = "k_cache[t,.,h,.] v_cache[t,.,h,.]"
_CODES: Final = f"{_CACHES} k_scales[t,.,h] v_scales[t,.,h]"
_PARTS: Final = "partial[t,.,h,.,.] maxima[t,.,h,.] sums[t,.,h,.]"
_POOLS: Final = "k_pages[.,.,h,.] v_pages[.,.,h,.]"
_CODED_POOLS: Final = f"{_POOLS} k_scales[.,.,h] v_scales[.,.,h]"
_ITEMS: Final = "partial[.,h,.,.] maxima[.,h,.] sums[.,h,.]"
_NEW: Final = "qkv[t,h,.] q_weight[.] k_weight[.] table[.,.] positions[t] slots[t]"
_ONE_INPUT: Final = "x[t,.] squares[t,.] experts[t,.]"
_EACH_INPUT: Final = "x[t,.,+k] experts[t,.] weights[t,.]"

SIGNATURES: Final[Mapping[str, str]] = {
    "matmul": "a[t,+k] b[n,+k] -> out[t,n]",
    "matmul_fp8": "a[t,+k] a_scales[+k,t] b[n,+k] b_scales[n,+k] -> out[t,n]",
    "matmul_few": "a[t,+k] b[n,+k] -> out[t,n]",
    "matmul_few_fp8": "a[t,+k] b[n,+k] b_scales[n,+k] -> out[t,n]",
    "matmul_few_int4": "a[t,+k] b[n,+k] b_scales[+k,n] b_zeros[+k,n] -> out[t,n]",
    "matmul_split": "a[t,+k] b[n,+k] -> parts[*,t,n]",
    "matmul_split_fp8": "a[t,+k] b[n,+k] b_scales[n,+k] -> parts[*,t,n]",
    "matmul_split_int4": "a[t,+k] b[n,+k] b_scales[+k,n] b_zeros[+k,n] -> parts[*,t,n]",
    "matmul_silu_mul": "a[t,.] b[.,i,.] -> out[t,i]",
    "matmul_silu_mul_fp8": "a[t,.] a_scales[.,t] b[.,i,.] b_scales[.,i,.] -> out[t,i]",
    "matmul_silu_mul_few": "a[t,.] b[.,i,.] -> out[t,i]",
    "matmul_silu_mul_few_fp8": "a[t,.] b[i,.] b_scales[i,.] -> out[t,i]",
    "matmul_silu_mul_few_int4": "a[t,.] b[i,.] b_scales[.,i] b_zeros[.,i] -> out[t,i]",
    "scaled_matvec": "x[t,.] squares[t,.] w[n,.] -> out[t,n]",
    "scaled_matvec_fp8": "x[t,.] squares[t,.] w[n,.] w_scales[n,.] -> out[t,n]",
    "scaled_matvec_int4": "x[t,.] squares[t,.] w[n,.] w_scales[.,n] w_zeros[.,n] -> out[t,n]",
    "scaled_matvec_rows": "x[t,.] squares[t,.] w[n,.] -> out[t,n]",
    "scaled_matvec_rows_fp8": "x[t,.] squares[t,.] w[n,.] w_scales[n,.] -> out[t,n]",
    "scaled_matvec_rows_int4": "x[t,.] squares[t,.] w[n,.] w_scales[.,n] w_zeros[.,n] -> out[t,n]",
    "scaled_matvec_silu_mul": "x[t,.] squares[t,.] w[i,.] -> out[t,i]",
    "scaled_matvec_silu_mul_fp8": "x[t,.] squares[t,.] w[i,.] w_scales[i,.] -> out[t,i]",
    "scaled_matvec_silu_mul_int4": "x[t,.] squares[t,.] w[i,.] w_scales[.,i] w_zeros[.,i] -> out[t,i]",
    "scaled_matvec_silu_mul_rows": "x[t,.] squares[t,.] w[i,.] -> out[t,i]",
    "scaled_matvec_silu_mul_rows_fp8": "x[t,.] squares[t,.] w[i,.] w_scales[i,.] -> out[t,i]",
    "scaled_matvec_silu_mul_rows_int4": "x[t,.] squares[t,.] w[i,.] w_scales[.,i] w_zeros[.,i] -> out[t,i]",
    "experts_silu_mul": f"{_ONE_INPUT} w[.,i,.] -> out[t,.,i]",
    "experts_silu_mul_fp8": f"{_ONE_INPUT} w[.,i,.] w_scales[.,i,.] -> out[t,.,i]",
    "experts_silu_mul_int4": f"{_ONE_INPUT} w[.,i,.] w_scales[.,.,i] w_zeros[.,.,i] -> out[t,.,i]",
    "experts_down": f"{_EACH_INPUT} w[.,n,+k] -> out[t,n]",
    "experts_down_fp8": f"{_EACH_INPUT} w[.,n,+k] w_scales[.,n,+k] -> out[t,n]",
    "experts_down_int4": f"{_EACH_INPUT} w[.,n,+k] w_scales[.,+k,n] w_zeros[.,+k,n] -> out[t,n]",
    "experts_matmul": "a[.,+k] tiles[.] b[.,n,+k] -> out[.,n]",
    "experts_matmul_fp8": "a[.,+k] a_scales[+k,.] tiles[.] b[.,n,+k] b_scales[.,n,+k] -> out[.,n]",
    "experts_matmul_few": "a[.,+k] tiles[.] b[.,n,+k] -> out[.,n]",
    "experts_matmul_few_fp8": "a[.,+k] tiles[.] b[.,n,+k] b_scales[.,n,+k] -> out[.,n]",
    "experts_matmul_few_int4": "a[.,+k] tiles[.] b[.,n,+k] b_scales[.,+k,n] b_zeros[.,+k,n] -> out[.,n]",
    "experts_matmul_silu_mul": "a[.,.] tiles[.] b[.,.,i,.] -> out[.,i]",
    "experts_matmul_silu_mul_fp8": "a[.,.] a_scales[.,.] tiles[.] b[.,.,i,.] b_scales[.,.,i,.] -> out[.,i]",
    "experts_matmul_silu_mul_few": "a[.,.] tiles[.] b[.,.,i,.] -> out[.,i]",
    "experts_matmul_silu_mul_few_fp8": "a[.,.] tiles[.] b[.,i,.] b_scales[.,i,.] -> out[.,i]",
    "experts_matmul_silu_mul_few_int4": "a[.,.] tiles[.] b[.,i,.] b_scales[.,.,i] b_zeros[.,.,i] -> out[.,i]",
    "experts_sum": "+y[.,n] places[t,.] weights[t,.] -> out[t,n]",
    "dequantise_each_fp8": "w[.,n,k] w_scales[.,n,k] -> out[.,n,k]",
    "dequantise_each_int4": "w[.,n,k] w_scales[.,k,n] w_zeros[.,k,n] -> out[.,n,k]",
    "dequantise_fp8": "w[n,k] w_scales[n,k] -> out[n,k]",
    "dequantise_int4": "w[n,k] w_scales[k,n] w_zeros[k,n] -> out[n,k]",
    "dequantise_c8": "cache[.,h,.] scales[.,h] -> out[.,h,.]",
    "quantise_rows": "x[t,k] -> codes[t,k] scales[k,t]",
    "add_rms_norm_splits": "parts[*,t,.] weight[.] -> residual[t,.] out[t,.]",
    "gather_row": "x[.,n] index[.] -> out[.,n]",
    "rotary_decode_attention": f"qkv[t,h,.] {_ATTENTION} {_CACHES} -> {_PARTS}",
    "rotary_decode_attention_c8": f"qkv[t,h,.] {_ATTENTION} {_CODES} -> {_PARTS}",
    "rotary_decode_attention_kv": f"qkv[t,h,.] {_ATTENTION} -> out[t,h,.,.] {_CACHES}",
    "rotary_decode_attention_kv_c8": f"qkv[t,h,.] {_ATTENTION} -> out[t,h,.,.] {_CODES}",
    "decode_merge_kv": f"{_PARTS} qkv[t,h,.] k_weight[.] table[.,.] positions[t] slots[t] -> out[t,h,.,.] {_CACHES}",
    "decode_merge_kv_c8": f"{_PARTS} qkv[t,h,.] k_weight[.] table[.,.] positions[t] slots[t] -> out[t,h,.,.] {_CODES}",
    "decode_merge": f"{_PARTS} -> out[t,h,.,.]",
    "decode_attention": f"q[t,h,.,.] {_CACHES} lengths[t] -> {_PARTS}",
    "decode_attention_wide": f"q[t,h,.,.] {_CACHES} lengths[t] -> {_PARTS}",
    "flash_attention": "q[t,h,.,.] k_cache[.,h,.] v_cache[.,h,.] -> out[t,h,.,.]",
    "paged_decode_attention": f"q[t,h,.,.] {_POOLS} table[t,.] lengths[t] starts[.] -> {_ITEMS}",
    "paged_decode_attention_c8": f"q[t,h,.,.] {_CODED_POOLS} table[t,.] lengths[t] starts[.] -> {_ITEMS}",
    "paged_decode_attention_wide": f"q[t,h,.,.] {_POOLS} table[t,.] lengths[t] starts[.] -> {_ITEMS}",
    "paged_merge_wide": f"{_ITEMS} starts[.] -> out[t,h,.,.]",
    "paged_merge": f"{_ITEMS} starts[.] -> out[t,h,.,.]",
    "packed_flash_attention": "q[t,h,.,.] k_cache[.,h,.] v_cache[.,h,.] firsts[t] lasts[t] -> out[t,h,.,.]",
    "embedding": "ids[.] table[.,n] -> out[.,n]",
    "paged_gather": f"{_POOLS} table[.] -> k_cache[.,h,.] v_cache[.,h,.]",
    "paged_gather_c8": f"{_CODED_POOLS} table[.] -> k_cache[.,h,.] v_cache[.,h,.]",
    "qk_norm_rope_kv": f"{_NEW} -> q[t,h,.] k_cache[.,h,.] v_cache[.,h,.]",
    "qk_norm_rope_kv_c8": f"{_NEW} -> q[t,h,.] k_cache[.,h,.] v_cache[.,h,.] k_scales[.,h] v_scales[.,h]",
    "rope_decode_attention": f"qkv[t,h,.] {_ROTARY} {_CACHES} -> {_PARTS}",
    "rope_decode_attention_c8": f"qkv[t,h,.] {_ROTARY} {_CODES} -> {_PARTS}",
    "rope_decode_attention_kv": f"qkv[t,h,.] {_ROTARY} -> out[t,h,.,.] {_CACHES}",
    "rope_decode_attention_kv_c8": f"qkv[t,h,.] {_ROTARY} -> out[t,h,.,.] {_CODES}",
    "rope_merge_kv": f"{_PARTS} qkv[t,h,.] table[.,.] positions[t] slots[t] -> out[t,h,.,.] {_CACHES}",
    "rope_merge_kv_c8": f"{_PARTS} qkv[t,h,.] table[.,.] positions[t] slots[t] -> out[t,h,.,.] {_CODES}",
    "rope_kv": "qkv[t,h,.] table[.,.] positions[t] slots[t] -> q[t,h,.] k_cache[.,h,.] v_cache[.,h,.]",
    "rope_kv_c8": (
        "qkv[t,h,.] table[.,.] positions[t] slots[t] -> q[t,h,.] k_cache[.,h,.] v_cache[.,h,.] k_scales[.,h] v_scales[.,h]"
    ),
}  # fmt: skip
"""By kernel. Of `qkv` the axis of heads has those of queries, keys and values, each of them sliced alike."""

_TENSOR: Final = re.compile(r"(\+?)(\w+)\[([^\]]*)\]")


@dataclass(frozen=True, slots=True)
class Signature:
    """The axes of a kernel's tensors by parameter, the parameters that it writes, and those of which a part of a sum makes a
    part of what it writes."""

    axes: Mapping[str, tuple[str, ...]]
    written: frozenset[str]
    added: frozenset[str] = frozenset()


@cache
def signature(kernel: str) -> Signature | None:
    """The signature of a kernel; None if it takes nothing but whole tensors."""
    line = SIGNATURES.get(kernel)
    if line is None:
        return None
    _, _, written = line.partition("->")
    found = _TENSOR.findall(line)
    axes = {name: tuple(inner.split(",")) for _, name, inner in found}
    return Signature(
        axes, frozenset(name for _, name, _ in _TENSOR.findall(written)), frozenset(name for plus, name, _ in found if plus)
    )
