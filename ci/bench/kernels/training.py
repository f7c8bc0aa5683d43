"""A small Qwen3 trained for 200 steps in PyTorch, with the functions of `tilec.kernels` and with PyTorch's own.

    TILEC_PREBUILT=FOLDER/artifacts/build python ci/bench/kernels.py training        needs a GPU and torch

The model (8 layers of 1024, 16 heads of 64 over 8 key heads, a vocabulary of 16,384) has f32 parameters and bf16 activations;
products are PyTorch's. Norms, rotary positions, attention, SwiGLU, cross entropy and AdamW, forward and backward, are the
library's in one run and PyTorch's in the others, from the same parameters on the same tokens. Tokens are a random text that a
model can learn: half of them follow from the two before. What rounding alone does to a curve is seen beside: PyTorch's with
norms, positions, activations and losses in f32 and attention by another of its operators. Steps are timed in eager mode and
under `torch.compile`. Status 1 if the curve of the library is farther from PyTorch's than four times what rounding does.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ci.bench import markdown
from ci.bench.front import Outcome

torch: Any = importlib.import_module("torch")
from tilec import kernels  # noqa: E402  after torch, so that its ops are PyTorch's

functional: Any = torch.nn.functional

LAYERS, HIDDEN, HEADS, KEY_HEADS, SIZE, INNER, VOCABULARY = 8, 1024, 16, 8, 64, 3072, 16384
BATCH, TOKENS = 4, 2048
RATE: Final = 3e-4
TIMED: Final = 50
"""Steps whose median time is reported: the last ones."""
FARTHER: Final = 4.0


@dataclass(frozen=True)
class Words:
    """What a model is made of besides products: functions of the same parameters, of the library or of PyTorch."""

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
    heads = (one.transpose(1, 2) for one in (q, k, v))
    return functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True).transpose(1, 2)


def _other_attention(q: Any, k: Any, v: Any) -> Any:
    """PyTorch's operator of plain products, in f32."""
    from torch.nn.attention import SDPBackend, sdpa_kernel  # pyright: ignore

    groups = q.shape[2] // k.shape[2]
    with sdpa_kernel(SDPBackend.MATH):
        wide = (q.float(), k.float().repeat_interleave(groups, 2), v.float().repeat_interleave(groups, 2))
        heads = (one.transpose(1, 2) for one in wide)
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
        q, k, v = (functional.linear(normed, one(name)).unflatten(-1, (-1, SIZE)) for name in "qkv")
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
    """Losses by step, and the median milliseconds of the last steps."""
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
    times = sorted(one.elapsed_time(other) for one, other in zip(marks[-TIMED - 1 : -1], marks[-TIMED:], strict=True))
    return [float(loss) for loss in losses], times[len(times) // 2]


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")


def measure(options: argparse.Namespace) -> Outcome:
    """Train, compare and time."""
    batches = texts(options.steps)
    curves: dict[str, list[float]] = {}
    times: dict[str, float] = {}
    for name, use in words().items():
        started = time.monotonic()
        curves[name], times[name] = train(name, use, batches, compiled=False)
        print(f"{name}: {curves[name][0]:.3f} to {curves[name][-1]:.3f}, {times[name]:.2f} ms a step, "
              f"{time.monotonic() - started:.0f} s", flush=True)  # fmt: skip
        if not options.no_compile and name != "PyTorch, other roundings":
            label = f"{name}, compiled"
            curves[label], times[label] = train(name, use, batches, compiled=True)
            print(f"{label}: {curves[label][-1]:.3f}, {times[label]:.2f} ms a step", flush=True)

    def apart(name: str) -> tuple[float, float]:
        """Mean and largest difference of a curve from PyTorch's."""
        found = [abs(one - other) for one, other in zip(curves[name], curves["PyTorch"], strict=True)]
        return sum(found) / len(found), max(found)

    noise = apart("PyTorch, other roundings")
    rows = [(name, f"{curve[0]:.4f}", f"{curve[-1]:.4f}", *(f"{one:.4f}" for one in apart(name)), f"{times[name]:.2f}")
            for name, curve in curves.items()]  # fmt: skip
    status = int(any(apart(name)[0] > FARTHER * noise[0] for name in curves if name.startswith("library")))
    data: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "steps": options.steps, "curves": curves,
        "milliseconds": times, "apart": {name: apart(name) for name in curves},
    }  # fmt: skip
    header = ("run", "first loss", "last loss", "mean difference", "largest", "ms a step")
    where = f"{data['gpu']}, PyTorch {data['torch']}, by `ci/bench/kernels.py training`: "
    text = (
        f"{LAYERS} layers of {HIDDEN}, {BATCH} texts of {TOKENS} tokens a step, {options.steps} steps from the same "
        "parameters. Differences are from the losses of PyTorch in eager mode; *other roundings* says what rounding alone does."
    )
    lines = ["# Training with the library", "", where + text, "", *markdown.grid(header, rows)]
    return Outcome(data, {f"{options.name}.md": markdown.page(lines)}, status)
