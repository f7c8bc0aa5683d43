"""Block sizes for kernels on the tile interpreter: valid for every shape, few blocks, no tile above `TILE` elements.

The interpreter's cost is per block and per operation, hardly per element, so blocks are as large as the limit on tiles allows.
Constants that an operation sets itself are not chosen here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tilec.step.graph import Constant, Op

TILE: Final = 1 << 18
"""Maximum elements of a tile: a quarter of the language's limit, 1 MiB of f32."""

MATMUL_TILE: Final = 256
"""Maximum M, N and K of a matmul tile."""

ROWS: Final = 64
"""Query rows of a block in prefill attention."""

SQUARE: Final = 128
"""Rows and columns of FP8 weights that share a scale."""

GROUP: Final = 128
"""Columns of INT4 weights that share a scale in each row."""

FEW: Final = 32
"""Maximum tokens of a tile where weights are taken as they are stored."""

SLOTS: Final = 64
"""Slots of a cache tile; the cache has a multiple of that."""

EXPERT_ROWS: Final = 16
"""Rows of the smallest tile of an expert."""

CHUNKS: Final = 128
"""Chunks of choices that are looked at together."""

SUPERS: Final = 64
"""The least number of groups of groups of tokens that sampling starts from."""

PART: Final = 16
"""Slots of a tile of a cache of codes whose sums a warp has to itself."""


def block_sizes(op: Op) -> dict[str, Constant]:
    """All constants of an operation: those it sets itself, and those chosen here for its kernel."""
    choose = CHOICES.get(op.kernel)
    shapes = {name: view.shape for name, view in op.tensors.items()}
    return {**(choose(shapes) if choose is not None else {}), **op.constants}


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of a positive number that is at most `limit`."""
    return next(size for size in range(min(number, limit), 0, -1) if number % size == 0)


Shapes = Mapping[str, Sequence[int]]


def _whole_row(shapes: Shapes) -> dict[str, Constant]:
    return {"BLOCK": min(shapes["out"][-1], TILE)}


def _rows_of_weight(outputs: int, inputs: int) -> dict[str, Constant]:
    """`matvec` and its variants: blocks of ROWS outputs by BLOCK inputs; ROWS divides the outputs."""
    block = largest_divisor(inputs, TILE)
    return {"BLOCK": block, "ROWS": largest_divisor(outputs, max(1, TILE // block))}


def _rows_of_squares(outputs: int, inputs: int) -> dict[str, Constant]:
    """The same for FP8 weights with a scale for each square: rows of one square by whole ones."""
    block = SQUARE * largest_divisor(inputs // SQUARE, TILE // SQUARE)
    return {"BLOCK": block, "ROWS": largest_divisor(SQUARE, max(1, TILE // block)), "PARTS": 1}


def _rows_of_groups(outputs: int, inputs: int) -> dict[str, Constant]:
    """The same for INT4 weights with scales for each group of a row's columns, as many groups side by side."""
    split = largest_divisor(inputs // GROUP, TILE // GROUP)
    return {"SPLIT": split, "ROWS": largest_divisor(outputs, max(1, TILE // (split * GROUP)))}


def _rows_of_batch(outputs: int, inputs: int) -> dict[str, Constant]:
    """The same for several rows of x; with SPLIT 1 no warps share a sum."""
    return {**_rows_of_weight(outputs, inputs), "SPLIT": 1}


def _squares_of_batch(_outputs: int, inputs: int) -> dict[str, Constant]:
    """The same for FP8 weights and several rows of x: the squares of an iteration side by side."""
    split = largest_divisor(inputs // SQUARE, TILE // SQUARE)
    return {"SPLIT": split, "BLOCK": SQUARE, "ROWS": largest_divisor(SQUARE, max(1, TILE // (split * SQUARE)))}


def _squares_of_expert(inputs: int) -> dict[str, Constant]:
    """The same for FP8 weights of experts, which need no several squares of an iteration."""
    sizes = _rows_of_squares(SQUARE, inputs)
    return {name: sizes[name] for name in ("ROWS", "BLOCK")}


def _whole_sums(shapes: Shapes, sizes: dict[str, Constant]) -> dict[str, Constant]:
    """The same with whole sums of squares in each block, of some outputs each."""
    outputs, sums = shapes["scaled"][-1], shapes["squares"][-1]
    limit = max(1, int(sizes["ROWS"]) * sums // outputs)
    return {**sizes, "ROWS": outputs // sums * largest_divisor(sums, limit)}


def _matmul(shapes: Shapes) -> dict[str, Constant]:
    rows, inner = shapes["a"]
    columns = shapes["b"][0]
    # The number of tokens differs between prompts: powers of two keep the number of specialisations small.
    sizes = {"BM": 1 << (rows - 1).bit_length(), "BN": columns, "BK": inner}
    return {**{name: min(size, MATMUL_TILE) for name, size in sizes.items()}, "GROUP": 1}


def _matmul_silu_mul(shapes: Shapes) -> dict[str, Constant]:
    """As `_matmul`, for a kernel whose tile has its columns twice (gate and up)."""
    rows, inner = shapes["a"]
    sizes = {"BM": 1 << (rows - 1).bit_length(), "BN": shapes["b"][1], "BK": inner}
    limits = {"BM": MATMUL_TILE, "BN": MATMUL_TILE // 2, "BK": MATMUL_TILE}
    return {**{name: min(size, limits[name]) for name, size in sizes.items()}, "GROUP": 1}


def _matmul_of_squares(shapes: Shapes) -> dict[str, Constant]:
    """As `_matmul`, for codes: whole squares of weights, two side by side in the tile of a product of gate and up."""
    rows = 1 << (shapes["a"][0] - 1).bit_length()
    return {"BM": min(rows, MATMUL_TILE), "BN": SQUARE, "PART": SQUARE, "AHEAD": 1, "LATE": 0, "GROUP": 1}


def _of_weights(outputs: int, inputs: int) -> dict[str, Constant]:
    """A product with small M; the operation sets the rows of a tile itself."""
    return {"BN": min(outputs, MATMUL_TILE), "BK": min(inputs, MATMUL_TILE)}


def _small_m_as_stored(outputs: int, inputs: int) -> dict[str, Constant]:
    """The same with weights as they are stored: groups of columns side by side, for up to 32 tokens."""
    split = largest_divisor(inputs // GROUP, TILE // (GROUP * FEW))
    return {"SPLIT": split, "ROWS": largest_divisor(outputs, max(1, TILE // (split * max(GROUP, FEW))))}


def _tiles_of_experts(columns: int, inner: int) -> dict[str, Constant]:
    """Grouped products, whose operation sets the rows of a tile itself; `columns` of a tile, and the depth."""
    return {"BN": min(columns, MATMUL_TILE), "BK": min(inner, MATMUL_TILE)}


def _experts_gather(shapes: Shapes) -> dict[str, Constant]:
    """Rows of one tile: those of the smallest that a step has, if the experts of a token divide them."""
    chosen, hidden = shapes["experts"][1], shapes["x"][1]
    return {"ROWS": max(chosen, EXPERT_ROWS), "CHUNKS": CHUNKS, "COLUMNS": largest_divisor(hidden, TILE // EXPERT_ROWS)}


def _row_of_logits(shapes: Shapes) -> dict[str, Constant]:
    """Sampling: a power of two of tokens at a time; ALIGN divides them all."""
    return {"BLOCK": min(max(1 << (shapes["logits"][1] - 1).bit_length(), SUPERS), TILE), "ALIGN": 1}


def _searched_row(shapes: Shapes) -> dict[str, Constant]:
    """The same with the greatest scores of all groups of groups in a tile."""
    return {**_row_of_logits(shapes), "SUPERS": max(SUPERS, 1 << ((shapes["logits"][1] - 1) >> 10).bit_length())}


CHOICES: Final[Mapping[str, Callable[[Shapes], dict[str, Constant]]]] = {
    "embedding": _whole_row,
    "gather_row": _whole_row,
    "matvec": lambda shapes: _rows_of_weight(*shapes["w"]),
    "matvec_add": lambda shapes: _rows_of_weight(*shapes["w"]),
    "matvec_argmax": lambda shapes: _rows_of_weight(*shapes["w"]),
    "matvec_add_scaled": lambda shapes: _rows_of_weight(*shapes["w"]),
    "scaled_matvec": lambda shapes: _rows_of_weight(*shapes["w"]),
    "scaled_matvec_silu_mul": lambda shapes: _rows_of_weight(shapes["out"][-1], shapes["x"][-1]),
    "scaled_matvec_rows": lambda shapes: _rows_of_batch(*shapes["w"]),
    "scaled_matvec_silu_mul_rows": lambda shapes: _rows_of_batch(shapes["out"][-1], shapes["x"][-1]),
    "matvec_add_scaled_rows": lambda shapes: _rows_of_batch(*shapes["w"]),
    "scaled_matvec_argmax_rows": lambda shapes: _rows_of_batch(*shapes["w"]),
    "matvec_add_fp8": lambda shapes: _rows_of_squares(*shapes["w"]),
    "matvec_add_scaled_fp8": lambda shapes: _rows_of_squares(*shapes["w"]),
    "scaled_matvec_fp8": lambda shapes: _rows_of_squares(*shapes["w"]),
    "scaled_matvec_silu_mul_fp8": lambda shapes: _rows_of_squares(shapes["out"][-1], shapes["x"][-1]),
    "matvec_add_scaled_rows_fp8": lambda shapes: _squares_of_batch(*shapes["w"]),
    "scaled_matvec_rows_fp8": lambda shapes: _squares_of_batch(*shapes["w"]),
    "scaled_matvec_silu_mul_rows_fp8": lambda shapes: _squares_of_batch(shapes["out"][-1], shapes["x"][-1]),
    "matvec_add_int4": lambda shapes: _rows_of_groups(shapes["w"][0], shapes["x"][-1]),
    "matvec_add_scaled_int4": lambda shapes: _rows_of_groups(shapes["w"][0], shapes["x"][-1]),
    "scaled_matvec_int4": lambda shapes: _rows_of_groups(shapes["w"][0], shapes["x"][-1]),
    "scaled_matvec_silu_mul_int4": lambda shapes: _rows_of_groups(shapes["out"][-1], shapes["x"][-1]),
    "matvec_add_scaled_rows_int4": lambda shapes: _rows_of_groups(shapes["w"][0], shapes["x"][-1]),
    "scaled_matvec_rows_int4": lambda shapes: _rows_of_groups(shapes["w"][0], shapes["x"][-1]),
    "scaled_matvec_silu_mul_rows_int4": lambda shapes: _rows_of_groups(shapes["out"][-1], shapes["x"][-1]),
    "dequantise_int4": lambda shapes: {"ROWS": largest_divisor(shapes["w"][0], TILE // GROUP)},
    "dequantise_fp8": lambda _: {"ROWS": SQUARE},
    "dequantise_each_fp8": lambda _: {"ROWS": SQUARE},
    "dequantise_each_int4": lambda shapes: {"ROWS": largest_divisor(shapes["w"][1], TILE // GROUP)},
    "quantise_rows": lambda shapes: {"ROWS": min(1 << (shapes["x"][0] - 1).bit_length(), TILE // SQUARE)},
    "matmul_fp8": _matmul_of_squares,
    "matmul_silu_mul_fp8": _matmul_of_squares,
    "matmul": _matmul,
    "matmul_silu_mul": _matmul_silu_mul,
    "matmul_few_fp8": lambda shapes: _small_m_as_stored(SQUARE, shapes["b"][1]),
    "matmul_split_fp8": lambda shapes: _small_m_as_stored(SQUARE, shapes["b"][1]),
    "matmul_silu_mul_few_fp8": lambda shapes: _small_m_as_stored(SQUARE, shapes["b"][1]),
    "matmul_few_int4": lambda shapes: _small_m_as_stored(shapes["b"][0], shapes["a"][1]),
    "matmul_split_int4": lambda shapes: _small_m_as_stored(shapes["b"][0], shapes["a"][1]),
    "matmul_silu_mul_few_int4": lambda shapes: _small_m_as_stored(shapes["out"][1], shapes["a"][1]),
    "matmul_few": lambda shapes: _of_weights(*shapes["b"]),
    "matmul_split": lambda shapes: _of_weights(*shapes["b"]),
    "matmul_silu_mul_few": lambda shapes: _of_weights(*shapes["b"][1:]),
    "route_experts": lambda shapes: {"EXPERTS": 1 << (shapes["logits"][1] - 1).bit_length()},
    "experts_silu_mul": lambda shapes: _rows_of_weight(shapes["out"][-1], shapes["x"][-1]),
    "experts_add": lambda shapes: _rows_of_weight(*shapes["w"][1:]),
    "experts_down": lambda shapes: _rows_of_weight(*shapes["w"][1:]),
    "experts_silu_mul_fp8": lambda shapes: _squares_of_expert(shapes["x"][-1]),
    "experts_add_fp8": lambda shapes: _squares_of_expert(shapes["x"][-1]),
    "experts_down_fp8": lambda shapes: _squares_of_expert(shapes["x"][-1]),
    "experts_add_scaled_fp8": lambda shapes: _whole_sums(shapes, _squares_of_expert(shapes["x"][-1])),
    "experts_silu_mul_int4": lambda shapes: _rows_of_groups(shapes["out"][-1], shapes["x"][-1]),
    "experts_add_int4": lambda shapes: _rows_of_groups(shapes["w"][1], shapes["x"][-1]),
    "experts_down_int4": lambda shapes: _rows_of_groups(shapes["w"][1], shapes["x"][-1]),
    "experts_add_scaled_int4": lambda shapes: _whole_sums(shapes, _rows_of_groups(shapes["w"][1], shapes["x"][-1])),
    "experts_add_scaled": lambda shapes: _whole_sums(shapes, _rows_of_weight(*shapes["w"][1:])),
    "experts_tiles": lambda _: {"BLOCK": CHUNKS},
    "experts_gather": _experts_gather,
    "experts_matmul": lambda shapes: {**_tiles_of_experts(*shapes["b"][1:]), "GROUP": 1},
    "experts_matmul_fp8": lambda _: {"BN": SQUARE, "PART": SQUARE, "GROUP": 1},
    "experts_matmul_silu_mul_fp8": lambda _: {"BN": SQUARE, "PART": SQUARE, "GROUP": 1},
    "experts_matmul_few": lambda shapes: _tiles_of_experts(*shapes["b"][1:]),
    "experts_matmul_few_fp8": lambda shapes: _small_m_as_stored(SQUARE, shapes["a"][1]),
    "experts_matmul_silu_mul_few_fp8": lambda shapes: _small_m_as_stored(SQUARE, shapes["a"][1]),
    "experts_matmul_few_int4": lambda shapes: _small_m_as_stored(shapes["b"][1], shapes["a"][1]),
    "experts_matmul_silu_mul_few_int4": lambda shapes: _small_m_as_stored(shapes["out"][1], shapes["a"][1]),
    "experts_matmul_silu_mul": lambda shapes: {**_tiles_of_experts(*shapes["b"][2:]), "GROUP": 1},
    "experts_matmul_silu_mul_few": lambda shapes: _tiles_of_experts(*shapes["b"][2:]),
    "argmax_blocks": lambda _: {"ALIGN": 1},
    "argmax_reduce": lambda shapes: {"PARTS": 1 << (shapes["maxima"][1] - 1).bit_length()},
    "flash_attention": lambda _: {"BM": ROWS, "BN": SLOTS},
    "packed_flash_attention": lambda _: {"BM": ROWS, "BN": SLOTS},
    "decode_attention": lambda _: {"BN": SLOTS},
    "chunk_starts": lambda _: {"BLOCK": 512},
    "paged_flash_attention": lambda _: {"BM": ROWS, "BN": SLOTS},
    "paged_decode_attention": lambda _: {"BN": SLOTS},
    "paged_decode_attention_wide": lambda _: {"BN": SLOTS},
    "paged_merge": lambda _: {"ROWS": 8, "HEADS": 8},
    "paged_merge_wide": lambda _: {"ROWS": 8},
    "decode_attention_wide": lambda _: {"BN": SLOTS},
    "rotary_decode_attention": lambda _: {"BN": SLOTS},
    "rotary_decode_attention_kv": lambda _: {"BN": SLOTS},
    "rope_decode_attention": lambda _: {"BN": SLOTS},
    "rope_decode_attention_kv": lambda _: {"BN": SLOTS},
    "rotary_decode_attention_c8": lambda _: {"BN": SLOTS, "SLOTS": PART},
    "rotary_decode_attention_kv_c8": lambda _: {"BN": SLOTS, "SLOTS": PART},
    "rope_decode_attention_c8": lambda _: {"BN": SLOTS, "SLOTS": PART},
    "rope_decode_attention_kv_c8": lambda _: {"BN": SLOTS, "SLOTS": PART},
    "paged_decode_attention_c8": lambda _: {"BN": SLOTS, "SLOTS": PART},
    "dequantise_c8": lambda shapes: {"SLOTS": SLOTS, "HEADS": shapes["cache"][1]},
    "sample_maxima": _row_of_logits,
    "sample_rows": _searched_row,
    "sample_report": _searched_row,
    "sample_token": lambda shapes: {"PARTS": shapes["best"][1]},
}
"""The function that chooses a kernel's constants, from the shapes of its tensors."""
