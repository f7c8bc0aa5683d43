"""Build files that would take forever are refused with one error that names the exceeded limit."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.project.read.buildfile import read_build_file
from tilec.untrusted.limits import MAX_BUILD_BYTES, MAX_TABLES

BUILD = '[build]\narch = ["sm_90"]\n'
PAIRS = ", ".join(f"C{k} = [1, 2]" for k in range(40))
MODEL = '[[model]]\nname = "m"\nfamily = "f"\nconfig = { hidden_size = 64 }\n'
TUNING = '[[tuning]]\nfamily = "f"\nmeasured = "x"\n'
KERNEL = '[[kernel]]\nname = "k"\n'


def refused(folder: Path, text: str) -> Diagnostic:
    """The first error of a build file, found within seconds."""
    (folder / "kernels_src").mkdir()
    (folder / "kernels_src" / "k.py").write_text("import tilec\n", encoding="utf-8")
    (folder / "build.toml").write_text(text, encoding="utf-8")
    start = time.process_time()
    with pytest.raises(CompileError) as caught:
        read_build_file(folder / "build.toml")
    assert time.process_time() - start < 10
    assert all(len(diagnostic.message) < 500 for diagnostic in caught.value.diagnostics)
    return caught.value.diagnostics[0]


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 100_000,
        "a = " + "[" * 5_000 + "]" * 5_000 + "\n" + BUILD,
        "a." + "b." * 20_000 + "c = 1\n" + BUILD,
        "a = " + "9" * 1_000_000 + "\n" + BUILD,
        BUILD + "# " + "x" * MAX_BUILD_BYTES,
        BUILD + TUNING * (MAX_TABLES + 1),
        BUILD + KERNEL + "constants = { A = " + "9" * 4000 + " }\n",
        BUILD + KERNEL + 'constants = { A = "' + "x" * 100_000 + '" }\n',
        BUILD + MODEL.replace("64", "9" * 4000),
    ],
    ids=["open", "deep", "dotted", "digits", "bytes", "tables", "constant", "string", "config"],
)
def test_it_is_refused(text: str, tmp_path: Path) -> None:
    assert refused(tmp_path, text).code in ("E0514", "E0801")


def test_too_many_specialisations_of_a_kernel(tmp_path: Path) -> None:
    found = refused(tmp_path, BUILD + KERNEL + f"constants = {{ {PAIRS} }}\n")
    assert found.code == "E0802" and "specialisations" in found.message


@pytest.mark.parametrize(
    "step",
    [
        "x = " + "(" * 5000 + "1" + ")" * 5000,
        "x = " + "not " * 30_000 + "1",
        "x = " + "1 + " * 30_000 + "1",
        "x = " + "a." * 30_000 + "b",
        "x = 1\n" * 40_000,
        "def decode():\n" + "".join(" " * (n + 1) + "if a:\n" for n in range(90)) + " " * 91 + "pass\n",
        "x\0",
        "x = " + "9" * 4000,
        "x = {" + "'a': [1]," * 9999 + "}",
    ],
    ids=["brackets", "not", "sum", "dotted", "long", "deep", "nul", "digits", "table"],
)
def test_a_step_that_is_refused(step: str, tmp_path: Path) -> None:
    (tmp_path / "kernels_src").mkdir()
    (tmp_path / "kernels_src" / "f.step").write_text(step, encoding="utf-8")
    (tmp_path / "build.toml").write_text(BUILD + MODEL, encoding="utf-8")
    start = time.process_time()
    with pytest.raises(CompileError) as caught:
        read_build_file(tmp_path / "build.toml")
    assert time.process_time() - start < 10
    assert [item.code for item in caught.value.diagnostics] == ["E0808"]
    assert len(caught.value.diagnostics[0].message) < 500
