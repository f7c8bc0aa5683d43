"""Contracts with every kind of clause, each with a stub CUBIN and launches that satisfy it."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.bundle import samples
from tests.fuzz.contract_oracle import Given

Launch = tuple[dict[str, Given], dict[str, Any], dict[str, Any], dict[str, list[int]]]
"""Tensors, scalars, dims, and the values stored in tensors."""


@dataclass(frozen=True)
class Launchable:
    """A manifest as JSON, its CUBIN, and a function that makes a launch that it allows."""

    manifest: dict[str, Any]
    cubin: bytes
    launch: Callable[[random.Random], Launch]


def dense(pointer: int, dtype: str, *shape: int) -> Given:
    """A contiguous tensor."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.insert(0, step)
        step *= extent
    return Given(pointer, dtype, shape, tuple(strides))


def tensor(name: str, access: str, dtype: str, *dims: Any, strides: list[Any] | None = None) -> dict[str, Any]:
    """A tensor entry of a manifest."""
    return {
        "name": name,
        "access": access,
        "dtype": dtype,
        "dims": list(dims),
        "strides": strides,
        "align": 16,
        "resident": False,
        "row": None,
    }


def described(kernel: str, abi: str, **fields: Any) -> dict[str, Any]:
    """A manifest; `abi` is a line such as `x* out* T S+ eps=`: pointers, dims, strides, scalars."""
    kinds = {"*": "pointer", "+": "stride", "=": "scalar"}
    slots = [{"kind": kinds.get(word[-1], "dim"), "name": word.rstrip("*+=")} for word in abi.split()]
    plain = samples.manifest(kernel, samples.cubin(kernel), {"E": "bf16", "N": 3})
    digests = {"cubin": hashlib.sha256(samples.cubin(kernel)).hexdigest()}
    names = ("scalars", "launch_checks", "value_checks", "no_alias", "tensor_maps")
    empty: dict[str, Any] = {name: [] for name in names} | {"digests": digests}
    return plain | empty | {"abi": slots} | fields


def _rows(rng: random.Random) -> Launch:
    rows, step = rng.choice((1, 3, 40)), rng.choice((128, 136, 4096))
    out = Given(1 << 32, "bf16", (rows, 128), (step, 1))
    return {"x": dense(1 << 20, "bf16", rows, 128), "out": out}, {"eps": rng.choice((1e-6, 0, 3))}, {}, {}


def _gather(rng: random.Random) -> Launch:
    rows, width, words = rng.choice((1, 4, 33)), rng.choice((8, 64)), rng.choice((5, 50_000))
    tensors = {
        "ids": dense(1 << 20, "i32", rows), "table": dense(1 << 24, "bf16", words, width),
        "out": dense(1 << 40, "bf16", rows, width),
    }  # fmt: skip
    scalars = {"scale": 0.5, "pos": rng.choice((-1, 0, 2**31 - 1)), "flag": rng.random() < 0.5}
    return tensors, scalars, {}, {"ids": [rng.randrange(words) for _ in range(rows)]}


def _product(rng: random.Random) -> Launch:
    m, n, k = rng.choice((1, 16, 100)), rng.choice((1, 72)), rng.choice((8, 64))
    tensors = {
        "a": Given(1 << 20, "f16", (m, k), (k + 8, 1)), "b": dense(1 << 26, "f16", k, n), "c": dense(1 << 30, "f32", m + 2 * n),
    }  # fmt: skip
    return tensors, {"n": n}, {"SPLIT": rng.choice((1, 7))}, {}


def _scatter(rng: random.Random) -> Launch:
    count = rng.choice((1, 6, 30))
    tensors = {"slots": dense(1 << 20, "i64", count), "cache": dense(1 << 26, "u8", 64, 16), "small": dense(1 << 22, "i8", 1)}
    return (
        tensors,
        {"wide": 2**62, "short": -5, "word": 65535, "half": 1.5, "brain": -2.25},
        {},
        {"slots": rng.sample(range(64), count)},
    )


def contracts() -> list[Launchable]:
    """Manifests and their launches."""
    gather = described(
        "gather", "ids* table* out* T H V scale= pos= flag=",
        tensors=[
            tensor("ids", "in", "i32", "T"), tensor("table", "in", "bf16", "V", "H"), tensor("out", "out", "bf16", "T", "H"),
        ],
        scalars=[{"name": "scale", "dtype": "f32"}, {"name": "pos", "dtype": "i32"}, {"name": "flag", "dtype": "bool"}],
        grid=[["//", ["+", "T", 3], 4], "H"],
        launch_checks=[{"condition": ["==", ["%", "H", 8], 0], "text": "H % 8 == 0"}],
        value_checks=[{"tensor": "ids", "low": 0, "high": "V", "distinct": False}],
        no_alias=[["out", "table"], ["out", "ids"]],
    )  # fmt: skip
    product = described(
        "product", "a* b* c* M N K LDA+ SPLIT n=",
        tensors=[
            tensor("a", "in", "f16", "M", "K", strides=["LDA", 1]), tensor("b", "in", "f16", "K", "N"),
            tensor("c", "inout", "f32", ["+", "M", ["*", 2, "N"]]),
        ],
        scalars=[{"name": "n", "dtype": "u32"}],
        grid=[["max", ["//", "M", 16], 1], ["min", "SPLIT", 8], 1],
        launch_checks=[
            {"condition": ["and", ["==", "n", "N"], ["<=", ["*", "M", "N"], 1000000]], "text": "n == N and M * N <= 1000000"},
            {"condition": ["or", [">", "LDA", "K"], ["==", "M", 1]], "text": "LDA > K"},
        ],
        no_alias=[["c", "a"], ["c", "b"]],
    )  # fmt: skip
    scatter = described(
        "scatter", "slots* cache* small* wide= short= word= half= brain= C",
        tensors=[
            tensor("slots", "in", "i64", "C"), tensor("cache", "scratch", "u8", 64, 16, strides=[16, 1]),
            tensor("small", "atomic", "i8", 1),
        ],
        scalars=[
            {"name": "wide", "dtype": "i64"}, {"name": "short", "dtype": "i16"}, {"name": "word", "dtype": "u16"},
            {"name": "half", "dtype": "f16"}, {"name": "brain", "dtype": "bf16"},
        ],
        grid=["C"],
        value_checks=[{"tensor": "slots", "low": 0, "high": 64, "distinct": True}],
        no_alias=[["cache", "slots"], ["cache", "small"]],
    )  # fmt: skip
    rows = samples.manifest("scale", samples.cubin("scale"), {"E": "bf16", "N": 3}) | {"value_checks": []}
    made = [(rows, _rows), (gather, _gather), (product, _product), (scatter, _scatter)]
    return [Launchable(manifest, samples.cubin(manifest["kernel"]), launch) for manifest, launch in made]


CONTRACTS = contracts()
