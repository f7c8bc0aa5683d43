"""Times attention over pages of codes next to that over pages of 16 bits: rows x slots, several forms and numbers of blocks.

    python times.py KERNELS OUT [--dry]

Launches of several layers with pools of their own (together at least 256 MB, so that no cache has them) are in one CUDA graph,
`chunk_starts` once, then attention and merge of each layer, overlapping as a step's are. us of a layer: the median of 15 replays.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from ci.bench.kernels.launch import Bench, Entry, find_artifacts
from tilec.runtime import TRUSTED

HKV, G, D, PAGE, CHUNK = 8, 4, 128, 64, 256
ROWS, SLOTS = (8, 32, 128, 256), (512, 2048, 8192)
LEAST = 256 << 20
DRY = "--dry" in sys.argv  # on a processor, with a driver that launches nothing


def pools(form: str, pages: int, device: str) -> dict[str, Any]:
    shape = (pages, PAGE, HKV, D)
    found: dict[str, Any] = {}
    for name in "kv":
        if form:
            codes = torch.randint(0, 120, shape, device=device, dtype=torch.uint8)
            found[f"{name}_pages"] = codes.view(torch.float8_e4m3fn)
            found[f"{name}_scales"] = torch.rand(shape[:-1], device=device) / 256 + 1e-3
        else:
            found[f"{name}_pages"] = torch.randn(shape, device=device, dtype=torch.bfloat16)
    return found


def planned(bench: Bench, entry: Entry, given: dict[str, Any]) -> Any:
    if DRY:
        return bench.plan(entry, {name: one for name, one in given.items() if hasattr(one, "data_ptr")})
    trusted = {check.tensor: TRUSTED for check in entry.manifest.value_checks}
    return bench.kernel(entry).plan(given, values=trusted)


def median_us(bench: Bench, plans: list[Any], layers: int) -> float:
    """us of a layer's launches in a graph."""
    if DRY:
        for plan in plans:
            plan.launch(0)
        return 1.0
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):
        for plan in plans:
            plan.launch(side.cuda_stream)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        stream = torch.cuda.current_stream().cuda_stream
        for number, plan in enumerate(plans):
            plan.launch(stream, overlap=number > 0)
    times = []
    for _ in range(18):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / layers)
    return sorted(times[3:])[7]


def step(bench: Bench, by_name: dict[str, list[Entry]], form: str, rows: int, slots: int) -> dict[str, float]:
    """us of a layer for each kernel of a form and number of blocks."""
    device = bench.device_name
    pages = slots // PAGE
    of_layer = 2 * rows * slots * HKV * ((D + 4) if form else 2 * D)
    layers = 2 if DRY else max(2, min(24, -(-LEAST // of_layer)))
    layers_of = [pools(form, rows * pages, device) for _ in range(layers)]
    table = torch.randperm(rows * pages, device=device).to(torch.int32).view(rows, pages)
    lengths = torch.full((rows,), slots, device=device, dtype=torch.int32)
    starts = torch.zeros(rows + 1, device=device, dtype=torch.int32)
    items = rows * -(-slots // CHUNK)
    q = torch.randn(rows, HKV, G, D, device=device, dtype=torch.bfloat16)
    parts = {
        name: torch.zeros(items, HKV, G, *width, device=device) for name, width in (("partial", (D,)), ("maxima", ()), ("sums", ()))
    }
    out = torch.zeros_like(q)
    begin = planned(bench, by_name["chunk_starts"][0], {"lengths": lengths, "starts": starts})
    merge = planned(bench, by_name["paged_merge"][0], {**parts, "starts": starts, "out": out})
    found: dict[str, float] = {}
    for entry in by_name[f"paged_decode_attention{form}"]:
        constants = entry.manifest.constants
        name = f"BN={constants['BN']}" + (f" SLOTS={constants['SLOTS']}" if form else "") + f" warps={entry.manifest.block // 32}"
        for per_row in (1, 3, 6):
            blocks = max(528, per_row * HKV * rows)
            if per_row != 3 and blocks == max(528, 3 * HKV * rows):
                continue
            attention = [
                planned(
                    bench, entry,
                    {"q": q, **one, "table": table, "lengths": lengths, "starts": starts, **parts, "blocks": blocks, "scale": D**-0.5},
                )
                for one in layers_of
            ]
            both = [begin, *(plan for one in attention for plan in (one, merge))]
            found[f"{name}, {blocks} blocks"] = median_us(bench, both, layers)
            if per_row == 3:
                found[f"{name}, {blocks} blocks, alone"] = median_us(bench, [begin, *attention], layers)
    return found


def gathers(bench: Bench, by_name: dict[str, list[Entry]], tokens: int) -> dict[str, float]:
    """us of `paged_gather` and `paged_gather_c8` of so many tokens."""
    device, pages, found = bench.device_name, tokens // PAGE, {}
    for form in ("", "_c8"):
        layers_of = [pools(form, pages, device) for _ in range(2 if DRY else max(2, min(24, LEAST // (tokens * 4096))))]
        table = torch.randperm(pages, device=device).to(torch.int32)
        caches = {name: torch.zeros(tokens, HKV, D, device=device, dtype=torch.bfloat16) for name in ("k_cache", "v_cache")}
        plans = [
            planned(bench, by_name[f"paged_gather{form}"][0], {**one, "table": table, **caches, "filled": tokens})
            for one in layers_of
        ]
        found[f"paged_gather{form}"] = median_us(bench, plans, len(plans))
    return found


def main() -> None:
    bench = Bench(DRY)
    entries, broken = find_artifacts([Path(sys.argv[1])], "sm_90a")
    assert not broken, broken
    by_name: dict[str, list[Entry]] = {}
    for entry in entries:
        by_name.setdefault(entry.manifest.kernel, []).append(entry)
    record: dict[str, Any] = {"attention": {}, "gather": {}}
    table: list[str] = []
    for rows in ROWS if not DRY else (8,):
        for slots in SLOTS if not DRY else (512,):
            both = {form: step(bench, by_name, form, rows, slots) for form in ("", "_c8")}
            record["attention"][f"{rows}x{slots}"] = both
            plain = min(v for k, v in both[""].items() if "alone" not in k and f"{max(528, 3 * HKV * rows)} b" in k)
            shipped = next(v for k, v in both["_c8"].items() if k.startswith("BN=64 SLOTS=32") and k.endswith(f"{max(528, 3 * HKV * rows)} blocks"))
            best = min((v, k) for k, v in both["_c8"].items() if "alone" not in k)
            floor = 2 * rows * slots * HKV * (D + 4) / 4.8e6
            table.append(
                f"{rows:4} {slots:5} | 16 bits {plain:8.1f} | codes, shipped {shipped:8.1f} = {shipped / plain:.2f} | "
                f"best {best[0]:8.1f} = {best[0] / plain:.2f} ({best[1]}) | floor {floor:.1f}"
            )
            print(table[-1], flush=True)
            if not DRY:
                torch.cuda.empty_cache()
    for tokens in (512, 8192) if not DRY else (512,):
        record["gather"][tokens] = gathers(bench, by_name, tokens)
    out = Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    (out / "coded_pages_times.json").write_text(json.dumps(record, indent=1))
    print("us of a layer, attention and merge\nrows slots", *table, f"us of gathers: {record['gather']}", sep="\n")


main()
