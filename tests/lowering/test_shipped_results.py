"""What the lowered code of every shipped kernel computes, thread by thread, is what its reference says."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from block_machine import launch
from mlir_steps import TYPES, Array

from tests import shipped
from tilec.ir.core import Access, Function
from tilec.lowering import lower
from tilec.target import SM_90A, SM_120A, Target

SIZES: dict[str, list[dict[str, float | str]]] = {
    "add": [{"N": 1}, {"N": 4096}, {"N": 4904}],
    "silu_mul": [{"N": 5}, {"N": 2056}],
    "rms_norm": [{"T": 3, "eps": 1e-6}, {"T": 2, "H": 2560, "E": "f16", "eps": 1e-6}],
    "add_rms_norm": [{"T": 2, "eps": 1e-5}],
    "embedding": [{"T": 3, "V": 7}],
    "gather_row": [{"T": 5}],
    "argmax_blocks": [{"B": 2, "V": 5000, "P": 3}],
    "argmax_reduce": [{"B": 3, "P": 77}],
    "matvec": [{"N": 3, "B": 1}, {"N": 37, "B": 4}],
    "matvec_add": [{"N": 6, "B": 1}, {"N": 36, "B": 8}],
    "matvec_silu_mul": [{"I": 3, "I2": 6, "B": 1}, {"I": 64, "I2": 128, "B": 4}],
    "matvec_argmax": [{"V": 27, "P": 3, "B": 1}, {"V": 6, "P": 4, "B": 1}, {"V": 140, "P": 3, "B": 4}],
    "matmul": [{"M": 130, "N": 136, "K": 136}, {"M": 5, "N": 8, "K": 200, "E": "f16"}],
    "qk_norm_rope_kv": [{"T": 2, "HEADS": 6, "HQ": 2, "HKV": 2, "P": 9, "S": 11, "eps": 1e-6}],
    "kv_update": [{"T": 3, "S": 8}],
    "silu_mul_rows": [{"T": 2, "I": 1024, "I2": 2048}],
    "topk_blocks": [{"B": 2, "V": 1500, "P": 2, "K": 4}],
    "flash_attention": [{"T": 20, "HKV": 1, "G": 2, "S": 100, "past": 60, "scale": 0.09}],
    "decode_attention": [{"B": 2, "HKV": 2, "G": 4, "S": 150, "P": 3, "scale": 0.09}],
    "decode_merge": [{"B": 1, "HKV": 1, "G": 2}],
}
"""Dims, scalars and the constants that matter. Where a kernel allows it, a block reaches past an edge."""

EXTRA = {
    "argmax_blocks": lambda env: (env["BLOCK"],),
    "topk_blocks": lambda env: (env["BLOCK"], env["K"]),
    "decode_attention": lambda env: (env["P"], env["BN"]),
    "matvec_argmax": lambda env: (env["P"], env["ROWS"]),
}
"""What a reference takes beside the kernel's inputs and scalars."""

CASES = [(name, target, size) for name, sizes in SIZES.items() for size in sizes for target in (SM_90A, SM_120A)]
PIPELINED = {"matmul", "flash_attention", "decode_attention"}  # with as many stages as shared memory holds
CASES = [case for case in CASES if case[0] in PIPELINED or case[1] == SM_90A]


def reference(name: str) -> Any:
    """The kernel's reference, from the modules beside the kernels."""
    sys.path.insert(0, str(shipped.ROOT / "kernels_src"))
    try:
        modules = [importlib.import_module(module) for module in ("reference", "reference_attention")]
    finally:
        sys.path.pop(0)
    return next(getattr(module, name) for module in modules if hasattr(module, name))


def make_arrays(function: Function, env: dict[str, float]) -> dict[str, Array]:
    """Inputs at random within the kernel's value facts; what is only written is poisoned."""
    random = np.random.default_rng(sum(map(ord, function.name)))
    ints = {name: int(value) for name, value in env.items()}
    facts = {fact.tensor: fact for fact in function.values}
    arrays: dict[str, Array] = {}
    for parameter in function.parameters:
        if parameter.access is None:
            continue
        tensor = parameter.value.tensor
        shape, dtype = tuple(dim.evaluate(ints) for dim in tensor.dims), TYPES[tensor.dtype.name]
        if parameter.access is Access.OUT:
            arrays[parameter.name] = np.full(shape, -1 if tensor.dtype.is_integer else np.nan).astype(dtype)
        elif tensor.dtype.is_integer:
            fact = facts.get(parameter.name)
            low, high = (fact.low.evaluate(ints), fact.high.evaluate(ints)) if fact else (0, 1000)
            distinct = fact is not None and fact.distinct
            arrays[parameter.name] = random.choice(np.arange(low, high), shape, replace=not distinct).astype(dtype)
        else:
            arrays[parameter.name] = random.normal(size=shape).astype(dtype)
    if function.name == "decode_attention":  # a sequence lies inside the cache, and no two overlap
        arrays["starts"][:], arrays["lengths"][:] = [3, 60], [41, 90]
    if function.name == "decode_merge":
        arrays["sums"] = np.abs(arrays["sums"]) + 1
    return arrays


def assert_close(found: Array, expected: Array, relative: float) -> None:
    """Equal integers; floats within the rounding of the kernel's dtype, of sums and of the approximate instructions."""
    if found.dtype.kind == "i":
        assert (found == expected).all()
        return
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=relative, atol=relative)


@pytest.mark.parametrize(("name", "target", "size"), CASES, ids=[f"{name}-{target}-{size}" for name, target, size in CASES])
def test_lowered_code_computes_the_reference(name: str, target: Target, size: dict[str, float | str]) -> None:
    function = shipped.load(name, size)
    env = {key: value for key, value in (function.constants | size).items() if not isinstance(value, str)}
    arrays = make_arrays(function, env)
    inputs = [arrays[p.name].copy() for p in function.parameters if p.access in (Access.IN, Access.INOUT)]
    scalars = [env[p.name] for p in function.parameters if p.access is None]
    launch(function, lower(shipped.prepared(name, target, size), target), arrays, env)
    expected = reference(name)(*inputs, *scalars, *EXTRA.get(name, lambda _: ())(env))
    written = [p.name for p in function.parameters if p.access in (Access.OUT, Access.INOUT)]
    for parameter, values in zip(written, expected if isinstance(expected, tuple) else (expected,), strict=True):
        assert_close(arrays[parameter], values, 2.0**-7 if function.constants.get("E") == "bf16" else 1e-3)


def test_every_shipped_kernel_is_run() -> None:
    assert SIZES.keys() == set(shipped.NAMES)


def damaged(name: str, size: dict[str, float | str], old: str, new: str) -> None:
    """Run a kernel whose code has `old` replaced by `new`."""
    lowered = lower(shipped.prepared(name, SM_90A, size), SM_90A)
    assert old in lowered.mlir
    function = shipped.load(name, size)
    env = {key: value for key, value in (function.constants | size).items() if not isinstance(value, str)}
    launch(function, replace(lowered, mlir=lowered.mlir.replace(old, new)), make_arrays(function, env), env)


@pytest.mark.parametrize(
    ("name", "size", "old", "new", "said"),
    [
        ("rms_norm", {"T": 1, "eps": 0.0}, "nvvm.barrier\n", "", "without a barrier"),
        ("matmul", {"M": 128, "N": 128, "K": 128}, "nvvm.barrier\n", "", "a read without a barrier"),
        ("matmul", {"M": 128, "N": 128, "K": 128}, "nvvm.cp.async.wait.group 1", "nvvm.cp.async.wait.group 9", "on their way"),
        ("add", {"N": 5}, "griddepcontrol.wait", "griddepcontrol.other", "a read before earlier kernels are complete"),
        ("add", {"N": 5}, '"ult"', '"uge"', "an access outside of its tensor"),
        ("add", {"N": 2048}, "alignment = 16", "alignment = 32", "a misaligned access"),
    ],
)
def test_the_machine_notices(name: str, size: dict[str, float | str], old: str, new: str, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        damaged(name, size, old, new)
