"""Attention over pages: sizes, contents, torch expressions, bounds of errors. Part of `cases`.

A launch whose pool has a page for each entry of its table has rows with all their tokens, in pages of their own."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

from ci.bench.kernels import attention_cases, codes_cases, rounded_attention
from ci.bench.kernels.launch import Tensors, filled
from ci.bench.kernels.rounded import Rounded, exact, joined
from tilec.artifact.records import Manifest

torch: Any = importlib.import_module("torch")

DECODES: Final = ("paged_decode_attention", "paged_decode_attention_wide", "paged_decode_attention_c8")
GATHERS: Final = ("paged_gather", "paged_gather_c8")
MERGES: Final = ("paged_merge", "paged_merge_wide")
CHUNK: Final = 256
PAGE: Final = 64
MODEL: Final = {"HKV": 8, "G": 4}
"""Key heads, and query heads of each, of Qwen3 4B and 8B."""


def batch(rows: int, tokens: int, **model: int) -> dict[str, int]:
    """Dims of a step of rows with so many tokens each, in pages of their own."""
    pages = -(-tokens // PAGE)
    return {"T": rows, "MAX": pages, "PAGES": rows * pages, "ITEMS": rows * -(-tokens // CHUNK), **(model or MODEL)}


def _most_rows(manifest: Manifest) -> int:
    """The rows that a kernel's launch may have."""
    return int(manifest.constants["ROWS"]) if manifest.kernel == "paged_decode_attention" else 1 << 30


def prompt(tokens: int, before: int = 0, **model: int) -> dict[str, int]:
    """Dims of a prompt's chunk after so many tokens, and three more slots if there are any."""
    pages = -(-(tokens + before + 3 * (before > 0)) // PAGE)
    return {"T": tokens, "MAX": pages, "PAGES": pages, "S": -(-pages // 2) * 2 * PAGE, **(model or MODEL)}


def sizes(manifest: Manifest) -> list[dict[str, int]]:
    """Dims to check; empty for another kernel."""
    match manifest.kernel:
        case "chunk_starts":
            return [{"T": t} for t in (1, 2, 31, 32, 33, 128, 255, 256, 511)]
        case "paged_decode_attention" | "paged_decode_attention_c8" | "paged_merge":
            shared = [
                {"T": t, "MAX": m, "PAGES": p, "ITEMS": t * -(-m // 4) + 3, "HKV": h, "G": g}
                for t, m, p, h, g in ((1, 1, 1, 1, 1), (3, 5, 7, 2, 8), (8, 9, 11, 3, 5), (33, 4, 40, 8, 2), (256, 3, 90, 2, 4))
            ]
            found = [*shared, batch(8, 512), batch(2, 8192, HKV=8, G=8), batch(256, 512)]
            heads, rows = int(manifest.constants.get("HEADS", 8)), _most_rows(manifest)
            return [dims for dims in found if dims["G"] <= heads and dims["T"] <= rows]
        case "paged_decode_attention_wide" | "paged_merge_wide":
            shared = [
                {"T": t, "MAX": m, "PAGES": p, "ITEMS": t * -(-m // 4) + 3, "HKV": h, "G": g}
                for t, m, p, h, g in ((1, 1, 1, 1, 9), (3, 5, 7, 2, 16), (256, 3, 90, 2, 11))
            ]
            return [*shared, batch(8, 512, HKV=4, G=16), batch(256, 512, HKV=4, G=16)]
        case "paged_gather" | "paged_gather_c8" | "paged_flash_attention":
            found = [prompt(t, before, HKV=2, G=g) for t in (1, 17, 129, 1000) for before, g in ((0, 1), (67, 2), (203, 5))]
            return [*found, prompt(17, 4096, HKV=1, G=8), prompt(2048)]
        case _:
            return []


def adjust(manifest: Manifest, t: Tensors) -> None:
    """Set contents that random numbers do not have, in place."""
    if manifest.kernel not in MEANING:
        return
    device = next(iter(t.values())).device
    if "table" in t and t["k_pages"].shape[0] >= t["table"].numel():
        order = torch.randperm(t["k_pages"].shape[0], device=device)[: t["table"].numel()]
        t["table"].copy_(order.view(t["table"].shape))
        if "lengths" in t:
            t["lengths"].fill_(t["table"].shape[1] * PAGE)
    if "k_scales" in t:
        for name in "kv":
            codes_cases.fill(t[f"{name}_pages"], t[f"{name}_scales"])
    if manifest.kernel == "chunk_starts":
        t["lengths"].copy_(torch.randint(0, 40960, t["lengths"].shape, device=device))
    if manifest.kernel in DECODES:
        t["starts"].copy_(_starts(t["lengths"]))
    if manifest.kernel in MERGES:  # rows of any number of items, the last without one, and items of nobody
        rows, items = t["starts"].shape[0] - 1, t["partial"].shape[0]
        ends = torch.arange(1, rows + 1, device=device) * (items - 2 * (items > 2)) // rows
        t["starts"].copy_(torch.cat((ends[:1] * 0, ends)))
        if rows > 2:
            t["starts"][-1] = t["starts"][-2]
        t["sums"].abs_().add_(0.5)


def _starts(lengths: Any) -> Any:
    chunks = (lengths.long() + (CHUNK - 1)) // CHUNK
    return torch.cat((chunks[:1] * 0, chunks.cumsum(0)))


def bytes_moved(manifest: Manifest, t: Tensors) -> int | None:
    """Minimum traffic: keys and values of the rows' tokens, and what the items leave."""
    if manifest.kernel in DECODES:
        row, items = _token_bytes(t), int(t["starts"][-1])
        return 2 * row * int(t["lengths"].sum()) + _bytes(t["q"]) + sum(_bytes(t[name][:items]) for name in PARTS)
    if manifest.kernel in MERGES:
        return _bytes(t["out"]) + sum(_bytes(t[name][: int(t["starts"][-1])]) for name in PARTS)
    if manifest.kernel in GATHERS:
        tokens = -(-filled(t["table"].shape[0], PAGE) // PAGE) * PAGE
        return 2 * tokens * (_token_bytes(t) + _bytes(t["k_cache"][0]))
    return None


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _token_bytes(t: Tensors) -> int:
    """Bytes of the keys of a token, their scales included."""
    return _bytes(t["k_pages"][0, 0]) + (_bytes(t["k_scales"][0, 0]) if "k_scales" in t else 0)


PARTS: Final = ("partial", "maxima", "sums")


def in_order(pages: Any, table: Any) -> Any:
    """Slots of a sequence in the order of its tokens; (PAGES, PAGE, HKV, D), (MAX,) -> (MAX * PAGE, HKV, D)."""
    return pages[table.long()].reshape(-1, *pages.shape[2:])


def contiguous(t: Tensors) -> Tensors:
    """A prompt's tensors with its slots in order, as `flash_attention` takes them."""
    return {**t, "k_cache": in_order(t["k_pages"], t["table"]), "v_cache": in_order(t["v_pages"], t["table"])}


def _chunk_starts(manifest: Manifest, t: Tensors) -> Tensors:
    return {"starts": _starts(t["lengths"])}


def _of_items(t: Tensors, found: Callable[[Any, Any, Any], tuple[Any, ...]]) -> list[tuple[int, tuple[Any, ...]]]:
    """What each chunk of each row finds, by item."""
    starts: list[int] = t["starts"].tolist()
    results: list[tuple[int, tuple[Any, ...]]] = []
    for b, length in enumerate(t["lengths"].tolist()):
        keys, values = (in_order(t[name], t["table"][b])[:length] for name in ("k_pages", "v_pages"))
        for chunk in range(-(-length // CHUNK)):
            own = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
            results.append((starts[b] + chunk, found(t["q"][b], keys[own], values[own])))
    return results


def _decode(manifest: Manifest, t: Tensors) -> Tensors:
    scale = float(manifest.constants["D"]) ** -0.5 / math.log(2)

    def chunk(query: Any, keys: Any, values: Any) -> tuple[Any, ...]:
        scores = torch.einsum("hgd,shd->hgs", query, keys) * scale
        top = scores.amax(-1)
        weights = torch.exp2(scores - top[..., None])
        return torch.einsum("hgs,shd->hgd", weights, values), top, weights.sum(-1)

    written = {name: t[name].clone() for name in PARTS}
    for item, one in _of_items(t, chunk):
        for name, value in zip(PARTS, one, strict=True):
            written[name][item] = value.to(t[name].dtype)
    return written


def _rounded_decode(manifest: Manifest, t: Tensors) -> dict[str, Rounded]:
    def chunk(query: Any, keys: Any, values: Any) -> tuple[Any, ...]:
        operands = (exact(one.transpose(0, 1)) for one in (keys, values))
        return rounded_attention.attended(manifest, exact(query), *operands)

    values = {name: t[name].double().clone() for name in PARTS}
    bounds = {name: value * 0 for name, value in values.items()}
    for item, one in _of_items(t, chunk):
        for name, found in zip(PARTS, one, strict=True):
            values[name][item], bounds[name][item] = found.value, found.bound
    return {name: Rounded(values[name], bounds[name]) for name in PARTS}


def _merge(manifest: Manifest, t: Tensors) -> Tensors:
    """0 for a row without items."""
    starts: list[int] = t["starts"].tolist()
    rows: list[Any] = []
    for begin, end in pairwise(starts):
        if begin == end:
            rows.append(t["partial"][:1].sum(0)[None] * 0)
            continue
        weights = torch.exp2(t["maxima"][begin:end] - t["maxima"][begin:end].amax(0))
        total = (t["sums"][begin:end] * weights).sum(0)
        rows.append(((t["partial"][begin:end] * weights[..., None]).sum(0) / total[..., None])[None])
    merged = torch.cat(rows, 0)
    return {"out": merged if merged.dtype == torch.float64 else merged.to(t["out"].dtype)}


def _rounded_merge(manifest: Manifest, t: Tensors) -> dict[str, Rounded]:
    starts: list[int] = t["starts"].tolist()
    rows: list[Rounded] = []
    for begin, end in pairwise(starts):
        if begin == end:
            rows.append(exact(t["partial"][:1] * 0))
            continue
        maxima = exact(t["maxima"][begin:end])
        weights = (maxima - maxima.max(0)).exp2()
        # Sums so far are scaled again for each group of items.
        again = (end - begin) * 2.0**-19
        weights = Rounded(weights.value, weights.bound + again * weights.value)
        total = (exact(t["sums"][begin:end]) * weights).sum(0)
        mean = (exact(t["partial"][begin:end]) * weights[..., None]).sum(0) / total[..., None]
        rows.append(Rounded(mean.value[None], mean.bound[None]))
    return {"out": joined(rows, 0).stored(str(manifest.constants["E"]))}


def _gather(manifest: Manifest, t: Tensors) -> Tensors:
    count = min(-(-filled(t["table"].shape[0], PAGE) // PAGE) * PAGE, t["k_cache"].shape[0])
    written = {name: t[name].clone() for name in ("k_cache", "v_cache")}
    for name, pages in (("k_cache", "k_pages"), ("v_cache", "v_pages")):
        written[name][:count] = in_order(t[pages], t["table"])[:count]
    return written


def _rounded_gather(manifest: Manifest, t: Tensors) -> dict[str, Rounded]:
    return {name: exact(value) for name, value in _gather(manifest, t).items()}


def decoded(t: Tensors) -> Tensors:
    """The tensors of a launch with codes times their scales, in float64, in place of codes."""
    pages = {f"{name}_pages": t[f"{name}_pages"].double() * t[f"{name}_scales"].double()[..., None] for name in "kv"}
    return {**t, **pages}


def _rounded_codes(manifest: Manifest, t: Tensors) -> dict[str, Rounded]:
    return _rounded_decode(manifest, decoded(t))


def _rounded_gather_of_codes(manifest: Manifest, t: Tensors) -> dict[str, Rounded]:
    count = min(-(-filled(t["table"].shape[0], PAGE) // PAGE) * PAGE, t["k_cache"].shape[0])
    index, pages = torch.arange(count, device=t["table"].device), decoded(t)
    return {
        f"{name}_cache": rounded_attention.with_rows(
            t[f"{name}_cache"], index,
            Rounded(in_order(pages[f"{name}_pages"], t["table"])[:count]).stored(str(manifest.constants["E"])),
        )
        for name in "kv"
    }  # fmt: skip


def _values(manifest: Manifest, t: Tensors) -> Tensors:
    """What is written, without bounds: torch has no kernel of such pages to compare with."""
    return {name: one.value for name, one in ROUNDED[manifest.kernel](manifest, t).items()}


def _flash(manifest: Manifest, t: Tensors) -> Tensors:
    return attention_cases.MEANING["flash_attention"](manifest, contiguous(t))


def _rounded_flash(manifest: Manifest, t: Tensors) -> dict[str, Rounded]:
    return rounded_attention.ROUNDED["flash_attention"](manifest, contiguous(t))


MEANING: Final[dict[str, Callable[[Manifest, Tensors], Tensors]]] = {
    "chunk_starts": _chunk_starts, **dict.fromkeys(DECODES, _decode), **dict.fromkeys(MERGES, _merge), "paged_gather": _gather,
    "paged_decode_attention_c8": _values, "paged_gather_c8": _values, "paged_flash_attention": _flash,
}  # fmt: skip
ROUNDED: Final[dict[str, Callable[[Manifest, Tensors], dict[str, Any]]]] = {
    **dict.fromkeys(DECODES, _rounded_decode), **dict.fromkeys(MERGES, _rounded_merge), "paged_gather": _rounded_gather,
    "paged_decode_attention_c8": _rounded_codes, "paged_gather_c8": _rounded_gather_of_codes,
    "paged_flash_attention": _rounded_flash,
}  # fmt: skip
