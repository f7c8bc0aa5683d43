"""Every clause of the launch contract: a launch that satisfies it is accepted, one that violates it is refused with the
argument's name."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_driver import FakeDriver, argument_bytes
from hypothesis import given, settings
from hypothesis import strategies as st
from launch_contracts import SCHEDULE, H, T, embedding_like, loaded, manifest, tensor, view

from tilec.artifact.records import LaunchCheck, ScalarSpec
from tilec.ir.expr import binary, cdiv, const, sym
from tilec.ir.types import MAX_DIM
from tilec.runtime import TRUSTED, LaunchError

IDS, TABLE, OUT = 0x1000_0000, 0x2000_0000, 0x8_0000_0000
tokens = st.integers(1, 5000)
widths = st.integers(1, 600).map(lambda eighth: eighth * 8)
vocabularies = st.integers(1, 200_000)


def arguments(t: int = 3, h: int = 16, v: int = 10) -> dict[str, Any]:
    return {
        "ids": view(IDS, "i32", (t,)),
        "table": view(TABLE, "bf16", (v, h)),
        "out": view(OUT, "bf16", (t, h)),
        "scale": 0.5,
        "pos": 7,
    }


def refused(kernel_manifest: Any, given_arguments: dict[str, Any], **options: Any) -> LaunchError:
    options.setdefault("values", {"ids": TRUSTED} if kernel_manifest.value_checks else {})
    driver = FakeDriver()
    with pytest.raises(LaunchError) as caught:
        loaded(kernel_manifest, driver).plan(given_arguments, **options)
    assert not driver.launches
    return caught.value


@settings(max_examples=50, deadline=None)
@given(t=tokens, h=widths, v=vocabularies, scale=st.floats(width=32, allow_nan=False), pos=st.integers(-(2**31), 2**31 - 1))
def test_valid_launch_passes_pointers_dims_and_scalars_in_order(t: int, h: int, v: int, scale: float, pos: int) -> None:
    driver = FakeDriver()
    plan = loaded(embedding_like(), driver).plan(arguments(t, h, v) | {"scale": scale, "pos": pos}, values={"ids": TRUSTED})
    plan.launch(77)
    (launch,) = driver.launches
    expected = [struct.pack("<Q", p) for p in (IDS, TABLE, OUT)] + [struct.pack("<i", d) for d in (t, h, v)]
    expected += [struct.pack("<f", scale), struct.pack("<i", pos)]
    assert argument_bytes(launch, [len(item) for item in expected]) == expected
    assert (launch.grid, launch.block, launch.stream) == (((t + 3) // 4, 1, 1), 128, 77)
    assert plan.trusted == ("ids",)


@settings(max_examples=50, deadline=None)
@given(t=tokens, h=widths, other=tokens)
def test_dims_that_disagree_name_the_second_tensor(t: int, h: int, other: int) -> None:
    wrong = arguments(t, h) | {"out": view(OUT, "bf16", (other, h))}
    if other == t:
        loaded(embedding_like()).plan(wrong, values={"ids": TRUSTED})
        return
    error = refused(embedding_like(), wrong)
    assert (error.code, error.argument, error.given) == ("E0906", "out", str(other))
    assert f"`T` = {t} from axis 0 of `ids`" in error.required


@settings(max_examples=50, deadline=None)
@given(name=st.sampled_from(["ids", "table", "out"]), dtype=st.sampled_from(["f32", "i64", "f16", "u8", "bool"]))
def test_wrong_dtype_names_the_tensor(name: str, dtype: str) -> None:
    wrong = arguments()
    wrong[name] = replace(wrong[name], dtype=dtype)
    error = refused(embedding_like(), wrong)
    assert (error.code, error.argument, error.given) == ("E0904", name, f"`{dtype}`")


@pytest.mark.parametrize("name", ["ids", "table", "out"])
def test_wrong_rank_names_the_tensor(name: str) -> None:
    wrong = arguments()
    wrong[name] = view(IDS, wrong[name].dtype, (1, *wrong[name].shape))
    error = refused(embedding_like(), wrong)
    assert (error.code, error.argument) == ("E0905", name)


@settings(max_examples=50, deadline=None)
@given(name=st.sampled_from(["ids", "table", "out"]), offset=st.integers(1, 64))
def test_alignment_is_that_of_the_manifest(name: str, offset: int) -> None:
    moved = arguments()
    moved[name] = replace(moved[name], pointer=moved[name].pointer + offset)
    if offset % 16 == 0:
        loaded(embedding_like()).plan(moved, values={"ids": TRUSTED})
        return
    error = refused(embedding_like(), moved)
    assert (error.code, error.argument) == ("E0908", name)


@settings(max_examples=60, deadline=None)
@given(t=st.integers(2, 40), h=widths, gap=st.integers(1, 5), name=st.sampled_from(["table", "out"]))
def test_strided_tensor_where_contiguous_is_declared(t: int, h: int, gap: int, name: str) -> None:
    wrong = arguments(t, h)
    wrong[name] = replace(wrong[name], strides=(h + gap, 1))
    error = refused(embedding_like(), wrong)
    assert (error.code, error.argument) == ("E0907", name)


@settings(max_examples=100, deadline=None)
@given(t=st.integers(1, 100), v=st.integers(1, 100), start=st.integers(0, 12_000))
def test_overlap_is_refused_exactly_when_bytes_are_shared(t: int, v: int, start: int) -> None:
    overlapping = arguments(t, 16, v) | {"out": view(TABLE - 4800 + start // 16 * 16, "bf16", (t, 16))}
    out, table = overlapping["out"].byte_range(), overlapping["table"].byte_range()
    if set(range(*out)) & set(range(*table)):
        error = refused(embedding_like(), overlapping)
        assert (error.code, error.argument) == ("E0909", "out")
        assert "`table`" in error.message
    else:
        loaded(embedding_like()).plan(overlapping, values={"ids": TRUSTED})


def test_tensors_that_may_alias_may_alias() -> None:
    same = arguments(10, 16, 10) | {"out": view(TABLE, "bf16", (10, 16))}
    loaded(embedding_like(no_alias=())).plan(same, values={"ids": TRUSTED})


@settings(max_examples=50, deadline=None)
@given(h=st.integers(1, 4096))
def test_launch_check_names_the_values(h: int) -> None:
    if h % 8 == 0:
        loaded(embedding_like()).plan(arguments(h=h), values={"ids": TRUSTED})
        return
    error = refused(embedding_like(), arguments(h=h))
    assert (error.code, error.given, error.required) == ("E0910", f"H = {h}", "`H % 8 == 0`")


def test_launch_check_that_divides_by_zero_is_refused() -> None:
    check = LaunchCheck(binary("==", binary("%", T, sym("pos")), const(0)), "T % pos == 0")
    error = refused(embedding_like(launch_checks=(check,)), arguments() | {"pos": 0})
    assert error.code == "E0910"
    assert "divides by zero" in error.message


@pytest.mark.parametrize("extent", [0, MAX_DIM + 1])
def test_an_extent_outside_the_proven_range(extent: int) -> None:
    error = refused(embedding_like(), arguments(t=extent))
    assert (error.code, error.argument, error.given) == ("E0906", "ids", str(extent))


@pytest.mark.parametrize("axis", [1, 2])
def test_grid_limit(axis: int) -> None:
    kernel_manifest = embedding_like(grid=(*(const(1),) * axis, T))
    loaded(kernel_manifest).plan(arguments(t=65535), values={"ids": TRUSTED})
    error = refused(kernel_manifest, arguments(t=65536))
    assert (error.code, error.required) == ("E0911", "1 to 65535 blocks")
    assert f"axis {axis}" in error.message


@pytest.mark.parametrize(("cluster", "persistent", "most"), [(1, False, 2047), (2, False, 1023), (2, True, 2047)])
def test_grid_limit_of_clusters(cluster: int, persistent: bool, most: int) -> None:
    """An axis has at most 2^31 - 1 blocks; persistent blocks are fewer than the grid has."""
    schedule = SCHEDULE | {"cluster": cluster, "persistent": persistent}
    kernel_manifest = embedding_like(grid=(binary("*", T, const(1 << 20)),), cluster=cluster, schedule=schedule)
    loaded(kernel_manifest).plan(arguments(t=most), values={"ids": TRUSTED})
    assert refused(kernel_manifest, arguments(t=most + 1)).code == "E0911"


def test_empty_grid_is_refused() -> None:
    error = refused(embedding_like(grid=(binary("-", T, const(3)),)), arguments(t=3))
    assert error.code == "E0911"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pos", 2**31), ("pos", -(2**31) - 1), ("pos", 1.0), ("pos", True), ("pos", "1"), ("pos", None),
        ("scale", "0.5"), ("scale", True), ("scale", 1e39), ("scale", None), ("scale", 10**400),
    ],
)  # fmt: skip
def test_scalar_of_wrong_type_or_range(name: str, value: object) -> None:
    error = refused(embedding_like(), arguments() | {name: value})
    assert (error.code, error.argument) == ("E0912", name)


def test_numpy_scalars_are_numbers() -> None:
    loaded(embedding_like()).plan(arguments() | {"pos": np.int64(3), "scale": np.float16(2)}, values={"ids": TRUSTED})


def test_missing_and_unknown_arguments() -> None:
    missing = arguments()
    del missing["table"]
    assert (refused(embedding_like(), missing).code, refused(embedding_like(), missing).argument) == ("E0903", "table")
    error = refused(embedding_like(), arguments() | {"tabel": 1})
    assert (error.code, error.argument) == ("E0903", "tabel")


@settings(max_examples=60, deadline=None)
@given(t=st.integers(1, 10_000), factor=st.integers(1, 9), shift=st.integers(0, 5), off=st.integers(-1, 1))
def test_compound_dims_are_solved_and_checked(t: int, factor: int, shift: int, off: int) -> None:
    stacked = binary("+", binary("*", T, const(factor)), const(shift))
    kernel_manifest = manifest((tensor("a", "in", "f32", stacked), tensor("b", "out", "f32", cdiv(T, const(2)))))
    given_arguments = {"a": view(IDS, "f32", (t * factor + shift,)), "b": view(OUT, "f32", ((t + 1) // 2 + off,))}
    if off == 0:
        assert loaded(kernel_manifest).plan(given_arguments).env == {"T": t}
        return
    error = refused(kernel_manifest, given_arguments)
    assert (error.code, error.argument) == ("E0906", "b")


def test_dim_that_no_shape_determines_must_be_given() -> None:
    kernel_manifest = manifest((tensor("b", "out", "f32", binary("//", T, const(2))),))
    out = {"b": view(OUT, "f32", (4,))}
    error = refused(kernel_manifest, out)
    assert (error.code, error.argument) == ("E0906", "T")
    assert loaded(kernel_manifest).plan(out, dims={"T": 9}).env == {"T": 9}
    assert refused(kernel_manifest, out, dims={"T": 10}).argument == "b"


def test_integer_scalar_in_a_dim() -> None:
    kernel_manifest = manifest((tensor("a", "in", "f32", binary("+", T, sym("pos"))),), (ScalarSpec("pos", "i32"),))
    assert loaded(kernel_manifest).plan({"a": view(IDS, "f32", (12,)), "pos": 5}).env == {"pos": 5, "T": 7}


def test_constant_dim() -> None:
    kernel_manifest = manifest((tensor("a", "in", "f32", T, const(128)),))
    error = refused(kernel_manifest, {"a": view(IDS, "f32", (2, 64))})
    assert (error.code, error.argument, error.given, error.required) == ("E0906", "a", "64", "128")


@settings(max_examples=60, deadline=None)
@given(t=st.integers(2, 50), h=st.integers(2, 50), stride=st.integers(0, 120), access=st.sampled_from(["in", "out"]))
def test_declared_strides_and_overlap_of_written_tensors(t: int, h: int, stride: int, access: str) -> None:
    spec = tensor("a", access, "f32", T, H, strides=(sym("S"), const(1)))
    kernel_manifest = manifest((spec,), dims=("T", "H"), strides=("S",))
    given_arguments = {"a": view(IDS, "f32", (t, h), (stride, 1))}
    if stride == 0:
        assert refused(kernel_manifest, given_arguments).code == "E0906"
    elif access == "out" and stride < h and len({i * stride + j for i in range(t) for j in range(h)}) < t * h:
        error = refused(kernel_manifest, given_arguments)
        assert (error.code, error.argument) == ("E0907", "a")
    elif access == "in" or stride >= h:
        assert loaded(kernel_manifest).plan(given_arguments).env["S"] == stride


def test_column_major_where_unit_stride_is_declared() -> None:
    spec = tensor("a", "in", "f32", T, H, strides=(sym("S"), const(1)))
    error = refused(manifest((spec,), dims=("T", "H"), strides=("S",)), {"a": view(IDS, "f32", (4, 6), (1, 4))})
    assert (error.code, error.argument, error.required) == ("E0907", "a", "`1` = 1")


def test_read_only_tensor_where_the_kernel_writes() -> None:
    frozen = arguments()
    loaded(embedding_like()).plan(frozen | {"table": replace(frozen["table"], read_only=True)}, values={"ids": TRUSTED})
    error = refused(embedding_like(), frozen | {"out": replace(frozen["out"], read_only=True)})
    assert (error.code, error.argument) == ("E0914", "out")


def test_every_code_that_is_raised_has_a_page() -> None:
    root = Path(__file__).resolve().parents[2]
    files = [path for folder in ("runtime", "ops") for path in (root / "tilec" / folder).glob("*.py")]
    raised = {code for path in files for code in re.findall(r"E09\d\d", path.read_text())}
    folder = root / "tilec" / "diagnostics" / "explain"
    pages = {path.stem for path in folder.glob("E09[01]*.md")}  # E092 belongs to `tilec bundle verify`
    assert raised == pages
