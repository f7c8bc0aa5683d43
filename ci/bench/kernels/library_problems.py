"""Problems of the functions of `tilec.kernels`, for checking and timing them."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Final

from ci.bench.kernels.library_moves import MOVES
from ci.bench.kernels.library_problem import (  # torch first, so that ops are PyTorch's
    DEVICE,
    Problem,
    Sizes,
    functional,
    normal,
    torch,
)
from tilec import kernels


def _rows(generator: Any, sizes: Sizes) -> dict[str, Any]:
    return {"x": normal(generator, sizes["T"], sizes["N"])}


def _normed(generator: Any, sizes: Sizes, names: tuple[str, ...]) -> dict[str, Any]:
    return _rows(generator, sizes) | {name: 1 + 0.1 * normal(generator, sizes["N"]) for name in names}


def _softmax(x: Any) -> Any:
    return torch.softmax(x, dim=-1)


def _gelu(x: Any) -> Any:
    return functional.gelu(x)


def _dropout(x: Any) -> Any:
    return functional.dropout(x, 0.1)


def _layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    return functional.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)


def _rms_norm(x: Any, weight: Any) -> Any:
    return functional.rms_norm(x, x.shape[-1:], weight, 1e-6)


def _group_norm(x: Any, groups: int, weight: Any, bias: Any, eps: float) -> Any:
    return functional.group_norm(x, groups, weight, bias, eps)


def _grouped(generator: Any, sizes: Sizes) -> dict[str, Any]:
    batch, channels, length = (sizes[name] for name in "BCL")
    weights = {name: 1 + 0.1 * normal(generator, channels) for name in ("weight", "bias")}
    return {"x": normal(generator, batch, channels, length), "groups": 32, **weights, "eps": 1e-5}


def _labelled(generator: Any, sizes: Sizes) -> dict[str, Any]:
    labels = torch.randint(0, sizes["V"], (sizes["T"],), device=DEVICE, generator=generator)
    labels[::7] = -100
    return {"logits": normal(generator, sizes["T"], sizes["V"]), "labels": labels}


def _cross_entropy(logits: Any, labels: Any) -> Any:
    return functional.cross_entropy(logits if logits.dtype == torch.float64 else logits.float(), labels)


def _gated(generator: Any, sizes: Sizes) -> dict[str, Any]:
    return {name: normal(generator, sizes["T"], sizes["N"]) for name in ("gate", "up")}


def _swiglu(gate: Any, up: Any) -> Any:
    return functional.silu(gate) * up


def _turned(generator: Any, sizes: Sizes) -> dict[str, Any]:
    positions, heads, size = (sizes[name] for name in "PHD")
    angles = torch.arange(positions, device=DEVICE)[:, None] * 10000.0 ** -(torch.arange(size // 2, device=DEVICE) * 2 / size)
    return {"x": normal(generator, sizes["B"], positions, heads, size), "cos": angles.cos(), "sin": angles.sin()}


def _rope(x: Any, cos: Any, sin: Any) -> Any:
    half = x.shape[-1] // 2
    wide = x if x.dtype == torch.float64 else x.float()
    low, high, cos, sin = wide[..., :half], wide[..., half:], cos[:, None], sin[:, None]
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)


def _parameters(generator: Any, sizes: Sizes) -> dict[str, Any]:
    drawn = {name: normal(generator, sizes["N"], dtype=torch.float32) for name in ("p", "grad", "m", "v")}
    return drawn | {"v": drawn["v"].square(), "step": 3}


def _adamw(p: Any, grad: Any, m: Any, v: Any, step: int) -> None:
    """`torch.optim.AdamW`'s step with its defaults, by its own fused operator where the dtype allows."""
    if p.dtype == torch.float64:
        p.mul_(1 - 1e-3 * 1e-2)
        m.lerp_(grad, 1 - 0.9)
        v.mul_(0.999).addcmul_(grad, grad, value=1 - 0.999)
        p.addcdiv_(m, v.sqrt() / math.sqrt(1 - 0.999**step) + 1e-8, value=-1e-3 / (1 - 0.9**step))
        return
    steps = [torch.full((), float(step), device=DEVICE)]  # counted before the operator, by the optimizer
    torch._fused_adamw_(
        [p], [grad], [m], [v], [], steps, amsgrad=False, lr=1e-3, beta1=0.9, beta2=0.999, weight_decay=1e-2, eps=1e-8,
        maximize=False,
    )  # fmt: skip


def _heads(generator: Any, sizes: Sizes, causal: bool) -> dict[str, Any]:
    batch, length, size = sizes["B"], sizes["T"], sizes["D"]
    shapes = {"q": sizes["HQ"], "k": sizes["HKV"], "v": sizes["HKV"]}
    return {name: normal(generator, batch, length, heads, size) for name, heads in shapes.items()} | {"causal": causal}


def _attention(q: Any, k: Any, v: Any, causal: bool) -> Any:
    heads = [one.transpose(1, 2) for one in (q, k, v)]
    return functional.scaled_dot_product_attention(*heads, is_causal=causal, enable_gqa=True).transpose(1, 2)


def _products(sizes: Sizes, causal: bool) -> tuple[float, float]:
    """Two products of the forward; five of the backward, which computes scores again."""
    whole = 4.0 * sizes["B"] * sizes["HQ"] * sizes["T"] ** 2 * sizes["D"] * (0.5 if causal else 1.0)
    return whole, 2.5 * whole


def _elements(reads_and_writes: tuple[int, int], sizes: Sizes) -> tuple[int, int]:
    """Bytes of bf16 tensors of T by N elements, so many in the forward and the backward."""
    forward, backward = reads_and_writes
    return forward * 2 * sizes["T"] * sizes["N"], backward * 2 * sizes["T"] * sizes["N"]


def _of_rows(
    function: str, make: Any, ours: Any, theirs: Any, gradients: tuple[str, ...], moved: tuple[int, int], *lengths: int
) -> list[Problem]:
    """A function of rows: of 64 Mi elements in all, at each length."""
    odd = ({"T": 37, "N": 1000}, {"T": 5, "N": 77}, {"T": 1, "N": lengths[-1]})
    sizes = [{"T": (1 << 26) // length, "N": length} for length in lengths]
    return [
        Problem(
            function, f"{size['T']} x {size['N']}", size, (*odd, size), make, ours, theirs, partial(_elements, moved), gradients
        )
        for size in sizes
    ]


def _attentions(causal: bool) -> Problem:
    sizes = {"B": 4, "T": 4096, "HQ": 32, "HKV": 8, "D": 128}
    checked = (
        {"B": 2, "T": 77, "HQ": 6, "HKV": 2, "D": 64}, {"B": 1, "T": 333, "HQ": 4, "HKV": 4, "D": 128},
        {"B": 1, "T": 4096, "HQ": 4, "HKV": 1, "D": 128},
    )  # fmt: skip

    def moved(sizes: Sizes) -> tuple[int, int]:
        query, key = (2 * sizes["B"] * sizes["T"] * sizes[heads] * sizes["D"] for heads in ("HQ", "HKV"))
        return 2 * query + 2 * key, 4 * query + 4 * key

    return Problem(
        "attention", f"{'causal' if causal else 'full'} 4 x 4096, 32 heads of 128", sizes, checked,
        partial(_heads, causal=causal), kernels.attention, _attention, moved, ("q", "k", "v"),
        partial(_products, causal=causal), like_torch=True, compiles=False,
    )  # fmt: skip


GROUPED: Final = {"B": 64, "C": 256, "L": 4096}
VOCABULARY: Final = {"T": 4096, "V": 151936}
TURNED: Final = {"B": 4, "P": 4096, "H": 32, "D": 128}
FLAT: Final = {"T": 8192, "N": 8192}


def _once(share: int, sizes: Sizes) -> int:
    """Bytes of `share` bf16 tensors of all extents."""
    return 2 * share * math.prod(sizes.values())


PROBLEMS: Final = (
    *_of_rows("softmax", _rows, kernels.softmax, _softmax, ("x",), (2, 3), 256, 1024, 4096, 32768),
    *_of_rows("layer_norm", partial(_normed, names=("weight", "bias")), kernels.layer_norm,
              _layer_norm, ("x", "weight", "bias"), (2, 3), 1024, 4096),
    *_of_rows("rms_norm", partial(_normed, names=("weight",)), kernels.rms_norm,
              _rms_norm, ("x", "weight"), (2, 3), 1024, 4096),
    Problem("group_norm", "64 x 256 x 4096, 32 groups", GROUPED,
            ({"B": 3, "C": 64, "L": 77}, {"B": 2, "C": 96, "L": 1000}, GROUPED), _grouped, kernels.group_norm,
            _group_norm, lambda sizes: (_once(2, sizes), _once(3, sizes)), ("x", "weight", "bias")),
    Problem("cross_entropy", "4096 x 151,936", VOCABULARY, ({"T": 9, "V": 1001}, {"T": 8, "V": 4096}, VOCABULARY), _labelled,
            kernels.cross_entropy, _cross_entropy, lambda sizes: (_once(1, sizes), _once(2, sizes)), ("logits",)),
    *_of_rows("swiglu", _gated, kernels.swiglu, _swiglu, ("gate", "up"), (3, 5), 8192),
    *_of_rows("gelu", _rows, kernels.gelu, _gelu, ("x",), (2, 3), 8192),
    Problem("dropout", "8192 x 8192", FLAT, ({"T": 37, "N": 1001}, FLAT), _rows, partial(kernels.dropout, p=0.1, seed=5),
            _dropout, lambda sizes: (_once(2, sizes), _once(2, sizes)), ("x",), dropped=0.1),
    Problem("rope", "4 x 4096, 32 heads of 128", TURNED,
            ({"B": 2, "P": 77, "H": 3, "D": 64}, {"B": 1, "P": 9, "H": 40, "D": 128}, TURNED), _turned, kernels.rope, _rope,
            lambda sizes: (_once(2, sizes), _once(2, sizes)), ("x",)),
    Problem("adamw_", "64 Mi of f32", {"N": 1 << 26}, ({"N": 1}, {"N": 100_003}), _parameters, kernels.adamw_, _adamw,
            lambda sizes: (28 * sizes["N"], 0), compiles=False, written=("p", "m", "v")),
    _attentions(causal=False),
    _attentions(causal=True),
    *MOVES,
)  # fmt: skip
