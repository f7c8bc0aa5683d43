"""Softmax and norms of the library: kernels agree with float64 references at odd and even sizes, references with finite
differences, functions with both; what functions choose is prebuilt. Accesses are wide where rows are whole vectors, and nothing
spills."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.campaign import first, one_of_each
from tests.clean import check_clean
from tests.library.prebuilt import FOLDER, SOURCE, entries, request
from tests.programs.machines import manifest
from tilec.cli import commands
from tilec.codegen import to_ptx
from tilec.emulator import launch
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Function
from tilec.kernels import norms
from tilec.kernels.source import reference_norms as reference
from tilec.lowering import lower
from tilec.ops.tensor_op import Op
from tilec.passes.prover import positive_divisions
from tilec.passes.schedule import choose, prepare
from tilec.project.read.buildfile import read_build_file
from tilec.project.trial.trial import own_reference, trials
from tilec.target.schedule import merged
from tilec.target.targets import TARGETS

KERNELS = (
    "softmax", "softmax_backward", "softmax_long", "softmax_long_backward", "layer_norm", "layer_norm_backward", "rms_norm",
    "rms_norm_backward", "sum_partials", "group_norm", "group_norm_backward",
)  # fmt: skip
ENTRIES = entries(*KERNELS)
BUILT = [(entry.name, constants) for entry in ENTRIES for constants in entry.specialisations()]
FUNCTIONS = ("softmax", "layer_norm", "rms_norm", "group_norm")


def _label(value: Any) -> str:
    return "-".join(map(str, value.values())) if hasattr(value, "values") else str(value)


def _by_dtype(case: tuple[str, Mapping[str, Any]]) -> tuple[str, str]:
    return case[0], case[1]["E"]


def _by_tile(case: tuple[str, Mapping[str, Any]]) -> tuple[str, int, int]:
    return case[0], case[1]["BLOCK"], case[1]["MULTIPLE"]


def _launches(kernel: str, constants: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Sizes around those of the tiles: the least and the largest row, rows that fill no tile, and numbers of rows that do not
    fill the last block."""
    multiple, tile = constants["MULTIPLE"], constants["BLOCK"]
    eps = {"eps": 1e-5} if kernel in ("layer_norm", "rms_norm", "group_norm") else {}
    if kernel.startswith("group_norm"):
        channels = constants["CHANNELS"]
        sizes = [(channels + 1, tile + multiple), (channels - 1, tile), (1, multiple)]
        return [eps | {"B": 2, "G": 1 + number, "C": c, "L": n} for number, (c, n) in enumerate(sizes)]
    if kernel == "sum_partials":
        return [{"P": constants["ROWS"] + 1, "N": tile + 8 + multiple}, {"P": 1, "N": multiple}]
    longer = tile + multiple if "long" in kernel else tile - multiple
    rows = constants.get("ROWS", 1)
    sizes = [(rows + 1, longer), (2 * rows, tile), (max(1, rows - 1), multiple)]
    striped = kernel in ("layer_norm_backward", "rms_norm_backward")
    stripes: list[dict[str, int]] = [{"P": 2}, {"P": 2}, {"P": 1}] if striped else [{}, {}, {}]
    return [eps | some | {"T": t + 3 * bool(some), "N": n} for (t, n), some in zip(sizes, stripes, strict=True)]


def test_kernels_have_references_baselines_and_a_budget() -> None:
    assert {entry.name for entry in ENTRIES} == set(KERNELS)
    for kernel in KERNELS:
        for files in ("reference_norms.py", "baseline_norms.py"):
            assert own_reference(SOURCE, kernel, files), (kernel, files)
    spilling = [entry for entry in ENTRIES if entry.budget != {"spill_bytes": 0}]
    assert {entry.name for entry in spilling} == {"layer_norm_backward", "rms_norm_backward"}
    for entry in spilling:  # rows of no whole vectors, which are too long for the registers of a block on some chips
        assert all(some["BLOCK"] == 8192 and some["MULTIPLE"] == 1 for some in entry.specialisations())


@pytest.mark.parametrize(("kernel", "constants"), one_of_each(BUILT, _by_dtype, _by_tile), ids=_label)
def test_results_are_those_of_the_reference(kernel: str, constants: dict[str, Any]) -> None:
    for seed, dims in enumerate(_launches(kernel, constants)):
        (trial,) = trials(request(kernel, constants, dims, seed=seed))
        assert trial.right, trial
        assert all(one.error is not None for one in trial.written)


def _random(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


def _own(name: str) -> Any:
    """What the module has for its own use: ops by their kernels, and what `register_autograd` takes."""
    return getattr(norms, f"_{name}")


@cache
def _op(kernel: str) -> Op:
    return _own(kernel)()


def _chosen(kernel: str, **known: Any) -> dict[str, Any]:
    return _op(kernel).declaration.specialisation(known)


LENGTHS = st.one_of(st.integers(1, 300), st.integers(1, 8192), st.integers(1, 1024).map(lambda n: 8 * n))


@settings(max_examples=300, deadline=None)
@given(LENGTHS, st.integers(1, 1 << 30), st.sampled_from(["bf16", "f16", "f32"]))
def test_what_functions_choose_is_prebuilt(length: int, rows: int, dtype: str) -> None:
    known = {"N": length, "T": rows, "E": dtype}
    rows_of = [kernel for kernel in KERNELS if "norm" in kernel and "group" not in kernel]
    one_tile = length <= norms.LONGEST_TILE[8 if length % 8 == 0 else 1]
    rows_of += ["softmax", "softmax_backward"] if one_tile else ["softmax_long", "softmax_long_backward"]
    for kernel in (*rows_of, "sum_partials", "group_norm", "group_norm_backward"):
        constants = _chosen(kernel, **known, L=length, P=rows)
        assert (kernel, constants) in BUILT
        assert length % constants["MULTIPLE"] == 0
        assert kernel not in rows_of or "long" in kernel or length <= constants["BLOCK"]
    for kernel in ("layer_norm_backward", "rms_norm_backward"):
        stripes = _op(kernel).declaration.chosen("dims", _op(kernel).declaration.dims, known)["P"]
        assert 1 <= stripes <= min(rows, 65536)


def test_few_partial_sums_have_tiles_of_one_row() -> None:
    few, more = (_chosen("sum_partials", N=589824, P=count, E="bf16") for count in (16, 17))
    assert (few["ROWS"], few["BLOCK"]) == (1, 512) and (more["ROWS"], more["BLOCK"]) == (512, 16)


class Tensor(np.ndarray):
    """An array with the methods of PyTorch's tensors that the functions call."""

    def contiguous(self) -> Tensor:
        return np.ascontiguousarray(self).view(Tensor)

    def is_contiguous(self) -> bool:
        return self.flags.c_contiguous

    def storage_offset(self) -> int:
        return 0

    def element_size(self) -> int:
        return self.itemsize

    def numel(self) -> int:
        return self.size

    def clone(self) -> Tensor:
        return self.copy()

    def new_empty(self, shape: tuple[int, ...]) -> Tensor:
        return np.full(shape, np.nan, self.dtype).view(Tensor)


def _tensor(seed: int, *shape: int) -> Tensor:
    return _random(seed, *shape).astype(np.float32).view(Tensor)


def _interpreted(kernel: str) -> Callable[..., Any]:
    """An op whose kernel runs on the interpreter, on f32."""
    op, declared = _op(kernel), _op(kernel).declaration

    def call(*given: Any) -> Any:
        arguments = op.bind(given, {})
        tensors = {one.name: arguments[one.name] for one in declared.arguments if one.access}
        assert all(tensor.flags.c_contiguous for tensor in tensors.values())
        scalars = {name: value for name, value in arguments.items() if name not in tensors}
        known = declared.known({name: ("f32", tensor.shape) for name, tensor in tensors.items()}, scalars)
        constants = declared.specialisation(known)
        assert (kernel, constants) in BUILT
        shapes = [shape for _, shape in declared.shapes(declared.outputs, known)]
        made = [np.full(shape, np.nan, np.float32).view(Tensor) for shape in shapes]
        arrays = tensors | {one.name: array for one, array in zip(declared.outputs, made, strict=True)}
        function = load_kernel(SOURCE / f"{kernel}.py", constants, root=FOLDER)
        dims = {name: known[name] for name in function.dims}
        run(function, {name: array.view(np.ndarray) for name, array in arrays.items()}, scalars, dims=dims)
        return None if not made else made[0] if len(made) == 1 else tuple(made)

    return call


def _same(call: Any) -> Any:
    return call


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {kernel: _interpreted(kernel) for kernel in KERNELS}  # before the first is replaced
    for kernel, call in calls.items():
        monkeypatch.setattr(norms, f"_{kernel}", partial(_same, call))


def _gradient(keep: Any, gradient: Any, inputs: tuple[Any, ...], output: Any, *douts: Any) -> Any:
    """What `register_autograd` would call."""
    ctx = SimpleNamespace()

    def save(*tensors: Any) -> None:
        ctx.saved_tensors = tensors

    def ignore(*_: Any) -> None:
        """What only PyTorch acts on."""

    ctx.save_for_backward, ctx.mark_non_differentiable, ctx.set_materialize_grads = save, ignore, ignore
    keep(ctx, inputs, output)
    return gradient(ctx, *douts)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("length", [1, 100, 1025, 4104])
def test_softmax_of_any_axes_and_its_gradient(length: int) -> None:
    x = _tensor(0, length, 2, 3).transpose(2, 1, 0)
    x[0, 0, 1::2] = -np.inf
    x[0, 1] += np.float32(10000)
    rows = np.ascontiguousarray(x).reshape(6, length)
    out = norms.softmax(x)
    assert out.shape == x.shape
    np.testing.assert_allclose(out.reshape(6, length), reference.softmax(rows), atol=1e-6)
    flat, dout = out.reshape(6, length), _tensor(1, length, 6).T
    gradient = _own("softmax_gradient") if length <= 1024 else _own("long_gradient")
    found = _gradient(_own("keep_softmax"), gradient, (rows,), flat, dout)
    np.testing.assert_allclose(found, reference.softmax_backward(dout, flat), atol=1e-6)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(("length", "stripes"), [(12, 100), (72, 4000)])
def test_norms_of_rows_and_their_gradients(length: int, stripes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norms, "MULTIPROCESSORS", 2)  # more than a row for some stripes
    x, weight, bias = _tensor(0, 2, 3, length), _tensor(1, length), _tensor(2, length)
    rows, dout = x.reshape(6, length), _tensor(3, 6, length)
    wanted, mean, rstd = reference.layer_norm(rows, weight, bias, 0.1)
    np.testing.assert_allclose(norms.layer_norm(x, weight, bias, 0.1).reshape(6, length), wanted, rtol=1e-5, atol=1e-5)
    output = _own("layer_norm")()(rows, weight, bias, 0.1)
    found = _gradient(_own("keep_norm"), _own("layer_norm_gradient"), (rows, weight, bias, 0.1), output, dout, None, None)
    dx, sums = reference.layer_norm_backward(dout, rows, weight, mean, rstd, 1)
    for one, truth in zip(found, (dx, sums[0, 0], sums[0, 1]), strict=False):
        np.testing.assert_allclose(one, truth, rtol=1e-4, atol=1e-5)
    assert len(found) == 4 and found[3] is None
    wanted, rstd = reference.rms_norm(rows, weight, 0.1)
    np.testing.assert_allclose(norms.rms_norm(x, weight, 0.1).reshape(6, length), wanted, rtol=1e-5, atol=1e-5)
    output = _own("rms_norm")()(rows, weight, 0.1)
    found = _gradient(_own("keep_norm"), _own("rms_norm_gradient"), (rows, weight, 0.1), output, dout, None)
    dx, sums = reference.rms_norm_backward(dout, rows, weight, rstd, 1)
    for one, truth in zip(found, (dx, sums[0]), strict=False):
        np.testing.assert_allclose(one, truth, rtol=1e-4, atol=1e-5)
    assert len(found) == 3 and found[2] is None


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("shape", [(2, 6), (2, 6, 5), (1, 6, 4, 16)])
def test_group_norm_of_any_axes_and_its_gradient(shape: tuple[int, ...]) -> None:
    x, weight, bias = _tensor(0, *shape) + np.float32(1000), _tensor(1, 6), _tensor(2, 6)
    split, pair = x.reshape(shape[0], 3, 2, -1), (weight.reshape(3, 2), bias.reshape(3, 2))
    wanted, mean, rstd = reference.group_norm(split, *pair, 0.1)
    np.testing.assert_allclose(norms.group_norm(x, 3, weight, bias, 0.1), wanted.reshape(shape), atol=1e-3)
    output, dout = _own("group_norm")()(split, *pair, 0.1), _tensor(3, *split.shape)
    inputs = (split, *pair, 0.1)
    found = _gradient(_own("keep_norm"), _own("group_norm_gradient"), inputs, output, dout, None, None)
    dx, sums = reference.group_norm_backward(dout, split, pair[0], mean, rstd)
    for one, truth in zip(found, (dx, sums[:, 0].sum(axis=0), sums[:, 1].sum(axis=0)), strict=False):
        np.testing.assert_allclose(one, truth, rtol=1e-3, atol=1e-3)
    assert len(found) == 4 and found[3] is None


def test_empty_inputs_and_unsupported_sizes() -> None:
    x, weight = _tensor(0, 0, 16), _tensor(1, 16)
    for found in (norms.softmax(x), norms.layer_norm(x, weight, weight), norms.rms_norm(x, weight)):
        assert found.shape == (0, 16)
    assert norms.softmax(_tensor(0, 3, 0)).shape == (3, 0)
    assert norms.group_norm(_tensor(0, 0, 16, 3, 2), 4, weight, weight).shape == (0, 16, 3, 2)
    wide, weights = _tensor(0, 1, 8193), _tensor(1, 8193)
    with pytest.raises(ValueError, match=r"layer_norm: the last axis of `x` has 8193 elements; at most 8192 are supported"):
        norms.layer_norm(wide, weights, weights)
    with pytest.raises(ValueError, match=r"rms_norm: the last axis of `x` has 8193 elements"):
        norms.rms_norm(wide, weights)
    with pytest.raises(ValueError, match=r"group_norm: `groups` is 5; a divisor of the 16 channels of `x` is needed"):
        norms.group_norm(_tensor(0, 2, 16), 5, weight, weight)
    with pytest.raises(ValueError, match=r"group_norm: `x` has 65536 samples; at most 65535 are supported"):
        norms.group_norm(_tensor(0, 65536, 1), 1, weight, weight)
    with pytest.raises(ValueError, match=r"group_norm: `x` has 1 axes; at least 2 are needed"):
        norms.group_norm(weight, 1, weight, weight)
    with pytest.raises(ValueError, match=r"softmax: `x` has no axes; at least 1 is needed"):
        norms.softmax(_tensor(0))


ODD = {
    "softmax": {"T": 19, "N": 136}, "softmax_backward": {"T": 19, "N": 136}, "softmax_long": {"T": 2, "N": 8200},
    "softmax_long_backward": {"T": 2, "N": 8200}, "layer_norm": {"T": 9, "N": 136},
    "layer_norm_backward": {"T": 7, "N": 136, "P": 3}, "rms_norm": {"T": 9, "N": 136},
    "rms_norm_backward": {"T": 7, "N": 136, "P": 3}, "sum_partials": {"P": 515, "N": 24},
    "group_norm": {"B": 1, "G": 2, "C": 5, "L": 1032}, "group_norm_backward": {"B": 1, "G": 2, "C": 5, "L": 1032},
}  # fmt: skip


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_emulator_finds_no_fault_and_the_same_results(kernel: str) -> None:
    target = next(target for target in TARGETS if target.name == "sm_90a")
    entry, constants = next(
        (entry, some) for entry in ENTRIES if entry.name == kernel for some in entry.specialisations()
        if some["E"] == "f32" and some["MULTIPLE"] == 8
    )  # fmt: skip

    def fresh() -> Function:
        return load_kernel(SOURCE / f"{kernel}.py", constants, root=FOLDER)

    function, fixed = fresh(), merged(entry.overrides(constants), target)
    positive = frozenset(op.operands[1] for op in positive_divisions(function))
    prepared = prepare(function, target, fixed, positive=positive)
    schedule = choose(fresh(), target, fixed)
    lowered = lower(prepared, target, min_blocks=schedule.blocks)
    described = manifest(fresh(), lowered, target, schedule)
    dims = ODD[kernel]
    scalars = {"eps": 1e-5} if kernel in ("layer_norm", "rms_norm", "group_norm") else {}
    shapes = {spec.name: tuple(dim.evaluate(dims) for dim in spec.dims) for spec in described.tensors}
    arrays = {name: _random(number, *shape).astype(np.float32) for number, (name, shape) in enumerate(shapes.items())}
    report = launch.emulate(to_ptx(lowered.mlir, target), described, arrays, {**dims, **scalars})
    check_clean(report)
    run(fresh(), arrays, scalars, dims=dims)
    for spec in described.tensors:
        if spec.access == "out":
            found = np.asarray(report.tensors[spec.name]).reshape(shapes[spec.name])
            np.testing.assert_allclose(found, arrays[spec.name], rtol=1e-4, atol=1e-5)


def _project(folder: Path) -> Path:
    """A copy of the folder of kernels, for commands that write next to it."""
    copied = folder / "kernels"
    shutil.copytree(FOLDER, copied, ignore=shutil.ignore_patterns("artifacts", "__pycache__"))
    return copied


def test_rows_of_whole_vectors_have_no_notes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = ["--constants", "E=bf16", "--constants", "MULTIPLE=8", "--deny", "notes", "--arch", "sm_90"]
    assert commands.run(["check", *KERNELS, "--project", str(_project(tmp_path)), *whole]) == 0
    assert "N0101" not in capsys.readouterr().err


SPILLING = ("layer_norm", "layer_norm_backward")
"""Those with the most registers for the blocks that are to be resident."""
OTHERS = tuple(kernel for kernel in KERNELS if kernel not in SPILLING)
BUDGETED = ("layer_norm_backward", "rms_norm_backward")
"""Those that may spill on other chips than sm_90, in rows of up to 8192 that are no multiple of 8."""
BUILDS = [(arch, kernels) for arch in ("sm_90", "sm_100", "sm_120") for kernels in (SPILLING, OTHERS)]


@pytest.mark.parametrize(("arch", "kernels"), first(1, BUILDS), ids=_label)
def test_f32_spills_only_where_the_budget_says(
    arch: str, kernels: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    file = _project(tmp_path) / "build.toml"
    text = file.read_text(encoding="utf-8").replace('["bf16", "f16", "f32"]', '"f32"')
    text = re.sub(r'  \{ constants = \{ E = "b?f16".*\n', "", text)  # schedules of dtypes that this does not build
    file.write_text(text, encoding="utf-8")
    wanted = [entry.name for entry in read_build_file(file).entries if entry.name in kernels for _ in entry.specialisations()]
    assert commands.run(["build", *kernels, "--project", str(file.parent), "--jobs", "1", "--arch", arch]) == 0
    found = [json.loads(path.read_text()) for path in (file.parent / "artifacts/build").glob("*/*.json")]
    assert sorted(one["kernel"] for one in found) == sorted(wanted) and len(found) > len(kernels)
    spilled = [one for one in found if one["resources"]["spill_bytes"]]
    for one in spilled:  # within the budget, or the build would have failed
        assert one["kernel"] in BUDGETED and (one["constants"]["BLOCK"], one["constants"]["MULTIPLE"]) == (8192, 1)
