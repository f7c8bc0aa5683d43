"""The interface for programs that write kernels: docs/programs.md shows the output, a schema describes it, fixes apply."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ci.bench.judges.mender_corpus import broken
from tests.files import copy_kernels
from tests.shipped import ROOT
from tests.ui.corpus import constants, diagnose, kernels
from tilec.cli import commands
from tilec.diagnostics.diagnostic import Diagnostic, Fix, Label, Span
from tilec.project.build.fixes import applied, resolved
from tilec.project.build.report import diagnostic_json

pytestmark = pytest.mark.usefixtures("kept_workers")

PAGE = (ROOT / "docs/programs.md").read_text(encoding="utf-8")
SCHEMA = json.loads((ROOT / "docs/check.schema.json").read_text(encoding="utf-8"))


REFUSED = [path for path in kernels() if path.with_suffix(".stderr").exists()]


def fenced(marker: str) -> str:
    found = re.search(rf"<!-- {marker} -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None, marker
    return found.group(1)


def mender() -> Any:
    spec = importlib.util.spec_from_file_location("mender", ROOT / "examples/mender.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mender"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    """Status and document of a command, validated by the schema if it is `check`."""
    capsys.readouterr()
    status = commands.run([*arguments, "--json"])
    data = json.loads(capsys.readouterr().out)
    if arguments[0] == "check":
        jsonschema.validate(data, SCHEMA)
    return status, data


def test_the_page_shows_the_printed_output_and_its_fix_works(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    Path("add.py").write_text(fenced("broken"))
    command = shlex.split(fenced("check a file"))
    assert command[0] == "tilec" and command[-1] == "--json"
    status, data = run_command(capsys, *command[1:-1])
    (error,) = data["errors"]
    assert error.pop("rendered").startswith("error[E0302]: ")
    assert (status, error) == (1, json.loads(fenced("answer")))
    text = mender().edited(Path("add.py").read_text(), error["fixes"][0]["edits"])
    Path("add.py").write_text(text)
    status, data = run_command(capsys, *command[1:-1])
    assert (status, data["errors"], data["kernels"][0]["status"]) == (0, [], "proven")


def test_every_field_of_the_schema_is_documented() -> None:
    for name in ("diagnostic", "counterexample", "kernel", "fix", "span"):
        for field in SCHEMA["$defs"][name]["properties"]:
            assert f"`{field}`" in PAGE or f'"{field}"' in PAGE, field


def test_what_cannot_be_checked_has_errors_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.py").write_text("def")
    status, data = run_command(capsys, "check", "bad.py")
    assert (status, list(data), data["errors"][0]["code"]) == (1, ["errors"], "E0101")
    assert run_command(capsys, "check", "gone.py")[1]["errors"][0]["code"] == "E0102"
    assert run_command(capsys, "check")[0] == 2  # no project
    for command in ("run", "bench"):
        assert run_command(capsys, command, "bad.py")[1]["errors"][0]["at"]["line"] == 1
    assert run_command(capsys, "test", "bad.py")[1]["errors"][0]["code"] == "E0101"
    assert commands.run(["check", "bad.py", "bad.py", "--json"]) == 2
    assert capsys.readouterr().out == ""


def test_run_and_test_report_refusals_in_the_same_form(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("add.py").write_text(fenced("broken"))
    Path("reference.py").write_text("def add(x, y):\n    return x + y\n")
    item = {"$ref": "#/$defs/diagnostic", "$defs": SCHEMA["$defs"]}
    for command in ("run", "test"):
        status, data = run_command(capsys, command, "add.py", "-c", "E=bf16,BLOCK=64")
        assert (status, data["errors"][0]["code"]) == (1, "E0302")
        jsonschema.validate(data["errors"][0], item)


def test_proofs_schedules_and_notes_fit_the_schema(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy_kernels(folder, "rms_norm")
    options = ("-c", "E=bf16,H=1001", "--arch", "sm_90", "--proofs", "--schedule")
    status, data = run_command(capsys, "check", "rms_norm.py", *options)
    assert (status, data["errors"]) == (0, [])
    assert data["notes"][0]["code"] == "N0101" and data["notes"][0]["level"] == "note"
    assert data["kernels"][0]["obligations"] and data["kernels"][0]["schedule"]


@pytest.mark.parametrize("path", REFUSED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_refusal_fits_the_schema_and_certain_fixes_end_it(path: Path, tmp_path: Path) -> None:
    """Applies each certain fix alone: the file is still valid Python, and its error is gone from that location."""
    found = diagnose(path)
    data = json.loads(json.dumps([diagnostic_json(diagnostic, path.parent) for diagnostic in found]))
    jsonschema.validate({"errors": data}, SCHEMA)
    text, tool = path.read_text(encoding="utf-8"), mender()
    assert all(len(diagnostic["fixes"]) >= len(item.fixes) for diagnostic, item in zip(data, found, strict=True))
    for diagnostic, record in zip(found, data, strict=True):
        for fix in record["fixes"]:
            compile(tool.edited(text, fix["edits"]), path.name, "exec")
            if fix["certain"]:
                (tmp_path / path.name).write_text(tool.edited(text, fix["edits"]), encoding="utf-8")
                assert constants((tmp_path / path.name).read_text(encoding="utf-8")) == constants(text)
                remaining = diagnose(tmp_path / path.name)
                assert (diagnostic.code, diagnostic.message) not in {(other.code, other.message) for other in remaining}, fix[
                    "title"
                ]


AXES = """import tilec
from tilec import Dim, In, Out, bid, f32, grid, load, store


class M(Dim):
    \"\"\"rows\"\"\"


class N(Dim):
    \"\"\"columns\"\"\"


@tilec.kernel
def axes(x: In[f32, M, N], out: Out[f32, M, N]):
    grid(M, N)
    i, j = bid(I), bid(J)
    store(out, (i, j), load(x, (i, j)))
"""


@pytest.mark.parametrize(
    ("axes", "offered"),
    [
        ((0, 2), [("write `bid(1)`", True), ("write `bid(0)`", False)]),
        ((2, 2), [("write `bid(0)`", False), ("write `bid(1)`", False)]),  # either may be intended
        ((2, 1), [("write `bid(0)`", True), ("write `bid(1)`", False)]),
    ],
)
def test_an_axis_that_the_grid_lacks_becomes_one_that_nothing_reads(
    axes: tuple[int, int], offered: list[tuple[str, bool]], tmp_path: Path
) -> None:
    path = tmp_path / "axes.py"
    path.write_text(AXES.replace("I)", f"{axes[0]})").replace("J)", f"{axes[1]})"))
    (error,) = diagnose(path)
    assert error.code == "E0110"
    assert [(one.title, one.certain) for one in resolved(error, {str(path): path.read_text()})] == offered


def test_no_bound_is_offered_for_a_write_whose_index_is_wrong(tmp_path: Path) -> None:
    """`requires(M <= 1)` would hide the error."""
    path = tmp_path / "axes.py"
    text = AXES.replace("bid(I), bid(J)", "bid(0), bid(1)")
    path.write_text(text.replace("store(out, (i, j)", "store(out, (0, i)"))
    found = {error.code: resolved(error, {str(path): path.read_text()}) for error in diagnose(path)}
    assert "E0403" in found and len(found) > 1
    assert not [fix.title for fix in found["E0403"] if "requires" in fix.title]


SOURCE = '''"""Größe."""
from tilec import (
    bid,
    load,
)


def f():
    grid(N)  # blocks
    load(
        x,
        (i),
    )
    load(ä, "ß)", g(1))
'''


@pytest.mark.parametrize(
    ("change", "text", "span", "line", "after"),
    [
        ("argument", "pad=0", (10, 4, 13, 5), 13, "     pad=0)"),
        ("argument", "pad=-inf", (14, 4, 14, 23), 14, '    load(ä, "ß)", g(1), pad=-inf)'),
        ("statement", "requires(N > 0)", (10, 4, 13, 5), 10, "    requires(N > 0)  # blocks"),
        ("import", "cdiv", (10, 4, 13, 5), 4, "    load, cdiv,"),
        ("replace", "max(1, i)", (12, 9, 12, 10), 12, "        (max(1, i)),"),
    ],
)
def test_edits_of_odd_source(change: Any, text: str, span: tuple[int, int, int, int], line: int, after: str) -> None:
    fix = Fix("t", change, text, Span("f.py", *span))
    (found,) = resolved(Diagnostic("E0301", "m", Label(fix.span), fixes=(fix,)), {"f.py": SOURCE})
    lines = applied(SOURCE, found.edits).splitlines()
    assert lines[line - 1] == after
    assert ("inf" in lines[3]) == ("inf" in text)


@pytest.mark.parametrize(
    ("change", "text", "span", "line", "after"),
    [
        ("argument", "pad=-inf", (6, 4, 6, 17), 6, "    tl.load(x, i, pad=-tl.inf)"),
        ("statement", "requires(cdiv(N, 2) > max(i, 0))", (6, 4, 6, 17), 5, "    tl.requires(tl.cdiv(N, 2) > max(i, 0))"),
        ("import", "cdiv", (4, 12, 4, 16), 4, "    tl.grid(tl.cdiv(N, 2), 1 // 2)"),
        ("replace", "cdiv(1, 2)", (4, 24, 4, 30), 4, "    tl.grid(cdiv(N, 2), tl.cdiv(1, 2))"),
        ("replace", "tl.bid(0)", (6, 15, 6, 16), 6, "    tl.load(x, tl.bid(0))"),
    ],
)
def test_edits_name_words_as_the_file_does(
    change: Any, text: str, span: tuple[int, int, int, int], line: int, after: str
) -> None:
    source = "import tilec as tl\n\ndef f():\n    tl.grid(cdiv(N, 2), 1 // 2)\n\n    tl.load(x, i)\n"
    fix = Fix("t", change, text, Span("f.py", *span))
    (found,) = resolved(Diagnostic("E0301", "m", Label(fix.span), fixes=(fix,)), {"f.py": source})
    assert applied(source, found.edits).splitlines()[line - 1] == after


@pytest.mark.parametrize("source", ["", "def", SOURCE.replace("\n", "\r\n"), SOURCE.replace("load(", "gather(")])
def test_a_fix_that_the_source_does_not_take_is_left_out(source: str) -> None:
    fix = Fix("t", "argument", "pad=0", Span("f.py", 14, 4, 14, 23))
    assert resolved(Diagnostic("E0301", "m", Label(fix.span), fixes=(fix,)), {"f.py": source}) == []


@pytest.mark.campaign
def test_the_fixer_fixes_errors_without_a_certain_fix(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        fenced("broken")
        .replace("pad=0))", "pad=0), mask=True)")
        .replace("grid(tl.cdiv(N, BLOCK))", "grid(tl.cdiv(N, BLOCK) - 1)")
    )
    Path("add.py").write_text(text)
    monkeypatch.setattr(sys, "argv", ["mender.py", "add.py", "-c", "E=bf16", "-c", "BLOCK=64", "--write"])
    assert mender().main() == 0
    assert "`tl.grid(tl.cdiv(N, BLOCK) - 1)` becomes `tl.grid(tl.cdiv(N, BLOCK))`" in capsys.readouterr().out
    assert "grid(tl.cdiv(N, BLOCK))" in Path("add.py").read_text()


def test_the_corpus_has_fifty_mistakes_that_are_in_the_kernels() -> None:
    corpus = broken()
    assert len(corpus) == 50 == len({(one.kernel, one.text) for one in corpus})
    recorded = json.loads((ROOT / "ci/bench/results/mender.json").read_text())["corpus"]
    assert [(one["kernel"], one["what"]) for one in recorded] == [(one.kernel, one.what) for one in corpus]
