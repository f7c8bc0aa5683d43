"""A row's bits from the row alone: launches of `rows_gpu` on torch tensors, and what they find."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ci.bench.kernels import launch
from ci.bench.kernels.launch import Bench, Entry, Tensors
from ci.bench.kernels.pages_cases import CHUNK, PAGE, prompt
from tilec.runtime import TRUSTED

torch: Any = importlib.import_module("torch")

FEW: Final = ("matmul_few", "matmul_split", "matmul_silu_mul_few")
OF_PROMPTS: Final = {"matmul_few": "matmul", "matmul_silu_mul_few": "matmul_silu_mul"}
LAYER: Final = {"N": 6144, "I": 9728, "K": 2560}
"""The QKV projection of Qwen3 4B, and half of its first feed-forward layer."""
ROWS: Final = (1, 7, 16, 33, 128, 256)
LENGTHS: Final = 40
PROMPT: Final = 1000
CHUNKS: Final = ((1000,), (1, 1000), (64, 128, 1000), (100, 357, 358, 999, 1000), (*range(37, 1000, 37), 1000))
"""Ends of a prompt's chunks."""


@dataclass(frozen=True)
class Row:
    """A comparison: `different` elements of `elements`; `binding` if none may be."""

    part: str
    what: str
    case: str
    elements: int
    different: int
    binding: bool = True


def _bits(tensor: Any) -> Any:
    return tensor.contiguous().view(torch.int16 if tensor.element_size() == 2 else torch.int32)


def compared(part: str, what: str, case: str, found: Any, wanted: Any, *, binding: bool = True) -> Row:
    """How many elements have other bits, or were not written."""
    return Row(part, what, case, found.numel(), int(((_bits(found) != _bits(wanted)) | ~found.isfinite()).sum()), binding)


def _launch(bench: Bench, entry: Entry, tensors: Tensors, **scalars: int) -> None:
    """Launch a kernel with these integers, and others as the cases have them."""
    given = {**tensors, **scalars} if scalars else launch.arguments(entry.manifest, tensors)
    if scalars:
        given |= {"scale": float(entry.manifest.constants["D"]) ** -0.5} if "scale" in _scalars(entry) else {}
    if bench.dry:
        bench.plan(entry, tensors)
        return
    trusted = {check.tensor: TRUSTED for check in entry.manifest.value_checks}
    bench.kernel(entry).plan(given, values=trusted).launch(bench.stream())
    bench.synchronize()


def _scalars(entry: Entry) -> set[str]:
    return {spec.name for spec in entry.manifest.scalars}


def _tile(entry: Entry) -> int:
    return int(entry.manifest.constants["BM"])


def products(bench: Bench, entries: list[Entry]) -> Iterator[Row]:
    """Products of small M, by tile and rows."""
    for name in FEW:
        own = [entry for entry in entries if entry.manifest.kernel == name]
        for key in sorted({(entry.dtype, int(entry.manifest.constants.get("S", 0))) for entry in own}):
            group = [entry for entry in own if (entry.dtype, int(entry.manifest.constants.get("S", 0))) == key]
            group.sort(key=_tile)
            dtype = torch.bfloat16 if key[0] == "bf16" else torch.float16
            a = torch.randn(ROWS[-1], LAYER["K"], device=bench.device_name).to(dtype)
            shape = (2, LAYER["I"]) if "silu" in name else (LAYER["N"],)
            b = (torch.randn(*shape, LAYER["K"], device=bench.device_name) * LAYER["K"] ** -0.5).to(dtype)
            wanted = product(bench, group[0], a, b)
            for entry in group:
                for rows in ROWS:
                    case = f"{key[0]}, {rows} rows, {_described(entry)}"
                    yield compared("products", name, case, product(bench, entry, a[-rows:], b), wanted[..., -rows:, :])
            for entry in entries if name in OF_PROMPTS else ():
                if entry.manifest.kernel == OF_PROMPTS[name] and entry.dtype == key[0]:
                    case = f"{key[0]}, against {entry.manifest.kernel}, {_described(entry)}"
                    yield compared("products", name, case, product(bench, entry, a, b), wanted, binding=False)


def _described(entry: Entry) -> str:
    constants = entry.manifest.constants
    return " ".join(f"{name}={constants[name]}" for name in ("S", "BM", "BN", "BK") if name in constants)


def product(bench: Bench, entry: Entry, a: Any, b: Any) -> Any:
    """What a kernel makes of rows and weights."""
    outputs, rows, columns = "out", len(a), b.shape[-2]
    shape: tuple[int, ...] = (rows, columns)
    dtype = a.dtype
    if "S" in entry.manifest.constants:
        outputs, shape, dtype = "parts", (int(entry.manifest.constants["S"]), rows, columns), torch.float32
    out = torch.full(shape, float("nan"), device=a.device, dtype=dtype)
    _launch(bench, entry, {"a": a.contiguous(), "b": b, outputs: out})
    return out


def _first(entries: list[Entry], name: str, dtype: str = "bf16") -> Entry | None:
    found = (entry for entry in entries if entry.manifest.kernel == name)
    return next((entry for entry in found if entry.dtype in (dtype, "i32")), None)


def batches(bench: Bench, entries: list[Entry]) -> Iterator[Row]:
    """Attention of a step, each row alone and among others, to pages of 16 bits and of codes."""
    for form in ("", "_c8"):
        yield from _batches(bench, entries, form)


def _batches(bench: Bench, entries: list[Entry], form: str) -> Iterator[Row]:
    names = ("chunk_starts", f"paged_decode_attention{form}", "paged_merge")
    kernels = [entry for name in names for entry in [_first(entries, name)] if entry is not None]
    if len(kernels) < len(names):
        return
    most, rows, heads, group, width = 64, 256, 8, 4, 128
    device = bench.device_name
    pages = torch.randn(2, 2048, PAGE, heads, width, device=device).to(torch.bfloat16)
    lengths = torch.randint(1, most * PAGE + 1, (rows,), device=device, dtype=torch.int32)
    lengths[:3] = torch.tensor([1, PAGE, most * PAGE], dtype=torch.int32)
    t = {
        "q": torch.randn(rows, heads, group, width, device=device).to(torch.bfloat16), "k_pages": pages[0], "v_pages": pages[1],
        "table": torch.randint(0, 2048, (rows, most), device=device, dtype=torch.int32), "lengths": lengths,
    }  # fmt: skip
    if form:
        for name in "kv":
            t[f"{name}_pages"] = t[f"{name}_pages"].to(torch.float8_e4m3fn)
            t[f"{name}_scales"] = torch.rand(2048, PAGE, heads, device=device) + 0.1
    pools = [name for name in t if name.endswith(("_pages", "_scales"))]
    together = decoded(bench, kernels, t, launch.BLOCKS)
    for b in range(0, rows, max(1, rows // LENGTHS)):
        row = slice(b, b + 1)
        one = {name: t[name][row].clone() for name in ("q", "table", "lengths")}  # aligned, as kernels require
        moved = torch.randperm(2048, device=device)
        one |= {name: _moved(t[name], moved) for name in pools}
        one["table"] = torch.argsort(moved)[one["table"].long()].to(torch.int32)
        for blocks in (1, launch.BLOCKS):
            for of in (entry for entry in entries if entry.manifest.kernel == names[1] and entry.dtype == "bf16"):
                alone = decoded(bench, [kernels[0], of, kernels[2]], one, blocks)
                case = f"a row of {int(lengths[b])} tokens, {blocks} blocks, ROWS = {of.manifest.constants['ROWS']}"
                yield compared("batches", names[1], case, alone, together[row])


def _moved(pool: Any, order: Any) -> Any:
    """A pool with its pages in another order; torch does not index codes."""
    if pool.dtype != torch.float8_e4m3fn:
        return pool[order].contiguous()
    return pool.view(torch.uint8)[order].contiguous().view(pool.dtype)


def decoded(bench: Bench, kernels: Sequence[Entry], t: Tensors, blocks: int) -> Any:
    """A step's attention."""
    rows, device = len(t["q"]), t["q"].device
    items = rows * -(-t["table"].shape[1] * t["k_pages"].shape[1] // CHUNK)
    begins = torch.zeros(rows + 1, device=device, dtype=torch.int32)
    parts = {
        name: torch.full((items, *t["q"].shape[1 : 3 + (name == "partial")]), float("nan"), device=device)
        for name in ("partial", "maxima", "sums")
    }
    out = torch.full_like(t["q"], float("nan"))
    _launch(bench, kernels[0], {"lengths": t["lengths"], "starts": begins})
    _launch(bench, kernels[1], {**t, "starts": begins, **parts}, blocks=blocks)
    _launch(bench, kernels[2], {**parts, "starts": begins, "out": out})
    return out


def prompts(bench: Bench, entries: list[Entry]) -> Iterator[Row]:
    """Attention of a prompt, whole and in chunks."""
    dims = prompt(PROMPT)
    shape = (dims["PAGES"], PAGE, dims["HKV"], 128)
    device = bench.device_name
    pages = [torch.randn(shape, device=device).to(torch.bfloat16) for _ in range(2)]
    table = torch.randperm(dims["PAGES"], device=device).to(torch.int32)
    q = torch.randn(PROMPT, dims["HKV"], dims["G"], 128, device=device).to(torch.bfloat16)
    t = {"q": q, "k_pages": pages[0], "v_pages": pages[1], "table": table}
    flash, gather, paged = (_first(entries, name) for name in ("flash_attention", "paged_gather", "paged_flash_attention"))
    gathered = [] if flash is None or gather is None else [(flash, (gather, dims["S"]))]
    for entry, slots in [*gathered, *([] if paged is None else [(paged, None)])]:
        whole = in_chunks(bench, entry, slots, t, CHUNKS[0])
        for ends in CHUNKS:
            found = in_chunks(bench, entry, slots, t, ends)
            yield compared("prompts", entry.manifest.kernel, f"{len(ends)} chunks", found, whole)


def in_chunks(bench: Bench, entry: Entry, slots: tuple[Entry, int] | None, t: Tensors, ends: tuple[int, ...]) -> Any:
    """Attention in chunks with these ends, over pages or, with `slots`, over slots that the first kernel fills."""
    out = torch.full_like(t["q"], float("nan"))
    given = {name: t[name] for name in ("k_pages", "v_pages", "table")}
    caches: Tensors = {}
    if slots is not None:
        width = (slots[1], *t["k_pages"].shape[2:])
        caches = {name: torch.zeros(width, device=out.device, dtype=out.dtype) for name in ("k_cache", "v_cache")}
    for begin, end in zip((0, *ends), ends, strict=False):
        if slots is not None:
            _launch(bench, slots[0], {**given, **caches}, filled=end)
        part = {"q": t["q"][begin:end], "out": out[begin:end]}
        _launch(bench, entry, {**part, **(caches or given)}, past=begin)
    return out
