"""Kernels that users wrote from the documentation alone, as first written (`plain/`), and what PyTorch has for each."""

# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ci.bench.kernels import plain_peers as peers  # torch first, so that ops are PyTorch's
from ci.bench.kernels.library_problem import Problem, Sizes, functional, normal, torch
from ci.bench.kernels.plain_peers import integers, kernel, sized, uniform

Make = Callable[[Any, Sizes], dict[str, Any]]


def problem(
    name: str, size: str, sizes: Sizes, checked: tuple[Sizes, ...], make: Make, ours: Callable[..., Any],
    theirs: Callable[..., Any],
    moved: Callable[[Sizes], int], **more: Any,
) -> Problem:  # fmt: skip
    """A problem of a kernel without gradients, of which `moved` gives the bytes."""
    return Problem(name, size, sizes, (*checked, sizes), make, ours, theirs, lambda known: (moved(known), 0), **more)


def _sorted(x: Any) -> Any:
    return x.sort(-1).values


PROBLEMS: Final = (
    problem(
        "instance_norm", "32 x 256 x 3136 bf16", {"N": 32, "C": 256, "S": 3136}, ({"N": 2, "C": 3, "S": 1001},),
        lambda g, s: {"x": normal(g, s["N"], s["C"], s["S"]), "weight": uniform(g, s["C"]), "bias": uniform(g, s["C"])},
        lambda x, weight, bias: kernel("instance_norm", BLOCK=1024)(x, weight, bias, 1e-5), peers.instance_norm,
        lambda s: 4 * s["N"] * s["C"] * s["S"],
    ),
    problem(
        "log_softmax_ragged", "16,777,216 bf16 in 16,384 rows", {"N": 1 << 24, "R": 1 << 14}, ({"N": 5001, "R": 37},),
        peers.make_ragged, lambda x, starts, rows: kernel("log_softmax_ragged", ("starts",), BLOCK=512)(x, starts),
        peers.ragged,
        lambda s: 4 * s["N"], like_torch=True,
    ),
    problem(
        "focal_loss", "65,536 x 1000 bf16", {"T": 1 << 16, "V": 1000}, ({"T": 301, "V": 91},),
        lambda g, s: {"logits": normal(g, s["T"], s["V"]), "labels": integers(g, 0, s["V"], s["T"]),
            "alpha": uniform(g, s["V"])},
        lambda logits, labels, alpha: kernel("focal_loss", ("labels",), ROWS=4)(logits, labels, alpha, 2.0), peers.focal,
        lambda s: 4 * s["T"] * s["V"], like_torch=True,
    ),
    problem(
        "lion", "67,108,864 parameters", {"N": 1 << 26}, ({"N": 10_007},), peers.make_lion,
        lambda param, momentum, grad: kernel("lion", BLOCK=1024)(param, momentum, grad, 0.03125, 0.9, 0.75, 0.125),
        peers.lion, lambda s: 14 * s["N"], written=("param", "momentum"), like_torch=True,
    ),
    problem(
        "upsample", "512 x 256 x 256 bf16", {"P": 512, "H": 256, "W": 256}, ({"P": 3, "H": 37, "W": 41},),
        lambda g, s: {"x": normal(g, s["P"], s["H"], s["W"])}, lambda x: kernel("upsample", BY=16, BX=64)(x), peers.upsample,
        lambda s: 10 * s["P"] * s["H"] * s["W"], like_torch=True,
    ),
    problem(
        "inverse4", "1,048,576 matrices", {"B": 1 << 20}, ({"B": 1001},),
        lambda g, s: {"a": 4 * torch.eye(4, device=g.device) + normal(g, s["B"], 4, 4).float() / 2},
        lambda a: kernel("inverse4", BLOCK=128)(a), lambda a: torch.linalg.inv(a), lambda s: 128 * s["B"], like_torch=True,
        compiles=False,
        captures=False,
    ),
    problem(
        "gemm_gelu", "4096 x 4096 x 4096 bf16", {"M": 4096, "N": 4096, "K": 4096}, ({"M": 131, "N": 72, "K": 200},),
        lambda g, s: {"a": normal(g, s["M"], s["K"]), "b": normal(g, s["N"], s["K"]), "bias": normal(g, s["N"])},
        lambda a, b, bias: kernel("gemm_gelu", BM=128, BN=128, BK=64)(a, b, bias),
        lambda a, b, bias: functional.gelu(functional.linear(a, b, bias)),
        lambda s: 2 * (s["M"] * s["K"] + s["N"] * s["K"] + s["M"] * s["N"]), like_torch=True,
        products=lambda s: (2 * s["M"] * s["N"] * s["K"], 0),
    ),
    problem(
        "histogram", "67,108,864 keys, 512 bins", {"N": 1 << 26}, ({"N": 10_007},),
        lambda g, s: {"keys": normal(g, s["N"]).float(), "weights": uniform(g, s["N"])}, peers.our_histogram, peers.histogram,
        lambda s: 8 * s["N"], like_torch=True,
    ),
    problem(
        "centroid", "100,000 x 64 bf16, 256 centroids", {"N": 100_000}, ({"N": 5003},),
        lambda g, s: {"x": normal(g, s["N"], 64), "centroids": normal(g, 256, 64)},
        lambda x, centroids: kernel("centroid", BLOCK=64)(x, centroids)[1], lambda x, centroids: peers.nearest(x, centroids)[1],
        lambda s: 136 * s["N"], like_torch=True,
    ),
    problem(
        "cummax", "8192 x 4096 f32", {"T": 8192, "N": 4096}, ({"T": 7, "N": 1001},),
        lambda g, s: {"x": normal(g, s["T"], s["N"]).float()}, lambda x: kernel("cummax", BLOCK=512)(x), peers.maxima,
        lambda s: 12 * s["T"] * s["N"],
    ),
    problem(
        "mean_pool", "256 x 512 x 768 bf16", {"B": 256, "S": 512, "H": 768}, ({"B": 3, "S": 77, "H": 200},),
        lambda g, s: {"x": normal(g, s["B"], s["S"], s["H"]), "lengths": integers(g, 0, s["S"] + 1, s["B"])},
        lambda x, lengths: kernel("mean_pool", ("lengths",), BS=32, BH=128)(x, lengths), peers.mean_pool,
        lambda s: s["B"] * s["S"] * s["H"], like_torch=True,
    ),
    problem(
        "window_sum", "8192 x 4096 f32, windows of 8", {"T": 8192, "N": 4096}, ({"T": 5, "N": 1003},),
        lambda g, s: {"x": normal(g, s["T"], s["N"]).float()}, lambda x: kernel("window_sum", BLOCK=512)(x, 8),
        peers.window_sum,
        lambda s: 8 * s["T"] * s["N"], like_torch=True,
    ),
    problem(
        "coo_dense", "16,777,216 into 8192 x 8192", {"Z": 1 << 24, "M": 8192, "N": 8192}, ({"Z": 1003, "M": 7, "N": 13},),
        lambda g, s: {"rows": integers(g, 0, s["M"], s["Z"]), "columns": integers(g, 0, s["N"], s["Z"]),
                      "x": uniform(g, s["Z"]), "shape": (s["M"], s["N"])},
        peers.our_coo, peers.coo, lambda s: 12 * s["Z"] + 4 * s["M"] * s["N"], like_torch=True,
    ),
    problem(
        "rotary", "8192 x 32 x 128 bf16", {"T": 8192, "H": 32}, ({"T": 37, "H": 7},),
        lambda g, s: {"x": normal(g, s["T"], s["H"], 128), "positions": integers(g, 0, 4096, s["T"]),
                      "cos": uniform(g, 4096, 64, low=-1), "sin": uniform(g, 4096, 64, low=-1)},
        lambda x, positions, cos, sin: kernel("rotary", ("positions",))(x, positions, cos, sin), peers.rotary,
        lambda s: 512 * s["T"] * s["H"], like_torch=True,
    ),
    problem(
        "gqa_decode", "64 sequences, 4096 slots, 8 key heads", {"B": 64, "S": 4096, "HKV": 8}, ({"B": 3, "S": 77, "HKV": 3},),
        peers.make_decode,
        lambda q, keys, cached, lengths: kernel("gqa_decode", ("lengths",), G=4, BLOCK=64)(q, keys, cached, lengths, 128**-0.5),
        peers.decode, lambda s: 384 * s["B"] * s["S"] * s["HKV"], like_torch=True,
    ),
    problem(
        "quantise_rows", "16,384 x 4096 bf16", {"T": 1 << 14, "N": 4096}, ({"T": 7, "N": 3001},),
        peers.make_whole, lambda x: kernel("quantise_rows", BLOCK=1024)(x), peers.quantised,
        lambda s: 3 * s["T"] * s["N"],
    ),
    problem(
        "int8_gemm", "4096 x 4096 x 4096", {"M": 4096, "N": 4096, "K": 4096}, ({"M": 136, "N": 72, "K": 200},),
        lambda g, s: {"a": integers(g, -128, 128, s["M"], s["K"], dtype=torch.int8),
                      "b": integers(g, -128, 128, s["N"], s["K"], dtype=torch.int8),
                      "row_scale": uniform(g, s["M"]), "col_scale": uniform(g, s["N"])},
        lambda a, b, row_scale, col_scale: kernel("int8_gemm", E="bf16", BM=128, BN=128, BK=64)(a, b, row_scale, col_scale),
        peers.int8_product, lambda s: s["M"] * s["K"] + s["N"] * s["K"] + 2 * s["M"] * s["N"], like_torch=True,
        products=lambda s: (s["M"] * s["N"] * s["K"], 0),
    ),
    problem(
        "depthwise3x3", "32 x 112 x 112 x 128 bf16", {"B": 32, "H": 112, "W": 112, "C": 128},
        ({"B": 2, "H": 7, "W": 37, "C": 91},),
        lambda g, s: {"x": normal(g, s["B"], s["H"], s["W"], s["C"]), "weight": normal(g, 3, 3, s["C"]),
            "bias": normal(g, s["C"])},
        lambda x, weight, bias: kernel("depthwise3x3", BW=16, BC=64)(x, weight, bias), peers.depthwise,
        lambda s: 4 * s["B"] * s["H"] * s["W"] * s["C"], like_torch=True,
    ),
    problem(
        "gru", "256 sequences of 256, 64 to 128, bf16", {"B": 256, "T": 256, "I": 64, "H": 128},
        ({"B": 3, "T": 17, "I": 64, "H": 128},),
        peers.make_gru, lambda x, h0, w_ih, w_hh, b_ih, b_hh: kernel("gru")(x, h0, w_ih, w_hh, b_ih, b_hh)[0], peers.gru,
        lambda s: 2 * s["B"] * s["T"] * (s["I"] + s["H"]), like_torch=True, compiles=False, captures=False,
    ),
    problem(
        "top_p", "256 x 151,936 f32", {"B": 256, "V": 151_936}, ({"B": 41, "V": 5003},), peers.make_drawn,
        lambda probs, ids, u: kernel("top_p", BLOCK=1024)(probs, ids, u, 0.9), peers.drawn, lambda s: 4 * s["B"] * s["V"],
    ),
    problem(
        "segment_max", "16,777,216 f32 in 65,536 segments", {"N": 1 << 24, "S": 1 << 16}, ({"N": 5001, "S": 37},),
        lambda g, s: {"x": normal(g, s["N"]).float(), "segments": _sorted(integers(g, 0, s["S"], s["N"])), "count": s["S"]},
        lambda x, segments, count: sized("segment_max", ("S",), ("segments",), BLOCK=256)((count,), x, segments),
        peers.segment_max,
        lambda s: 8 * s["N"],
    ),
    problem(
        "kahan_sum", "16,777,216 f32", {"N": 1 << 24}, ({"N": 100_003},), lambda g, s: {"x": uniform(g, s["N"])}, peers.kahan,
        lambda x: x.sum()[None], lambda s: 4 * s["N"],
    ),
    problem(
        "transpose", "16 x 2047 x 2049 f16", {"B": 16, "H": 2047, "W": 2049}, ({"B": 3, "H": 131, "W": 77},),
        lambda g, s: {"x": normal(g, s["B"], s["H"], s["W"], dtype=torch.float16)}, lambda x: kernel("transpose", BLOCK=64)(x),
        lambda x: x.transpose(1, 2).contiguous(), lambda s: 4 * s["B"] * s["H"] * s["W"],
    ),
    problem(
        "linear_attention", "128 heads of 2048 x 64 bf16", {"B": 128, "T": 2048}, ({"B": 3, "T": 201},),
        lambda g, s: {name: normal(g, s["B"], s["T"], 64) for name in "qkv"},
        lambda q, k, v: kernel("linear_attention", C=64)(q, k, v), peers.linear_attention, lambda s: 512 * s["B"] * s["T"],
        like_torch=True,
    ),
    problem(
        "triangular_solve", "16,384 of 32 x 32, 64 right-hand sides", {"B": 1 << 14, "N": 64}, ({"B": 5, "N": 37},),
        peers.make_triangular, lambda lower, rhs: kernel("triangular_solve", BLOCK=64)(lower, rhs), peers.triangular,
        lambda s: 4 * s["B"] * (1024 + 64 * s["N"]), like_torch=True, compiles=False,
    ),
    problem(
        "bitonic_sort", "65,536 rows of 512 f32, payload", {"T": 1 << 16}, ({"T": 37},),
        lambda g, s: {"keys": integers(g, -4000, 4000, s["T"], 512).float(), "payload": integers(g, 0, 1 << 30, s["T"], 512)},
        lambda keys, payload: kernel("bitonic_sort")(keys, payload), peers.sorted_rows, lambda s: 8192 * s["T"],
    ),
    problem(
        "count_distinct", "65,536 x 1000 i32", {"T": 1 << 16, "N": 1000}, ({"T": 37, "N": 201},),
        lambda g, s: {"x": _sorted(integers(g, 0, 500, s["T"], s["N"]))}, lambda x: kernel("count_distinct", BLOCK=256)(x),
        peers.distinct, lambda s: 4 * s["T"] * s["N"],
    ),
    problem(
        "sinkhorn", "256 costs of 512 x 512", {"B": 256, "M": 512, "N": 512}, ({"B": 3, "M": 77, "N": 512},),
        lambda g, s: {"cost": uniform(g, s["B"], s["M"], s["N"]), "g": uniform(g, s["B"], s["N"])},
        lambda cost, g: kernel("sinkhorn", ROWS=8)(cost, g, 0.25), peers.sinkhorn, lambda s: 4 * s["B"] * s["M"] * s["N"],
        like_torch=True,
    ),
    problem(
        "gated_norm", "16,384 x 4096 bf16", {"T": 1 << 14, "N": 4096}, ({"T": 5, "N": 1000},),
        lambda g, s: {name: normal(g, s["T"], s["N"]) for name in ("x", "residual", "gate")} | {"weight": normal(g, s["N"])},
        lambda x, residual, gate, weight: kernel("gated_norm")(x, residual, gate, weight, 1e-6), peers.gated_norm,
        lambda s: 10 * s["T"] * s["N"], like_torch=True,
    ),
    problem(
        "gather_rows", "262,144 rows of 100 f32", {"T": 1 << 18, "S": 1 << 17}, ({"T": 1001, "S": 77},),
        lambda g, s: {"table": normal(g, s["S"], 100).float(),
            "ids": integers(g, -s["S"] // 4, s["S"], s["T"], dtype=torch.int64)},
        lambda table, ids: kernel("gather_rows", ROWS=8)(table, ids), peers.taken, lambda s: 800 * s["T"],
    ),
    problem(
        "welford", "65,536 x 1024 f32", {"M": 1 << 16, "N": 1024}, ({"M": 1001, "N": 77},),
        lambda g, s: {"x": normal(g, s["M"], s["N"]).float()}, lambda x: kernel("welford", BLOCK=128)(x), peers.moments,
        lambda s: 4 * s["M"] * s["N"], terms=lambda s: s["M"],
    ),
    problem(
        "int4_gemm", "4096 x 4096 x 4096", {"M": 4096, "N": 4096, "K": 4096}, ({"M": 70, "N": 33, "K": 192},),
        lambda g, s: {"a": normal(g, s["M"], s["K"]), "packed": integers(g, 0, 256, s["N"], s["K"] // 2, dtype=torch.uint8),
                      "scales": uniform(g, s["N"], s["K"] // 64, low=0.5, dtype=torch.bfloat16)},
        lambda a, packed, scales: kernel("int4_gemm", BM=64, BN=64)(a, packed, scales), peers.int4_product,
        lambda s: 2 * s["M"] * s["K"] + s["N"] * s["K"] // 2 + 2 * s["M"] * s["N"], like_torch=True,
        products=lambda s: (2 * s["M"] * s["N"] * s["K"], 0),
    ),
    problem(
        "bias_attention", "4 x 16 heads, 2048 x 64 bf16", {"B": 4, "H": 16, "T": 2048, "S": 2048},
        ({"B": 2, "H": 3, "T": 70, "S": 133},),
        lambda g, s: {"q": normal(g, s["B"], s["H"], s["T"], 64)}
        | {name: normal(g, s["B"], s["H"], s["S"], 64) for name in "kv"} | {"bias": normal(g, s["B"], s["H"], s["T"], s["S"])},
        lambda q, k, v, bias: kernel("bias_attention", BM=64, BN=64)(q, k, v, bias, 0.125), peers.biased,
        lambda s: 2 * s["B"] * s["H"] * (s["T"] * s["S"] + 128 * (s["T"] + s["S"])), like_torch=True,
        products=lambda s: (4 * 64 * s["B"] * s["H"] * s["T"] * s["S"], 0),
    ),
    problem(
        "smooth_ce", "8192 x 4 x 8192 bf16", {"T": 8192, "H": 4, "V": 8192}, ({"T": 37, "H": 3, "V": 3001},), peers.make_smooth,
        lambda logits, labels: kernel("smooth_ce", BLOCK=1024)(logits, labels, 0.1, -100), peers.smooth,
        lambda s: 2 * s["T"] * s["H"] * s["V"], like_torch=True,
    ),
    problem(
        "max_pool1d", "8192 x 4096 f32", {"R": 8192, "N": 4096}, ({"R": 5, "N": 1001},),
        lambda g, s: {"x": normal(g, s["R"], s["N"]).float()}, lambda x: kernel("max_pool1d", W=3, STRIDE=2, BLOCK=256)(x),
        peers.pooled, lambda s: 8 * s["R"] * s["N"],
    ),
    problem(
        "max_pool1d_back", "8192 x 2047 into 4096 f32", {"R": 8192, "M": 2047, "N": 4096}, ({"R": 5, "M": 500, "N": 1001},),
        lambda g, s: {"grad": normal(g, s["R"], s["M"]).float(), "indices": integers(g, 0, s["N"], s["R"], s["M"]),
            "width": s["N"]},
        peers.our_unpooled, peers.unpooled, lambda s: 8 * s["R"] * s["M"] + 8 * s["R"] * s["N"], like_torch=True,
    ),
    problem(
        "csr_dense", "4,194,304 entries, 65,536 rows, 65,536 x 64", {"Z": 1 << 22, "R": 1 << 16, "K": 1 << 16},
        ({"Z": 501, "R": 37, "K": 77},), peers.make_csr,
        lambda data, columns, starts, dense: kernel("csr_dense", ("columns", "starts"), BLOCK=32)(data, columns, starts, dense),
        peers.sparse, lambda s: 264 * s["Z"], like_torch=True, compiles=False, captures=False,
    ),
)  # fmt: skip
