"""The launcher in C: it accepts and launches the same as the Python launcher, it reports why it refuses, and a hostile bundle
cannot inject C code."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bundle import samples
from tests.campaign import chosen
from tests.ops import prebuilt
from tilec.cli import commands
from tilec.ship.launcher_c.text import comment, literal, parameter_names
from tilec.target.chips import RUNS_ON, shown
from tilec.target.targets import TARGETS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FLAGS = ("-std=c11", "-Wall", "-Wextra", "-Werror")


@pytest.fixture(scope="module", autouse=True)
def compiler() -> None:
    """A test without a compiler shows nothing; it fails if everything must be installed."""
    if shutil.which("cc") is None:
        assert os.environ.get("TILEC_PEERS") != "installed", "no C compiler"
        pytest.skip("no C compiler")


def compiled(*arguments: str | Path) -> None:
    found = subprocess.run(["cc", *FLAGS, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


def odd() -> dict[str, Any]:
    """A kernel with every kind of clause and of argument."""
    table = prebuilt.tensor("table", "in", "bf16", "V", "D") | {"strides": ["S", 1], "align": 8}
    out = prebuilt.tensor("int", "inout", "f16", "N", 2, "D") | {"strides": ["R", "D", 1], "align": 32}
    byte = prebuilt.tensor("kernels", "in", "u8", ["+", ["*", 2, "N"], 1])
    tensors = [prebuilt.tensor("ids", "in", "i32", "N"), table, out, byte]
    kinds = {
        "tilec_at": "f32", "\u00e9t\u00e9": "f16", "_Bool": "bf16", "flag": "bool", "count": "i32", "tiny": "i8",
        "wide": "i64", "mask": "u32", "high": "u64",
    }  # fmt: skip
    scalars = [{"name": name, "dtype": dtype} for name, dtype in kinds.items()]
    grid = [["//", ["+", "N", 3], 4], ["max", 1, ["-", "D", ["min", "count", 9]]], "V"]
    no_alias = [["int", "table"], ["int", "ids"]]
    description = prebuilt.manifest("odd", {"G": True, "F": 0.5}, tensors, scalars, ["N", "V", "D"], grid, no_alias)
    description["schedule"] = description["schedule"] | {"persistent": True, "blocks": 2}
    description["abi"][-len(kinds) : -len(kinds)] = [{"kind": "stride", "name": name} for name in ("S", "R")]
    description["launch_checks"] = [
        {"condition": ["or", ["==", ["%", "D", 8], 0], ["<", "D", 4]], "text": 'D % 8 == 0 or D < 4; "??/" \\ */ /* \u00e9'},
        {"condition": ["and", [">=", "wide", -5], ["!=", ["%", ["-", 0, "wide"], 3], 1]], "text": "(-wide) % 3 != 1"},
        {"condition": ["<=", ["*", ["*", "N", "D"], "S"], 1 << 50], "text": "N * D * S"},
        {"condition": [">", ["//", "count", "tiny"], -4], "text": "count // tiny > -4"},
        {"condition": ["or", ["<", "high", 2**62], ["<=", ["+", "high", 5], 2**64 - 3]], "text": "high + 5 <= 2^64 - 3"},
        {"condition": ["or", ["<", "high", 2**62], ["==", ["%", "high", 7], 1]], "text": "high % 7 == 1"},
    ]
    description["value_checks"] = [{"tensor": "ids", "low": 0, "high": "V", "distinct": True}]
    return description


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    mapped = samples.manifest("mapped", samples.cubin("mapped"), {})
    path = tmp_path_factory.mktemp("bundle") / "layer.bundle"
    path.write_bytes(prebuilt.bundle(prebuilt.add("bf16"), prebuilt.rms_norm("bf16", 1024), odd(), mapped))
    return path


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stub") / "libcuda.so.1"
    compiled("-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", HERE / "stub_cuda.c", "-o", path)
    return path


def test_it_launches_what_the_python_launcher_does(
    bundle: Path, stub: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.run(["bundle", "launcher", str(bundle), "-o", str(tmp_path), "--prefix", "t", "--json"]) == 0
    description = json.loads(capsys.readouterr().out)
    assert list(description["left_out"]) == ["mapped"]
    assert description["functions"]["add-E=bf16-BLOCK=2048"] == "t_add_E_bf16_BLOCK_2048"
    compiled("-shared", "-fPIC", description["source"], "-o", tmp_path / "launcher.so")
    script, functions = HERE / "c_launcher_calls.py", json.dumps(description["functions"])
    command = [sys.executable, "-P", script, stub, tmp_path / "launcher.so", bundle, functions, "t"]
    environment = {"PYTHONPATH": str(ROOT)}
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout)
    assert result["differences"] == []
    assert result["left_loaded"] == 0
    codes = {"E0906", "E0907", "E0908", "E0909", "E0910", "E0911", "E0913", "E0914"}
    assert codes <= result["codes"].keys()
    assert result["codes"]["launched"] > 300
    messages = result["told"]
    assert messages["capability"] == "error[E0902]: the code is for compute capability 9.0, the device has 10.0"
    assert "error[E0916]" in messages["shared memory"]
    assert messages["cuModuleLoadData"].endswith("`cuModuleLoadData` failed with CUDA_ERROR_ILLEGAL_ADDRESS")


@pytest.mark.parametrize("arch", chosen([target.name for target in TARGETS], lambda name: name in ("sm_80", "sm_100f")))
def test_it_loads_on_the_chips_that_run_its_code(arch: str, stub: Path, tmp_path: Path) -> None:
    (tmp_path / "b.bundle").write_bytes(prebuilt.bundle(prebuilt.add("bf16"), arch=arch))
    assert commands.run(["bundle", "launcher", str(tmp_path / "b.bundle"), "-o", str(tmp_path), "--prefix", "t"]) == 0
    compiled("-shared", "-fPIC", tmp_path / "t.c", "-o", tmp_path / "launcher.so")
    command = [sys.executable, HERE / "c_launcher_chips.py", stub, tmp_path / "launcher.so", "t"]
    found = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT)})
    result, capabilities = json.loads(found.stdout), RUNS_ON[arch]
    assert result["accepted"] == sorted(map(list, capabilities))
    assert result["messages"] == [f"error[E0902]: the code is for compute capability {shown(capabilities)}"]


def test_the_program_that_a_gpu_runs(bundle: Path, stub: Path, tmp_path: Path) -> None:
    """`ci/bench/kernels/c_launcher.c` compiles without a warning, and finds that invalid launches are refused."""
    assert (
        commands.run(
            ["bundle", "launcher", str(bundle), "-k", "add", "-k", "rms_norm", "-o", str(tmp_path), "--prefix", "layer"]
        )
        == 0
    )
    compiled("-I", tmp_path, ROOT / "ci/bench/kernels/c_launcher.c", tmp_path / "layer.c", "-o", tmp_path / "program")
    for name, size in (("x", 37 * 2048), ("y", 37 * 2048), ("weight", 2048)):
        (tmp_path / name).write_bytes(bytes(size))
    found = subprocess.run(
        [tmp_path / "program", tmp_path], capture_output=True, text=True, check=False, env={"LD_LIBRARY_PATH": str(stub.parent)}
    )
    assert (found.returncode, found.stderr) == (0, "")
    assert [line[6:11] for line in found.stdout.splitlines()] == ["E0908", "E0909", "E0914", "E0906"]
    assert "argument `x`: overlaps `out` in memory" in found.stdout


def test_the_same_bundle_gives_the_same_bytes_and_names_are_plain(bundle: Path, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        assert commands.run(["bundle", "launcher", str(bundle), "-o", str(tmp_path / folder)]) == 0
    for name in ("ops.h", "ops.c"):
        text = (tmp_path / "a" / name).read_bytes()
        assert text == (tmp_path / "b" / name).read_bytes()
        assert text.isascii()
    header = (tmp_path / "a" / "ops.h").read_text()
    assert "tilec_pointer int_, tilec_pointer kernels_, int64_t N," in header
    assert "requires D % 8 == 0 or D < 4; " in header
    source = (tmp_path / "a" / "ops.c").read_text()
    assert r'"D % 8 == 0 or D < 4; \"\?\?/\" \\ */ /* \303\251"' in source


def test_no_text_of_a_bundle_is_more_than_a_text() -> None:
    assert comment("*/ system(); /* ??/\n\u2028") == "* / system(); / * ##/##"
    assert literal('"; system("\\\n') == r'"\"; system(\"\\\012"'
    names = parameter_names(["int", "int_", "__x", "tilec_at", "\u00e9", "\u00e8", "stream", "NULL"])
    assert len(set(names.values())) == len(names)
    assert all(name.isascii() and name.isidentifier() and not name.startswith(("_", "tilec")) for name in names.values())
    assert not {"int", "stream", "NULL"} & set(names.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-k", "rms_nrom"], "no kernel `rms_nrom`"),
        (["--prefix", "1st"], "`1st` is not a name in C"),
        (["-k", "mapped"], "can have a function in C"),
    ],
)
def test_what_cannot_be_built_is_reported(
    bundle: Path, tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.run(["bundle", "launcher", str(bundle), "-o", str(tmp_path / "out"), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
