"""Problems for attention with a score function: biases of distances (ALiBi) and a soft cap."""

from __future__ import annotations

import importlib
from functools import cache, partial
from typing import Any, Final

from ci.bench.kernels.library_problem import DEVICE, Problem, Sizes, normal, torch
from tilec import kernels

SIZES: Final = {"B": 4, "T": 4096, "HQ": 32, "HKV": 8, "D": 128}
CHECKED: Final = (
    {"B": 2, "T": 77, "HQ": 6, "HKV": 2, "D": 64}, {"B": 1, "T": 140, "HQ": 4, "HKV": 4, "D": 128},
    {"B": 1, "T": 4096, "HQ": 4, "HKV": 1, "D": 128},
)  # fmt: skip
CAP: Final = 3.0


def _heads(generator: Any, sizes: Sizes) -> dict[str, Any]:
    shapes = {"q": sizes["HQ"], "k": sizes["HKV"], "v": sizes["HKV"]}
    return {name: normal(generator, sizes["B"], sizes["T"], heads, sizes["D"]) for name, heads in shapes.items()}


def _biased(generator: Any, sizes: Sizes) -> dict[str, Any]:
    """Slopes from 1/2 down, as in Press et al."""
    heads = torch.arange(1, sizes["HQ"] + 1, device=DEVICE)
    return _heads(generator, sizes) | {"alibi_slopes": torch.exp2(-8.0 * heads / sizes["HQ"]).float()}


@cache
def _flex() -> Any:
    """`flex_attention`, compiled: it is of use in no other way."""
    found = importlib.import_module("torch.nn.attention.flex_attention")
    return torch.compile(found.flex_attention, dynamic=False), found.create_block_mask


@cache
def _causal(length: int) -> Any:
    def seen(_b: Any, _h: Any, query: Any, key: Any) -> Any:
        return query >= key

    return _flex()[1](seen, None, None, length, length, device=DEVICE)


def _by_flex(q: Any, k: Any, v: Any, score: Any) -> Any:
    heads = [one.transpose(1, 2) for one in (q, k, v)]
    return _flex()[0](*heads, score_mod=score, block_mask=_causal(q.shape[1]), enable_gqa=True).transpose(1, 2)


def _plainly(q: Any, k: Any, v: Any, scored: Any) -> Any:
    """Scores in f32, or float64 of such tensors; probabilities are rounded to the dtype of `v`."""
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    grouped = q.unflatten(2, (k.shape[2], -1)).to(wide)
    scores = torch.einsum("bthgd,bshd->bhgts", grouped, k.to(wide)) * q.shape[-1] ** -0.5
    at = torch.arange(q.shape[1], device=q.device)
    distance = at[None, :] - at[:, None]
    scores = scored(scores, distance.to(wide)).masked_fill(distance > 0, -torch.inf)
    return torch.einsum("bhgts,bshd->bthgd", torch.softmax(scores, -1).to(v.dtype), v).flatten(2, 3)


def _alibi(q: Any, k: Any, v: Any, alibi_slopes: Any) -> Any:
    if q.is_cuda and q.dtype != torch.float64:

        def score(given: Any, _b: Any, head: Any, query: Any, key: Any) -> Any:
            return given - alibi_slopes[head] * (query - key).abs()

        return _by_flex(q, k, v, score)
    own = alibi_slopes.view(k.shape[2], -1, 1, 1)

    def biased(scores: Any, distance: Any) -> Any:
        return scores - own * distance.abs()

    return _plainly(q, k, v, biased)


def _softcap(q: Any, k: Any, v: Any) -> Any:
    if q.is_cuda and q.dtype != torch.float64:

        def score(given: Any, _b: Any, _h: Any, _query: Any, _key: Any) -> Any:
            return CAP * torch.tanh(given / CAP)

        return _by_flex(q, k, v, score)

    def bent(scores: Any, _: Any) -> Any:
        return CAP * torch.tanh(scores / CAP)

    return _plainly(q, k, v, bent)


def _moved(sizes: Sizes) -> tuple[int, int]:
    query, key = (2 * sizes["B"] * sizes["T"] * sizes[heads] * sizes["D"] for heads in ("HQ", "HKV"))
    return 2 * query + 2 * key, 4 * query + 4 * key


def _products(sizes: Sizes) -> tuple[float, float]:
    """Two products of the forward, five of the backward, of half of the scores."""
    half = 2.0 * sizes["B"] * sizes["HQ"] * sizes["T"] ** 2 * sizes["D"]
    return half, 2.5 * half


def _problem(what: str, make: Any, ours: Any, theirs: Any) -> Problem:
    return Problem(
        "attention", f"{what}, causal 4 x 4096, 32 heads of 128", SIZES, CHECKED, make, ours, theirs, _moved, ("q", "k", "v"),
        _products, like_torch=True, compiles=False,
    )  # fmt: skip


SCORED: Final = (
    _problem("ALiBi", _biased, partial(kernels.attention, causal=True), _alibi),
    _problem("soft cap", _heads, partial(kernels.attention, causal=True, softcap=CAP), _softcap),
)
