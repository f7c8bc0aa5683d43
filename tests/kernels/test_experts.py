"""Products with the experts of each token agree with float64, whichever experts a router may choose, on the interpreter and in
the emulator; a row's result does not depend on the rows next to it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests import shipped
from tests.emulator import shipped_run
from tests.emulator.shipped_run import compiled
from tests.shipped_launches import NUMPY, expected, launch_values, make_arrays
from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Function
from tilec.passes.prover.prove import prove

Arrays = dict[str, NDArray[Any]]
SOURCE: Final = shipped.ROOT / "kernels_src"
FORMS: Final = ("", "_fp8", "_int4")
PRODUCTS: Final = ("experts_silu_mul", "experts_add", "experts_add_scaled", "experts_down")
KERNELS: Final = tuple(f"{name}{form}" for name in PRODUCTS for form in FORMS)
NEAR: Final = {"bf16": 2.0**-8, "f16": 2.0**-11}
"""One rounding of a result; a norm's input and its squares are made of a result that was rounded."""
TERMS: Final = 2.0**-17
"""Roundings of sums in f32, relative to the sum of the magnitudes of their terms."""


def small(name: str, C: int, E: str = "bf16") -> dict[str, Any]:
    """Constants of a small kernel."""
    constants: dict[str, Any] = {"E": E, "C": C, "ROWS": 4, "GROUP": 4}
    if name.endswith("_int4"):
        constants |= {"F": E, "K": 256, "ROWS": 16, "SPLIT": 2}
    elif name.endswith("_fp8"):
        constants |= {"K": 256, "BLOCK": 128}
    else:
        constants |= {"K": 64, "BLOCK": 32}
    return {key: value for key, value in constants.items() if key != "GROUP" or "silu" in name or "scaled" in name}


@cache
def kernel(name: str, C: int, E: str = "bf16") -> Function:
    return load_kernel(SOURCE / f"{name}.py", small(name, C, E), root=shipped.ROOT)


def sizes(name: str, tokens: int, experts: int) -> dict[str, float | str]:
    count = 128 if name.endswith("_fp8") else 16
    if "silu" in name:
        return {"T": tokens, "X": experts, "I": count, "I2": 2 * count, "eps": 1e-6}
    return {"T": tokens, "X": experts, "N": count, **({"P": count // 4} if "scaled" in name else {})}


def made(function: Function, size: dict[str, float | str], experts: NDArray[Any]) -> tuple[Arrays, dict[str, float]]:
    env = launch_values(function, size)
    arrays = make_arrays(function, env)
    arrays["experts"] = experts.astype(np.int32)
    return arrays, env


def interpreted(function: Function, arrays: Arrays, env: Mapping[str, float]) -> Arrays:
    after = {name: array.copy() for name, array in arrays.items()}
    run(function, after, {p.name: env[p.name] for p in function.parameters if p.access is None})
    return after


def wrong(function: Function, before: Arrays, after: Arrays, env: dict[str, float]) -> list[str]:
    """Outputs that differ from float64 by more than roundings of what is stored, and of sums relative to their terms."""
    near = NEAR[str(function.constants["E"])]
    exact = expected(function, before, env)
    size = {name: np.abs(before[name].astype(np.float64)) for name in ("x", "residual", "weights") if name in before}
    if "w_zeros" in before:
        size["w_zeros"] = np.zeros_like(before["w_zeros"])
    else:
        size["w"] = np.abs(before["w"].astype(np.float64))
    sizes_of = expected(function, before | size, env)
    return [
        name
        for name, value in exact.items()
        if not (
            np.abs(after[name].astype(np.float64) - value) <= 4 * near * np.abs(value) + TERMS * np.abs(sizes_of[name])
        ).all()
    ]


def choices(kind: str, tokens: int, C: int, experts: int) -> NDArray[Any]:
    """Experts of each token: all the first, all the last, each once in any order, or the same for all tokens."""
    random = np.random.default_rng(5)
    match kind:
        case "first" | "last":
            return np.full((tokens, C), 0 if kind == "first" else experts - 1)
        case "each":
            return np.stack([random.permutation(experts)[:C] for _ in range(tokens)])
        case _:
            return np.tile(random.permutation(experts)[:C], (tokens, 1))


@pytest.mark.parametrize("kind", ["first", "last", "each", "same"])
@pytest.mark.parametrize("name", KERNELS)
def test_products_agree_with_float64(name: str, kind: str) -> None:
    """Also where a token takes all experts (C = X)."""
    function = kernel(name, 3)
    arrays, env = made(function, sizes(name, 2, 3), choices(kind, 2, 3, 3))
    assert wrong(function, arrays, interpreted(function, arrays, env), env) == []


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(KERNELS), tokens=st.integers(1, 3), C=st.integers(1, 4), experts=st.integers(1, 7),
    E=st.sampled_from(["bf16", "f16"]), seed=st.integers(0, 99),
)  # fmt: skip
def test_any_number_of_tokens_and_experts(name: str, tokens: int, C: int, experts: int, E: str, seed: int) -> None:
    function = kernel(name, C, E)
    chosen = np.random.default_rng(seed).integers(0, experts, (tokens, C))
    arrays, env = made(function, sizes(name, tokens, experts), chosen)
    assert wrong(function, arrays, interpreted(function, arrays, env), env) == []


@pytest.mark.parametrize("name", KERNELS)
def test_a_row_has_the_same_bits_with_others(name: str) -> None:
    function = kernel(name, 2)
    arrays, env = made(function, sizes(name, 3, 4), choices("each", 3, 2, 4))
    together = interpreted(function, arrays, env)
    rows = {p.name for p in function.parameters if p.access is not None} - {"w", "w_scales", "w_zeros", "weight"}
    for token in range(3):
        alone = {key: array[token : token + 1].copy() if key in rows else array for key, array in arrays.items()}
        after = interpreted(function, alone, env | {"T": 1})
        for output in expected(function, arrays, env):
            assert after[output].tobytes() == together[output][token : token + 1].tobytes()


@pytest.mark.parametrize("kind", ["first", "last"])
@pytest.mark.parametrize("name", ["experts_silu_mul", "experts_add_scaled", "experts_add", "experts_down"])
def test_machine_code_of_a_router_that_chooses_one_expert(name: str, kind: str) -> None:
    found = compiled(name, 0, "sm_90a")
    arrays = make_arrays(found.function, found.env)
    arrays["experts"] = choices(kind, 1, 8, int(found.env["X"])).astype(np.int32)
    after = shipped_run.emulated(replace(found, env=found.env), arrays)
    assert wrong(found.function, arrays, after, found.env) == []


@pytest.mark.parametrize("name", PRODUCTS)
def test_no_weight_of_an_expert_that_nobody_chose_counts(name: str) -> None:
    function = kernel(name, 2)
    arrays, env = made(function, sizes(name, 2, 5), np.array([[1, 3], [3, 1]]))
    right = interpreted(function, arrays, env)
    arrays["w"][[0, 2, 4]] = np.array(np.nan, NUMPY["bf16"])
    spoiled = interpreted(function, arrays, env)
    assert all(spoiled[output].tobytes() == right[output].tobytes() for output in expected(function, arrays, env))


MISTAKES: Final = {
    "another expert": ("experts_silu_mul", "(e, n, k), shape", "(0 * e, n, k), shape"),
    "up of another expert": ("experts_silu_mul", "offset=(e, I + n", "offset=(0 * e, I + n"),
    "up is gate": ("experts_silu_mul", "offset=(e, I + n", "offset=(e, n"),
    "row of another token": ("experts_silu_mul", "tl.load(x, (t, k)", "tl.load(x, (0 * t, k)"),
    "norm of another token": ("experts_silu_mul", "tl.load(squares, (t, 0)", "tl.load(squares, (0 * t, 0)"),
    "weight of another choice": ("experts_add", "tl.load(weights, (t, c))", "tl.load(weights, (t, 0 * c))"),
    "row of another choice": ("experts_add", "tl.load(x, (t, c, k)", "tl.load(x, (t, 0 * c, k)"),
    "weight of another choice of a part": ("experts_down", "tl.load(weights, (t, c))", "tl.load(weights, (t, 0 * c))"),
    "scale of another expert of a part": ("experts_down_fp8", "tl.load(w_scales, (e,", "tl.load(w_scales, (0 * e,"),
    "zeros of another expert of a part": ("experts_down_int4", "tl.load(w_zeros, (e,", "tl.load(w_zeros, (0 * e,"),
    "scale of another expert": ("experts_add_fp8", "tl.load(w_scales, (e,", "tl.load(w_scales, (0 * e,"),
    "zeros of another expert": ("experts_add_int4", "tl.load(w_zeros, (e,", "tl.load(w_zeros, (0 * e,"),
}
"""In a source or what it shares with others: what takes an expert, a token or a choice for another."""


def changed(name: str, old: str, new: str, folder: Path) -> Function:
    shutil.copytree(SOURCE, folder / "kernels_src", ignore=shutil.ignore_patterns("__pycache__", "tuning"))
    sources = [folder / "kernels_src" / f"{one}.py" for one in (name, "experts_sums")]
    path = next(one for one in sources if old in one.read_text())
    path.write_text(path.read_text().replace(old, new))
    return load_kernel(sources[0], small(name, 2), root=folder)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: str, tmp_path: Path) -> None:
    name, old, new = MISTAKES[mistake]
    function = changed(name, old, new, tmp_path)
    arrays, env = made(function, sizes(name, 2, 4), np.array([[1, 3], [2, 1]]))
    assert wrong(function, arrays, interpreted(function, arrays, env), env)


@pytest.mark.parametrize("name", KERNELS)
def test_without_a_fact_about_experts_the_index_is_refused(name: str, tmp_path: Path) -> None:
    """So nothing but the promise of the router makes the index of an expert safe; no kernel has an unsafe block."""
    assert "unsafe" not in (SOURCE / f"{name}.py").read_text()
    for old, new in (("    tl.values(experts, 0, X)\n", ""), ("values(experts, 0, X)", "values(experts, 0, X + 1)")):
        function = changed(name, old, new, tmp_path / str(len(new)))
        with pytest.raises(CompileError) as refused:
            prove(function)
        assert {d.code for d in refused.value.diagnostics} == {"E0301"}
    prove(kernel(name, 2))
