"""Attention of the library: results at odd and even sizes, gradients by finite differences, machine code."""

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

from tests.campaign import first, in_turn
from tests.library.prebuilt import BUILD, FOLDER, SOURCE, request
from tilec.artifact.manifest_reader import manifest_from_json
from tilec.cli import commands
from tilec.emulator import emulate
from tilec.kernels.attention import TILES
from tilec.project.read.python_file import execute
from tilec.project.trial.launches import Contract, given_values, random_tensors, small_launches
from tilec.project.trial.trial import trials

ALL = 1 << 24
VISIBLE = {"causal": {"before": ALL, "after": 0}, "full": {"before": ALL, "after": ALL}, "window": {"before": 19, "after": 3}}
"""What a query attends to."""
EVEN = {"B": 1, "T": 32, "S": 64, "HKV": 1, "G": 1}
ODD = {"B": 1, "T": 37, "S": 71, "HKV": 1, "G": 2}
SMALL = {
    "attention": {"BM": 32, "BN": 32}, "attention_backward_q": {"BM": 32, "BN": 32},
    "attention_backward_k": {"BM": 32, "BN": 32}, "attention_backward_v": {"BM": 32, "BN": 32},
    "attention_backward_kv": {"BM": 32, "BN": 32},
}  # fmt: skip
"""Tiles of which few queries and keys fill several."""
reference: Any = execute(SOURCE / "reference_attention.py", "reference")


@pytest.mark.parametrize(("kernel", "visible"), in_turn(SMALL, VISIBLE))
def test_results_are_those_of_the_reference(kernel: str, visible: str) -> None:
    element, dims = ("f16", EVEN) if visible == "full" else ("bf16", ODD)
    constants, launch = {"E": element, "D": 64, **SMALL[kernel]}, {**dims, **VISIBLE[visible], "scale": 0.05}
    (trial,) = trials(request(kernel, constants, launch, seed=1))
    assert trial.right, trial


@pytest.mark.parametrize("element", ["bf16", "f16"])
def test_numbers_of_queries_are_those_of_the_reference(element: str) -> None:
    """Also those past the last query, that tiles of other kernels load."""
    launch = {"B": 2, "T": 70, "HKV": 2, "G": 2}
    (trial,) = trials(request("attention_rows", {"E": element, "D": 64, "BM": 64}, launch))
    assert trial.right, trial


@pytest.mark.parametrize("visible", VISIBLE)
def test_gradients_are_finite_differences(visible: str) -> None:
    random, shown = np.random.default_rng(3), VISIBLE[visible]
    q, k, v = random.normal(size=(1, 5, 2, 2, 4)), random.normal(size=(1, 7, 2, 4)), random.normal(size=(1, 7, 2, 4))
    dout, scale, step = random.normal(size=q.shape), 0.3, 1e-5
    out, lse = reference.attention(q, k, v, **shown, scale=scale)
    rows = reference.attention_rows(out, dout, lse)
    dq = reference.attention_backward_q(q, k, v, dout, rows, **shown, scale=scale)
    dk, dv = reference.attention_backward_kv(q, k, v, dout, rows, **shown, scale=scale)
    for name, gradient in (("q", dq), ("k", dk), ("v", dv)):
        inputs = {"q": q, "k": k, "v": v}
        direction = random.normal(size=gradient.shape)
        moved = [{**inputs, name: inputs[name] + side * step * direction} for side in (-1, 1)]
        ends = [float(np.sum(dout * reference.attention(**one, **shown, scale=scale)[0])) for one in moved]
        assert np.isclose((ends[1] - ends[0]) / (2 * step), np.sum(gradient * direction), rtol=1e-6), name


@pytest.mark.parametrize("kernel", first(2, list(SMALL)))
def test_a_query_without_keys_has_no_output_and_no_gradient(kernel: str) -> None:
    q, k = np.ones((1, 4, 1, 1, 2)), np.ones((1, 2, 1, 2))
    out, lse = reference.attention(q, k, k, before=ALL, after=0, scale=1.0)
    assert not out[0, :2].any() and np.isinf(lse[..., :2]).all() and out[0, 2:].all()
    launch = {"B": 1, "T": 40, "S": 9, "HKV": 1, "G": 1, "before": ALL, "after": 0, "scale": 0.05}
    (trial,) = trials(request(kernel, {"E": "f16", "D": 64, **SMALL[kernel]}, launch, seed=5))
    assert trial.right, trial


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Path]:
    """The artifact of a kernel in bf16 for heads of some size: for sm_90a, or sm_100a if it has none; built once."""
    folder = tmp_path_factory.mktemp("kernels")
    shutil.copytree(SOURCE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    entries = [entry for entry in BUILD.entries if entry.name in (*SMALL, "attention_rows")]
    assert {entry.name for entry in entries} == {*SMALL, "attention_rows"}
    assert all(entry.budget == {"spill_bytes": 0} for entry in entries)
    text, _, section = (FOLDER / "build.toml").read_text(encoding="utf-8").partition("# Attention\n")
    head = text[: text.index("[[kernel]]")]
    section = section.partition("# Attention of sequences")[0].replace('E = ["bf16", "f16"]', 'E = "bf16"')
    (folder / "build.toml").write_text(head + section, encoding="utf-8")

    @cache
    def artifacts(kernel: str) -> Path:
        chip = "sm_90" if kernel in TILES else "sm_100"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TILEC_CACHE_DIR", str(folder / "store"))
            command = ["build", kernel, "--project", str(folder), "--jobs", "1", "--arch", chip]
            assert commands.run(command) == 0
        return folder / f"artifacts/build/{chip}a"

    def build(kernel: str, size: int) -> Path:
        (path,) = artifacts(kernel).glob(f"{kernel}-*-D={size}-*.json")
        return path

    return build


BUILT = [
    ("attention_backward_kv", 128), ("attention", 64), ("attention_backward_q", 128), ("attention_backward_kv", 64),
    ("attention", 128), ("attention_backward_q", 64), ("attention_backward_k", 128), ("attention_backward_v", 128),
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "size"), first(1, BUILT))
def test_nothing_spills_and_products_are_fed_by_tensor_copies(
    kernel: str, size: int, built: Callable[[str, int], Path]
) -> None:  # fmt: skip
    ptx = built(kernel, size).with_suffix(".ptx").read_text()
    assert json.loads(built(kernel, size).read_text())["resources"]["spill_bytes"] == 0
    assert ("wgmma.mma_async" in ptx) == (kernel in TILES) and ("mma.sync" in ptx) == (kernel not in TILES)
    assert "cp.async.bulk.tensor" in ptx and not any(f"{access}.shared.b16" in ptx for access in ("ld", "st"))


@pytest.mark.parametrize(("kernel", "size"), first(3, [*BUILT[:2], ("attention_rows", 64), *BUILT[2:]]))
def test_emulated_launches_are_clean_and_right(kernel: str, size: int, built: Callable[[str, int], Path]) -> None:
    """In bf16; errors relative to the largest element."""
    manifest = manifest_from_json(json.loads(built(kernel, size).read_text()))
    ptx, contract = built(kernel, size).with_suffix(".ptx").read_text(), Contract.of_manifest(manifest)
    wanted = {**ODD, "B": 1, **VISIBLE["window"], "scale": 0.05}
    given = ",".join(f"{name}={value}" for name, value in wanted.items() if name in contract.names)
    values = small_launches(contract, given_values(given))[0]
    for seed in range(3):
        flat = random_tensors(contract, values, seed)
        inputs: dict[str, Any] = {"before": None, **values, "e": "bf16"}
        for spec in contract.tensors:
            stored = flat[spec.name].view(ml_dtypes.bfloat16) if spec.dtype == "bf16" else flat[spec.name]
            inputs[spec.name] = stored.reshape([dim.evaluate(values) for dim in spec.dims])
        function = getattr(reference, kernel)
        expected = function(**{name: inputs[name] for name in inspect.signature(function).parameters})
        report = emulate(ptx, manifest, {name: array.copy() for name, array in flat.items()}, values, seed=seed)
        assert report.clean, report
        outputs = [spec for spec in contract.tensors if spec.access == "out"]
        for spec, truth in zip(outputs, expected if isinstance(expected, tuple) else (expected,), strict=True):
            found = report.tensors[spec.name]
            wide = (found.view(ml_dtypes.bfloat16) if spec.dtype == "bf16" else found.view(np.float32)).astype(np.float64)
            shaped, finite = wide.reshape(truth.shape), np.isfinite(truth)
            assert np.array_equal(shaped[~finite], truth[~finite]), spec.name
            assert np.abs(shaped[finite] - truth[finite]).max() <= 2.0**-6 * np.abs(truth[finite]).max(), spec.name
