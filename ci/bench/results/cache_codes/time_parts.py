"""time_parts.py FOLDER OUT: attention to a cache of codes in several forms, and to 16 bits, in one run; us of a launch."""

import json
import sys
from pathlib import Path

import torch
from ci.bench.kernels import cases
from ci.bench.kernels.clock import measure
from ci.bench.kernels.launch import Bench, find_artifacts

folder, out = Path(sys.argv[1]), Path(sys.argv[2])
bench = Bench()
entries = {p.name: find_artifacts([p], "sm_90a")[0][0] for p in sorted(folder.iterdir())}
FORMS = [  # attention, merge, parts
    ("base", "merge33", 33), ("base", "merge66", 66), ("base_w4", "merge33", 33), ("base_w1", "merge132", 132),
    ("split", "merge33", 33), ("split", "merge66", 66), ("split", "merge66_w4", 66), ("split_w4", "merge33", 33),
    ("split_w1", "merge66_w4", 66), ("split_w1", "merge132", 132), ("full", "merge33", 33), ("full", "merge66", 66),
    ("full", "merge66_w4", 66), ("full_w4", "merge33", 33), ("full_w1", "merge66_w4", 66), ("full_w1", "merge132", 132),
    ("full16", "merge66", 66), ("full16_w4", "merge33", 33),
]
rows, wrong = [], {}


def tensors(names, sizes, filled, known):
    """Tensors of several kernels under the same names; those of `known` are taken."""
    found = dict(known)
    for name in names:
        for key, tensor in cases.make_tensors(entries[name].manifest, sizes, "cuda").items():
            found.setdefault(key, tensor)
    found["lengths"].fill_(filled)
    found["positions"].fill_(filled - 1)
    if "slots" in found:
        found["slots"].fill_(filled - 1)
    return found


def plan(name, t):
    entry = entries[name]
    return bench.plan(entry, {spec.name: t[spec.name] for spec in entry.manifest.tensors})


def runs(plans):
    def go(some):
        stream = bench.stream()
        for one in some:
            one.launch(stream, overlap=True)
    return [lambda some=some: go(some) for some in plans]


def checked(t, forms, sizes):
    """Each form's output beside that of `base` at 33 parts, on the same caches; relative error."""
    first = None
    for attention, merge, parts in forms:
        mine = {k: v for k, v in t.items() if k not in ("partial", "maxima", "sums", "out")}
        mine = tensors((attention, merge), sizes | {"P": parts}, filled_now, mine)
        for one in (attention, merge):
            plan(one, mine).launch(bench.stream(), overlap=False)
        torch.cuda.synchronize()
        value = mine["out"].double()
        first = value if first is None else first
        error = float((value - first).norm() / first.norm())
        if not error < 4e-3:
            wrong[f"{attention} {parts} {filled_now}"] = error


for batch, filled, forms in (
    (1, 2048, FORMS), (1, 8192, FORMS), (1, 32768, FORMS),
    (8, 2048, [(n, "merge8", 8) for n in ("base", "split", "full", "split_w4", "full_w4", "split_w1", "full_w1", "full16")]),
    (8, 8192, [(n, "merge8", 8) for n in ("base", "split", "full", "split_w4", "full_w4", "split_w1", "full_w1", "full16")]),
):
    filled_now = filled
    S = filled + 128
    per = 8 * 264 * S * batch
    count = max(2, min(48, int(240e6 / per) + 1))
    sizes = {"B": batch, "HKV": 8, "S": S, "R": S + 77}
    caches = [tensors(("base", "merge8"), sizes | {"P": 8}, filled, {}) for _ in range(count)]
    wides = [
        tensors(("wide", "wide_merge8" if batch > 1 else "wide_merge33"), sizes | {"P": 8 if batch > 1 else 33}, filled, {})
        for _ in range(max(2, count // 2))
    ]
    checked(caches[0], forms, sizes)
    kept, alone, both = [], {}, {}
    wm = "wide_merge8" if batch > 1 else "wide_merge33"
    alone["16 bits"] = runs([[plan("wide", t)] for t in wides])
    both["16 bits"] = runs([[plan("wide", t), plan(wm, t)] for t in wides])
    for attention, merge, parts in forms:
        partial = tensors((attention, merge), sizes | {"P": parts}, filled, {
            k: v for k, v in caches[0].items() if k not in ("partial", "maxima", "sums", "out")})
        some = [{**t, **{k: partial[k] for k in ("partial", "maxima", "sums", "out")}} for t in caches]
        kept.append(some)
        name = f"{attention} {parts} {merge}"
        a, m = [plan(attention, t) for t in some], [plan(merge, t) for t in some]
        alone[f"{attention} {parts}"] = runs([[x] for x in a])
        both[name] = runs([[x, y] for x, y in zip(a, m, strict=True)])
    times = measure(alone, 25.0), measure(both, 30.0)
    for kind, found in zip(("attention", "and merge"), times, strict=True):
        for name, t in found.items():
            rows.append({"batch": batch, "filled": filled, "kind": kind, "form": name, "us": t.median, "low": t.low, "high": t.high})
    del caches, wides, kept, alone, both, a, m
    torch.cuda.empty_cache()
    out.mkdir(parents=True, exist_ok=True)
    (out / "parts.json").write_text(json.dumps({"rows": rows, "wrong": wrong}, indent=1))

print("wrong", wrong)
keys = sorted({(r["batch"], r["filled"]) for r in rows})
for kind in ("attention", "and merge"):
    print(kind, keys)
    for name in dict.fromkeys(r["form"] for r in rows if r["kind"] == kind):
        cells = []
        for key in keys:
            us = {r["form"]: r["us"] for r in rows if r["kind"] == kind and (r["batch"], r["filled"]) == key}
            cells.append(f"{us[name]:7.2f} {us[name] / us['16 bits']:5.2f}" if name in us else " " * 13)
        print(f"{name:28}", " ".join(cells))
