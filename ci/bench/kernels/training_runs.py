"""The runs of `training`: a small Qwen3 in PyTorch, whose parts are functions of `tilec.kernels` or PyTorch's own."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Final

torch: Any = importlib.import_module("torch")
from ci.bench.kernels.library_problem import DEVICE  # noqa: E402
from tilec import kernels  # noqa: E402  after torch, so that its ops are PyTorch's

functional: Any = torch.nn.functional

RATE: Final = 3e-4
FARTHER: Final = 4.0
"""Mean difference of two curves that is allowed, in units of what other roundings make."""
LIBRARY, PYTORCH, ROUNDED = "library", "PyTorch", "PyTorch, other roundings"
"""The ways of `words`."""
TIMED: Final = 50
"""Steps whose median time is reported: the last ones."""


@dataclass(frozen=True)
class Size:
    """Extents of a model and of a step's tokens."""

    layers: int = 8
    hidden: int = 1024
    heads: int = 16
    key_heads: int = 8
    head: int = 64
    inner: int = 3072
    vocabulary: int = 16384
    batch: int = 4
    tokens: int = 2048


@dataclass(frozen=True)
class Words:
    """What a model and its steps are made of in addition to products: functions of the same parameters and an optimizer, of the
    library or of PyTorch."""

    rms_norm: Callable[..., Any]
    rope: Callable[..., Any]
    attention: Callable[..., Any]
    swiglu: Callable[..., Any]
    cross_entropy: Callable[..., Any]
    optimizer: Callable[..., Any]


def _rope(x: Any, cos: Any, sin: Any) -> Any:
    low, high = x.float().chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)


def _attention(q: Any, k: Any, v: Any) -> Any:
    heads = [one.transpose(1, 2) for one in (q, k, v)]
    return functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True).transpose(1, 2)


def _other_attention(q: Any, k: Any, v: Any) -> Any:
    """PyTorch's operator of plain products, in f32."""
    choice: Any = importlib.import_module("torch.nn.attention")
    groups = q.shape[2] // k.shape[2]
    with choice.sdpa_kernel(choice.SDPBackend.MATH):
        wide = (q.float(), k.float().repeat_interleave(groups, 2), v.float().repeat_interleave(groups, 2))
        heads = [one.transpose(1, 2) for one in wide]
        return functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).to(q.dtype)


def _norm(x: Any, weight: Any) -> Any:
    return functional.rms_norm(x, x.shape[-1:], weight, 1e-6)


def _wide_norm(x: Any, weight: Any) -> Any:
    return functional.rms_norm(x.float(), x.shape[-1:], weight.float(), 1e-6).to(x.dtype)


def _swiglu(gate: Any, up: Any) -> Any:
    return functional.silu(gate) * up


def _wide_swiglu(gate: Any, up: Any) -> Any:
    return (functional.silu(gate.float()) * up.float()).to(gate.dtype)


def _cross_entropy(logits: Any, labels: Any) -> Any:
    return functional.cross_entropy(logits.float(), labels)


MODES: Final = {"": None, ", compiled": "default", ", compiled to CUDA graphs": "reduce-overhead"}
"""Modes of `torch.compile` by what a run is called; None is eager mode."""


def words() -> dict[str, Words]:
    """The three ways."""
    fused = partial(torch.optim.AdamW, fused=True)
    ours = Words(
        kernels.rms_norm,
        kernels.rope,
        partial(kernels.attention, causal=True),
        kernels.swiglu,
        kernels.cross_entropy,
        kernels.AdamW,
    )
    return {
        LIBRARY: ours,
        PYTORCH: Words(_norm, _rope, _attention, _swiglu, _cross_entropy, fused),
        ROUNDED: Words(_wide_norm, _rope, _other_attention, _wide_swiglu, _cross_entropy, fused),
    }


def parameters(size: Size, seed: int) -> dict[str, Any]:
    """Random parameters by name, f32."""
    generator = torch.Generator(device=DEVICE).manual_seed(seed)

    def drawn(*shape: int) -> Any:
        return torch.randn(*shape, device=DEVICE, generator=generator) * 0.02

    def ones(extent: int) -> Any:
        return torch.ones(extent, device=DEVICE)

    hidden, queries, keys = size.hidden, size.heads * size.head, size.key_heads * size.head
    found = {name: drawn(size.vocabulary, hidden) for name in ("embedding", "head")} | {"norm": ones(hidden)}
    for layer in range(size.layers):
        found |= {
            f"{layer}.norm": ones(hidden), f"{layer}.inner_norm": ones(hidden),
            f"{layer}.q_norm": ones(size.head), f"{layer}.k_norm": ones(size.head),
            f"{layer}.q": drawn(queries, hidden), f"{layer}.k": drawn(keys, hidden),
            f"{layer}.v": drawn(keys, hidden), f"{layer}.o": drawn(hidden, queries),
            f"{layer}.gate": drawn(size.inner, hidden), f"{layer}.up": drawn(size.inner, hidden),
            f"{layer}.down": drawn(hidden, size.inner),
        }  # fmt: skip
    return {name: value.requires_grad_() for name, value in found.items()}


def loss_of(use: Words, size: Size, given: dict[str, Any], tokens: Any, cos: Any, sin: Any) -> Any:
    """Cross entropy of the next token: tokens `[B, T + 1]`."""
    half = {name: value.bfloat16() for name, value in given.items()}
    x = functional.embedding(tokens[:, :-1], half["embedding"])
    for layer in range(size.layers):
        one = partial(_named, half, layer)
        normed = use.rms_norm(x, one("norm"))
        q, k, v = [functional.linear(normed, one(name)).unflatten(-1, (-1, size.head)) for name in "qkv"]
        q, k = use.rope(use.rms_norm(q, one("q_norm")), cos, sin), use.rope(use.rms_norm(k, one("k_norm")), cos, sin)
        x = x + functional.linear(use.attention(q, k, v).flatten(-2), one("o"))
        normed = use.rms_norm(x, one("inner_norm"))
        gated = use.swiglu(functional.linear(normed, one("gate")), functional.linear(normed, one("up")))
        x = x + functional.linear(gated, one("down"))
    logits = functional.linear(use.rms_norm(x, half["norm"]), half["head"])
    return use.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def _named(values: dict[str, Any], layer: int, name: str) -> Any:
    return values[f"{layer}.{name}"]


def texts(size: Size, steps: int) -> list[Any]:
    """Tokens `[B, T + 1]` of each step. Each token is, with even odds, a fixed function of the two before, else random among a
    few frequent ones."""
    generator = torch.Generator(device=DEVICE).manual_seed(11)
    table = torch.randint(0, size.vocabulary, (4096,), device=DEVICE, generator=generator)
    shape = (steps, size.batch, size.tokens + 1)
    chosen = torch.randint(0, 64, shape, device=DEVICE, generator=generator)
    follows = torch.rand(shape, device=DEVICE, generator=generator) < 0.5
    for position in range(2, size.tokens + 1):
        after = table[(chosen[..., position - 1] * 31 + chosen[..., position - 2]) % 4096]
        chosen[..., position] = torch.where(follows[..., position], after, chosen[..., position])
    return list(chosen)


class Stopwatch:
    """Marks in the stream of the GPU."""

    def __init__(self) -> None:
        self._marks: list[Any] = []

    def mark(self) -> None:
        """The end of a step."""
        if DEVICE == "cuda":
            self._marks.append(torch.cuda.Event(enable_timing=True))
            self._marks[-1].record()

    def median(self) -> float:
        """Median milliseconds of the last steps, of two at least; 0 without a GPU."""
        if DEVICE != "cuda":
            return 0.0
        torch.cuda.synchronize()
        times = sorted([one.elapsed_time(other) for one, other in pairwise(self._marks)][-TIMED:])
        return times[len(times) // 2]


def train(use: Words, size: Size, batches: list[Any], mode: str | None) -> tuple[list[float], float]:
    """Losses by step, and milliseconds of a step. mode: of `torch.compile`, None for eager mode."""
    given = parameters(size, 3)
    optimizer = use.optimizer(given.values(), lr=RATE)
    rates = 1e6 ** -(torch.arange(size.head // 2, device=DEVICE) * 2 / size.head)
    angles = torch.arange(size.tokens, device=DEVICE)[:, None] * rates
    cos, sin = angles.cos(), angles.sin()
    model: Any = loss_of if mode is None else torch.compile(loss_of, dynamic=False, mode=mode)
    losses, watch = list[Any](), Stopwatch()
    for tokens in batches:
        torch.compiler.cudagraph_mark_step_begin()  # a graph's results of the last step are not needed any more
        loss = model(use, size, given, tokens, cos, sin)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().clone())
        watch.mark()
    return [float(loss) for loss in losses], watch.median()


def apart(curve: list[float], other: list[float]) -> tuple[float, float]:
    """Mean and largest difference of two curves."""
    found = [abs(one - two) for one, two in zip(curve, other, strict=True)]
    return sum(found) / len(found), max(found)
