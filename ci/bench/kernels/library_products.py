"""Problems for the functions of `tilec.kernels` that multiply matrices, but for dense attention: see `library_problems`."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any, Final

from ci.bench.kernels.library_problems import DEVICE, Problem, Sizes, functional, kernels, normal, torch
from ci.bench.kernels.library_scored import SCORED

_flash: Any = torch.ops.aten._flash_attention_forward
"""FlashAttention of packed sequences; takes fewer heads of keys than of queries."""
PAGE: Final = 16
"""Tokens of a page."""
CACHED: Final = {"B": 64, "M": 256, "HQ": 32, "HKV": 8, "D": 128}
LAYER: Final = {"T": 8192, "V": 151936, "H": 4096}
"""The vocabulary of Qwen3: few enough logits that their exponentials are kept for the gradient; `LARGE_LAYER` has more."""
LARGE_LAYER: Final = {"T": 16384, "V": 128256, "H": 4096}
EXPERTS: Final = {"T": 65536, "X": 128, "N": 768, "K": 2048}
FOUR_BITS: Final = {"M": 4096, "N": 4096, "K": 4096}
VARLEN: Final = {"B": 16, "T": 16384, "HQ": 32, "HKV": 8, "D": 128}


def _sequences(generator: Any, sizes: Sizes, causal: bool) -> dict[str, Any]:
    """Queries, keys and values of B sequences of random lengths."""
    total, size = sizes["T"], sizes["D"]
    cuts = torch.randint(0, total + 1, (sizes["B"] - 1,), device=DEVICE, generator=generator).sort().values
    ends = torch.tensor([0, total], device=DEVICE)
    offsets = torch.cat((ends[:1], cuts, ends[1:])).to(torch.int32)
    drawn = {name: normal(generator, total, sizes[heads], size) for name, heads in (("q", "HQ"), ("k", "HKV"), ("v", "HKV"))}
    return drawn | {"cu_seqlens_q": offsets, "cu_seqlens_k": offsets, "causal": causal}


def _attention_varlen(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, causal: bool) -> Any:
    """FlashAttention of PyTorch on a GPU; in float64 and on a CPU its operator, sequence by sequence."""
    if q.is_cuda and q.dtype != torch.float64:
        length = q.shape[0]  # no sequence is longer; the operator takes the longest, which is on the GPU
        return _flash(q, k, v, cu_seqlens_q, cu_seqlens_k, length, length, 0.0, causal, False)[0]
    offsets = cu_seqlens_q.tolist()
    found = [q.new_zeros((0, *q.shape[1:]))]
    for begin, end in itertools.pairwise(offsets):
        heads = [one[begin:end].transpose(0, 1) for one in (q, k, v)]
        found.append(functional.scaled_dot_product_attention(*heads, is_causal=causal, enable_gqa=True).transpose(0, 1))
    return torch.cat(found)


def _varlen(causal: bool) -> Problem:
    checked = ({"B": 4, "T": 77, "HQ": 6, "HKV": 2, "D": 64}, {"B": 3, "T": 150, "HQ": 2, "HKV": 2, "D": 128}, VARLEN)

    def moved(sizes: Sizes) -> tuple[int, int]:
        query, key = (2 * sizes["T"] * sizes[heads] * sizes["D"] for heads in ("HQ", "HKV"))
        return 2 * query + 2 * key, 4 * query + 4 * key

    def products(sizes: Sizes) -> tuple[float, float]:
        """At least those of sequences of one length; random lengths have about twice as many."""
        whole = 4.0 * sizes["HQ"] * sizes["T"] * (sizes["T"] / sizes["B"]) * sizes["D"] * (0.5 if causal else 1.0)
        return whole, 2.5 * whole

    return Problem(
        "attention_varlen", f"{'causal' if causal else 'full'} 16 sequences of 16,384 tokens, 32 heads of 128", VARLEN, checked,
        partial(_sequences, causal=causal), kernels.attention_varlen, _attention_varlen, moved, ("q", "k", "v"), products,
        like_torch=True, compiles=False,
    )  # fmt: skip


def _cached(generator: Any, sizes: Sizes) -> dict[str, Any]:
    """One query per sequence, of up to M pages of 16 tokens each; pages in any order."""
    count, most, size = sizes["B"], sizes["M"], sizes["D"]
    lengths = torch.randint(most * 8, most * PAGE + 1, (count,), device=DEVICE, generator=generator).to(torch.int32)
    table = torch.randperm(count * most, device=DEVICE, generator=generator).view(count, most).to(torch.int32)
    pages = {name: normal(generator, count * most, PAGE, sizes["HKV"], size) for name in ("k_pages", "v_pages")}
    return {"q": normal(generator, count, sizes["HQ"], size), **pages, "table": table, "lengths": lengths}


def _paged_attention(q: Any, k_pages: Any, v_pages: Any, table: Any, lengths: Any) -> Any:
    """FlashAttention of PyTorch on a GPU, on the pages where its operator takes a table, else on copies in their order; in
    float64 and on a CPU its operator, sequence by sequence."""
    if q.is_cuda and q.dtype != torch.float64:
        offsets = torch.arange(len(q) + 1, device=q.device, dtype=torch.int32)
        most = table.shape[1] * k_pages.shape[1]
        if "block_table" in str(_flash.default._schema):  # PyTorch 2.11 lacks it
            return _flash(q, k_pages, v_pages, offsets, None, 1, most, 0.0, False, False,
                          seqused_k=lengths, block_table=table)[0]  # fmt: skip
        keys, values = (cache[table.flatten()].flatten(0, 1) for cache in (k_pages, v_pages))
        return _flash(q, keys, values, offsets, offsets * most, 1, most, 0.0, False, False, seqused_k=lengths)[0]
    found: list[Any] = []
    for query, pages, length in zip(q, table.long(), lengths.tolist(), strict=True):
        heads = [cache[pages].flatten(0, 1)[:length].transpose(0, 1) for cache in (k_pages, v_pages)]
        found.append(functional.scaled_dot_product_attention(query[:, None], *heads, enable_gqa=True)[:, 0])
    return torch.stack(found)


def _paged() -> Problem:
    checked = ({"B": 3, "M": 5, "HQ": 6, "HKV": 2, "D": 64}, {"B": 2, "M": 9, "HQ": 18, "HKV": 2, "D": 128}, CACHED)

    def moved(sizes: Sizes) -> tuple[int, int]:
        """Three quarters of what there is room for, in the mean."""
        return 3 * sizes["B"] * sizes["M"] * PAGE * sizes["HKV"] * sizes["D"], 0

    return Problem(
        "paged_attention", "64 sequences of up to 4096 tokens, 32 heads of 128", CACHED, checked, _cached,
        kernels.paged_attention, _paged_attention, moved, like_torch=True, compiles=False,
    )  # fmt: skip


def _layer(generator: Any, sizes: Sizes) -> dict[str, Any]:
    """Tokens, and classes whose logits have a variance of 1; one label of seven is ignored."""
    labels = torch.randint(0, sizes["V"], (sizes["T"],), device=DEVICE, generator=generator)
    labels[::7] = -100
    weight = normal(generator, sizes["V"], sizes["H"], dtype=torch.float32) * sizes["H"] ** -0.5
    return {"x": normal(generator, sizes["T"], sizes["H"]), "weight": weight.bfloat16(), "labels": labels}


def _linear_cross_entropy(x: Any, weight: Any, labels: Any) -> Any:
    logits = functional.linear(x, weight)
    return functional.cross_entropy(logits if logits.dtype == torch.float64 else logits.float(), labels)


def _losses(size: str, sizes: Sizes) -> Problem:
    checked = ({"T": 37, "V": 201, "H": 72}, {"T": 8, "V": 700, "H": 64}, sizes)

    def moved(sizes: Sizes) -> tuple[int, int]:
        once = 2 * (sizes["T"] + sizes["V"]) * sizes["H"]
        return once, 2 * once

    def products(sizes: Sizes) -> tuple[float, float]:
        """One of the forward, two of the backward."""
        whole = 2.0 * sizes["T"] * sizes["V"] * sizes["H"]
        return whole, 2 * whole

    return Problem(
        "linear_cross_entropy", size, sizes, checked, _layer, kernels.linear_cross_entropy,
        _linear_cross_entropy, moved, ("x", "weight"), products, like_torch=True,
    )  # fmt: skip


def _experts(generator: Any, sizes: Sizes, parts: tuple[int, ...]) -> dict[str, Any]:
    """Rows of X experts, about as many of each."""
    count = sizes["X"]
    chosen = torch.randint(0, count, (sizes["T"],), device=DEVICE, generator=generator)
    ends = torch.bincount(chosen, minlength=count).cumsum(0)
    offsets = torch.cat((ends.new_zeros(1), ends)).to(torch.int32)
    weights = normal(generator, count, *parts, sizes["N"], sizes["K"], dtype=torch.float32) * sizes["K"] ** -0.5
    return {"x": normal(generator, sizes["T"], sizes["K"]), "weights": weights.bfloat16(), "offsets": offsets}


def _grouped_matmul(x: Any, weights: Any, offsets: Any) -> Any:
    """PyTorch's operator on a GPU; in float64 and on a CPU group by group."""
    if x.is_cuda and x.dtype != torch.float64:
        return functional.grouped_mm(x, weights.transpose(1, 2), offs=offsets[1:])
    starts = offsets.tolist()
    return torch.cat([functional.linear(x[i:j], one) for (i, j), one in zip(itertools.pairwise(starts), weights, strict=True)])


def _grouped_swiglu(x: Any, weights: Any, offsets: Any) -> Any:
    gate, up = (_grouped_matmul(x, weights[:, side], offsets) for side in (0, 1))
    return functional.silu(gate) * up


def _grouped(function: str, ours: Any, theirs: Any, parts: tuple[int, ...]) -> Problem:
    checked = ({"T": 37, "X": 3, "N": 40, "K": 72}, {"T": 300, "X": 4, "N": 8, "K": 64}, EXPERTS)
    sides = math.prod(parts)

    def moved(sizes: Sizes) -> tuple[int, int]:
        rows, outputs = (2 * sizes["T"] * sizes[extent] for extent in ("K", "N"))
        matrices = 2 * sides * sizes["X"] * sizes["N"] * sizes["K"]
        return rows + outputs + matrices, 2 * rows + outputs + 2 * matrices

    def products(sizes: Sizes) -> tuple[float, float]:
        whole = 2.0 * sides * sizes["T"] * sizes["N"] * sizes["K"]
        return whole, 2 * whole

    return Problem(
        function, "65,536 rows of 128 experts, 768 x 2048", EXPERTS, checked, partial(_experts, parts=parts), ours, theirs,
        moved, ("x", "weights"), products, like_torch=True, compiles=False,
    )  # fmt: skip


def _four_bits(generator: Any, sizes: Sizes) -> dict[str, Any]:
    """Random weights of four bits: every word is one."""
    rows, inputs, outputs = sizes["M"], sizes["K"], sizes["N"]
    shapes = {"packed": (inputs // 8, outputs), "zeros": (inputs // 128, outputs // 8)}
    words = {
        name: torch.randint(-(2**31), 2**31, shape, device=DEVICE, generator=generator).to(torch.int32)
        for name, shape in shapes.items()
    }
    scales = torch.rand(inputs // 128, outputs, device=DEVICE, generator=generator) * 0.2 * inputs**-0.5
    return {"x": normal(generator, rows, inputs), **words, "scales": scales.bfloat16()}


def _int4_matmul(x: Any, packed: Any, scales: Any, zeros: Any) -> Any:
    """Weights as a tensor, then PyTorch's product."""
    shifts = torch.arange(0, 32, 4, device=x.device, dtype=torch.int32)
    q = ((packed[:, None, :] >> shifts[None, :, None]) & 15).flatten(0, 1)
    z = ((zeros[:, :, None] >> shifts) & 15).flatten(1, 2)
    weights = (q - z.repeat_interleave(128, dim=0)).to(scales.dtype) * scales.repeat_interleave(128, dim=0)
    return x @ weights.to(x.dtype)


def _of_matrices(sizes: Sizes) -> tuple[float, float]:
    """Operations of one product of matrices."""
    return 2.0 * sizes["M"] * sizes["N"] * sizes["K"], 0


def _int4() -> Problem:
    checked = ({"M": 3, "N": 72, "K": 256}, {"M": 40, "N": 24, "K": 128}, FOUR_BITS)

    def moved(sizes: Sizes) -> tuple[int, int]:
        return 2 * sizes["M"] * (sizes["N"] + sizes["K"]) + sizes["N"] * sizes["K"] // 2, 0

    return Problem(
        "int4_matmul", "4096 x 4096 x 4096", FOUR_BITS, checked, _four_bits, kernels.int4_matmul, _int4_matmul, moved,
        products=_of_matrices, like_torch=True,
    )  # fmt: skip


def _eight_bits(generator: Any, sizes: Sizes) -> dict[str, Any]:
    rows, inputs, outputs = sizes["M"], sizes["K"], sizes["N"]
    blocks, dtype = -(-inputs // 128), torch.float8_e4m3fn
    drawn = {"x": (rows, inputs), "weight": (outputs, inputs)}
    scales = {"x_scales": (rows, blocks), "weight_scales": (-(-outputs // 128), blocks)}
    given = {name: normal(generator, *shape, dtype=torch.float32).to(dtype) for name, shape in drawn.items()}
    return given | {name: 0.5 + torch.rand(shape, device=DEVICE, generator=generator) for name, shape in scales.items()}


def _fp8_matmul(x: Any, weight: Any, x_scales: Any, weight_scales: Any) -> Any:
    """Both operands with their scales in bf16, then PyTorch's product; in float64 for float64."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.bfloat16
    of_x = x_scales.repeat_interleave(128, dim=1)[:, : x.shape[1]]
    rows = weight_scales.repeat_interleave(128, dim=0)[: len(weight)]
    of_weight = rows.repeat_interleave(128, dim=1)[:, : x.shape[1]]
    return (x.to(of_x.dtype) * of_x).to(dtype) @ (weight.to(of_weight.dtype) * of_weight).to(dtype).T


def _fp8() -> Problem:
    checked = ({"M": 3, "N": 136, "K": 144}, {"M": 40, "N": 24, "K": 256}, FOUR_BITS)

    def moved(sizes: Sizes) -> tuple[int, int]:
        return sizes["K"] * (sizes["M"] + sizes["N"]) + 2 * sizes["M"] * sizes["N"], 0

    return Problem(
        "fp8_matmul", "4096 x 4096 x 4096", FOUR_BITS, checked, _eight_bits, kernels.fp8_matmul, _fp8_matmul, moved,
        products=_of_matrices, like_torch=True,
    )  # fmt: skip


PRODUCTS: Final = (
    _int4(),
    _fp8(),
    _grouped("grouped_matmul", kernels.grouped_matmul, _grouped_matmul, ()),
    _grouped("grouped_swiglu", kernels.grouped_swiglu, _grouped_swiglu, (2,)),
    _losses("8192 x 4096 x 151,936", LAYER),
    _losses("16384 x 4096 x 128,256", LARGE_LAYER),
    _paged(),
    _varlen(causal=False),
    _varlen(causal=True),
    *SCORED,
)
