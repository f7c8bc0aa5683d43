"""Launches of built artifacts, for the emulator and a GPU alike: small and odd sizes, inputs generated from a seed.

Derives dims, scalars and arrays that satisfy a manifest's contract. Arrays have storage dtypes (bf16 as uint16), so that NumPy
suffices, and all random bits come from PCG64's raw output, so that two machines generate the same bytes.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ci.evidence.verdicts import key
from kernels_src.reference_experts_tiles import experts_sort, experts_tiles
from kernels_src.reference_pages import chunk_starts, prompts_in_slots
from tilec.artifact.records import Manifest, TensorSpec
from tilec.runtime import load_artifact
from tilec.target.dtypes import DTYPES

Array = NDArray[Any]
OUTPUTS: Final = "gpu_outputs"
"""The verdicts file with a GPU's outputs: by tensor, the digest of its bytes and its distance from float64."""


@dataclass(frozen=True)
class Case:
    """One launch of one artifact. `dims` has every name of the contract that is not a constant; `scalars` the arguments."""

    stem: str
    manifest: Manifest
    cubin: bytes
    dims: dict[str, int]
    scalars: dict[str, int | float]
    number: int

    @property
    def name(self) -> str:
        """The artifact and the number of its launch."""
        return f"{self.stem}#{self.number}"

    @property
    def env(self) -> dict[str, int]:
        """Integers by name: constants, dims and integer scalars."""
        constants = {key: value for key, value in self.manifest.constants.items() if isinstance(value, int)}
        return constants | self.dims | {key: value for key, value in self.scalars.items() if isinstance(value, int)}


def launch_key(case: Case, inputs: str) -> str:
    """The key of a GPU's outputs: the CUBIN and the arguments."""
    return key(case.manifest.digests["cubin"], inputs, sorted(case.scalars.items()))


def sizes(manifest: Manifest) -> list[dict[str, int]]:
    """Dims of the launches of an artifact: at most one block, and several with a ragged edge."""
    c: dict[str, Any] = dict(manifest.constants)
    rows, batch = int(c.get("ROWS", 1)), int(c.get("B", 1))
    m, n, k = (int(c.get(name, 1)) for name in ("BM", "BN", "BK"))
    match manifest.kernel:
        case "add":
            return [{"N": c["BLOCK"] * 2 + n} for n in (803, 0, 801, 802, 804, 806, 807)] + [{"N": 5}]
        case "rms_norm" | "add_rms_norm" | "add_rms_norm_splits":
            return [{"T": 3, "S": 8}]
        case "embedding" | "gather_row":
            return [{"T": 5, "V": 7}, {"T": 1, "V": 1}]
        case "argmax_reduce":
            return [{"B": 3, "P": 77}, {"B": 1, "P": c["PARTS"]}]
        case "matvec" | "matvec_add":
            return [{"N": 5 if rows == 1 else rows + 5}]
        case "scaled_matvec_rows":
            return [{"N": 2 * rows}]
        case "scaled_matvec_rows_fp8":
            return [{"N": 256}]
        case "scaled_matvec_silu_mul_rows":
            return [{"I": 2 * rows, "I2": 4 * rows}]
        case "matvec_add_scaled_rows":
            return [{"N": 2 * rows, "P": 2}]
        case "scaled_matvec_argmax_rows":
            return [{"V": 4 * rows, "P": 3}]
        case "embedding_scaled_rows":
            return [{"B": 3, "V": 7}]
        case "advance_rows":
            return [{"B": 3}]
        case "next_ids":
            return [{"T": 3}]
        case "matvec_add_scaled":
            return [{"N": 5 * rows, "P": 5}]
        case "embedding_scaled":
            return [{"V": 7}, {"V": 1}]
        case "scaled_matvec":
            return [{"N": 5 * rows}]
        case "scaled_matvec_silu_mul":
            return [{"I": 3 * rows, "I2": 6 * rows}]
        case "matvec_add_fp8" | "scaled_matvec_fp8":
            return [{"N": 128}]
        case "matvec_add_scaled_fp8" | "matvec_add_scaled_rows_fp8":
            return [{"N": 128, "P": 128 // rows}]
        case "scaled_matvec_silu_mul_fp8" | "scaled_matvec_silu_mul_rows_fp8":
            return [{"I": 128, "I2": 256}]
        case "dequantise_fp8":
            return [{"N": 256, "K": 384}, {"N": 128, "K": 128}]
        case "matvec_add_int4" | "scaled_matvec_int4" | "scaled_matvec_rows_int4":
            return [{"N": 2 * rows}]
        case "matvec_add_scaled_int4":
            return [{"N": 2 * rows, "P": rows // 2}]
        case "matvec_add_scaled_rows_int4":
            return [{"N": 2 * rows, "P": 2}]
        case "scaled_matvec_silu_mul_int4" | "scaled_matvec_silu_mul_rows_int4":
            return [{"I": 2 * rows, "I2": 4 * rows}]
        case "route_experts":
            return [{"T": 3}]
        case "experts_silu_mul" | "experts_silu_mul_int4":
            return [{"T": 2, "X": 3, "I": 2 * rows, "I2": 4 * rows}]
        case "experts_silu_mul_fp8":
            return [{"T": 1, "X": 3, "I": 128, "I2": 256}]
        case (
            "experts_add" | "experts_add_int4" | "experts_add_scaled" | "experts_add_scaled_int4" | "experts_down"
            | "experts_down_int4"
        ):  # fmt: skip
            return [{"T": 2, "X": 3, "N": 2 * rows, "P": 2 * rows // int(c.get("GROUP", 1))}]
        case "experts_add_fp8" | "experts_add_scaled_fp8" | "experts_down_fp8":
            return [{"T": 1, "X": 3, "N": 128, "P": 128 // int(c.get("GROUP", 1))}]
        case "dequantise_int4":
            return [{"N": 2 * rows, "K": 384}, {"N": rows, "K": 128}]
        case "dequantise_each_fp8":
            return [{"X": 3, "N": 256, "K": 128}, {"X": 1, "N": 128, "K": 384}]
        case "dequantise_each_int4":
            return [{"X": 3, "N": 2 * rows, "K": 128}, {"X": 1, "N": rows, "K": 384}]
        case "matvec_argmax":
            return [{"V": 4 * rows + 3 if batch == 1 else 2 * rows + 12, "P": 3}]
        case "matmul":
            # 10, 5 and 1 iterations; 4 tiles and 1, shared by few persistent blocks.
            return [{"M": m + 5, "N": n + 8, "K": 9 * k + 8}, {"M": 2 * m + 1, "N": 16, "K": 5 * k}, {"M": 3, "N": 16, "K": 8}]
        case "matmul_few":
            return [{"M": m + 5, "N": n + 8, "K": 9 * k + 8}, {"M": 3, "N": 2 * n + 8, "K": 5 * k}, {"M": 1, "N": 16, "K": 8}]
        case "matmul_silu_mul" | "matmul_silu_mul_few":
            return [{"M": m + 5, "I": n + 8, "K": 9 * k + 8}, {"M": 2 * m + 1, "I": 16, "K": 5 * k}, {"M": 3, "I": 16, "K": 8}]
        case "experts_matmul" | "experts_matmul_few" | "experts_matmul_silu_mul" | "experts_matmul_silu_mul_few":
            # 10, 5 and 1 iterations, partial tiles of columns, and tiles of nobody; integers are drawn up to X.
            last = {"S": 1, "X": 1, "N": 16, "I": 16, "K": 8}
            return [
                {"S": 3, "X": 2, "N": n + 8, "I": n + 8, "K": 9 * k + 8},
                {"S": 5, "X": 3, "N": 16, "I": 16, "K": 5 * k},
                last,
            ]
        case "experts_matmul_few_fp8" | "experts_matmul_few_int4":  # two iterations and one
            return [{"S": 3, "X": 2, "N": 128, "K": 1536}, {"S": 1, "X": 1, "N": 256, "K": 768}]
        case "experts_matmul_silu_mul_few_fp8" | "experts_matmul_silu_mul_few_int4":
            return [{"S": 3, "X": 2, "I": 128, "I2": 256, "K": 1024}, {"S": 1, "X": 1, "I": 128, "I2": 256, "K": 512}]
        case "experts_matmul_fp8" | "experts_matmul_silu_mul_fp8":  # 5 and 1 blocks of the depth
            return [{"S": 3, "X": 2, "N": 256, "I": 256, "K": 640}, {"S": 1, "X": 1, "N": 128, "I": 128, "K": 128}]
        case "experts_sort":
            return [{"T": 70, "P": 2}, {"T": 1, "P": 1}]
        case "experts_tiles":
            return [{"P": 3, "S": 150}, {"P": 70, "S": 131}]
        case "experts_gather":
            return [{"T": 3, "P": 1, "S": 24 // m + 2}, {"T": 65, "P": 2, "S": 520 // m + 2}]
        case "experts_combine" | "experts_sum":
            return [{"T": 3, "R": 40}, {"T": 1, "R": 1}]
        case "matmul_few_fp8" | "matmul_few_int4":
            return [{"M": m + 5, "N": 128, "K": 1024}, {"M": 3, "N": 256, "K": 512}]
        case "matmul_silu_mul_few_fp8" | "matmul_silu_mul_few_int4":
            return [{"M": m + 5, "I": 128, "I2": 256, "K": 1024}, {"M": 3, "I": 128, "I2": 256, "K": 512}]
        case "matmul_split_fp8" | "matmul_split_int4":  # the last split is shorter, or empty
            return [{"M": m + 5, "N": 128, "K": (2 * int(c["S"]) + 1) * 512}, {"M": 3, "N": 128, "K": 512}]
        case "quantise_rows":
            return [{"M": 2 * rows + 5, "K": 384}, {"M": 1, "K": 128}]
        case "matmul_fp8":  # 5 and 1 blocks of the depth
            return [{"M": m + 5, "N": 256, "K": 640}, {"M": 3, "N": 128, "K": 128}]
        case "matmul_silu_mul_fp8":
            return [{"M": m + 5, "I": 256, "K": 640}, {"M": 3, "I": 128, "K": 128}]
        case "matmul_split":  # the last split is shorter, or empty
            parts = int(c["S"])
            return [{"M": m + 5, "N": n + 8, "K": (2 * parts + 1) * k + 8}, {"M": 3, "N": 16, "K": 8}]
        case "qk_norm_rope_kv" | "qk_norm_rope_kv_c8":
            group = int(c["GROUP"])
            return [{"T": 2, "HQ": 2 * group, "HKV": 2 * group, "HEADS": 6 * group, "P": 9, "S": 11}]
        case "rope_kv" | "rope_kv_c8":
            group = int(c["GROUP"])
            return [{"T": 2, "HQ": 2 * group, "HKV": 2 * group, "HEADS": 6 * group, "R": 9, "S": 11}]
        case "argmax_blocks":  # a vector of logits in the last part
            return [{"B": 2, "V": c["BLOCK"] + 8 * v, "P": 2} for v in (1, 59)] + [{"B": 1, "V": c["BLOCK"], "P": 1}]
        case "topk_blocks":
            ends = ({"B": 1, "V": c["BLOCK"] + v, "P": 2, "K": 3} for v in (473, 474, 476, 477, 478, 479))
            return [{"B": 2, "V": c["BLOCK"] + 475, "P": 2, "K": 4}, *ends, {"B": 1, "V": c["BLOCK"], "P": 1, "K": 3}]
        case "sample_token":
            return [{"B": 2, "P": 5, "K": 7, "S": 9}, {"B": 1, "P": 3, "K": 20, "S": 2}]
        case "sample_maxima" | "sample_rows" | "sample_report":  # a vector of tokens after whole groups
            env = {"GROUPS": 9, "NUMBERS": 8} | ({} if manifest.kernel == "sample_report" else {"FACTORS": 4})
            return [{"B": 2, "V": 264} | env]
        case "flash_attention":
            # At most 3 iterations, 1, and at least 5 after a cache whose last tile is partial.
            return [
                {"T": m // 2 + 20, "HKV": 1, "G": 2, "S": 3 * n},
                {"T": 3, "HKV": 2, "G": 1, "S": n},
                {"T": m + 3, "HKV": 1, "G": 1, "S": 6 * n},
            ]
        case "decode_attention":
            return [{"B": 2, "HKV": 2, "G": 4, "S": 96, "P": 2}, {"B": 1, "HKV": 1, "G": 7, "S": 160, "P": 3}]
        case "decode_attention_wide":
            return [{"B": 2, "HKV": 2, "G": 16, "S": 96, "P": 2}, {"B": 1, "HKV": 1, "G": 11, "S": 160, "P": 3}]
        case "decode_merge":
            return [{"B": 2, "HKV": 1, "G": 2}]
        case "rotary_decode_attention" | "rope_decode_attention":
            return [{"B": 2, "HKV": 3, "S": 2 * n, "P": 2, "R": 50}, {"B": 1, "HKV": 4, "S": 7 * n, "P": 3, "R": 9}]
        case "rotary_decode_attention_c8" | "rope_decode_attention_c8":
            return [{"B": 2, "HKV": 3, "S": 2 * n, "P": 2, "R": 50}, {"B": 1, "HKV": 4, "S": 3 * n, "P": 2, "R": 9}]
        case "dequantise_c8":
            return [{"HKV": int(c["HEADS"]), "S": 3 * int(c["SLOTS"])}]
        case (
            "rotary_decode_attention_kv"
            | "rope_decode_attention_kv"
            | "rotary_decode_attention_kv_c8"
            | "rope_decode_attention_kv_c8"
        ):
            return [{"B": 2, "HKV": 3, "S": 256, "R": 50}, {"B": 1, "HKV": 4, "S": 128, "R": 9}]
        case "decode_merge_kv" | "rope_merge_kv" | "decode_merge_kv_c8" | "rope_merge_kv_c8":
            return [{"B": 2, "HKV": 3, "S": 9, "R": 50}]
        case "chunk_starts":
            return [{"T": 300}, {"T": 1}]
        case "paged_decode_attention" | "paged_decode_attention_c8":
            return [{"T": 3, "HKV": 2, "G": 5, "PAGES": 9, "MAX": 6, "ITEMS": 8}]
        case "paged_decode_attention_wide":
            return [
                {"T": 3, "HKV": 2, "G": 16, "PAGES": 9, "MAX": 6, "ITEMS": 8},
                {"T": 2, "HKV": 1, "G": 11, "PAGES": 5, "MAX": 5, "ITEMS": 4},
            ]
        case "paged_merge_wide":
            return [{"T": 3, "HKV": 2, "G": 16, "ITEMS": 19}, {"T": 1, "HKV": 1, "G": 11, "ITEMS": 1}]
        case "paged_merge":
            return [{"T": 3, "HKV": 2, "G": 4, "ITEMS": 19}, {"T": 1, "HKV": 1, "G": int(c["HEADS"]) - 1, "ITEMS": 1}]
        case "paged_gather" | "paged_gather_c8":
            return [{"HKV": 2, "PAGES": 5, "MAX": 3, "S": 160}]
        case "paged_flash_attention":
            return [{"T": m + 20, "HKV": 1, "G": 2, "PAGES": 5, "MAX": 3}, {"T": 3, "HKV": 2, "G": 1, "PAGES": 2, "MAX": 1}]
        case "packed_flash_attention":
            return [{"T": m // 2 + 20, "HKV": 1, "G": 2, "S": 3 * n}, {"T": m + 3, "HKV": 1, "G": 1, "S": 6 * n}]
        case "advance":
            return [{}]
        case kernel:
            raise ValueError(f"no launches of `{kernel}` are listed")


def larger_sizes(manifest: Manifest) -> list[dict[str, int]]:
    """Dims of larger launches of attention, of odd sizes: several tiles of queries, a token after a long cache, more iterations
    than any ring has stages, heads that share keys in threes, and a last tile of one query."""
    if manifest.kernel != "flash_attention":
        return []
    m, n = int(manifest.constants["BM"]), int(manifest.constants["BN"])
    return [
        {"T": 2 * m + 37, "HKV": 1, "G": 1, "S": -(-(2 * m + 37) // n) * n},
        {"T": 1, "HKV": 2, "G": 2, "S": 13 * n},
        {"T": m - 1, "HKV": 1, "G": 1, "S": 11 * n},
        {"T": 61, "HKV": 2, "G": 3, "S": 4 * n},
        {"T": m + 1, "HKV": 1, "G": 2, "S": 7 * n},
    ]


def scalars(manifest: Manifest, dims: dict[str, int]) -> dict[str, int | float]:
    """The scalar arguments of a launch."""
    known: dict[str, int | float] = {"eps": 1e-6, "scale": 0.09, "vocab_size": 100, "filled": 9, "blocks": 5}
    slots = dims.get("S", dims.get("MAX", 0) * int(manifest.constants.get("PAGE", 1)))
    known["past"] = max(0, slots - dims.get("T", 0) - 7) if slots > 64 else 0
    return {spec.name: known[spec.name] for spec in manifest.scalars}


def cases(folder: Path, only: str = "") -> Iterator[Case]:
    """Every launch of every artifact below a folder whose name contains `only`, but for those that wait for launches of other
    GPUs; raises for sizes that violate a contract."""
    for path in sorted(folder.glob("*.json")):
        if only not in path.stem:
            continue
        manifest, cubin = load_artifact(path)
        if any(spec.access == "signal" for spec in manifest.tensors):
            continue
        yield from launches(path.stem, manifest, cubin, sizes(manifest))


def launches(stem: str, manifest: Manifest, cubin: bytes, chosen: list[dict[str, int]]) -> Iterator[Case]:
    """A launch of an artifact at each of the dims; raises for those that violate its contract."""
    used = {name for spec in manifest.tensors for expr in spec.dims for name in expr.symbols()}
    for number, wanted in enumerate(chosen):
        dims = {name: int(value) for name, value in wanted.items() if name in used and name not in manifest.constants}
        case = Case(stem, manifest, cubin, dims, scalars(manifest, dims), number)
        for check in manifest.launch_checks:
            if not check.condition.evaluate(case.env):
                raise ValueError(f"{case.name}: {dims} breaks `{check.text}`")
        yield case


NAN_CODES: Final = {"f8e4m3": (0x7F, 0xFF)}
"""The codes of NaN of dtypes whose tensors have every other code (OFP8, 2023)."""


class Stream:
    """Random numbers from raw 64-bit words of PCG64: the same on every machine."""

    def __init__(self, case: str, name: str, seed: int) -> None:
        self._source = np.random.PCG64([seed, zlib.crc32(case.encode()), zlib.crc32(name.encode())])

    def words(self, count: int) -> NDArray[np.uint64]:
        """Raw words."""
        return self._source.random_raw(count)

    def normal(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Approximately normal: the sum of four 16-bit uniforms, scaled to deviation 1."""
        parts = self.words(math.prod(shape)).view(np.uint16).reshape(-1, 4).astype(np.float64)
        return ((parts.sum(axis=1) / 65536 - 2) * math.sqrt(3)).reshape(shape)

    def uniform(self, shape: tuple[int, ...], low: float, high: float) -> NDArray[np.float64]:
        """Uniform in [low, high)."""
        return low + (self.words(math.prod(shape)) >> np.uint64(40)).astype(np.float64).reshape(shape) / (1 << 24) * (
            high - low
        )

    def integers(self, shape: tuple[int, ...], low: int, high: int, distinct: bool) -> NDArray[np.int64]:
        """Integers in [low, high), distinct if `distinct`."""
        count = math.prod(shape)
        if distinct:
            return (np.argsort(self.words(high - low), kind="stable")[:count] + low).reshape(shape)
        return (low + (self.words(count) % np.uint64(high - low)).astype(np.int64)).reshape(shape)


def stored(values: NDArray[np.float64], dtype: str) -> Array:
    """Floats in the storage of a dtype, rounded to nearest even."""
    if dtype == "f8e4m3":
        return _eight_bits(values)
    if dtype != "bf16":
        return values.astype(DTYPES[dtype].storage)
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def _eight_bits(values: NDArray[np.float64]) -> Array:
    """Codes of f8e4m3 of finite numbers up to 448: eight steps of each power of two from 2^-6 on, and as many below it."""
    size = np.abs(values)
    exponent = np.floor(np.log2(np.maximum(size, 2.0**-6)))
    code = (exponent + 6) * 8 + np.rint(size / 2.0 ** (exponent - 3))
    return (code + 128 * np.signbit(values)).astype(np.uint8)


def make_arrays(case: Case, seed: int = 0) -> dict[str, Array]:
    """Storage of every tensor: inputs within the contract, write-only tensors filled with 0xFF."""
    arrays = {spec.name: _make(case, spec, Stream(case.name, spec.name, seed)) for spec in case.manifest.tensors}
    _adjust(case, arrays, seed)
    return arrays


def _make(case: Case, spec: TensorSpec, stream: Stream) -> Array:
    shape = tuple(expr.evaluate(case.env) for expr in spec.dims)
    storage = np.dtype(DTYPES[spec.dtype].storage)
    if spec.access in ("out", "scratch"):
        return np.full(math.prod(shape) * storage.itemsize, 0xFF, np.uint8).view(storage).reshape(shape)
    if spec.dtype == "u32":  # words of fields
        return (stream.integers(shape, 0, 1 << 16, False) << 16 | stream.integers(shape, 0, 1 << 16, False)).astype(storage)
    if spec.name == "w_zeros":
        return stream.integers(shape, 0, 16, False).astype(storage)
    if spec.dtype[0] in "iu":
        low, high, distinct = 0, 127, False
        for check in case.manifest.value_checks:
            if check.tensor == spec.name:
                low, high = check.low.evaluate(case.env), check.high.evaluate(case.env)
                distinct = distinct or check.distinct
        return stream.integers(shape, low, high, distinct).astype(storage)
    if spec.dtype in NAN_CODES:  # all codes but NaN's
        found = stream.integers(shape, 0, 256, False).astype(storage)
        return np.where(np.isin(found, NAN_CODES[spec.dtype]), np.uint8(0x80), found)
    return stored(stream.normal(shape), spec.dtype)


def _adjust(case: Case, arrays: dict[str, Array], seed: int) -> None:
    """Contents that callers guarantee and random numbers do not have."""
    kernel = case.manifest.kernel
    if kernel == "advance":  # the largest token, the first invalid one, a negative one
        edges = [99, 100, -1]
        arrays["token"][:] = edges[seed % 4] if seed % 4 < 3 else arrays["token"]
    stream = Stream(case.name, "", seed)
    for name in ("scales", "k_scales", "v_scales"):
        if name in arrays and kernel.endswith("_c8"):
            arrays[name] = (np.abs(arrays[name]) + np.float32(0.5)) * np.float32(2.0**-9)
    if kernel.removesuffix("_c8") in ("decode_merge", "decode_merge_kv", "rope_merge_kv"):
        arrays["sums"] = np.abs(arrays["sums"]) + np.float32(1)
    if kernel == "packed_flash_attention":
        arrays["firsts"], arrays["lasts"] = prompts_in_slots(*(case.env[name] for name in ("T", "S", "BN")))
    if kernel in ("paged_decode_attention", "paged_decode_attention_wide", "paged_decode_attention_c8"):
        arrays["starts"] = chunk_starts(arrays["lengths"], case.env["CHUNK"])
    if kernel in ("paged_merge", "paged_merge_wide"):  # rows with items, but for the last
        items = arrays["partial"].shape[0]
        arrays["starts"] = np.minimum(np.arange(case.env["T"] + 1) * (items // 2 + 1), items - items // 9).astype(np.int32)
        arrays["sums"] = np.abs(arrays["sums"]) + np.float32(1)
    if kernel == "experts_gather":  # of two experts, whose rows find room, and as earlier launches leave it
        arrays["experts"] %= 2
        order, ranks, counts, begins = experts_sort(arrays["experts"], case.env["X"], case.env["BLOCK"])
        starts, tiles = experts_tiles(counts, case.env["BM"], case.env["S"])
        arrays.update(order=order, ranks=ranks, counts=counts, begins=begins, starts=starts, tiles=tiles)
    if kernel.startswith(("scaled_", "experts_silu")):  # their sum is about that of the squares of K elements of deviation 1
        squares = np.abs(arrays["squares"])
        arrays["squares"] = squares * np.float32(case.env["K"] // squares.shape[-1] or 1)
    if kernel in ("sample_maxima", "sample_rows", "sample_report"):  # a row with all parameters, and one with none
        numbers = np.zeros(arrays["numbers"].shape, np.int32)
        numbers[:, :3], numbers[:, 6] = [200, 1 << 29, 1 << 12], 100
        numbers[:, 7] = [3, 0][: len(numbers)]
        arrays["numbers"] = numbers
        arrays["state"] = stream.integers(arrays["state"].shape, 0, 3, False).astype(np.int32)
        if "factors" in arrays:
            arrays["factors"] = stream.uniform(arrays["factors"].shape, 0.5, 2.0).astype(np.float32)
        if kernel == "sample_report":
            arrays["token"] = stream.integers(arrays["token"].shape, 0, 264, False).astype(np.int32)
    if kernel == "sample_token":  # as written by `topk_blocks`: descending, columns distinct
        arrays["best"] = -np.sort(-arrays["best"], axis=2)
        shape = arrays["indices"].shape
        arrays["indices"] = stream.integers(shape, 0, math.prod(shape), True).astype(np.int32)
        for name, low, high in (("temperature", 0.1, 2.0), ("top_p", 0.05, 1.0), ("uniforms", 0.0, 1.0)):
            arrays[name] = stream.uniform(arrays[name].shape, low, high).astype(np.float32)


def grid(case: Case) -> tuple[int, int, int]:
    """Blocks along x, y and z."""
    extents = [expr.evaluate(case.env) for expr in case.manifest.grid]
    return (*extents, *[1] * (3 - len(extents)))  # type: ignore[return-value]


def digest(arrays: dict[str, Array]) -> str:
    """sha256 of all arrays in order of name."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        total.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
    return total.hexdigest()
