"""Candidates: writes projects in which no kernel has two schedules for the same constants."""
import json, shutil, sys
from pathlib import Path
R = Path("WORK/proj")
C = []
def c(slot, label, kernel, consts, sched, models="4B,8B"):
    C.append(dict(slot=slot, label=label, kernel=kernel, constants=consts, schedule=sched, models=models))
A = 'E = "bf16", D = 128, PAGE = 64, CHUNK = %d, BN = %d, ROWS = 256'
def attn(kernel, chunk, bn, warps, blocks, more="", tag=""):
    c("attn", f"{kernel}-c{chunk}n{bn}w{warps}b{blocks}{tag}", kernel, A % (chunk, bn), f"warps = {warps}, blocks = {blocks}{more}")
attn("paged_decode_attention", 256, 32, 1, 4)
B = ', next = "before"'
attn("paged_decode_attention", 256, 32, 1, 4, B, "next")
for bn, w, b in ((32,1,6),(32,1,3),(16,1,8),(64,2,2),(64,1,2),(64,2,3),(64,4,3)):
    attn("paged_decode_attention", 256, bn, w, b)
attn("paged_decode_attention", 512, 32, 1, 4)
attn("pda_r", 256, 32, 1, 4); attn("pda_r", 256, 16, 1, 8); attn("pda_r", 256, 64, 2, 2); attn("pda_r", 128, 32, 1, 4)
attn("pda_c", 256, 32, 1, 4); attn("pda_c", 256, 64, 2, 2); attn("pda_c", 256, 32, 1, 6); attn("pda_c", 256, 32, 1, 4, B, "next")
for x in (128, 256, 512):
    c("starts", f"starts-c{x}", "chunk_starts", f"CHUNK = {x}, BLOCK = 512", "warps = 4")
for rows in (4, 2, 8):
    for w in (4, 2, 8, 1):
        if rows == 4 or w == 4:
            c("merge", f"merge-r{rows}w{w}", "paged_merge", f'E = "bf16", D = 128, ROWS = {rows}', f"warps = {w}")
c("merge", "merge-r4w4next", "paged_merge", 'E = "bf16", D = 128, ROWS = 4', "warps = 4" + B)
for rows, heads, w in ((4,8,4),(4,8,8),(4,8,2),(4,4,4),(4,4,2),(4,4,1),(4,2,1),(4,2,2),(2,8,4),(2,4,2),(4,16,8),(8,4,4)):
    c("merge", f"flat-r{rows}h{heads}w{w}", "pm_flat", f'E = "bf16", D = 128, ROWS = {rows}, HEADS = {heads}', f"warps = {w}")
c("merge", "flat-r4h4w2next", "pm_flat", 'E = "bf16", D = 128, ROWS = 4, HEADS = 4', "warps = 2" + B)
for k in ("qk_norm_rope_kv", "rope_r"):
    for g, w, n in ((8,2,""),(8,4,""),(8,2,B),(4,1,""),(4,2,""),(2,1,"")):
        c("rope", f"{k}-g{g}w{w}{'next' if n else ''}", k, f'E = "bf16", D = 128, GROUP = {g}', f"warps = {w}{n}")
for m, h, s, ws in (("4B", 2560, 3, (5, 10, 4, 2)), ("8B", 4096, 2, (4, 8, 16))):
    for k in ("add_rms_norm_splits", "norm_r"):
        for w in ws:
            c("norm", f"{k}-w{w}", k, f'E = "bf16", H = {h}, S = {s}', f"warps = {w}", m)
        c("norm", f"{k}-w{ws[0]}next", k, f'E = "bf16", H = {h}, S = {s}', f"warps = {ws[0]}{B}", m)
        c("norm", f"{k}-w{ws[1]}next", k, f'E = "bf16", H = {h}, S = {s}', f"warps = {ws[1]}{B}", m)
def tile(slot, kernel, bm, bn, cons, stages, more="", tag="", models="4B,8B", s=None):
    group = ", GROUP = 8" if kernel in ("matmul", "matmul_silu_mul") else ""
    split = f"S = {s}, " if s else ""
    c(slot, f"{kernel.replace('matmul_','').replace('silu_mul','sm')}{'s%d-' % s if s else '-'}m{bm}n{bn}c{cons}s{stages}{tag}", kernel,
      f'E = "bf16", {split}BM = {bm}, BN = {bn}, BK = 64{group}', f'copy = "tma", consumers = {cons}, stages = {stages}{more}', models)
P = ", persistent = true"; B2 = ", blocks = 2"
# qkv and head: the present ones
for slot in ("qkv", "head"):
    tile(slot, "matmul_few", 16, 64, 1, 10, B2, "b2"); tile(slot, "matmul_few", 32, 64, 1, 8, B2, "b2"); tile(slot, "matmul_few", 64, 64, 1, 12)
    tile(slot, "matmul_few", 128, 64, 1, 8); tile(slot, "matmul_few", 128, 128, 2, 6, P, "p")
tile("qkv", "matmul_few", 16, 64, 1, 16); tile("qkv", "matmul_few", 16, 64, 1, 10, B2 + B, "b2next"); tile("qkv", "matmul_few", 16, 64, 1, 10, B2 + ", early = 8", "b2e8")
tile("qkv", "matmul_few", 32, 64, 1, 16); tile("qkv", "matmul_few", 128, 64, 1, 9); tile("qkv", "matmul_few", 128, 64, 1, 8, B, "next")
tile("qkv", "matmul_few", 128, 128, 2, 6); tile("qkv", "matmul_few", 128, 128, 2, 7)
tile("qkv", "few_left", 64, 48, 1, 12); tile("qkv", "few_left", 128, 48, 2, 8); tile("qkv", "few_left", 128, 48, 2, 10)
tile("qkv", "few_left", 128, 96, 2, 6); tile("qkv", "few_left", 128, 96, 2, 7); tile("qkv", "few_left", 128, 96, 2, 8); tile("qkv", "few_left", 256, 48, 2, 5)
tile("head", "matmul_few", 128, 192, 3, 5); tile("head", "matmul_few", 128, 192, 3, 4, P, "p"); tile("head", "matmul_few", 256, 128, 2, 4); tile("head", "matmul_few", 256, 128, 2, 3, P, "p")
tile("head", "few_left", 128, 192, 2, 5); tile("head", "few_left", 256, 128, 2, 4); tile("head", "few_left", 256, 192, 2, 4)
for s, m in ((3, "4B"), (2, "8B")):
    def sp(bm, bn, cons, st, more="", tag="", kernel="matmul_split"):
        tile("split", kernel, bm, bn, cons, st, more, tag, m, s)
    sp(16, 64, 1, 10, B2, "b2"); sp(32, 64, 1, 16); sp(64, 64, 1, 12); sp(128, 64, 1, 8); sp(128, 128, 2, 6)
    sp(16, 64, 1, 16); sp(16, 64, 1, 10, B2 + B, "b2next"); sp(16, 64, 1, 10, B2 + ", early = 8", "b2e8"); sp(32, 64, 1, 16, B, "next"); sp(64, 64, 1, 13); sp(64, 64, 1, 12, B, "next")
    sp(128, 64, 1, 9); sp(128, 64, 1, 8, B, "next"); sp(128, 64, 1, 8, ", early = 8", "e8"); sp(128, 128, 2, 7); sp(128, 128, 2, 6, B, "next"); sp(128, 64, 1, 4, B2, "b2")
    sp(128, 64, 2, 8, "", "", "split_left"); sp(128, 64, 2, 9, "", "", "split_left"); sp(128, 128, 2, 7, "", "", "split_left"); sp(64, 64, 1, 12, "", "", "split_left"); sp(256, 64, 2, 5, "", "", "split_left")
def gu(bm, bn, cons, st, more="", tag="", m="4B"):
    tile("gu", "matmul_silu_mul_few", bm, bn, cons, st, more, tag, m)
gu(64, 80, 1, 7); gu(64, 80, 1, 8); gu(64, 80, 1, 7, B, "next"); gu(64, 80, 1, 7, ", early = 7", "e7"); gu(64, 80, 1, 7, ", early = 2", "e2")
gu(128, 80, 2, 5); gu(128, 80, 2, 6); gu(128, 80, 2, 6, B, "next"); gu(128, 80, 2, 6, ", early = 6", "e6")
gu(256, 80, 2, 4); gu(256, 80, 2, 3); gu(256, 64, 2, 4); gu(256, 80, 2, 4, B, "next")
gu(64, 96, 1, 6, m="8B"); gu(64, 96, 1, 7, m="8B"); gu(64, 96, 1, 6, B, "next", m="8B")
gu(128, 96, 2, 5, m="8B"); gu(128, 96, 2, 5, B, "next", m="8B"); gu(128, 96, 2, 5, P, "p", m="8B"); gu(256, 96, 2, 3, m="8B"); gu(256, 96, 2, 4, m="8B"); gu(256, 64, 2, 4, m="8B")
gu(128, 64, 2, 6, P, "p", m="8B")
def all_of(slot, kernel, bm, bn, cons, stages, more, tag, models, s=None, persistent=False):
    e = min(stages, 8)
    for extra, name in ((B, "next"), (f", early = {e}", f"e{e}"), (f"{B}, early = {e}", f"nexte{e}")):
        if persistent and "early" in extra: continue
        tile(slot, kernel, bm, bn, cons, stages, more + extra, tag + name, models, s)
BOTH = "4B,8B"
for bm, st, more, tag in ((16, 10, B2, "b2"), (32, 8, B2, "b2"), (64, 12, "", ""), (128, 8, "", "")):
    all_of("qkv", "matmul_few", bm, 64, 1, st, more, tag, BOTH)
all_of("qkv", "matmul_few", 128, 128, 2, 6, P, "p", BOTH, persistent=True)
for s, m in ((3, "4B"), (2, "8B")):
    for bm, bn, cons, st, more, tag in ((16, 64, 1, 10, B2, "b2"), (32, 64, 1, 16, "", ""), (64, 64, 1, 12, "", ""), (128, 64, 1, 8, "", ""), (128, 128, 2, 6, "", "")):
        all_of("split", "matmul_split", bm, bn, cons, st, more, tag, m, s)
for bm, bn, cons, st, m in ((64, 80, 1, 7, "4B"), (128, 80, 2, 5, "4B"), (256, 80, 2, 4, "4B"), (64, 96, 1, 6, "8B"), (128, 96, 2, 5, "8B"), (256, 96, 2, 3, "8B"), (256, 96, 2, 4, "8B")):
    all_of("gu", "matmul_silu_mul_few", bm, bn, cons, st, "", "", m)
C = list({(one["slot"], one["label"], one["models"]): one for one in reversed(C)}.values())[::-1]
# one build per kernel, constants and schedule
seen = {}
for one in C:
    seen.setdefault((one["kernel"], one["constants"], one["schedule"]), []).append(one)
projects = []
for (k, consts, sched), ones in seen.items():
    for n, project in enumerate(projects):
        if (k, consts) not in project:
            break
    else:
        n = len(projects); projects.append({})
    projects[n][k, consts] = sched
    for one in ones: one["project"] = n
if __name__ == "__main__":
    src = Path("CHECKOUT/kernels_src")
    for n, project in enumerate(projects):
        d = R / str(n); (d / "kernels").mkdir(parents=True, exist_ok=True)
        for f in ("dims", "paged_dims", "rotary"): shutil.copy(src / f"{f}.py", d / "kernels")
        t = ['[build]\nkernels = "kernels"\narch = ["sm_90"]\n']
        for (k, consts), sched in project.items():
            f = Path("WORK/k") / f"{k}.py"
            shutil.copy(f if f.exists() else src / f"{k}.py", d / "kernels")
            t.append(f'[[kernel]]\nname = "{k}"\nconstants = {{ {consts} }}\nschedule = {{ {sched} }}\n')
        (d / "build.toml").write_text("\n".join(t))
        print(n, len(project))
    json.dump(C, open("WORK/candidates.json", "w"), indent=0)
    print(len(C), "candidates,", len(seen), "builds")
