"""Hostile artifacts and arguments: each gives one clear error, quickly and in little memory, and never a traceback."""

from __future__ import annotations

import hashlib
import json
import os
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_driver import FakeDriver
from launch_contracts import InterfaceTensor, embedding_like, loaded, manifest, tensor, view

from tests.bundle import samples
from tilec.artifact.manifest_reader import manifest_from_json
from tilec.artifact.records import AbiSlot, LaunchCheck, Manifest, ScalarSpec, ValueCheck, to_json
from tilec.ir.expr import Expr, binary, const, sym
from tilec.runtime import Device, LaunchError, TensorView, load, load_artifact

CUBIN = samples.cubin("demo")
PLAIN: dict[str, Any] = to_json(replace(embedding_like(), digests={"cubin": hashlib.sha256(CUBIN).hexdigest()}))
TEXT = json.dumps(PLAIN)


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    (tmp_path / "demo.json").write_text(TEXT)
    (tmp_path / "demo.cubin").write_bytes(CUBIN)
    return tmp_path / "demo.json"


def refusal(path: Path) -> LaunchError:
    start = time.process_time()
    with pytest.raises(LaunchError) as caught:
        load_artifact(path)
    assert time.process_time() - start < 20
    text = str(caught.value)
    assert caught.value.code == "E0901" and "\n" not in text and len(text) < 4000
    text.encode("utf-8")
    return caught.value


TEXTS = {
    "deep": "[" * 100_000,
    "deep in a field": TEXT.replace('"grid": [', '"grid": [' + "[" * 5000),
    "NaN": TEXT.replace('"block": 128', '"block": NaN'),
    "infinity": TEXT.replace('"constants": {', '"constants": {"x": Infinity'),
    "a number past infinity": TEXT.replace('"constants": {', '"constants": {"x": 1e999'),
    "a key twice": TEXT.replace('"block": 128', '"block": 64, "block": 128'),
    "a lone surrogate": TEXT.replace("H % 8 == 0", "\\ud800"),
    "a terminal's command": TEXT.replace("H % 8 == 0", "\\u001b[2J"),
    "100,000 digits": TEXT.replace('"block": 128', '"block": ' + "9" * 100_000),
    "10,000 zeros": TEXT.replace('"constants": {', '"constants": {"x": 0.' + "0" * 10_000 + "1"),
    "an integer past 2^64": TEXT.replace('["%", "H", 8]', f'["%", "H", {(1 << 64) + 1}]'),
    "an integer below -2^63": TEXT.replace('["%", "H", 8]', f'["%", "H", {-(1 << 63) - 1}]'),
    "no UTF-8": "\x80",
    "a million values": "[" + "0," * 1_100_000 + "0]",
    "a long text": TEXT.replace("H % 8 == 0", "x" * 100_000),
}


@pytest.mark.parametrize("name", TEXTS)
def test_text_of_a_manifest(artifact: Path, name: str) -> None:
    assert TEXTS[name] != TEXT
    artifact.write_bytes(TEXTS[name].encode("latin-1"))
    refusal(artifact)


@pytest.mark.parametrize("suffix", [".json", ".cubin"])
def test_files_that_are_not_regular(artifact: Path, suffix: str) -> None:
    path = artifact.with_suffix(suffix)
    path.unlink()
    os.mkfifo(path)
    assert "is not a file" in refusal(artifact).message
    path.unlink()
    path.symlink_to("/dev/zero")
    assert "is a link" in refusal(artifact).message
    path.unlink()
    path.mkdir()
    assert "is not a file" in refusal(artifact).message
    path.rmdir()
    with path.open("wb") as file:
        file.truncate(1 << 33)
    tracemalloc.start()
    try:
        assert "more than the" in refusal(artifact).message
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("cubin", "message"),
    [
        (samples.cubin("demo", sm=100), "is for sm_100, not for sm_90a"), (samples.cubin("other"), "has no entry `demo`"),
        (b"MZ" + bytes(300), "is not a CUBIN"), (CUBIN[:-1], "without a table of sections"), (CUBIN[:60], "is not a CUBIN"),
    ],
)  # fmt: skip
def test_code_other_than_the_manifest_describes(artifact: Path, cubin: bytes, message: str) -> None:
    kernel_manifest = PLAIN | {"digests": {"cubin": hashlib.sha256(cubin).hexdigest()}}
    artifact.write_text(json.dumps(kernel_manifest))
    artifact.with_suffix(".cubin").write_bytes(cubin)
    assert message in refusal(artifact).message


def fields(**changes: Any) -> dict[str, Any]:
    return PLAIN | changes


DESCRIBED: dict[str, Callable[[], dict[str, Any]]] = {
    "more tensors than a kernel takes": lambda: fields(tensors=[PLAIN["tensors"][0] | {"name": f"t{i}"} for i in range(2000)]),
    "more dims than a tensor has": lambda: fields(tensors=[PLAIN["tensors"][0] | {"dims": ["T"] * 100}]),
    "more slots than a kernel takes": lambda: fields(abi=[{"kind": "dim", "name": "T"}] * 5000),
    "a wide expression": lambda: fields(grid=[wide(13)]),
    "an access that is a list": lambda: fields(tensors=[PLAIN["tensors"][0] | {"access": ["in"]}]),
    "a scalar of 8 bits of float": lambda: fields(scalars=[{"name": "scale", "dtype": "f8e4m3"}]),
    "a dim that is a scalar": lambda: fields(abi=[{"kind": "dim", "name": "pos"}]),
    "a stride that is a tensor": lambda: fields(abi=[{"kind": "stride", "name": "out"}]),
    "a constant that is not a number": lambda: fields(constants={"x": float("nan")}),
}


def wide(levels: int, leaf: Any = 1) -> Any:
    """A balanced tree of products."""
    return leaf if levels == 0 else ["*", wide(levels - 1, leaf), wide(levels - 1, leaf)]


@pytest.mark.parametrize("name", DESCRIBED)
def test_fields_of_a_manifest(name: str) -> None:
    start = time.process_time()
    with pytest.raises(ValueError) as caught:
        manifest_from_json(DESCRIBED[name]())
    assert len(str(caught.value)) < 500
    assert time.process_time() - start < 20


def huge() -> Expr:
    """A product of 2,048 numbers of 63 bits: 39,000 digits, which Python does not print."""
    level = [Expr("const", value=(1 << 62) + 1)] * 2048
    while len(level) > 1:
        level = [Expr("*", (left, right)) for left, right in zip(level[::2], level[1::2], strict=True)]
    return level[0]


T = sym("T")


@pytest.mark.parametrize(
    "kernel_manifest",
    [
        manifest((tensor("x", "in", "f32", T),), grid=(huge(),)),
        manifest((tensor("x", "in", "f32", binary("+", T, huge())),)),
        manifest((tensor("x", "in", "f32", Expr("-", (huge(), T))),)),
        manifest((tensor("x", "in", "f32", T, strides=(huge(),)),)),
        manifest((tensor("x", "in", "i32", T),), value_checks=(ValueCheck("x", const(0), huge(), False),)),
    ],
)
def test_values_that_cannot_be_printed(kernel_manifest: Manifest) -> None:
    start = time.process_time()
    with pytest.raises(LaunchError) as caught:
        loaded(kernel_manifest).plan({"x": view(4096, kernel_manifest.tensors[0].dtype, (10,))})
    assert caught.value.code in ("E0906", "E0910") and len(str(caught.value)) < 4000
    assert time.process_time() - start < 20


UNKNOWN = (
    Expr("//", (sym("nobody"), Expr("-", (T, T)))), Expr("and", (Expr("<", (T, const(0))), sym("nobody"))),
    Expr("//", (T, Expr("and", (const(0), sym("nobody"))))),
)  # fmt: skip


@pytest.mark.parametrize("expression", UNKNOWN)
def test_symbols_without_a_value(expression: Expr) -> None:
    """A message shows the symbols of a clause; a symbol without a value must not cause another failure."""
    x = tensor("x", "in", "f32", T)
    for kernel_manifest in (
        manifest((x,), grid=(expression,)), manifest((x,), launch_checks=(LaunchCheck(expression, "c"),)),
        manifest((tensor("x", "in", "f32", T, expression),)),
    ):  # fmt: skip
        with pytest.raises(LaunchError):
            loaded(kernel_manifest).plan({"x": view(4096, "f32", (10, 9)[: len(kernel_manifest.tensors[0].dims)])})


def test_a_tensor_that_reaches_outside_of_memory() -> None:
    """Its address is valid, but that of its last element wraps."""
    x = {"x": view(2**64 - 32, "i32", (10,))}
    with pytest.raises(LaunchError) as caught:
        loaded(manifest((tensor("x", "in", "i32", T),))).plan(x)
    assert (caught.value.code, caught.value.argument) == ("E0914", "x")
    backwards = TensorView(16, "i32", (10,), (-1,))
    strided = manifest((tensor("x", "in", "i32", T, strides=(const(-1),)),))
    with pytest.raises(LaunchError) as caught:
        loaded(strided).plan({"x": backwards})
    assert caught.value.code == "E0914"


GIANT = 10**5000
ARGUMENTS: dict[str, Any] = {
    "extent": TensorView(4096, "i32", (GIANT,), (1,)),
    "stride": TensorView(4096, "i32", (10,), (GIANT,)),
    "address": TensorView(GIANT, "i32", (10,), (1,)),
    "fewer strides than dims": TensorView(4096, "i32", (10,), ()),
    "interface without a shape": InterfaceTensor({"typestr": "<i4", "data": (4096, False)}),
    "interface without data": InterfaceTensor({"typestr": "<i4", "shape": (10,), "data": None}),
    "interface without a type": InterfaceTensor({"shape": (10,), "data": (4096, False)}),
    "interface of a strange type": InterfaceTensor({"typestr": [], "shape": (10,), "data": (4096, False)}),
    "interface of strange strides": InterfaceTensor(
        {"typestr": "<i4", "shape": (10,), "strides": (4, 4), "data": (4096, False)}
    ),
    "interface with a text for an extent": InterfaceTensor({"typestr": "<i4", "shape": ("10",), "data": (4096, False)}),
    "interface with a giant extent": InterfaceTensor({"typestr": "<i4", "shape": (GIANT,), "data": (4096, False)}),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_that_are_not_tensors(name: str) -> None:
    kernel = loaded(manifest((tensor("x", "in", "i32", T),)))
    with pytest.raises(LaunchError) as caught:
        kernel.plan({"x": ARGUMENTS[name]})
    assert caught.value.argument == "x" and len(str(caught.value)) < 1000


@pytest.mark.parametrize("dtype", ["i32", "f32", "bool"])
def test_scalars_and_dims_too_large_to_print(dtype: str) -> None:
    kernel = loaded(manifest((tensor("x", "in", "i32", T),), (ScalarSpec("n", dtype),)))
    x = view(4096, "i32", (10,))
    for value in (GIANT, -GIANT, [GIANT], "x" * 100_000):
        with pytest.raises(LaunchError) as caught:
            kernel.plan({"x": x, "n": value})
        assert caught.value.code == "E0912" and len(str(caught.value)) < 1000
    with pytest.raises(LaunchError) as caught:
        kernel.plan({"x": x, "n": True if dtype == "bool" else 1}, dims={"D": GIANT})
    assert caught.value.code == "E0906"


def test_host_values_that_are_not_an_array() -> None:
    kernel_manifest = manifest((tensor("x", "in", "i32", T),), value_checks=(ValueCheck("x", const(0), const(9), False),))
    for values in ([[1], [1, 2]], [GIANT] * 4, ["a"] * 4, np.array([1.0] * 4), [object()] * 4):
        with pytest.raises(LaunchError) as caught:
            loaded(kernel_manifest).plan({"x": view(4096, "i32", (4,))}, values={"x": values})  # pyright: ignore[reportArgumentType]
        assert caught.value.code == "E0913"


def test_the_plain_artifact_loads(artifact: Path) -> None:
    assert load(artifact, Device(FakeDriver())).manifest.abi[0] == AbiSlot("pointer", "ids")
