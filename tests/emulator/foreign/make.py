"""Compiles `kernels.py` to PTX with Triton; needs no GPU. Run with a Python that has triton: `python make.py`.

Out: one `NAME-ARCH.ptx.gz` for each entry of CASES, without debug lines, and `cases.json` with the launch information.
"""

import gzip
import json
import re
from pathlib import Path

import kernels
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HERE = Path(__file__).parent
DIVISIBLE = [["tt.divisibility", 16]]
TILE = "tensordesc<bf16[64,64]>"
SOFTMAX = {"x_ptr": "*fp32", "out_ptr": "*fp32", "row_stride": "i32", "columns": "i32"}
NORM = {
    "x_ptr": "*fp16", "weight_ptr": "*fp32", "bias_ptr": "*fp32", "out_ptr": "*fp16", "row_stride": "i32",
    "columns": "i32", "eps": "fp32",
}  # fmt: skip
MATMUL = {
    "a_ptr": "*bf16", "b_ptr": "*bf16", "c_ptr": "*bf16", "m": "i32", "n": "i32", "k": "i32", "a_stride": "i32",
    "b_stride": "i32", "c_stride": "i32",
}  # fmt: skip
MATMUL32 = MATMUL | {"a_ptr": "*fp32", "b_ptr": "*fp32", "c_ptr": "*fp32"}
TMA = {"a_desc": TILE, "b_desc": TILE, "c_desc": TILE, "k": "i32"}
ATTENTION = {
    "q_ptr": "*fp16", "k_ptr": "*fp16", "v_ptr": "*fp16", "out_ptr": "*fp16", "row_stride": "i32", "head_stride": "i32",
    "length": "i32", "scale": "fp32",
}  # fmt: skip
POINTERS = {"a_ptr", "b_ptr", "c_ptr"}
ROWS = POINTERS | {"n", "k", "a_stride", "b_stride", "c_stride"}
ALL, OURS = (90, 100, 120), (90, 120)

CASES = [  # name, kernel, architectures, signature, arguments divisible by 16, constants, pipeline stages
    ("softmax", kernels.softmax, ALL, SOFTMAX, {"x_ptr", "out_ptr", "row_stride"}, {"BLOCK": 512}, 3),
    ("layer_norm", kernels.layer_norm, ALL, NORM, {"x_ptr", "weight_ptr", "bias_ptr", "out_ptr", "row_stride"},
     {"BLOCK": 256}, 3),
    ("matmul", kernels.matmul, OURS, MATMUL, ROWS, {"BM": 64, "BN": 64, "BK": 32}, 3),
    ("matmul_odd", kernels.matmul, OURS, MATMUL, POINTERS, {"BM": 64, "BN": 32, "BK": 32}, 2),
    ("matmul_tf32", kernels.matmul, OURS, MATMUL32, ROWS, {"BM": 64, "BN": 32, "BK": 32}, 3),
    ("matmul_tma", kernels.matmul_tma, OURS, TMA, {"k"}, {"BM": 64, "BN": 64, "BK": 64}, 3),
    ("attention", kernels.attention, OURS, ATTENTION, {"q_ptr", "k_ptr", "v_ptr", "out_ptr", "row_stride", "head_stride"},
     {"D": 64, "BM": 64, "BN": 32}, 2),
]  # fmt: skip


def compile_case(kernel, arch, signature, aligned, constants, stages):
    """One kernel for one architecture."""
    names = [*signature, *constants]
    types = signature | dict.fromkeys(constants, "constexpr")
    values = {(names.index(key),): value for key, value in constants.items()}
    attributes = {(names.index(key),): DIVISIBLE for key in sorted(aligned)}
    source = ASTSource(kernel, types, values, attributes)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": 4, "num_stages": stages})


def main() -> None:
    """Compile every case."""
    described = {}
    for name, kernel, archs, signature, aligned, constants, stages in CASES:
        for arch in archs:
            compiled = compile_case(kernel, arch, signature, aligned, constants, stages)
            text = compiled.asm["ptx"].split("\t.section\t.debug")[0]
            text = re.sub(r"^\s*\.(section|file|loc)\b.*$", "", text, flags=re.M)
            text = re.sub(r"\n{2,}", "\n", text)
            (HERE / f"{name}-sm_{arch}.ptx.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))
            meta = compiled.metadata
            described[f"{name}-sm_{arch}"] = {
                "kernel": name, "signature": signature, "constants": constants, "threads": 32 * meta.num_warps,
                "shared": meta.shared, "entry": meta.name, "tensor_maps": [dict(m) for m in meta.tensordesc_meta or ()],
            }  # fmt: skip
            assert not meta.global_scratch_size and not meta.profile_scratch_size
    (HERE / "cases.json").write_text(json.dumps({"triton": triton.__version__, "cases": described}, indent=1) + "\n")


main()
