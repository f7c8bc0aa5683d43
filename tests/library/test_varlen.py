"""Attention of sequences of several lengths: results and gradients at odd sizes, wrong offsets, machine code."""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.campaign import first
from tests.library.interpreted import interpreted, tensor
from tests.library.prebuilt import FOLDER, SOURCE, entries, is_prebuilt, request
from tilec.artifact.manifest_reader import manifest_from_json
from tilec.cli import commands
from tilec.emulator import emulate
from tilec.project.read.python_file import execute
from tilec.project.trial.launches import Contract
from tilec.project.trial.trial import trials

ALL = 1 << 24
SMALL = {
    "attention_varlen": {"BM": 32, "BN": 32}, "attention_varlen_backward_q": {"BM": 32, "BN": 32},
    "attention_varlen_backward_kv": {"ROWS": 64, "BM": 32, "BN": 32},
}  # fmt: skip
"""Tiles of which few queries and keys fill several."""
SIZES = ((37, 71), (64, 64), (100, 50), (33, 97))
"""Queries and keys."""
reference: Any = execute(SOURCE / "reference_varlen.py", "reference")
dense: Any = execute(SOURCE / "reference_attention.py", "reference")


@pytest.mark.parametrize("seed", range(4))
def test_spans_are_those_of_the_reference(seed: int) -> None:
    before, after = ((ALL, 0), (19, 3), (ALL, ALL), (0, 0))[seed]
    launch = {"B": 1 + 3 * seed, "T": SIZES[seed][0], "S": SIZES[seed][1], "before": before, "after": after}
    (trial,) = trials(request("attention_spans", {"ROWS": 16}, launch, seed=seed))
    assert trial.right, trial


@pytest.mark.parametrize("kernel", SMALL)
@pytest.mark.parametrize("seed", first(2, range(4)))
def test_results_are_those_of_the_reference(kernel: str, seed: int) -> None:
    constants: dict[str, Any] = {"E": ("bf16", "f16")[seed % 2], "D": 64, **SMALL[kernel]}
    launch = {"T": SIZES[seed][0], "S": SIZES[seed][1], "HKV": 1, "G": 2, "scale": 0.05}
    (trial,) = trials(request(kernel, constants, launch, seed=seed))
    assert trial.right, trial


@pytest.mark.parametrize("visible", [(ALL, 0), (2, 0), (1, 1), (ALL, ALL)])
def test_the_reference_is_attention_of_each_sequence(visible: tuple[int, int]) -> None:
    random, (before, after) = np.random.default_rng(2), visible
    queries, keys = np.array([0, 3, 3, 8, 9]), np.array([0, 4, 6, 13, 13])
    q, k, v = random.normal(size=(11, 2, 2, 4)), random.normal(size=(13, 2, 4)), random.normal(size=(13, 2, 4))
    dout, scale = random.normal(size=q.shape), 0.3
    spans, tiles = reference.attention_spans(queries, keys, len(q), len(k), before, after, 4)
    out, lse = reference.attention_varlen(q, k, v, spans, tiles, scale)
    rows = dense.attention_rows(out[None], dout[None], lse[None])[0]
    found = (
        reference.attention_varlen_backward_q(q, k, v, dout, rows, spans, tiles, scale),
        *reference.attention_varlen_backward_kv(q, k, v, dout, rows, spans, tiles, scale),
    )
    for b in range(4):
        mine, others = slice(queries[b], queries[b + 1]), slice(keys[b], keys[b + 1])
        one = q[None, mine], k[None, others], v[None, others]
        wanted, sums = dense.attention(*one, before, after, scale)
        np.testing.assert_allclose(out[mine], wanted[0], atol=1e-12)
        own = dense.attention_rows(wanted, dout[None, mine], sums)
        dq = dense.attention_backward_q(*one, dout[None, mine], own, before, after, scale)
        dk, dv = dense.attention_backward_kv(*one, dout[None, mine], own, before, after, scale)
        for gradient, rows, truth in zip(found, (mine, others, others), (dq, dk, dv), strict=True):
            np.testing.assert_allclose(gradient[rows], truth[0], atol=1e-12)
    assert not out[9:].any() and not found[0][9:].any(), "rows after the last sequence"


def _random(seed: int, *shape: int) -> Any:
    return tensor(np.random.default_rng(seed).normal(size=shape), np.float16)


@pytest.mark.parametrize("size", [64, 128])
def test_the_function_and_its_gradients(size: int) -> None:
    """Of strided tensors, as projections leave them, with groups of heads, and sequences that share a block."""
    joined = _random(0, 40, 8, size)
    q, k, v, dout = joined[:, :4], joined[:, 4:6], joined[:, 6:], _random(1, 40, 4, size)
    offsets = tensor([0, 7, 7, 30, 38], np.int32)
    spans, tiles = reference.attention_spans(offsets, offsets, 40, 40, 9, 0, 128)
    grouped, slopes = (np.asarray(one.unflatten(1, (2, 2)), np.float64) for one in (q, dout))
    exact, scale = (grouped, np.asarray(k, np.float64), np.asarray(v, np.float64)), size**-0.5
    wanted, lse = reference.attention_varlen(*exact, spans, tiles, scale)
    rows = dense.attention_rows(wanted[None], slopes[None], lse[None])[0]
    expected = (
        reference.attention_varlen_backward_q(*exact, slopes, rows, spans, tiles, scale),
        *reference.attention_varlen_backward_kv(*exact, slopes, rows, spans, tiles, scale),
    )
    with interpreted() as library:
        out = library.module.attention_varlen(q, k, v, offsets, offsets, causal=True, window=10)
        given_spans = library.ops["attention_spans"](offsets, offsets, 40, 40, 9, 0)
        inputs = (q.unflatten(1, (2, 2)), k, v, *given_spans, scale)
        output = library.ops["attention_varlen"](*inputs)
        found = library.gradient("attention_varlen", inputs, output, dout.unflatten(1, (2, 2)), None)
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
    np.testing.assert_allclose(out.unflatten(1, (2, 2)).astype(np.float64), wanted, atol=4e-3)
    assert found[3:] == (None, None, None)
    for one, truth in zip(found, expected, strict=False):
        np.testing.assert_allclose(one.astype(np.float64), truth, atol=2e-2)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=2, max_size=5))
def test_wrong_offsets_reach_no_other_memory(numbers: list[int]) -> None:
    """The interpreter refuses an access outside of a tensor, and each result is a mean of some values."""
    q, offsets = tensor(np.ones((5, 1, 64)), np.float16), tensor(numbers, np.int32)
    with interpreted() as library:
        out = library.module.attention_varlen(q, q, q, offsets, offsets[::-1].copy(), causal=True)
    assert np.isin(out, (0, 1)).all()


def test_nothing_and_wrong_arguments() -> None:
    q, offsets = _random(0, 6, 4, 64), tensor([0, 6], np.int32)
    with interpreted() as library:
        attention = library.module.attention_varlen
        for queries, keys, cut in ((q[:0], q, offsets), (q, q[:0], offsets), (q, q, offsets[:1])):
            found = attention(queries, keys, keys, cut, cut)
            assert found.shape == queries.shape and not found.any()
        with pytest.raises(ValueError, match=r"`cu_seqlens_k` has the shape \[1\]; both offsets are \[B \+ 1\]"):
            attention(q, q, q, offsets, offsets[:1])
        with pytest.raises(ValueError, match=r"`q` has 4 axes; attention_varlen takes 3, \(T, HQ, D\)"):
            attention(q[None], q, q, offsets, offsets)
        with pytest.raises(ValueError, match="`window` is 0; attention_varlen takes at least 1"):
            attention(q, q, q, offsets, offsets, window=0)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Path]:
    """The artifact of a kernel in bf16 for sm_90a, for heads of some size; built once."""
    folder = tmp_path_factory.mktemp("kernels")
    shutil.copytree(SOURCE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    text = (FOLDER / "build.toml").read_text(encoding="utf-8").replace('E = ["bf16", "f16"]', 'E = "bf16"')
    (folder / "build.toml").write_text(text, encoding="utf-8")

    @cache
    def artifacts(kernel: str) -> Path:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TILEC_CACHE_DIR", str(folder / "store"))
            assert commands.run(["build", kernel, "--project", str(folder), "--jobs", "1", "--arch", "sm_90"]) == 0
        return folder / "artifacts/build/sm_90a"

    def build(kernel: str, size: int) -> Path:
        (path,) = (path for path in artifacts(kernel).glob(f"{kernel}-*.json") if f"-D={size}-" in path.name)
        return path

    return build


BUILT = [(kernel, size) for kernel in ("attention_varlen_backward_kv", "attention_varlen", "attention_varlen_backward_q")
         for size in (64, 128)]  # fmt: skip


@pytest.mark.parametrize(("kernel", "size"), first(2, BUILT))
def test_nothing_spills_and_products_are_fed_by_tensor_copies(
    kernel: str, size: int, built: Callable[[str, int], Path]
) -> None:  # fmt: skip
    ptx = built(kernel, size).with_suffix(".ptx").read_text()
    assert json.loads(built(kernel, size).read_text())["resources"]["spill_bytes"] == 0
    assert "wgmma.mma_async" in ptx and "cp.async.bulk.tensor" in ptx and "mma.sync" not in ptx


@pytest.mark.parametrize(("kernel", "size"), first(2, BUILT))
def test_emulated_launches_are_clean_and_right(kernel: str, size: int, built: Callable[[str, int], Path]) -> None:
    """The producer reads how many tiles there are from memory, as the consumers do. Errors relative to the largest element."""
    manifest = manifest_from_json(json.loads(built(kernel, size).read_text()))
    ptx, contract = built(kernel, size).with_suffix(".ptx").read_text(), Contract.of_manifest(manifest)
    queries, keys = 141, 150
    dims = {"T": queries, "S": keys, "HKV": 1, "G": 2, "D": size, "BM": 128, "ROWS": 128}
    for seed in range(2):
        rng = np.random.default_rng(seed)
        inputs = getattr(reference, f"{kernel}_inputs")(rng, dims)
        arrays: dict[str, Any] = {}
        for spec in contract.tensors:
            if spec.access == "in":
                dtype = {"bf16": ml_dtypes.bfloat16, "f32": np.float32, "i32": np.int32}[spec.dtype]
                arrays[spec.name] = inputs[spec.name].astype(dtype)
        function = getattr(reference, kernel)
        whole: Any = function(**{name: arrays.get(name, inputs["scale"]) for name in inspect.signature(function).parameters})
        outputs = [spec for spec in contract.tensors if spec.access == "out"]
        expected: list[Any] = list(whole) if isinstance(whole, tuple) else [whole]  # pyright: ignore[reportUnknownArgumentType]
        for spec, truth in zip(outputs, expected, strict=True):
            arrays[spec.name] = np.zeros(truth.shape, ml_dtypes.bfloat16 if spec.dtype == "bf16" else np.float32)
        values = {"T": queries, "S": keys, "HKV": 1, "G": 2, "scale": inputs["scale"], **strides(size)}
        flat = {name: (a.view(np.uint16) if a.dtype == ml_dtypes.bfloat16 else a).reshape(-1) for name, a in arrays.items()}
        report = emulate(ptx, manifest, flat, {name: values[name] for name in contract.names}, seed=seed)
        assert report.clean, report
        for spec, truth in zip(outputs, expected, strict=True):
            stored = report.tensors[spec.name]
            wide = (stored.view(ml_dtypes.bfloat16) if spec.dtype == "bf16" else stored).astype(np.float64).reshape(truth.shape)
            finite = np.isfinite(truth)
            assert (np.isfinite(wide) == finite).all(), spec.name
            off = np.abs(wide[finite] - truth[finite])
            assert off.max() <= 2.0**-6 * np.abs(truth[finite]).max(), spec.name


def strides(size: int) -> dict[str, int]:
    """Of tensors without gaps, with one head of keys and two of queries."""
    queries = {f"{name}{axis}": step for name in "QO" for axis, step in (("T", 2 * size), ("H", 2 * size), ("G", size))}
    return queries | {f"{name}{axis}": size for name in "KV" for axis in "SH"}


def test_every_entry_forbids_spills() -> None:
    assert all(entry.budget == {"spill_bytes": 0} for entry in entries("attention_spans", *SMALL))
