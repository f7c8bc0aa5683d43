"""Subjects for planted mistakes: PTX of every kind of schedule on sm_90a, built in this process, and of Triton, with launches.

A subject has its PTX text and a function that emulates a variant of it in one order of threads, at sizes and inputs that depend
on the order: odd and even iteration counts, five and more, one block and several.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from tests import shipped_launches, tensor_attention, tensor_products, weight_products
from tests.emulator import foreign_cases, foreign_run, shipped_run
from tilec.emulator.errors import Limits, Report
from tilec.emulator.launch import emulate

EXTENTS: Final = ((72, 72, 328), (130, 72, 264), (40, 136, 72), (97, 136, 520))
"""M, N and K of products: 6, 5, 2 and 9 iterations of 64. The last has several tiles for each of two persistent blocks, and 33
rows in the last row of tiles, where the boxes of small-M products change."""
SMALL_M: Final = ((18, 72, 328), (5, 72, 264), (34, 72, 1096), (17, 136, 968))
"""The same for small M; with K split in three, each split has 2, 2, 6 and 5 or 6 iterations."""
LENGTHS: Final = ((20, 290, 320, 2), (20, 60, 128, 2), (70, 220, 320, 1), (97, 64, 192, 1))
"""Tokens, tokens before them, slots and heads per group: 5, 2, 5 and 2 or 3 iterations of 64 keys."""

LONG: Final = 3
LONGER: Final[dict[str, dict[str, float]]] = {
    "matmul_split": {"K": 4168}, "matmul_silu_mul": {"K": 712}, "matmul_few": {"K": 1096},
    "flash_attention": {"T": 97, "S": 512, "past": 400}, "decode_attention": {"S": 416}, "matvec": {"N": 77},
}  # fmt: skip
"""Sizes of shipped kernels, by number of the order of threads; their ring buffers wrap around."""


@dataclass(frozen=True)
class Subject:
    """A text and its launches: `run(text, seed, steps)` emulates a variant of it within a number of steps."""

    name: str
    kind: str
    text: str
    run: Callable[[str, int, int], Report]


Make = Callable[[], Subject]


def subjects() -> dict[str, list[Make]]:
    """Functions that build the subjects, by kind of schedule; compilation is half of the work."""
    wide: dict[str, Any] = {"stages": 2, "persistent": True}
    found: dict[str, list[Make]] = {
        "attention": [_attention(64, 64), _attention(64, 64, stages=2), _shipped("flash_attention", 0)],
        "ping-pong": [_product(64, 64, **wide, order="pingpong"), _product(64, 128, **wide, order="pingpong")],
        "persistent": [_product(64, 64, **wide), _product(128, 64, **wide)],
        "stores by TMA": [_product(64, 64, stages=2, store="tma"), _product(64, 64, **wide, store="tma")],
        "split depth": [_small_m("matmul_split"), _shipped("matmul_split", 0)],
        "back-to-back products": [
            _small_m("matmul_silu_mul_few", tokens=64),
            _shipped("matmul_silu_mul", 0),
            _attention(64, 128),
        ],
        "early issue": [_small_m("matmul_few", stages=6), _product(64, 64, stages=4), _shipped("matmul_few", 0)],
    }
    plain = [name for name in sorted(shipped_launches.SIZES) if "matmul" not in name and name != "flash_attention"]
    found["decode"] = [_shipped(name, 0) for name in plain if "matvec" in name or "decode" in name]
    found["elementwise and reductions"] = [_shipped(name, 0) for name in plain if "matvec" not in name and "decode" not in name]
    found["Triton"] = [_foreign(name) for name in sorted(foreign_cases.CASES)]
    return {kind: [_of_kind(kind, make) for make in makes] for kind, makes in found.items()}


def _of_kind(kind: str, make: Make) -> Make:
    def make_subject() -> Subject:
        one = make()
        return Subject(one.name, kind, one.text, one.run)

    return make_subject


def _product(rows: int, columns: int, **wanted: Any) -> Make:
    def make() -> Subject:
        kernel = tensor_products.made("bf16", rows, columns, **wanted)

        def run(text: str, seed: int, steps: int) -> Report:
            m, n, k = EXTENTS[seed % len(EXTENTS)]
            random = np.random.default_rng(seed)
            arrays = {"a": _bf16(random, m * k), "b": _bf16(random, n * k), "out": np.zeros(m * n, np.uint16)}
            return emulate(
                text, kernel.manifest, arrays, {"M": m, "N": n, "K": k}, seed=seed, limits=Limits(instructions=steps)
            )

        return Subject(_name("matmul", rows, columns, wanted), "", kernel.ptx, run)

    return make


def _small_m(name: str, tokens: int = 16, **wanted: Any) -> Make:
    def make() -> Subject:
        kernel = weight_products.made(name, "bf16", tokens, 64, **{"stages": 2, **wanted})

        def run(text: str, seed: int, steps: int) -> Report:
            extents = SMALL_M[seed % len(SMALL_M)]
            random = np.random.default_rng(seed)
            sizes = dict(zip("mnk", extents, strict=True)) | {"s": weight_products.SPLITS, "2": 2}
            arrays: dict[str, Any] = {}
            for tensor, axes in weight_products.SHAPES[name].items():
                count = int(np.prod([sizes[axis] for axis in axes]))
                arrays[tensor] = np.zeros(count, np.float32) if tensor == "parts" else _bf16(random, count)
            values = dict(zip(weight_products.DIMS[name], extents, strict=True))
            return emulate(text, kernel.manifest, arrays, values, seed=seed, limits=Limits(instructions=steps))

        return Subject(_name(name, tokens, 64, wanted), "", kernel.ptx, run)

    return make


def _attention(rows: int, columns: int, **wanted: Any) -> Make:
    def make() -> Subject:
        kernel = tensor_attention.made("bf16", rows, columns, **wanted)

        def run(text: str, seed: int, steps: int) -> Report:
            tokens, past, slots, group = LENGTHS[seed % len(LENGTHS)]
            random = np.random.default_rng(seed)
            arrays = {
                "q": _bf16(random, tokens * group * 128), "k_cache": _bf16(random, slots * 128),
                "v_cache": _bf16(random, slots * 128), "out": np.zeros(tokens * group * 128, np.uint16),
            }  # fmt: skip
            values = {"T": tokens, "S": slots, "HKV": 1, "G": group, "past": past, "scale": 128.0**-0.5}
            return emulate(text, kernel.manifest, arrays, values, seed=seed, limits=Limits(instructions=steps))

        return Subject(_name("flash_attention", rows, columns, wanted), "", kernel.ptx, run)

    return make


def _shipped(name: str, number: int) -> Make:
    def make() -> Subject:
        kernel = shipped_run.compiled(name, number, "sm_90a")

        def run(text: str, seed: int, steps: int) -> Report:
            given = replace(kernel, env=kernel.env | (LONGER.get(name, {}) if seed == LONG else {}))
            arrays = shipped_launches.make_arrays(given.function, given.env)
            return shipped_run.emulate(given, arrays, seed=seed, text=text, limits=Limits(instructions=steps))

        return Subject(f"{name} #{number}", "", kernel.ptx, run)

    return make


def _foreign(name: str) -> Make:
    first = int("tma" in name or "softmax" in name)  # sizes with ragged edges come first

    def run(text: str, seed: int, steps: int) -> Report:
        given = foreign_cases.launch(name, seed + first)
        return foreign_run.emulate(name, given, seed=seed, text=text, limits=Limits(instructions=steps))

    return lambda: Subject(name, "", foreign_cases.text(name), run)


def _name(kernel: str, rows: int, columns: int, wanted: dict[str, Any]) -> str:
    return " ".join([f"{kernel} {rows}x{columns}", *(f"{key}={value}" for key, value in sorted(wanted.items()))])


def _bf16(random: np.random.Generator, count: int) -> Any:
    return (random.normal(size=count).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
