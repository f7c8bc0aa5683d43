"""Problems of attention of several prompts, whose keys are one after the other: part of `cases`.

Each prompt is attended alone, as `attention_cases` and `rounded_attention` attend one.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from ci.bench.kernels.launch import Tensors
from ci.bench.kernels.rounded import Rounded, exact
from ci.bench.kernels.rounded_attention import attended
from ci.bench.kernels.rounded_kernels import dtype_of
from kernels_src.reference_pages import prompts_in_slots
from tilec.artifact.records import Manifest

torch: Any = importlib.import_module("torch")
functional: Any = importlib.import_module("torch.nn.functional")

KERNEL: Final = "packed_flash_attention"


def sizes(manifest: Manifest) -> list[dict[str, int]]:
    """Dims to check; empty if any are valid."""
    if manifest.kernel != KERNEL:
        return []
    tile = int(manifest.constants["BN"])
    found = [
        {"T": t, "S": (-(-t // tile) + more) * tile, "HKV": 2, "G": g}
        for t in (1, 17, 127, 129, 1000)
        for more, g in ((0, 1), (3, 2), (8, 5))
    ]
    return [*found, {"T": 2048, "S": 8192, "HKV": 8, "G": 4}]


def adjust(manifest: Manifest, t: Tensors) -> None:
    """Set contents that random numbers do not have, in place."""
    if manifest.kernel == KERNEL:
        found = prompts_in_slots(t["q"].shape[0], t["k_cache"].shape[0], int(manifest.constants["BN"]))
        for name, values in zip(("firsts", "lasts"), found, strict=True):
            t[name].copy_(torch.from_numpy(values))


def prompts(t: Tensors) -> Iterator[tuple[slice, slice, Any]]:
    """The rows and the slots of each prompt, and which of these each of those attends to."""
    firsts, lasts = t["firsts"].tolist(), t["lasts"].tolist()
    row = 0
    while row < len(firsts):
        end = next((other for other in range(row, len(firsts)) if firsts[other] != firsts[row]), len(firsts))
        slots = slice(firsts[row], lasts[end - 1] + 1)
        seen = torch.ones(end - row, slots.stop - slots.start, dtype=torch.bool, device=t["q"].device)
        yield slice(row, end), slots, seen.tril(lasts[row] - slots.start)
        row = end


def fused(t: Tensors) -> Callable[[], Any]:
    """PyTorch's attention of all prompts, whose rows and slots are read once: a call of it can be captured in a graph."""
    own = list(prompts(t))
    out = torch.empty_like(t["q"])

    def attend() -> Any:
        for rows, slots, seen in own:
            q = t["q"][rows]
            tokens, heads, group, width = q.shape
            queries = q.reshape(tokens, heads * group, width).transpose(0, 1)
            keys, values = (t[name][slots].transpose(0, 1).repeat_interleave(group, 0) for name in ("k_cache", "v_cache"))
            found = functional.scaled_dot_product_attention(queries[None], keys[None], values[None], attn_mask=seen)[0]
            out[rows] = found.transpose(0, 1).reshape(q.shape)
        return out

    return attend


def _packed(manifest: Manifest, t: Tensors) -> Tensors:
    return {"out": fused(t)()}


def _rounded(manifest: Manifest, t: Tensors) -> dict[str, Rounded]:
    out = torch.zeros(t["q"].shape, dtype=torch.float64, device=t["q"].device)
    bound = out.clone()
    for rows, slots, seen in prompts(t):
        for head in range(t["q"].shape[1]):
            keys, values = (exact(t[name][slots, head]) for name in ("k_cache", "v_cache"))
            for member in range(t["q"].shape[2]):
                total, _, share = attended(manifest, exact(t["q"][rows, head, member]), keys, values, seen)
                found = (total / share[..., None]).stored(dtype_of(manifest, "out"))
                out[rows, head, member], bound[rows, head, member] = found.value, found.bound
    return {"out": Rounded(out, bound)}


MEANING: Final[dict[str, Callable[[Manifest, Tensors], Tensors]]] = {KERNEL: _packed}
ROUNDED: Final[dict[str, Callable[[Manifest, Tensors], dict[str, Rounded]]]] = {KERNEL: _rounded}
