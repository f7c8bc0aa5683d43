"""Every shipped kernel on the interpreter: right against float64, in any block order, every element written by one block."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests import shipped
from tests.campaign import chosen
from tests.shipped_launches import SIZES, Array, expected, launch_values, make_arrays
from tilec.interpreter import Accesses, run
from tilec.interpreter.launch import bind
from tilec.ir.core import Function

MORE: dict[str, list[dict[str, float | str]]] = {
    "add": [{"N": 2047}, {"N": 2049}],
    "rms_norm": [{"T": 1, "eps": 1e-6}, {"T": 5, "H": 5120, "eps": 1e-5}],
    "matvec": [{"N": 41, "B": batch, "K": 2560} for batch in (1, 2, 4, 8)],
    "matmul": [{"M": 1, "N": 8, "K": 8}, {"M": 129, "N": 264, "K": 72}],
    "matmul_silu_mul": [{"M": 1, "I": 8, "K": 8}, {"M": 129, "I": 264, "K": 72}],
    "matmul_few": [
        {"M": 1, "N": 8, "K": 8},
        {"M": 65, "N": 264, "K": 72, "BM": 64},
        {"M": 129, "N": 104, "K": 72, "BM": 128, "BN": 96},
    ],
    "matmul_silu_mul_few": [
        {"M": 1, "I": 8, "K": 8},
        {"M": 65, "I": 264, "K": 72, "BM": 64},
        {"M": 257, "I": 72, "K": 72, "BM": 256},
    ],
    "matmul_split": [{"M": 1, "N": 8, "K": 8}, {"M": 65, "N": 160, "K": 576}],
    "topk_blocks": [{"B": 2, "V": 70, "P": 1, "K": 9}],
    "argmax_blocks": [{"B": 2, "V": 72, "P": 1}],
    "sample_token": [{"B": 40, "P": 3, "K": 64, "S": 5}, {"B": 3, "P": 256, "K": 2, "S": 1}, {"B": 1, "P": 1, "K": 1, "S": 1}],
    "flash_attention": [{"T": t, "HKV": 1, "G": 2, "S": 192, "past": 0, "scale": 0.09} for t in (1, 17, 127, 129)],
    "paged_flash_attention": [
        {"T": t, "HKV": 1, "G": 2, "PAGES": 4, "MAX": 3, "past": past, "scale": 0.09}
        for t, past in ((1, 0), (17, 5), (129, 63))
    ],
    "packed_flash_attention": [
        {"T": t, "HKV": 1, "G": 2, "S": s, "scale": 0.09} for t, s in ((1, 128), (2, 256), (129, 384), (383, 384))
    ],
    "paged_gather": [{"HKV": 3, "PAGES": 9, "MAX": 5, "S": 258, "filled": 257}],
    "paged_gather_c8": [{"HKV": 3, "PAGES": 9, "MAX": 5, "S": 258, "filled": 257}],
    "paged_merge": [{"T": 2, "HKV": 3, "G": 5, "ITEMS": 12}],
    "chunk_starts": [{"T": t} for t in (2, 256, 511)],
    "decode_attention": [{"B": 2, "HKV": 1, "G": 2, "S": 96, "P": 48, "scale": 0.09}],
    "decode_attention_wide": [{"B": 2, "HKV": 2, "G": 11, "S": 96, "P": 48, "scale": 0.09}],
    "rotary_decode_attention": [{"B": 2, "HKV": 3, "G": 5, "S": 128, "P": 48, "R": 7, "eps": 1e-6, "scale": 0.09}],
    "rotary_decode_attention_c8": [{"B": 2, "HKV": 3, "G": 5, "S": 128, "P": 48, "R": 7, "eps": 1e-6, "scale": 0.09}],
    "rotary_decode_attention_kv_c8": [{"B": 2, "HKV": 3, "G": 5, "S": 384, "R": 7, "eps": 1e-6, "scale": 0.09}],
    "rotary_decode_attention_kv": [{"B": 2, "HKV": 3, "G": 5, "S": 384, "R": 7, "eps": 1e-6, "scale": 0.09}],
    "decode_merge_kv": [{"B": 2, "HKV": 2, "G": 16, "S": 8, "R": 9, "eps": 1e-6}],
}
"""Odd sizes in addition to those of the tests of lowered code."""

ROUNDINGS = {
    "add_rms_norm": 2,
    "add_rms_norm_splits": 2,
    "flash_attention": 2,
    "decode_attention": 2,
    "decode_attention_wide": 2,
    "packed_flash_attention": 2,
    "paged_flash_attention": 2,
    "paged_decode_attention": 2,
    "paged_decode_attention_wide": 2,
    "paged_decode_attention_c8": 2,
    "qk_norm_rope_kv": 2,
    "rotary_decode_attention": 4,
    "rotary_decode_attention_kv": 4,
    "rope_decode_attention": 4,
    "rope_decode_attention_kv": 4,
    "qk_norm_rope_kv_c8": 2,
    "rotary_decode_attention_c8": 4,
    "rotary_decode_attention_kv_c8": 4,
    "rope_decode_attention_c8": 4,
    "rope_decode_attention_kv_c8": 4,
    "experts_combine": 2,
}
"""The number of roundings to the kernel's dtype, if it is not one."""

CASES = [
    (name, {"E": dtype} | size)
    for name in shipped.NAMES
    for size in (*SIZES[name], *MORE.get(name, []))
    for dtype in ("bf16", "f16")
]


def half_ulp(function: Function) -> float:
    """Largest relative error of one rounding to the kernel's dtype: half a unit in the last place."""
    return 2.0**-11 if function.constants.get("E") == "f16" else 2.0**-8


def assert_rounded(found: Array, wanted: Array, relative: float) -> None:
    """Asserts that the difference from float64, in the Euclidean norm, is at most `relative`; values below the range of f16 may
    vanish."""
    wide = found.astype(np.float64)
    with np.errstate(invalid="ignore"):
        difference = np.where(wide == wanted, 0.0, wide - wanted)  # equal infinities are equal
    finite = np.where(np.isfinite(wanted), wanted, 0.0)
    vanished = 2.0**-24 * np.sqrt(wanted.size)
    assert np.linalg.norm(difference) <= relative * np.linalg.norm(finite) + vanished


def here(case: tuple[str, dict[str, float | str]]) -> bool:
    """The sizes of a kernel alternate between its two dtypes; a kernel with one size has both."""
    name, _ = case
    own = [one for one in CASES if one[0] == name]
    return len(own) == 2 or own.index(case) % 4 in (0, 3)


@pytest.mark.parametrize(("name", "size"), chosen(CASES, here), ids=[f"{name}-{size}" for name, size in CASES])
def test_kernel_against_float64(name: str, size: dict[str, float | str]) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # shown if the test fails
    function = shipped.load(name, size)
    env = launch_values(function, size)
    arrays = make_arrays(function, env, seed)
    wanted = expected(function, {key: array.copy() for key, array in arrays.items()}, env)
    scalars = {p.name: env[p.name] for p in function.parameters if p.access is None}
    dims = {key: int(value) for key, value in env.items() if key in function.dims}
    backwards = {key: array.copy() for key, array in arrays.items()}
    grid = bind(function, arrays, scalars, dims).grid
    accesses = Accesses(function, arrays)
    run(function, arrays, scalars, dims=dims, accesses=accesses)
    assert accesses.problems() == []
    shuffled = [tuple(map(int, block_id)) for block_id in np.ndindex(*grid)]
    random.Random(seed).shuffle(shuffled)
    run(function, backwards, scalars, dims=dims, block_order=shuffled)
    # The norm of the error of n roundings of relative size u is at most n u; the f32 arithmetic before them adds next to
    # nothing.
    allowed = ROUNDINGS.get(name, 1) * half_ulp(function)
    for parameter, values in wanted.items():
        assert (arrays[parameter].view(np.uint8) == backwards[parameter].view(np.uint8)).all(), "the order of blocks matters"
        if arrays[parameter].dtype.kind == "i":
            assert (arrays[parameter] == values).all()
        else:
            assert_rounded(arrays[parameter], np.asarray(values, np.float64), allowed)


def test_every_kernel_has_a_launch_and_a_reference() -> None:
    assert SIZES.keys() == set(shipped.NAMES)


def test_ties_of_argmax_blocks_go_to_the_lowest_column() -> None:
    function = shipped.load("argmax_blocks", {"E": "bf16"})
    block = int(function.constants["BLOCK"])
    arrays = make_arrays(function, {"B": 1, "V": 2 * block, "P": 2, "BLOCK": block})
    arrays["logits"][:] = np.float32(1)
    arrays["logits"][0, [block + 3, block + 9]] = np.float32(2)
    run(function, arrays)
    assert arrays["indices"].tolist() == [[0, block + 3]]


def test_ties_of_argmax_go_to_the_lowest_column() -> None:
    function = shipped.load("topk_blocks", {"E": "bf16"})
    block = int(function.constants["BLOCK"])
    arrays = make_arrays(function, {"B": 1, "V": 2 * block, "P": 2, "K": 20, "BLOCK": block})
    arrays["logits"][:], arrays["top_k"][:] = 1, 2
    run(function, arrays)
    assert arrays["indices"][0, :, :2].tolist() == [[0, 1], [block, block + 1]]


def test_the_first_and_the_last_row_of_a_table() -> None:
    function = shipped.load("embedding", {"E": "f16"})
    arrays = make_arrays(function, {"T": 3, "V": 5, **{k: v for k, v in function.constants.items() if isinstance(v, int)}})
    arrays["ids"][:] = [4, 0, 4]
    run(function, arrays)
    assert (arrays["out"] == arrays["table"][[4, 0, 4]]).all()
