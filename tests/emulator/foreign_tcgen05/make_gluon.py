"""Compiles `gluon_kernels.py` to sm_100a PTX with Triton's Gluon; needs no GPU. Adds to `cases.json` what a launch needs."""

import gzip
import json
import re
import traceback
from collections import Counter
from pathlib import Path

import gluon_kernels as kernels
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

HERE = Path(__file__).parent


def desc(name, dtype, shape, cga=None):
    layout = gl.NVMMASharedLayout.get_default_for(shape, dtype, **({"cga_layout": cga} if cga else {}))
    return f"tensordesc<{name}[{','.join(map(str, shape))}],{layout!r}>"


def pair(name, dtype, bm, bn, bk):
    return {
        "a_desc": desc(name, dtype, [bm, bk], [(1, 0)]), "b_desc": desc(name, dtype, [bn, bk], [(1, 0)]),
        "c_desc": desc("bf16", gl.bfloat16, [bm, bn], [(1, 0)]), "k": "i32",
    }  # fmt: skip


CLC = {
    "a_desc": desc("bf16", gl.bfloat16, [128, 64]), "b_desc": desc("bf16", gl.bfloat16, [64, 64]),
    "c_desc": desc("bf16", gl.bfloat16, [128, 64]), "k": "i32", "tiles_n": "i32",
}  # fmt: skip
CASES = [
    ("pair_bf16_256x128", kernels.matmul_pair, pair("bf16", gl.bfloat16, 256, 128, 64), {"STAGES": 3}, 2),
    ("pair_bf16_128x128", kernels.matmul_pair, pair("bf16", gl.bfloat16, 128, 128, 64), {"STAGES": 3}, 2),
    ("pair_fp8_256x128", kernels.matmul_pair, pair("fp8e4nv", gl.float8e4nv, 256, 128, 128), {"STAGES": 3}, 2),
    ("clc_bf16", kernels.matmul_clc, CLC, {}, 1),
]

listing = HERE / "cases.json"
described = json.loads(listing.read_text())["cases"]
for name, kernel, signature, constants, ctas in CASES:
    names = [p.name for p in kernel.params]
    types = {n: signature.get(n, "constexpr") for n in names}
    values = {(names.index(key),): value for key, value in constants.items()}
    attributes = {(names.index("k"),): [["tt.divisibility", 16]]}
    try:
        source = GluonASTSource(kernel, types, values, attributes)
        compiled = triton.compile(source, target=GPUTarget("cuda", 100, 32), options={"num_warps": 4, "num_ctas": ctas})
    except Exception as error:
        traceback.print_exc(limit=2)
        print(name, "FAILED", str(error)[-700:], flush=True)
        continue
    text = compiled.asm["ptx"].split("\t.section\t.debug")[0]
    text = re.sub(r"^\s*\.(section|file|loc)\b.*$", "", text, flags=re.M)
    text = re.sub(r"\n{2,}", "\n", text)
    (HERE / f"{name}-sm_100.ptx.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    meta = compiled.metadata
    heads = Counter(re.findall(r"\btcgen05\.[\w.:]+|cp\.async\.bulk[\w.:]+|clusterlaunchcontrol[\w.:]+", text))
    reqntid = re.search(r"\.reqntid (\d+)", text)
    described[f"{name}-sm_100"] = {
        "kernel": kernel.fn.__name__, "signature": signature, "constants": constants,
        "threads": int(reqntid.group(1)) if reqntid else 32 * meta.num_warps, "ctas": ctas,
        "shared": meta.shared, "tmem_columns": getattr(meta, "tmem_size", None), "entry": meta.name,
        "tensor_maps": [dict(m) for m in meta.tensordesc_meta or ()],
        "global_scratch_bytes": meta.global_scratch_size, "profile_scratch_bytes": meta.profile_scratch_size,
        "ptx_version": re.search(r"\.version (\S+)", text).group(1), "instructions": dict(sorted(heads.items())),
    }  # fmt: skip
    print(name, "ok", len(text), {k: v for k, v in heads.items() if "mma" in k or "clus" in k or "tensor" in k}, flush=True)
listing.write_text(json.dumps({"triton": triton.__version__, "cases": described}, indent=1, default=str) + "\n")
