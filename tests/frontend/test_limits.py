"""Kernel files beyond a size limit are refused with one error that names the limit, the location and a remedy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fuzz.slow_kernels import HEADER, KERNEL, doubling
from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.frontend import load_kernel
from tilec.passes.prover import prove
from tilec.untrusted.limits import MAX_HOST_DEPTH, MAX_IMPORT_DEPTH, MAX_MODULES, MAX_SOURCE_BYTES, MAX_SOURCE_LINES

END = "    store(out, bid(0), load(x, bid(0), shape=64, pad=0), mask=True)\n"


def refused(folder: Path, text: str, **others: str) -> Diagnostic:
    """The only error of a kernel file with these lines, in a folder with other files."""
    for name, content in others.items():
        (folder / f"{name}.py").write_text(content, encoding="utf-8")
    (folder / "k.py").write_text(text, encoding="utf-8")
    with pytest.raises(CompileError) as caught:
        prove(load_kernel(folder / "k.py", {}, root=folder))
    (found,) = caught.value.diagnostics
    assert found.hint
    return found


def kernel(line: str, before: str = "") -> str:
    return f"{HEADER}{before}{KERNEL}    {line}\n{END}"


def test_doubling_functions(tmp_path: Path) -> None:
    found = refused(tmp_path, doubling(30))
    assert found.code == "E0511" and found.primary is not None


def test_functions_that_emit_nothing_are_counted_too(tmp_path: Path) -> None:
    assert refused(tmp_path, doubling(30).replace("return v * 1.5", "return v")).code == "E0511"


def test_deep_calls(tmp_path: Path) -> None:
    before = "@tilec.function\ndef g0(v):\n    return v\n"
    before += "".join(f"@tilec.function\ndef g{k + 1}(v):\n    return g{k}(v)\n" for k in range(60))
    found = refused(tmp_path, kernel("a = g60(1)", before))
    assert found.code == "E0512" and "32 deep" in found.message


@pytest.mark.parametrize("text", ["0x" + "f" * 100_000, "9" * 4000])
def test_huge_literals_are_not_printed(text: str, tmp_path: Path) -> None:
    found = refused(tmp_path, kernel(f"a = bid(0) + {text}"))
    assert found.code == "E0205" and len(found.message) < 200


def test_constants_that_double(tmp_path: Path) -> None:
    before = "C0 = 0\n" + "".join(f"C{k + 1} = C{k} + C{k}\n" for k in range(60))
    (tmp_path / "k.py").write_text(kernel("a = C30", before), encoding="utf-8")
    prove(load_kernel(tmp_path / "k.py", {}))


@pytest.mark.parametrize(
    "line", ["requires(N" + " + 1" * 900 + " > 0)", "requires(" + " and ".join(f"N != {k}" for k in range(500)) + ")"]
)
def test_deep_launch_expressions(line: str, tmp_path: Path) -> None:
    found = refused(tmp_path, kernel(line))
    assert found.code == "E0512" and str(MAX_HOST_DEPTH) in found.hint


def test_a_launch_value_that_doubles_is_no_launch_expression(tmp_path: Path) -> None:
    lines = "\n    ".join(["a = N", *["a = a + a"] * 60, "requires(a > 0)"])
    assert refused(tmp_path, kernel(lines)).code == "E0215"


@pytest.mark.parametrize("line", ["where(" + " and ".join(f"bid(0) > {k}" for k in range(2000)) + ", 1, 0)"])
def test_what_is_too_deep_to_prove(line: str, tmp_path: Path) -> None:
    text = kernel(f"a = load(x, {line}, shape=64, pad=0)")
    assert refused(tmp_path, text).code == "E0512"


def test_polynomials_that_double(tmp_path: Path) -> None:
    lines = "\n    ".join(["a = bid(0) + N", *["a = a * (a + N)"] * 8, "v = load(x, a, shape=64, pad=0)"])
    found = refused(tmp_path, kernel(lines))
    assert found.code == "E0510" and found.primary is not None


def test_import_chain(tmp_path: Path) -> None:
    chain = {f"m{k}": f"from m{k + 1} import f\n" for k in range(1200)}
    found = refused(tmp_path, kernel("a = f(1)", "from m0 import f\n"), **chain, m1200="f = 1\n")
    assert found.code == "E0513" and str(MAX_IMPORT_DEPTH) in found.message


def test_many_modules(tmp_path: Path) -> None:
    files = {f"m{k}": "f = 1\n" for k in range(MAX_MODULES + 5)}
    before = "".join(f"from m{k} import f\n" for k in range(MAX_MODULES + 5))
    found = refused(tmp_path, kernel("a = f", before), **files)
    assert found.code == "E0513" and str(MAX_MODULES) in found.message


def test_import_cycle_ends(tmp_path: Path) -> None:
    files = {"m0": "from m1 import f\n", "m1": "from m0 import f\n"}
    assert refused(tmp_path, kernel("a = f", "from m0 import f\n"), **files).code == "E0112"


def test_long_files(tmp_path: Path) -> None:
    assert refused(tmp_path, kernel("a = 1") + "\n" * (MAX_SOURCE_LINES + 1)).code == "E0513"
    assert refused(tmp_path, kernel("a = 1") + "#" * MAX_SOURCE_BYTES).code == "E0513"


@pytest.mark.parametrize("where", ["fifo", "device"])
def test_a_pipe_or_device_is_not_read(where: str, tmp_path: Path) -> None:
    path = tmp_path / "k.py"
    if where == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(CompileError) as caught:
        load_kernel(path, {})
    assert [diagnostic.code for diagnostic in caught.value.diagnostics] == ["E0102"]
