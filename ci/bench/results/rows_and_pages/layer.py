"""Times candidates of the kernels of a layer of rows over pages, each in place in a graph of whole layers, on this machine's GPU.

    PYTHONPATH=CHECKOUT python FOLDER/layer.py --pack FOLDER/pack --out OUT [--seconds 60]

A graph has six layers with weights and pools of their own (more than the L2 cache holds), launched with overlap as the engine does.
For each slot of the layer, graphs with a candidate in place of the present kernel are replayed in turn with the present graph.
Results of a candidate are compared with those of the present kernel first: bits, or the largest relative difference.
"""
import argparse
import json
import math
import statistics
import time
from pathlib import Path

import torch

from ci.bench.kernels.launch import Bench, find_artifacts
from tilec.runtime import TRUSTED

PAGE, HKV, G, D = 64, 8, 4, 128
MODELS = {"4B": dict(H=2560, I=9728, S=3), "8B": dict(H=4096, I=12288, S=2)}
HQ, HEADS, VOCAB, LAYERS, MAX, PAGES = HKV * G, HKV * (G + 2), 151936, 6, 128, 2600
SLOTS = ("norm", "qkv", "rope", "attn", "merge", "o", "norm2", "gu", "down")
ap = argparse.ArgumentParser()
ap.add_argument("--pack", type=Path)
ap.add_argument("--out", type=Path)
ap.add_argument("--seconds", type=float, default=70)
ap.add_argument("--dry", action="store_true")
opt = ap.parse_args()
T0 = time.time()
bench = Bench(opt.dry)
DEV = "cpu" if opt.dry else "cuda"
if opt.dry:
    LAYERS, MAX, PAGES, VOCAB = 2, 16, 20, 1536
    MODELS = {"4B": dict(H=2560, I=9728, S=3), "8B": dict(H=4096, I=12288, S=2)}
E = torch.bfloat16


def left():
    return opt.seconds - (time.time() - T0)


def rnd(*shape, scale=1.0):
    if opt.dry:
        return torch.zeros(shape, dtype=E)
    return (torch.randn(shape, device=DEV, dtype=torch.float32 if math.prod(shape) < 1e8 else E) * scale).to(E)


POOLS = [(rnd(PAGES, PAGE, HKV, D), rnd(PAGES, PAGE, HKV, D)) for _ in range(LAYERS)]
ROPE = torch.rand(8192, D, device=DEV)


class State:
    """Tensors of a model."""

    def __init__(self, name, rows):
        m = MODELS[name]
        self.name, self.m, self.rows = name, m, rows

    @staticmethod
    def weights(name):
        m = MODELS[name]
        h, i = m["H"], m["I"]
        return [
            dict(qkv=rnd(HEADS * D, h, scale=h**-0.5), o=rnd(h, HQ * D, scale=0.1 * (HQ * D) ** -0.5), gu=rnd(2, i, h, scale=h**-0.5),
                 down=rnd(h, i, scale=0.1 * i**-0.5), n1=rnd(h), n2=rnd(h), qn=rnd(D), kn=rnd(D)) for _ in range(LAYERS)
        ]

    def fill(self, w):
        h, i, s, t = self.m["H"], self.m["I"], self.m["S"], self.rows
        f = lambda *shape: torch.zeros(shape, device=DEV, dtype=torch.float32)
        self.w = w
        self.residual, self.normed, self.normed2 = rnd(t, h), rnd(t, h), rnd(t, h)
        self.qkv, self.q = rnd(t, HEADS * D), rnd(t, HQ * D)
        self.mixed, self.act = rnd(t, HQ * D), rnd(t, i)
        self.oparts, self.dparts = f(s, t, h), f(s, t, h)
        self.oparts.normal_(), self.dparts.normal_()
        self.more = {"o": f(2 * s, t, h), "down": f(2 * s, t, h)}  # of products in twice as many parts
        self.items = t * (MAX * PAGE // 128)
        self.partial, self.maxima, self.sums = f(self.items, HKV, G, D), f(self.items, HKV, G), f(self.items, HKV, G)
        self.table = torch.randperm(PAGES, device=DEV)[torch.arange(t * MAX, device=DEV) % PAGES].reshape(t, MAX).to(torch.int32)
        if t * 10 <= PAGES:
            perm = torch.randperm(PAGES, device=DEV)[: t * 10].reshape(t, 10)
            self.table[:, :10] = perm
        self.lengths = torch.zeros(t, device=DEV, dtype=torch.int32)
        self.starts = {c: torch.zeros(t + 1, device=DEV, dtype=torch.int32) for c in (128, 256, 512)}
        self.positions, self.slots = torch.zeros(t, device=DEV, dtype=torch.int32), torch.zeros(t, device=DEV, dtype=torch.int32)
        self.set_lengths(torch.full((t,), 576))
        return self

    def set_lengths(self, lengths):
        self.lengths.copy_(lengths.to(torch.int32))
        p = (lengths - 1).to(DEV).to(torch.int64)
        self.positions.copy_(p.to(torch.int32))
        pages = self.table.long()[torch.arange(self.rows, device=DEV), p // PAGE]
        slots = pages * PAGE + p % PAGE
        if len(torch.unique(slots)) < self.rows:  # rows with shared pages write to slots of their own
            slots = torch.randperm(PAGES * PAGE, device=DEV)[: self.rows]
        self.slots.copy_(slots.to(torch.int32))
        for c, one in self.starts.items():
            chunks = (lengths.to(DEV).to(torch.int64) + c - 1) // c
            one.copy_(torch.cat([torch.zeros(1, device=DEV, dtype=torch.int64), chunks.cumsum(0)]).to(torch.int32))

    def arguments(self, slot, cand, layer, to=None):
        """Arguments of a launch; `to` replaces outputs."""
        w, t, k = self.w[layer], self.rows, cand["kernel"]
        kp, vp = POOLS[layer]
        to = to or {}
        if slot in ("norm", "norm2"):
            parts, weight, out = (self.dparts, w["n1"], self.normed) if slot == "norm" else (self.oparts, w["n2"], self.normed2)
            if cand["consts"]["S"] != self.m["S"]:
                parts = self.more["down" if slot == "norm" else "o"]
            return dict(parts=parts, residual=to.get("residual", self.residual), weight=weight, out=to.get("out", out), eps=1e-6)
        if slot == "qkv":
            return dict(a=self.normed, b=w["qkv"], out=to.get("out", self.qkv))
        if slot == "o":
            return dict(a=self.mixed, b=w["o"], parts=to.get("out", self.oparts if cand["consts"]["S"] == self.m["S"] else self.more["o"]))
        if slot == "down":
            return dict(a=self.act, b=w["down"], parts=to.get("out", self.dparts if cand["consts"]["S"] == self.m["S"] else self.more["down"]))
        if slot == "gu":
            return dict(a=self.normed2, b=w["gu"], out=to.get("out", self.act))
        if slot == "rope":
            s = PAGES * PAGE
            return dict(qkv=self.qkv.view(t, HEADS, D), q_weight=w["qn"], k_weight=w["kn"], table=ROPE, positions=self.positions, slots=self.slots,
                        q=to.get("out", self.q).view(t, HQ, D), k_cache=to.get("k", kp).view(s, HKV, D), v_cache=to.get("v", vp).view(s, HKV, D), eps=1e-6)
        chunk = self.chunk if slot == "merge" else cand["consts"]["CHUNK"]
        if slot == "attn":
            return dict(q=self.q.view(t, HKV, G, D), k_pages=kp, v_pages=vp, table=self.table, lengths=self.lengths, starts=self.starts[chunk],
                        partial=self.partial, maxima=self.maxima, sums=self.sums, blocks=cand["blocks"], scale=D**-0.5)
        out = to.get("out", self.mixed)
        if k == "pm_flat":
            return dict(partial=self.partial.view(self.items, HQ, D), maxima=self.maxima.view(self.items, HQ), sums=self.sums.view(self.items, HQ),
                        starts=self.starts[chunk], out=out.view(t, HQ, D))
        return dict(partial=self.partial, maxima=self.maxima, sums=self.sums, starts=self.starts[chunk], out=out.view(t, HKV, G, D))

    def plan(self, slot, cand, layer, to=None):
        e = cand["entry"]
        given = self.arguments(slot, cand, layer, to)
        if opt.dry:
            from tilec.runtime import TensorView
            types = {spec.name: spec.dtype for spec in e.manifest.tensors}
            given = {n: TensorView((x.data_ptr() + 255) // 256 * 256, types[n], tuple(x.shape), x.stride()) if n in types else x for n, x in given.items()}
        return bench.kernel(e).plan(given, values={c.tensor: TRUSTED for c in e.manifest.value_checks})

    def once(self, slot, cand, to=None):
        self.plan(slot, cand, 0, to).launch(bench.stream())
        bench.synchronize()

    def graph(self, config):
        """Six layers with these candidates."""
        self.chunk = config["attn"]["consts"]["CHUNK"]
        key = tuple(id(config[s]) for s in SLOTS)
        plans = [self.plan(s, config[s], layer) for layer in range(LAYERS) for s in SLOTS]
        return capture(plans), plans, key


def capture(plans):
    if opt.dry:
        for p in plans:
            p.launch(0, overlap=True)
        return None
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for n, p in enumerate(plans[:9]):
            p.launch(int(side.cuda_stream), overlap=n > 0)
    torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        for n, p in enumerate(plans):
            p.launch(bench.stream(), overlap=n > 0)
    return g


def timed(graphs, count, rounds, us):
    """us for each of `count` units of work of each graph, replayed in turn."""
    if opt.dry:
        return {name: 1.0 for name in graphs}
    replays = max(1, round(2500 / us))
    samples = {name: [] for name in graphs}
    for r in range(rounds + 1):
        events = {}
        for name, g in graphs.items():
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            g.replay()
            a.record()
            for _ in range(replays):
                g.replay()
            b.record()
            events[name] = a, b
        torch.cuda.synchronize()
        if r:
            for name, (a, b) in events.items():
                samples[name].append(a.elapsed_time(b) * 1e3 / replays / count)
    return {name: statistics.median(x) for name, x in samples.items()}


def found(kernel, folder="shipped", **consts):
    """The artifact of a kernel with these constants, as a candidate."""
    for e in ALL:
        m = e.manifest
        if m.kernel == kernel and e.variant.startswith(f"{folder}: ") and m.constants.get("E", "bf16") == "bf16" and all(m.constants.get(k) == v for k, v in consts.items()):
            return {"kernel": kernel, "entry": e, "consts": dict(m.constants)}
    raise KeyError((kernel, folder, consts))


def attn(rows, blocks, folder="shipped"):
    return {**found("paged_decode_attention", folder, ROWS=rows), "blocks": blocks}


def base_config(model, rows):
    """What steps launched before these choices."""
    m, t = MODELS[model], rows
    bm = 16 if t <= 16 else 32 if t <= 32 else 64 if t <= 64 else 128
    wide = 128 if t > 128 else 64
    norm = found("add_rms_norm_splits", H=m["H"], S=m["S"])
    split = found("matmul_split", S=m["S"], BM=bm, BN=wide)
    return {
        "norm": norm, "norm2": norm, "qkv": found("matmul_few", BM=bm, BN=wide), "rope": found("qk_norm_rope_kv", GROUP=8),
        "attn": attn(256, max(528, 24 * t)), "merge": found("paged_merge", HEADS=4), "o": split, "down": split,
        "gu": found("matmul_silu_mul_few", BM=max(64, bm), BN={"4B": 80, "8B": 96}[model]),
    }


def candidates(model, rows):
    """By slot: candidates by name; the first of each is what steps launch now."""
    full, bn = max(528, 24 * rows), {"4B": 80, "8B": 96}[model]
    now = 8 if rows <= 8 else 32 if 16 < rows <= 32 else 256
    a = {f"ROWS {now}, {full}": attn(now, full)}
    for r, folder, label in ((8, "shipped", "ahead"), (32, "shipped", "6 a multiprocessor"), (32, "x0", "4 a multiprocessor"), (256, "x0", "6 a multiprocessor")):
        if r >= rows and (r != now or folder != "shipped"):
            a[f"ROWS {r} {label}, {full}"] = attn(r, full, folder)
    if rows <= 8:
        for blocks in (192, 264, 1056):
            a[f"ROWS 8, {blocks}"] = attn(8, blocks)
            a[f"ROWS 8 2 a multiprocessor, {blocks}"] = attn(8, blocks, "x1")
    elif rows <= 32:
        for blocks in (792, 1584):
            a[f"ROWS 32, {blocks}"] = attn(32, blocks)
    else:
        a[f"ROWS 256 6 a multiprocessor, {2 * full}"] = attn(256, 2 * full, "x0")
        a[f"ROWS 256, {2 * full}"] = attn(256, 2 * full)
    out = {"attn": a}
    if rows == 256:
        out["qkv"] = {"128x96": found("matmul_few", BM=128, BN=96), "128x96 8 stages": found("matmul_few", "x0", BM=128, BN=96), "128x48": found("matmul_few", "x0", BM=128, BN=48)}
        out["gu"] = {"256": found("matmul_silu_mul_few", BM=256, BN=bn), "256 early": found("matmul_silu_mul_few", "x0", BM=256, BN=bn)}
    if rows == 128:
        out["qkv"] = {"128x48": found("matmul_few", "x0", BM=128, BN=48)}
        out["gu"] = {"256": found("matmul_silu_mul_few", BM=256, BN=bn)}
    return out


found_all, broken = find_artifacts([opt.pack / "shipped", opt.pack / "x0", opt.pack / "x1"], "sm_90a")
ALL = found_all
print(len(ALL), "artifacts", *broken)


def compared(state, slot, base, cand):
    """'bits', or the largest relative difference, from the present kernel's result."""
    def result(c):
        if slot in ("norm", "norm2"):
            r, o = residual0.clone(), torch.full_like(state.normed, float("nan"))
            state.once(slot, c, dict(residual=r, out=o))
            return [r, o]
        if slot == "rope":
            o, k, v = torch.full_like(state.q, float("nan")), POOLS[0][0], POOLS[0][1]
            k.view(-1, HKV, D)[state.slots.long()] = 0
            v.view(-1, HKV, D)[state.slots.long()] = 0
            state.once(slot, c, dict(out=o))
            return [o, k.view(-1, HKV, D)[state.slots.long()], v.view(-1, HKV, D)[state.slots.long()]]
        if slot in ("attn", "merge"):
            a, m = (c, base["merge"]) if slot == "attn" else (base["attn"], c)
            state.chunk = a["consts"]["CHUNK"]
            state.partial.fill_(float("nan")), state.maxima.fill_(float("nan")), state.sums.fill_(float("nan"))
            o = torch.full_like(state.mixed, float("nan"))
            state.once("attn", a)
            state.once("merge", m, dict(out=o))
            return [o]
        o = torch.full_like({"qkv": state.qkv, "o": state.oparts, "down": state.dparts, "gu": state.act}[slot], float("nan"))
        state.once(slot, c, dict(out=o))
        return [o]

    residual0 = state.residual.clone()
    if slot not in state.known:
        state.known[slot] = [x.clone() for x in result(base[slot])]
    worst, bits = 0.0, True
    for x, y in zip(result(cand), state.known[slot]):
        bits = bits and bool(torch.equal(x, y))
        scale = float(y.float().abs().amax()) or 1.0
        worst = max(worst, float((x.float() - y.float()).abs().amax()) / scale) if bool(x.isfinite().all()) else float("inf")
    return "bits" if bits else f"{worst:.1e}"


RECORD, TABLE = [], []


def say(**row):
    RECORD.append(row)
    opt.out.mkdir(parents=True, exist_ok=True)
    (opt.out / "layer.json").write_text("[\n" + ",\n".join(map(json.dumps, RECORD)) + "\n]\n")


def study(model, rows, weights, base_us):
    state = State(model, rows).fill(weights)
    state.known = {}
    base, all_ = base_config(model, rows), candidates(model, rows)
    for slot, some in all_.items():
        if left() < 3:
            print("out of time", model, rows, slot)
            return
        checks, keep = {}, []
        state.known = {}  # bits are compared before any graph runs, which changes what launches read
        for name, c in some.items():
            checks[name] = compared(state, slot, base, c)
        graphs = {"before": state.graph(base)[0]}
        for name, c in some.items():
            try:
                g, plans, _ = state.graph({**base, slot: c})
                keep.append(plans)
                graphs[name] = g
            except Exception as problem:
                checks[name] = f"{type(problem).__name__}: {problem}"[:150]
        times = timed(graphs, LAYERS, 4, base_us * LAYERS)
        TABLE.append(f"{model} {rows:3d} {slot:4s} before {times['before']:7.2f} | " + "  ".join(f"{n} {times[n] - times['before']:+.2f} [{checks[n]}]" if n in times else f"{n} [{checks[n]}]" for n in some))
        print(TABLE[-1], flush=True)
        say(model=model, rows=rows, slot=slot, times=times, checks=checks)
    twice = 2 * MODELS[model]["S"]  # tiles of 128 outputs, and twice as many parts of the depth: another order of sums
    bm = 16 if rows <= 16 else 32 if rows <= 32 else 64 if rows <= 64 else 128
    norm, split = found("add_rms_norm_splits", "x1", S=twice), found("matmul_split", "x1", S=twice, BM=bm)
    times = timed({"before": state.graph(base)[0], "parts": state.graph({**base, "norm": norm, "norm2": norm, "o": split, "down": split})[0]}, LAYERS, 4, base_us * LAYERS)
    TABLE.append(f"{model} {rows:3d} o and down in {twice} parts by 128: {times['parts'] - times['before']:+.2f}")
    print(TABLE[-1], flush=True)
    say(model=model, rows=rows, parts=times)
    now = {slot: next(iter(some.values())) for slot, some in all_.items() if not (rows == 128 and slot != "attn")}
    times = timed({"before": state.graph(base)[0], "now": state.graph({**base, **now})[0]}, LAYERS, 6, base_us * LAYERS)
    TABLE.append(f"{model} {rows:3d} together: before {times['before']:.2f}, now {times['now']:.2f} ({', '.join(now)})")
    print(TABLE[-1], flush=True)
    say(model=model, rows=rows, together=times)


def head(model, rows):
    """The head, two tables in turn, as it is and with persistent blocks."""
    h = MODELS[model]["H"]
    tables = [rnd(VOCAB, h, scale=0.02) for _ in range(2)]
    a, out = rnd(rows, h), torch.zeros(rows, VOCAB, device=DEV, dtype=E)
    graphs, bits = {}, {}
    for name, c in (("as it is", found("matmul_few", BM=128, BN=128)), ("persistent", found("matmul_few", "x0", BM=128, BN=128)), ("128x96", found("matmul_few", BM=128, BN=96))):
        plans = [bench.kernel(c["entry"]).plan(dict(a=a, b=b, out=out)) for b in tables]
        plans[0].launch(bench.stream())
        bench.synchronize()
        bits[name] = out.clone()
        graphs[name] = capture(plans * 2)
    times = timed(graphs, 4, 4, 1000)
    same = all(torch.equal(x, bits["as it is"]) for x in bits.values())
    TABLE.append(f"{model} {rows:3d} head " + "  ".join(f"{n} {t:.1f}" for n, t in times.items()) + f" [{'bits' if same else 'DIFFERENT'}]")
    print(TABLE[-1], flush=True)
    say(model=model, rows=rows, head=times, same=same)


ESTIMATE = {("4B", 8): 72, ("4B", 16): 80, ("4B", 32): 90, ("4B", 64): 110, ("4B", 128): 157, ("4B", 256): 264, ("8B", 8): 113, ("8B", 32): 135, ("8B", 128): 207, ("8B", 256): 345}
for model in ("4B", "8B"):
    weights = State.weights(model)
    for (of, rows), us in ESTIMATE.items():
        if of == model and left() > 3:
            study(model, rows, weights, us)
    del weights
    for rows in (128, 256):
        if left() > 2:
            head(model, rows)
print("\n".join(["", "us of a layer; differences from what steps launched before:", *TABLE, f"seconds {time.time() - T0:.1f}"]))
(opt.out / "layer.txt").write_text("\n".join(TABLE) + "\n")
