"""Compiles `sm_100_kernels.py` to sm_100a PTX with Triton; needs no GPU. Run with a Python that has triton.

Out: one `NAME-sm_100.ptx.gz` for each entry of CASES, debug lines left out, and `cases.json`: what a launch needs to know.
"""

import gzip
import json
import re
import sys
import traceback
from collections import Counter
from pathlib import Path

import sm_100_kernels as kernels
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HERE = Path(__file__).parent
DIVISIBLE = [["tt.divisibility", 16]]


def desc(dtype, *shape):
    return f"tensordesc<{dtype}[{','.join(map(str, shape))}]>"


def gemm(dtype, bm, bn, bk, out="bf16", mn=False):
    a, b = ((bk, bm), (bk, bn)) if mn else ((bm, bk), (bn, bk))
    return {"a_desc": desc(dtype, *a), "b_desc": desc(dtype, *b), "c_desc": desc(out, bm, bn), "k": "i32"}


def persistent(dtype, bm, bn, bk, out="bf16"):
    return {**{k: v for k, v in gemm(dtype, bm, bn, bk, out).items() if k != "k"}, "m": "i32", "n": "i32", "k": "i32"}


def attention(dtype, d, bm, bn):
    return {"q_desc": desc(dtype, bm, d), "k_desc": desc(dtype, bn, d), "v_desc": desc(dtype, bn, d),
            "o_desc": desc(dtype, bm, d), "length": "i32", "scale": "fp32"}  # fmt: skip


def scaled(dtype, bm, bn, bk, pack, scale):
    return {"a_desc": desc(dtype, bm, bk // pack), "b_desc": desc(dtype, bn, bk // pack), "c_desc": desc("bf16", bm, bn),
            "a_scale_ptr": scale, "b_scale_ptr": scale, "k": "i32"}  # fmt: skip


POINTERS = {
    "a_ptr": "*bf16", "b_ptr": "*bf16", "c_ptr": "*bf16", "m": "i32", "n": "i32", "k": "i32", "a_stride": "i32",
    "b_stride": "i32", "c_stride": "i32",
}  # fmt: skip
ROWS = {"a_ptr", "b_ptr", "c_ptr", "n", "k", "a_stride", "b_stride", "c_stride"}


def tile(bm, bn, bk, **more):
    return {"BM": bm, "BN": bn, "BK": bk, **more}


BF, HF = tl.bfloat16, tl.float16
CASES = [  # name, kernel, signature, arguments divisible by 16, constants, warps, stages, CTAs, dtypes
    ("matmul_tma_bf16", kernels.matmul_tma, gemm("bf16", 128, 128, 64), {"k"}, tile(128, 128, 64, OUT=BF), 4, 3, 1),
    ("matmul_tma_bf16_256", kernels.matmul_tma, gemm("bf16", 128, 256, 64), {"k"}, tile(128, 256, 64, OUT=BF), 8, 4, 1),
    ("matmul_tma_bf16_m64", kernels.matmul_tma, gemm("bf16", 64, 64, 64), {"k"}, tile(64, 64, 64, OUT=BF), 4, 3, 1),
    ("matmul_tma_bf16_2cta", kernels.matmul_tma, gemm("bf16", 256, 128, 64), {"k"}, tile(256, 128, 64, OUT=BF), 4, 3, 2),
    ("matmul_tma_mn_f16", kernels.matmul_tma_mn, gemm("fp16", 128, 64, 64, "fp16", mn=True), {"k"},
     tile(128, 64, 64, OUT=HF), 4, 3, 1),
    ("matmul_tma_tf32", kernels.matmul_tma, gemm("fp32", 128, 64, 32), {"k"}, tile(128, 64, 32, OUT=BF), 4, 3, 1),
    ("matmul_tma_fp8", kernels.matmul_tma, gemm("fp8e4nv", 128, 128, 128), {"k"}, tile(128, 128, 128, OUT=BF), 4, 3, 1),
    ("matmul_tma_fp8e5", kernels.matmul_tma, gemm("fp8e5", 128, 64, 64), {"k"}, tile(128, 64, 64, OUT=BF), 4, 3, 1),
    ("matmul_pointers", kernels.matmul_pointers, POINTERS, ROWS, tile(128, 64, 32), 4, 3, 1),
    ("matmul_persistent", kernels.matmul_persistent, persistent("bf16", 128, 128, 64), {"k"},
     tile(128, 128, 64, OUT=BF, PROGRAMS=4, WS=False), 4, 3, 1),
    ("matmul_persistent_ws", kernels.matmul_persistent, persistent("bf16", 128, 128, 64), {"k"},
     tile(128, 128, 64, OUT=BF, PROGRAMS=4, WS=True), 4, 3, 1),
    ("matmul_mxfp8", kernels.matmul_scaled, scaled("fp8e4nv", 128, 128, 128, 1, "*u8"), {"a_scale_ptr", "b_scale_ptr", "k"},
     tile(128, 128, 128, OUT=BF, VEC=32, FORMAT="e4m3", PACK=1), 4, 2, 1),
    ("matmul_mxfp4", kernels.matmul_scaled, scaled("u8", 128, 128, 256, 2, "*u8"), {"a_scale_ptr", "b_scale_ptr", "k"},
     tile(128, 128, 256, OUT=BF, VEC=32, FORMAT="e2m1", PACK=2), 4, 2, 1),
    ("matmul_nvfp4", kernels.matmul_scaled, scaled("u8", 128, 128, 256, 2, "*fp8e4nv"), {"a_scale_ptr", "b_scale_ptr", "k"},
     tile(128, 128, 256, OUT=BF, VEC=16, FORMAT="e2m1", PACK=2), 4, 2, 1),
    ("attention_bf16", kernels.attention, attention("bf16", 64, 128, 64), {"length"},
     {"D": 64, "BM": 128, "BN": 64, "OUT": BF, "WS": False}, 4, 3, 1),
    ("attention_bf16_d128", kernels.attention, attention("bf16", 128, 128, 128), {"length"},
     {"D": 128, "BM": 128, "BN": 128, "OUT": BF, "WS": False}, 8, 3, 1),
    ("attention_bf16_ws", kernels.attention, attention("bf16", 64, 128, 64), {"length"},
     {"D": 64, "BM": 128, "BN": 64, "OUT": BF, "WS": True}, 4, 3, 1),
]  # fmt: skip


def compile_case(kernel, signature, aligned, constants, warps, stages, ctas):
    """One kernel for sm_100a."""
    names = [p.name for p in kernel.params]
    types = {name: signature.get(name, "constexpr") for name in names}
    values = {(names.index(key),): value for key, value in constants.items()}
    attributes = {(names.index(key),): DIVISIBLE for key in sorted(aligned)}
    source = ASTSource(kernel, types, values, attributes)
    return triton.compile(source, target=GPUTarget("cuda", 100, 32),
                          options={"num_warps": warps, "num_stages": stages, "num_ctas": ctas})  # fmt: skip


def main(chosen: list[str]) -> None:
    """Compile every case (or the chosen ones)."""
    listing = HERE / "cases.json"
    described = json.loads(listing.read_text())["cases"] if listing.exists() else {}
    for name, kernel, signature, aligned, constants, warps, stages, ctas in CASES:
        if chosen and name not in chosen:
            continue
        try:
            compiled = compile_case(kernel, signature, aligned, constants, warps, stages, ctas)
        except Exception as error:
            traceback.print_exc(limit=1)
            print(name, "FAILED", str(error)[:300], flush=True)
            continue
        text = compiled.asm["ptx"].split("\t.section\t.debug")[0]
        text = re.sub(r"^\s*\.(section|file|loc)\b.*$", "", text, flags=re.M)
        text = re.sub(r"\n{2,}", "\n", text)
        (HERE / f"{name}-sm_100.ptx.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))
        meta = compiled.metadata
        heads = Counter(re.findall(r"\btcgen05\.[\w.:]+|cp\.async\.bulk[\w.:]+|clusterlaunchcontrol[\w.:]+", text))
        reqntid = re.search(r"\.reqntid (\d+)", text)
        described[f"{name}-sm_100"] = {
            "kernel": kernel.fn.__name__, "signature": signature,
            "constants": {k: v if isinstance(v, (int, str, bool)) else str(v) for k, v in constants.items()},
            "threads": int(reqntid.group(1)) if reqntid else 32 * meta.num_warps, "ctas": ctas, "stages": stages,
            "shared": meta.shared, "tmem_columns": getattr(meta, "tmem_size", None), "entry": meta.name,
            "tensor_maps": [dict(m) for m in meta.tensordesc_meta or ()],
            "global_scratch_bytes": meta.global_scratch_size, "profile_scratch_bytes": meta.profile_scratch_size,
            "ptx_version": re.search(r"\.version (\S+)", text).group(1), "instructions": dict(sorted(heads.items())),
        }  # fmt: skip
        print(name, "ok", len(text), {k: v for k, v in heads.items() if "mma" in k}, flush=True)
    listing.write_text(json.dumps({"triton": triton.__version__, "cases": described}, indent=1, default=str) + "\n")


main(sys.argv[1:])
