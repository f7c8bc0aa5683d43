"""Times candidates of the kernels of a layer of rows over pages, each in place in a graph of whole layers, on this machine's GPU.

    PYTHONPATH=CHECKOUT python FOLDER/rows_experiment.py --pack FOLDER/pack --out OUT [--seconds 70] [--dry]

A graph has six layers with weights and pools of their own (more than the L2 cache holds), launched with overlap as the engine does.
For each slot of the layer, graphs with a candidate in place of the present kernel are replayed in turn with the present graph.
Results of a candidate are compared with those of the present kernel first: bits, or the largest relative difference.
"""
import argparse
import json
import math
import statistics
import time
import tomllib
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
            return dict(parts=parts, residual=to.get("residual", self.residual), weight=weight, out=to.get("out", out), eps=1e-6)
        if slot == "qkv":
            return dict(a=self.normed, b=w["qkv"], out=to.get("out", self.qkv))
        if slot == "o":
            return dict(a=self.mixed, b=w["o"], parts=to.get("out", self.oparts))
        if slot == "down":
            return dict(a=self.act, b=w["down"], parts=to.get("out", self.dparts))
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


def base_config(model, rows):
    """What the engine launches now."""
    t = rows
    bm = 16 if t <= 16 else 32 if t <= 32 else 64 if t <= 64 else 128
    wide = t > 128
    few = {16: "m16n64c1s10b2", 32: "m32n64c1s8b2", 64: "m64n64c1s12", 128: "m128n128c2s6p" if wide else "m128n64c1s8"}[bm]
    split = {16: "m16n64c1s10b2", 32: "m32n64c1s16", 64: "m64n64c1s12", 128: "m128n128c2s6" if wide else "m128n64c1s8"}[bm]
    s, w, bn = (3, 5, 80) if model == "4B" else (2, 4, 96)
    gu = {80: {64: "m64n80c1s7", 128: "m128n80c2s5"}, 96: {64: "m64n96c1s6", 128: "m128n96c2s5"}}[bn][max(64, bm)]
    norm = pick("norm", f"add_rms_norm_splits-w{w}", model)
    return {
        "norm": norm, "norm2": norm, "qkv": pick("qkv", f"few-{few}", model), "rope": pick("rope", "qk_norm_rope_kv-g8w2", model),
        "attn": dict(pick("attn", "paged_decode_attention-c256n32w1b4", model), blocks=528, shown="present/528"), "merge": pick("merge", "merge-r4w4", model),
        "o": pick("split", f"splits{s}-{split}", model), "down": pick("split", f"splits{s}-{split}", model), "gu": pick("gu", f"sm_few-{gu}", model),
    }


def pick(slot, label, model):
    for key, c in ALL[slot]:
        if key == label and model in c["models"]:
            return c
    raise KeyError((slot, label))


def all_candidates():
    found, broken = find_artifacts(sorted(p for p in opt.pack.iterdir() if p.is_dir()), "sm_90a")
    by = {(e.variant.split(": ")[0], e.manifest.kernel, tuple(sorted((k, str(v)) for k, v in e.manifest.constants.items()))): e for e in found}
    print(len(found), "artifacts", *broken)
    out = {}
    for one in json.loads((opt.pack / "candidates.json").read_text()):
        consts = tomllib.loads(f"x = {{ {one['constants']} }}")["x"]
        e = by.get((str(one["project"]), one["kernel"], tuple(sorted((k, str(v)) for k, v in consts.items()))))
        if e is None:
            print("missing", one["label"])
        else:
            out.setdefault(one["slot"], []).append((one["label"], dict(one, entry=e, consts=consts)))
    return out


ALL = all_candidates()


def plain(schedule):
    """A schedule without `next` and `early`."""
    return ", ".join(sorted(part for part in schedule.split(", ") if not part.startswith(("next", "early"))))


def variant(slot, c, model, early):
    """The same kernel and tile with `next = "before"`, or with more early copies too, or as it is."""
    pool = {"o": "split", "down": "split", "norm2": "norm"}.get(slot, slot)
    wanted = [x for _, x in ALL[pool] if x["kernel"] == c["kernel"] and x["consts"] == c["consts"] and model in x["models"] and plain(x["schedule"]) == plain(c["schedule"])]
    both = [x for x in wanted if "next" in x["schedule"] and "early" in x["schedule"]]
    only = [x for x in wanted if "next" in x["schedule"] and "early" not in x["schedule"]]
    alone = [x for x in wanted if "next" not in x["schedule"] and "early" in x["schedule"]]
    found = {"next": only, "both": both or only, "early": alone}[early]
    return {**c, **found[0]} if found else c


def candidates(slot, model, rows, base):
    """Candidates of a slot that make sense for so many rows, by name."""
    pool = {"o": "split", "down": "split", "norm2": "norm"}.get(slot, slot)
    found = {}
    for label, c in ALL[pool]:
        if model not in c["models"]:
            continue
        if "BM" in c["consts"]:
            bm = c["consts"]["BM"]
            least = 64 if c["kernel"] in ("few_left", "split_left") or pool == "gu" else 16
            fit = max(least, 1 << (rows - 1).bit_length())
            if bm > fit or (bm < fit and not (rows > 64 and bm >= fit // 2)):
                continue
        if slot == "attn":
            resident = int(c["schedule"].split("blocks = ")[1].split(",")[0])
            for blocks in sorted({132 * resident, 521 if label.endswith("c256n32w1b4") else 132 * resident, 132 * resident * 2, 132 * resident * 4}):
                found[f"{label}/{blocks}"] = dict(c, blocks=blocks)
            if label.endswith("c256n32w1b4"):
                found[f"{label}/6336"] = dict(c, blocks=6336)
        else:
            found[label] = c
    return found


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


RECORD = []


def say(**row):
    RECORD.append(row)
    opt.out.mkdir(parents=True, exist_ok=True)
    (opt.out / "rows.json").write_text("[\n" + ",\n".join(map(json.dumps, RECORD)) + "\n]\n")


def shares(state, base, base_us):
    """What each launch of the present layer costs: alone, six in a row, and the layer without it."""
    graphs = {"layer": state.graph(base)[0]}
    keep = []
    for slot in SLOTS:
        alone = [state.plan(slot, base[slot], layer) for layer in range(LAYERS)]
        rest = [state.plan(x, base[x], layer) for layer in range(LAYERS) for x in SLOTS if x != slot]
        keep.append((alone, rest))
        graphs[f"{slot} alone"], graphs[f"without {slot}"] = capture(alone), capture(rest)
    times = timed(graphs, LAYERS, 4, base_us * LAYERS)
    whole = times["layer"]
    print(f"{state.name} {state.rows:3d} layer {whole:.1f} | alone, and in the layer:", "  ".join(f"{x} {times[x + ' alone']:.1f} {whole - times['without ' + x]:.1f}" for x in SLOTS))
    say(model=state.name, rows=state.rows, shares=times)


def study(model, rows, slots, weights, base_us):
    """All candidates of some slots, then the best of each together."""
    state = State(model, rows).fill(weights)
    state.known = {}
    base = base_config(model, rows)
    best = dict(base)
    shares(state, base, base_us)
    for slot in slots:
        if left() < 6:
            print("out of time", model, rows, slot)
            return
        graphs, checks = {"present": state.graph(base)[0]}, {}
        keep = []
        for name, c in candidates(slot, model, rows, base).items():
            try:
                checks[name] = compared(state, slot, base, c)
                config = {**base, slot: c, **({"norm2": c} if slot == "norm" else {})}
                g, plans, _ = state.graph(config)
                keep.append(plans)
                graphs[name] = g
            except Exception as problem:
                checks[name] = f"{type(problem).__name__}: {problem}"[:150]
        times = timed(graphs, LAYERS, 3, base_us * LAYERS)
        present = times.pop("present")
        good = {n: t for n, t in times.items() if checks[n] == "bits" or checks[n][:1].isdigit() and float(checks[n]) < 2e-2}
        winner = min(good, key=good.get) if good else None
        found = candidates(slot, model, rows, base)
        if winner and good[winner] < present - 0.1:
            best[slot] = found[winner]
            if slot == "norm":
                best["norm2"] = found[winner]
        order = sorted(times, key=times.get)
        print(f"{model} {rows:3d} {slot:5s} present {present:7.2f} |", "  ".join(f"{n} {times[n] - present:+.2f} [{checks[n]}]" for n in order[:6]))
        bad = [n for n in checks if n not in good]
        if bad:
            print("     wrong:", [(n, checks[n]) for n in bad])
        say(model=model, rows=rows, slot=slot, present=present, times=times, checks=checks)
    together = {"present": state.graph(base)[0], "best": state.graph(best)[0]}
    for name in ("next", "early", "both"):
        together[f"present, {name}"] = state.graph({x: variant(x, base[x], model, name) for x in SLOTS})[0]
        together[f"best, {name}"] = state.graph({x: variant(x, best[x], model, name) for x in SLOTS})[0]
    for small in (("norm", "norm2"), ("rope",), ("attn",), ("merge",), ("norm", "norm2", "rope", "merge"), ("qkv", "o", "gu", "down")):
        together[f"best, next of {'+'.join(small)}"] = state.graph({x: variant(x, best[x], model, "next") if x in small else best[x] for x in SLOTS})[0]
    for slot in SLOTS:
        if best[slot] is not base[slot]:
            together[f"best without {slot}"] = state.graph({**best, slot: base[slot]})[0]
    times = timed(together, LAYERS, 5, base_us * LAYERS)
    labels = {s: c["label"] + (f"/{c['blocks']}" if s == "attn" else "") for s, c in best.items() if c is not base[s]}
    print(f"{model} {rows:3d} TOGETHER", {n: round(t, 2) for n, t in times.items()}, labels)
    say(model=model, rows=rows, together=times, labels=labels)
    if model == "4B" and rows in (8, 256, 128) and left() > 8:
        lengths_study(state, base)


def lengths_study(state, base):
    """Attention with other lengths."""
    names = ["paged_decode_attention-c256n32w1b4", "pda_r-c256n32w1b4", "pda_c-c256n32w1b4", "paged_decode_attention-c256n32w1b6", "paged_decode_attention-c512n32w1b4",
             "pda_c-c256n64w2b2", "pda_c-c256n32w1b6", "paged_decode_attention-c256n64w2b2"]
    for what, lengths in (("520", torch.full((state.rows,), 520)), ("640", torch.full((state.rows,), 640)), ("1024", torch.full((state.rows,), 1024)),
                          ("1..2000", torch.randint(1, 2000, (state.rows,), generator=torch.Generator().manual_seed(1)))) + (
                              (("8000", torch.full((state.rows,), 8000)),) if state.rows == 8 else ()):
        if left() < 6 or int(lengths.max()) > MAX * PAGE:
            continue
        state.set_lengths(lengths)
        graphs = {}
        for label, c in ALL["attn"]:
            if label in names:
                resident = int(c["schedule"].split("blocks = ")[1].split(",")[0])
                for blocks in (132 * resident, 132 * resident * 2, 132 * resident * 4):
                    graphs[f"{label}/{blocks}"] = state.graph({**base, "attn": dict(c, blocks=blocks)})[0]
        times = timed(graphs, LAYERS, 3, 1000)
        order = sorted(times, key=times.get)
        print(f"  lengths {what} rows {state.rows}:", "  ".join(f"{n} {times[n]:.1f}" for n in order[:5]), f"| present {times.get(names[0] + '/528', 0):.1f}")
        say(lengths=what, rows=state.rows, times=times)


def layout_study():
    """Attention over the same bytes where a page has eight heads, and where it has one: 32 rows of eight heads, 256 of one."""
    for kernel in ("paged_decode_attention-c256n32w1b4", "paged_decode_attention-c256n64w2b2"):
        entry = next(c["entry"] for label, c in ALL["attn"] if label == kernel)
        graphs, keep = {}, []
        for heads, rows in ((8, 32), (1, 256)):
            pages, n = PAGES * 8 // heads, 72
            lengths = torch.full((rows,), n * PAGE, device=DEV, dtype=torch.int32)
            items = rows * n * PAGE // 256
            table = torch.randperm(pages, device=DEV)[: rows * n].reshape(rows, n).to(torch.int32)
            starts = (torch.arange(rows + 1, device=DEV) * (n * PAGE // 256)).to(torch.int32)
            f = lambda *shape: torch.zeros(shape, device=DEV, dtype=torch.float32)
            parts = dict(partial=f(items, heads, G, D), maxima=f(items, heads, G), sums=f(items, heads, G))
            q = rnd(rows, heads, G, D)
            keep.append((lengths, table, starts, parts, q))
            for blocks in (528, 264, 2112, 4608):
                plans = []
                for kp, vp in POOLS:
                    given = dict(q=q, k_pages=kp.view(pages, PAGE, heads, D), v_pages=vp.view(pages, PAGE, heads, D), table=table, lengths=lengths,
                                 starts=starts, **parts, blocks=blocks, scale=D**-0.5)
                    plans.append(bench.kernel(entry).plan(given, values={c.tensor: TRUSTED for c in entry.manifest.value_checks}))
                keep.append(plans)
                graphs[f"{heads} heads a page, {blocks} blocks"] = capture(plans)
        times = timed(graphs, LAYERS, 3, 900)
        read = 32 * 72 * PAGE * 8 * D * 2 * 2
        print("layout", kernel, {n: f"{t:.1f} us {read / t / 1e6:.2f} TB/s" for n, t in times.items()})
        say(layout=kernel, times=times, bytes=read)


def heads(model, rows):
    """The head, three tables in turn."""
    h = MODELS[model]["H"]
    a = rnd(rows, h)
    out = torch.zeros(rows, VOCAB, device=DEV, dtype=E)
    graphs, first, checks, keep = {}, None, {}, []
    for label, c in ALL["head"]:
        bm = c["consts"]["BM"]
        fit = max(16 if c["kernel"] == "matmul_few" else 64, 1 << (rows - 1).bit_length())
        if bm > max(fit, 16) or (bm < fit and not (rows > 64 and bm >= 128)):
            continue
        try:
            plans = []
            for b in TABLES:
                given = dict(a=a, b=b[:, :h] if b.shape[1] == h else b, out=out)
                if opt.dry:
                    from tilec.runtime import TensorView
                    given = {n: TensorView((x.data_ptr() + 255) // 256 * 256, "bf16", tuple(x.shape), x.stride()) for n, x in given.items()}
                plans.append(bench.kernel(c["entry"]).plan(given))
            plans[0].launch(bench.stream())
            bench.synchronize()
            first = out.clone() if first is None else first
            checks[label] = "bits" if torch.equal(out, first) else "differs"
            graphs[label] = capture(plans * 2)
            keep.append(plans)
        except Exception as problem:
            print("head", label, str(problem)[:150])
    times = timed(graphs, 6, 3, 1500)
    print(f"{model} {rows:3d} head ", "  ".join(f"{n} {times[n]:.1f} [{checks[n]}]" for n in sorted(times, key=times.get)))
    say(model=model, rows=rows, slot="head", times=times, checks=checks)


ESTIMATE = {("4B", 8): 79, ("4B", 32): 90, ("4B", 64): 110, ("4B", 128): 167, ("4B", 256): 275, ("8B", 8): 125, ("8B", 32): 135, ("8B", 64): 160, ("8B", 128): 215, ("8B", 256): 360}
MAIN = ("attn", "merge", "norm", "rope", "qkv", "o", "gu", "down")
for model, rows_list, slots in (("4B", (128, 256, 8, 32, 64), MAIN), ("8B", (256, 128, 8, 32), ("norm", "qkv", "o", "gu", "down"))):
    if left() < 8:
        break
    weights = State.weights(model)
    for rows in rows_list:
        if left() > 8:
            study(model, rows, slots, weights, ESTIMATE[model, rows])
            print(f"   t={time.time() - T0:.1f}", flush=True)
    if model == "4B" and not opt.dry and left() > 10:
        layout_study()
    TABLES = [rnd(VOCAB, MODELS[model]["H"], scale=0.02) for _ in range(2)]
    for rows in (256, 128, 64, 32, 8):
        if left() > 4:
            heads(model, rows)
    del weights, TABLES
print(f"seconds {time.time() - T0:.1f}")
