"""The runs of `training`: a small Qwen3 in PyTorch, whose parts are functions of `tilec.kernels` or PyTorch's own."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Final

torch: Any = importlib.import_module("torch")
from tilec import kernels  # noqa: E402  after torch, so that its ops are PyTorch's

functional: Any = torch.nn.functional

LAYERS, HIDDEN, HEADS, KEY_HEADS, SIZE, INNER, VOCABULARY = 8, 1024, 16, 8, 64, 3072, 16384
BATCH, TOKENS = 4, 2048
RATE: Final = 3e-4
TIMED: Final = 50
"""Steps whose median time is reported: the last ones."""


@dataclass(frozen=True)
class Words:
    """What a model is made of in addition to products: functions of the same parameters, of the library or of PyTorch."""

    rms_norm: Callable[..., Any]
    rope: Callable[..., Any]
    attention: Callable[..., Any]
    swiglu: Callable[..., Any]
    cross_entropy: Callable[..., Any]


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


def words() -> dict[str, Words]:
    """The three ways."""
    ours = Words(kernels.rms_norm, kernels.rope, partial(kernels.attention, causal=True), kernels.swiglu, kernels.cross_entropy)
    return {
        "library": ours,
        "PyTorch": Words(_norm, _rope, _attention, _swiglu, _cross_entropy),
        "PyTorch, other roundings": Words(_wide_norm, _rope, _other_attention, _wide_swiglu, _cross_entropy),
    }


def parameters(seed: int) -> dict[str, Any]:
    """Random parameters by name, f32."""
    generator = torch.Generator(device="cuda").manual_seed(seed)

    def drawn(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", generator=generator) * 0.02

    found = {name: drawn(VOCABULARY, HIDDEN) for name in ("embedding", "head")} | {"norm": torch.ones(HIDDEN, device="cuda")}
    for layer in range(LAYERS):
        found |= {
            f"{layer}.norm": torch.ones(HIDDEN, device="cuda"), f"{layer}.inner_norm": torch.ones(HIDDEN, device="cuda"),
            f"{layer}.q_norm": torch.ones(SIZE, device="cuda"), f"{layer}.k_norm": torch.ones(SIZE, device="cuda"),
            f"{layer}.q": drawn(HEADS * SIZE, HIDDEN), f"{layer}.k": drawn(KEY_HEADS * SIZE, HIDDEN),
            f"{layer}.v": drawn(KEY_HEADS * SIZE, HIDDEN), f"{layer}.o": drawn(HIDDEN, HEADS * SIZE),
            f"{layer}.gate": drawn(INNER, HIDDEN), f"{layer}.up": drawn(INNER, HIDDEN), f"{layer}.down": drawn(HIDDEN, INNER),
        }  # fmt: skip
    return {name: value.requires_grad_() for name, value in found.items()}


def loss_of(use: Words, given: dict[str, Any], tokens: Any, cos: Any, sin: Any) -> Any:
    """Cross entropy of the next token: tokens `[B, T + 1]`."""
    half = {name: value.bfloat16() for name, value in given.items()}
    x = functional.embedding(tokens[:, :-1], half["embedding"])
    for layer in range(LAYERS):
        one = partial(_named, half, layer)
        normed = use.rms_norm(x, one("norm"))
        q, k, v = [functional.linear(normed, one(name)).unflatten(-1, (-1, SIZE)) for name in "qkv"]
        q, k = use.rope(use.rms_norm(q, one("q_norm")), cos, sin), use.rope(use.rms_norm(k, one("k_norm")), cos, sin)
        x = x + functional.linear(use.attention(q, k, v).flatten(-2), one("o"))
        normed = use.rms_norm(x, one("inner_norm"))
        gated = use.swiglu(functional.linear(normed, one("gate")), functional.linear(normed, one("up")))
        x = x + functional.linear(gated, one("down"))
    logits = functional.linear(use.rms_norm(x, half["norm"]), half["head"])
    return use.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def _named(values: dict[str, Any], layer: int, name: str) -> Any:
    return values[f"{layer}.{name}"]


def texts(steps: int) -> list[Any]:
    """Tokens `[B, T + 1]` of each step. Each token is, with even odds, a fixed function of the two before, else random among a
    few frequent ones."""
    generator = torch.Generator(device="cuda").manual_seed(11)
    table = torch.randint(0, VOCABULARY, (4096,), device="cuda", generator=generator)
    shape = (steps, BATCH, TOKENS + 1)
    chosen = torch.randint(0, 64, shape, device="cuda", generator=generator)
    follows = torch.rand(shape, device="cuda", generator=generator) < 0.5
    for place in range(2, TOKENS + 1):
        after = table[(chosen[..., place - 1] * 31 + chosen[..., place - 2]) % 4096]
        chosen[..., place] = torch.where(follows[..., place], after, chosen[..., place])
    return list(chosen)


def train(name: str, use: Words, batches: list[Any], *, compiled: bool) -> tuple[list[float], float]:
    """Losses by step, and the median milliseconds of the last steps, of two at least."""
    given = parameters(3)
    state = {key: (torch.zeros_like(value), torch.zeros_like(value)) for key, value in given.items()}
    optimizer = None if name == "library" else torch.optim.AdamW(given.values(), lr=RATE, fused=True)
    angles = torch.arange(TOKENS, device="cuda")[:, None] * 1e6 ** -(torch.arange(SIZE // 2, device="cuda") * 2 / SIZE)
    cos, sin = angles.cos(), angles.sin()
    model: Any = torch.compile(loss_of, dynamic=False) if compiled else loss_of
    losses, marks = list[Any](), list[Any]()
    for step, tokens in enumerate(batches, 1):
        loss = model(use, given, tokens, cos, sin)
        loss.backward()
        if optimizer is None:
            for key, value in given.items():
                kernels.adamw_(value, value.grad, *state[key], step, lr=RATE)
                value.grad = None
        else:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
        marks.append(torch.cuda.Event(enable_timing=True))
        marks[-1].record()
    torch.cuda.synchronize()
    times = sorted([one.elapsed_time(other) for one, other in pairwise(marks)][-TIMED:])
    return [float(loss) for loss in losses], times[len(times) // 2]
