"""Problems of the kernels of mixtures of experts for single tokens: sizes, contents, torch expressions, bounds of errors.

Part of `cases`. Tokens choose among fewer experts than each takes, so that some are taken twice, and among more.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

from ci.bench.kernels.decode_cases import dequantised
from ci.bench.kernels.launch import EPSILON, Tensors
from ci.bench.kernels.rounded import Rounded, exact, product
from tilec.artifact.records import Manifest
from tilec.target.dtypes import DTYPES

torch: Any = importlib.import_module("torch")
functional: Any = importlib.import_module("torch.nn.functional")

LOG2E: Final = 1.4426950408889634
TOKENS_AND_EXPERTS: Final = ((1, 33), (3, 5), (8, 40))


def sizes(manifest: Manifest) -> list[dict[str, int]]:
    """Dims to check: a token and several, few outputs and many; empty for another kernel."""
    if manifest.kernel not in MEANING:
        return []
    if manifest.kernel == "route_experts":
        return [{"T": tokens} for tokens in (1, 3, 257)]
    step = 128 if manifest.kernel.endswith("_fp8") else int(manifest.constants["ROWS"])
    outputs = (5 * step, step, 3 * step)
    found = [{"T": t, "X": x, "N": n} for (t, x), n in zip(TOKENS_AND_EXPERTS, outputs, strict=True)]
    if "silu" in manifest.kernel:
        return [{"T": one["T"], "X": one["X"], "I": one["N"], "I2": 2 * one["N"]} for one in found]
    return [one | {"P": one["N"] // int(manifest.constants.get("GROUP", 1))} for one in found]


def adjust(manifest: Manifest, t: Tensors) -> None:
    """Set contents that random numbers do not have, in place: experts of a token that differ where there are enough, equal
    logits, and numbers of the size that a model has."""
    if manifest.kernel == "route_experts":
        t["logits"].mul_(2)
        t["logits"][:, ::7] = 1.5
    if manifest.kernel not in MEANING or "experts" not in t or "w" not in t:
        return
    (tokens, choices), experts = t["experts"].shape, t["w"].shape[0]
    if choices <= experts:
        t["experts"].copy_(torch.rand(tokens, experts, device=t["experts"].device).argsort(1)[:, :choices])
    if "weights" in t:
        t["weights"].abs_().div_(choices)
    else:  # sums of squares of the elements of the row
        t["squares"].abs_().mul_(t["x"].shape[-1] / t["squares"].shape[1])
    if "w_scales" not in t:
        t["w"].mul_(t["x"].shape[-1] ** -0.5)


def bytes_moved(manifest: Manifest, t: Tensors) -> int | None:
    """Of the weights only those of experts that a token chose; None for another kernel."""
    if manifest.kernel not in MEANING or "w" not in t:
        return None
    chosen = len(torch.unique(t["experts"])) / t["w"].shape[0]
    size = {spec.name: t[spec.name].numel() * t[spec.name].element_size() for spec in manifest.tensors}
    weights = sum(count for name, count in size.items() if name in ("w", "w_scales", "w_zeros"))
    twice = sum(size[spec.name] for spec in manifest.tensors if spec.access == "inout")
    return int(sum(size.values()) - weights + weights * chosen) + twice


def _weights(t: Tensors) -> Any:
    """The weights of each choice, (T, C, N, K): in float64 if they are codes."""
    chosen = t["experts"].long()
    if "w_scales" not in t:
        return t["w"][chosen]
    words = t["w"].view(torch.int32) if t["w"].dtype == torch.uint32 else t["w"]  # torch gathers no unsigned words on a GPU
    return dequantised({"w": words[chosen]} | {name: t[name][chosen] for name in ("w_scales", "w_zeros") if name in t})


def _route(manifest: Manifest, t: Tensors) -> Tensors:
    logits, choices = t["logits"] + 0.0, int(manifest.constants["C"])
    wide = logits if logits.dtype == torch.float64 else logits.to(torch.float32)
    ordered, experts = wide.sort(dim=1, descending=True, stable=True)
    powers = (ordered - ordered[:, :1]).exp()
    weights = powers[:, :choices]
    weights = weights / (weights if manifest.constants["NORMALIZE"] else powers).sum(1, keepdim=True)
    return {"experts": experts[:, :choices].to(torch.int32), "weights": weights}


def _silu_mul(manifest: Manifest, t: Tensors) -> Tensors:
    x, squares = t["x"], t["squares"]
    scale = (squares.sum(1) / x.shape[1] + EPSILON).rsqrt()[:, None, None]
    both = (torch.einsum("tcnk,tk->tcn", _weights(t).to(x.dtype), x).to(squares.dtype) * scale).to(x.dtype)
    gate, up = both.chunk(2, 2)
    return {"out": functional.silu(gate) * up}


def _down(manifest: Manifest, t: Tensors) -> Tensors:
    each = torch.einsum("tcnk,tck->tcn", _weights(t).to(t["x"].dtype), t["x"])
    return {"out": (each * t["weights"][:, :, None].to(each.dtype)).sum(1)}


def _add(manifest: Manifest, t: Tensors) -> Tensors:
    return {"residual": t["residual"] + _down(manifest, t)["out"]}


def _add_scaled(manifest: Manifest, t: Tensors) -> Tensors:
    """The residual is updated in place; the other outputs are computed from its stored value."""
    total = _add(manifest, t)["residual"]
    stored = total.to(getattr(torch, DTYPES[str(manifest.constants["E"])].numpy)).to(total.dtype)
    wide = stored.to(t["squares"].dtype) if stored.dtype != torch.float64 else stored
    squares = (wide * wide).reshape(len(stored), t["squares"].shape[1], -1).sum(2)
    return {"residual": total, "scaled": stored * t["weight"], "squares": squares}


def _rounded_route(manifest: Manifest, t: Tensors) -> dict[str, Any]:
    logits, experts = exact(t["logits"]), _route(manifest, t)["experts"].long()
    powers = ((logits - Rounded(logits.value.max(1, keepdim=True)[0])) * LOG2E).exp2()
    chosen = Rounded(powers.value.gather(1, experts), powers.bound.gather(1, experts))
    total = (chosen if manifest.constants["NORMALIZE"] else powers).sum(1)[:, None]
    inverse = Rounded(total.value * 0 + 1) / total
    return {"weights": chosen * inverse}


def _rounded_silu_mul(manifest: Manifest, t: Tensors) -> dict[str, Any]:
    """Weights are exact in float64; the scale of codes multiplies sums of their products, which is one rounding more."""
    count = t["x"].shape[1]
    both = product("tcnk,tk->tcn", exact(_weights(t)), exact(t["x"]), count + 1)
    both = both * ((exact(t["squares"]).sum(1) * (1.0 / count)) + EPSILON).rsqrt()[:, None, None]
    half = both.value.shape[2] // 2
    gate, up = both[:, :, :half], both[:, :, half:]
    return {"out": (gate * gate.sigmoid() * up).stored(str(manifest.constants["E"]))}


def _rounded_sum(t: Tensors) -> Rounded:
    """One sum over all choices, of products whose right factor was rounded after it was multiplied by the choice's weight."""
    x = exact(t["x"]) * exact(t["weights"][:, :, None])
    return product("tcnk,tck->tn", exact(_weights(t)), x, x.value.shape[1] * x.value.shape[2] + 1)


def _rounded_down(manifest: Manifest, t: Tensors) -> dict[str, Any]:
    return {"out": _rounded_sum(t).stored(str(manifest.constants["E"]))}


def _rounded_add(manifest: Manifest, t: Tensors) -> dict[str, Any]:
    return {"residual": (_rounded_sum(t) + exact(t["residual"])).stored(str(manifest.constants["E"]))}


FORMS: Final = ("", "_fp8", "_int4")

MEANING: Final[dict[str, Callable[[Manifest, Tensors], Tensors]]] = {
    "route_experts": _route,
    **{f"experts_silu_mul{form}": _silu_mul for form in FORMS},
    **{f"experts_add{form}": _add for form in FORMS},
    **{f"experts_down{form}": _down for form in FORMS},
    **{f"experts_add_scaled{form}": _add_scaled for form in FORMS},
}
ROUNDED: Final[dict[str, Callable[[Manifest, Tensors], dict[str, Any]]]] = {
    "route_experts": _rounded_route,
    **{f"experts_silu_mul{form}": _rounded_silu_mul for form in FORMS},
    **{f"experts_add{form}": _rounded_add for form in FORMS},
    **{f"experts_down{form}": _rounded_down for form in FORMS},
    **{f"experts_add_scaled{form}": _rounded_add for form in FORMS},
}
