"""The claims of `engine.ranks.signatures`, kernel by kernel: run on slices, it makes slices of what it makes of the whole, and
parts that add up to it. Random inputs, on the tile interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.backends.host_buffers import NUMPY_TYPES
from engine.backends.interpreter import KERNELS, InterpreterBackend
from engine.models.steps import model_step
from engine.ranks.signatures import SIGNATURES, Signature, signature
from engine.ranks.step import rank_step
from tilec.interpreter import run
from tilec.step.graph import Op, StepGraph

HEADS, KEY_HEADS, SIZE = 16, 8, 32
SHAPE: Final[dict[str, int]] = {
    "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS,
    "head_dim": SIZE, "num_hidden_layers": 3, "vocab_size": 64,
}  # fmt: skip
EXPERTS, CHOSEN = 4, 2
OF_EXPERTS: Final = {
    **SHAPE, "num_key_value_heads": 4, "head_dim": 2 * SIZE, "moe_intermediate_size": 256, "num_experts": EXPERTS,
    "num_experts_per_tok": CHOSEN, "norm_topk_prob": True,
}  # fmt: skip
WIDE: Final = {**OF_EXPERTS, "num_attention_heads": 64}
"""More than eight query heads of a key head, which kernels of their own take."""
STEPS = [("qwen3", "16bit", "16bit"), ("qwen3", "fp8", "fp8"), ("qwen3", "int4", "16bit"), ("qwen3", "w8a8", "16bit"),
         ("llama", "16bit", "16bit"), ("llama", "16bit", "fp8"), ("qwen3_moe", "16bit", "16bit"), ("qwen3_moe", "fp8", "16bit"),
         ("qwen3_moe", "int4", "16bit"), ("qwen3_moe", "w8a8", "16bit"), ("wide", "16bit", "16bit")]  # fmt: skip
TOLERANCE = 0.03
"""Largest difference over the deviation of the whole; bf16 parts of sums are rounded one by one."""

Case = tuple[Op, Op, StepGraph]


def launches() -> Iterator[Case]:
    """Every launch of steps of two ranks: the rank's, that of the whole, and the graph of the whole."""
    for family, weights, caches in STEPS:
        sizes = {"qwen3_moe": OF_EXPERTS, "wide": WIDE}.get(family, SHAPE)
        named = "qwen3_moe" if family == "wide" else family
        shape: Any = SimpleNamespace(**sizes, rms_norm_eps=1e-6, tie_word_embeddings=False, model_type=named)
        step = rank_step(shape, 128, "bf16", 2, weight_format=weights, cache_format=caches).with_pages(4)
        modes = (("decode", 1), ("batch", 2), ("prefill", 5), ("prefill", 17), ("serve", 16), ("chunk", 17))
        for mode, tokens in modes:
            for variants in step.all_decode_variants() if mode in ("decode", "batch") else (frozenset[str](),):
                own, whole = (
                    one.graph(mode, tokens=tokens, variants=variants)  # pyright: ignore[reportArgumentType]
                    for one in (step, step.whole)
                )
                yield from ((mine, its, whole) for mine, its in zip(own.ops, whole.ops, strict=True))


CASES: Final[dict[str, Case]] = {}
for case in launches():
    sliced = any(case[0].tensors[name].shape != view.shape for name, view in case[1].tensors.items())
    if case[0].kernel in SIGNATURES and (sliced or case[0].kernel not in CASES):
        CASES[case[0].kernel] = case

BACKEND = InterpreterBackend(KERNELS)


def random_array(name: str, shape: tuple[int, ...], dtype: str, seed: int) -> NDArray[Any]:
    """Values that a kernel may get for a parameter: indices are of one cache, scales small and positive."""
    random = np.random.default_rng([seed, len(name), ord(name[0])])
    if dtype == "i32":
        counted = np.arange(np.prod(shape)).reshape(shape)  # also of `starts`: each row has one chunk of a cache
        indices = {"lengths": np.full(shape, 20), "positions": np.full(shape, 19), "slots": counted, "starts": counted}
        if name in ("experts", "tiles"):
            return random.integers(0, EXPERTS, shape, np.int32)
        return indices.get(name, counted if name == "places" else np.zeros(shape)).astype(np.int32)
    if dtype == "u8":
        return random.integers(0, 16, shape).astype(np.uint8)
    if dtype == "u32":
        return random.integers(0, 1 << 32, shape, np.uint32)
    values = random.uniform(0.5, 1, shape) if name.endswith(("scales", "squares", "sums")) else random.standard_normal(shape)
    return values.astype(np.float32).astype(NUMPY_TYPES[dtype])


def halves(array: NDArray[Any], axis: int, parts: list[int]) -> list[NDArray[Any]]:
    """Both ranks' slices along an axis; `parts` are the extents of what lies one after the other there."""
    pieces = np.split(array, np.cumsum(parts)[:-1], axis=axis)
    return [np.concatenate([np.split(piece, 2, axis=axis)[rank] for piece in pieces], axis=axis) for rank in range(2)]


def parts_of(name: str, op: Op, axis: int) -> list[int]:
    """What lies one after the other along an axis of a tensor: heads of queries, keys and values, or rows of gate and up."""
    shape = op.tensors[name].shape
    if name == "qkv":
        key_heads = op.tensors["k_cache"].shape[-2]
        return [shape[axis] - 2 * key_heads, key_heads, key_heads]
    rows_of_two = "silu_mul" in op.kernel and name[0] in "wb" and len(shape) == (3 if "experts" in op.kernel else 2)
    return [shape[axis] // 2] * 2 if rows_of_two else [shape[axis]]


def finite(array: NDArray[Any]) -> NDArray[np.float32]:
    """The values in f32; those of parts without a slot, minus infinity, as a number that nothing else is near."""
    return np.maximum(array.astype(np.float32), np.float32(-1e3))


def check(mine: Op, its: Op, graph: StepGraph, known: Signature) -> None:
    """AssertionError unless a kernel does with slices what a signature says."""
    whole = {name: random_array(name, view.shape, graph.buffers[view.buffer].dtype, 1) for name, view in its.tensors.items()}
    sliced: dict[str, int] = {}
    ranks: list[dict[str, NDArray[Any]]] = [{}, {}]
    for name, view in its.tensors.items():
        axes = [axis for axis, size in enumerate(mine.tensors[name].shape) if size != view.shape[axis]]
        assert len(axes) <= 1
        slices = halves(whole[name], axes[0], parts_of(name, its, axes[0])) if axes else [whole[name].copy() for _ in range(2)]
        sliced |= dict.fromkeys([name][: len(axes)], axes[0] if axes else 0)
        for rank, array in zip(ranks, slices, strict=True):
            rank[name] = np.ascontiguousarray(array)
            assert array.shape == mine.tensors[name].shape
    run(BACKEND._function(its), whole, its.scalars)
    for arrays in ranks:
        run(BACKEND._function(mine), arrays, mine.scalars)
    summed = any(known.axes[name][axis].startswith("+") for name, axis in sliced.items())
    for name in known.written & its.tensors.keys():
        expected = finite(whole[name])
        if summed:
            found = finite(ranks[0][name]) + finite(ranks[1][name])
            if known.axes[name][0] == "*":  # any division of the sum into parts is as good
                found, expected = found.sum(axis=0), expected.sum(axis=0)
            assert found.shape == expected.shape
            assert np.abs(found - expected).max() <= TOLERANCE * expected.std(), name
            continue
        assert name in sliced or not sliced, f"`{name}` is whole, and slices were read"
        wanted = halves(expected, sliced[name], parts_of(name, its, sliced[name])) if name in sliced else [expected] * 2
        for arrays, part in zip(ranks, wanted, strict=True):
            assert np.abs(finite(arrays[name]) - part).max() <= TOLERANCE * expected.std(), name


@pytest.mark.parametrize("kernel", SIGNATURES)
def test_a_kernel_does_with_slices_what_its_signature_says(kernel: str) -> None:
    known = signature(kernel)
    assert known is not None
    mine, its, graph = CASES[kernel]
    assert known.axes.keys() == mine.tensors.keys(), "the signature has the kernel's parameters"
    check(mine, its, graph, known)


def check_parts(op: Op, graph: StepGraph, known: Signature) -> None:
    """AssertionError unless what a kernel makes of two parts of a sum adds up to what it makes of the sum."""
    (added,) = known.added
    whole = {name: random_array(name, view.shape, graph.buffers[view.buffer].dtype, 1) for name, view in op.tensors.items()}
    other = random_array(added, op.tensors[added].shape, graph.buffers[op.tensors[added].buffer].dtype, 2)
    ranks = [{**{name: array.copy() for name, array in whole.items()}, added: part} for part in (other, whole[added] - other)]
    for arrays in (whole, *ranks):
        run(BACKEND._function(op), arrays, op.scalars)
    for name in known.written:
        expected = finite(whole[name])
        assert expected.std() > 0
        assert np.abs(finite(ranks[0][name]) + finite(ranks[1][name]) - expected).max() <= 2 * TOLERANCE * expected.std(), name


PART_OF_PART = [kernel for kernel in SIGNATURES if (found := signature(kernel)) is not None and found.added]


@pytest.mark.parametrize("kernel", PART_OF_PART)
def test_a_kernel_makes_a_part_of_a_part(kernel: str) -> None:
    known = signature(kernel)
    assert known is not None
    _, its, graph = CASES[kernel]
    check_parts(its, graph, known)


def test_a_kernel_that_adds_something_else_makes_no_part_of_a_part() -> None:
    """Where the residual is added too, two ranks would add it twice."""
    shape: Any = SimpleNamespace(**OF_EXPERTS, rms_norm_eps=1e-6, tie_word_embeddings=False, model_type="qwen3_moe")
    graph = model_step(shape, 128, "bf16").graph("prefill", tokens=17)
    op = next(op for op in graph.ops if op.kernel == "experts_combine")
    axes = {name: (".",) * len(view.shape) for name, view in op.tensors.items()}
    with pytest.raises(AssertionError):
        check_parts(op, graph, Signature(axes, frozenset({"residual", "out"}), frozenset({"y"})))


@pytest.mark.parametrize(
    ("kernel", "wrong"),
    [
        ("matmul_few", "a[t,k] b[n,k] -> out[t,n]"),
        ("matmul_split", "a[t,k] b[n,k] -> parts[*,t,n]"),
        ("experts_down", "x[t,.,k] experts[t,.] weights[t,.] w[.,n,k] -> out[t,n]"),
        ("experts_silu_mul", "x[t,.] squares[t,.] experts[t,.] w[.,+i,.] -> out[t,.,i]"),
        ("experts_matmul_few_int4", "a[.,k] tiles[.] b[.,n,k] b_scales[.,k,n] b_zeros[.,k,n] -> out[.,n]"),
        ("dequantise_fp8", "w[+n,k] w_scales[+n,k] -> out[n,k]"),
        ("flash_attention", "q[t,+h,.,.] k_cache[.,+h,.] v_cache[.,+h,.] -> out[t,h,.,.]"),
    ],
)
def test_a_wrong_claim_is_seen(kernel: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SIGNATURES, kernel, wrong)  # pyright: ignore[reportArgumentType]
    signature.cache_clear()
    try:
        known = signature(kernel)
        assert known is not None
        with pytest.raises((AssertionError, ValueError)):
            check(*CASES[kernel], known)
    finally:
        monkeypatch.undo()
        signature.cache_clear()
