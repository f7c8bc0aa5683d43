"""Performance notes: reported with code, location and fix, denied on request, the same in `check`, `build` and JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import tilec
from tilec.cli import commands
from tilec.diagnostics.diagnostic import Diagnostic, Label, Span
from tilec.link import NOTE_CODES
from tilec.project.build.report import diagnostic_json, notes

pytestmark = pytest.mark.usefixtures("kept_workers")

PAGES = Path(tilec.__file__).parent / "diagnostics" / "explain"
CONSTANTS = {"N0101": ["-c", "BLOCK=4096"], "N0102": ["-c", "M=16,N=16,K=32"], "N0105": ["-c", "BLOCK=1024"]}


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("code", CONSTANTS)
def test_its_page_has_a_slow_kernel_and_a_fast_one(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    slow, fast = re.findall(r"```python\n(.*?)```", (PAGES / f"{code}.md").read_text(), re.DOTALL)
    name = re.findall(r"@(?:tilec|tl)\.kernel\ndef (\w+)", slow)[0]
    file = Path(f"{name}.py")
    for text, count in ((slow, 1), (fast, 0)):
        file.write_text(text)
        assert commands.run(["check", str(file), *CONSTANTS[code], "--deny", "notes", "--arch", "sm_90"]) == min(count, 1)
        err = capsys.readouterr().err
        assert (f"note[{code}]: " in err) == bool(count), err
        assert "error" not in err


def test_every_code_has_a_page() -> None:
    of_builds = {"N0104"}  # from measurements, not from a kernel
    assert {page.stem for page in PAGES.glob("N*.md")} == set(NOTE_CODES.values()) | of_builds
    assert commands.run(["explain", "n0103"]) == 0


def test_a_build_notes_new_artifacts_and_deny_covers_existing_ones(capsys: pytest.CaptureFixture[str]) -> None:
    slow = re.findall(r"```python\n(.*?)```", (PAGES / "N0101.md").read_text(), re.DOTALL)[0]
    Path("kernels_src").mkdir()
    Path("kernels_src/copy.py").write_text(slow)
    entry = '[[kernel]]\nname = "copy"\nconstants = { BLOCK = [4096, 8192] }\naligned = false\n'
    Path("build.toml").write_text(f'[build]\narch = ["sm_90"]\n{entry}')
    assert commands.run(["build"]) == 0
    err = capsys.readouterr().err
    assert err.count("note[N0101]: ") == 2  # for the load and for the store, once each
    assert "in copy-BLOCK=4096 sm_90a and 1 more" in err
    assert "hint: state `requires(N % 8 == 0)` where it is so\n" in err
    assert commands.run(["build"]) == 0
    assert "note" not in capsys.readouterr().err
    assert commands.run(["build", "--deny", "notes", "--json"]) == 1
    out, err = capsys.readouterr()
    (first, _) = json.loads(out)["notes"]
    assert (first["level"], first["code"], first["at"]["file"], first["at"]["line"]) == (
        "note",
        "N0101",
        "kernels_src/copy.py",
        16,
    )
    assert first["rendered"] in err
    assert commands.run(["check", "--json"]) == 0
    assert [one["at"] for one in json.loads(capsys.readouterr().out)["notes"]] == [
        one["at"] for one in json.loads(out)["notes"]
    ]


def test_a_build_has_no_note_of_what_an_aligned_version_answers(capsys: pytest.CaptureFixture[str]) -> None:
    slow = re.findall(r"```python\n(.*?)```", (PAGES / "N0101.md").read_text(), re.DOTALL)[0]
    Path("kernels_src").mkdir()
    Path("kernels_src/copy.py").write_text(slow)
    Path("build.toml").write_text('[build]\narch = ["sm_90"]\n[[kernel]]\nname = "copy"\nconstants = { BLOCK = 4096 }\n')
    assert commands.run(["build", "--deny", "notes"]) == 0
    out, err = capsys.readouterr()
    assert "note[" not in err and "BLOCK=4096 if=N % 8 == 0" in out and "2 built" in out
    assert commands.run(["build", "--deny", "notes", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [(one["name"], one["status"]) for one in data["artifacts"]] == [
        ("copy-BLOCK=4096", "hit"), ("copy-BLOCK=4096-aligned", "hit"),
    ]  # fmt: skip
    assert data["artifacts"][1]["constants"] == {"BLOCK": 4096, "if": "N % 8 == 0"} and not data["notes"]
    assert commands.run(["check"]) == 0
    assert "where it is so; `tilec build` adds an aligned version for such launches" in capsys.readouterr().err
    wide = slow.replace("    grid", "    requires(N % 8 == 0)\n    grid")
    Path("kernels_src/copy.py").write_text(wide.replace("grid, load", "grid, load, requires"))
    assert commands.run(["build"]) == 0
    assert "1 built" in capsys.readouterr().out
    assert not list(Path("artifacts/build/sm_90a").glob("*aligned*"))


SPILLING = '''"""Sums of their own in each iteration."""
import tilec
from tilec import Dim, In, Out, bf16, cdiv, f32, grid, load, mma, requires, store, zeros


class K(Dim):
    """depth"""


@tilec.kernel
def product(a: In[bf16, 128, K], b: In[bf16, 128, K], out: Out[f32, 128, 128]):
    requires(K % 8 == 0)
    grid(1)
    acc = zeros((128, 128), f32)
    for k in range(cdiv(K, 64)):
        x, y = load(a, (0, k), shape=(128, 64), pad=0), load(b, (0, k), shape=(128, 64), pad=0)
        acc = acc + mma(x, y.T, zeros((128, 128), f32)) * 0.5
    store(out, (0, 0), acc)
'''


def test_a_build_notes_spills_of_artifacts_that_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    Path("kernels_src").mkdir()
    Path("kernels_src/product.py").write_text(SPILLING)
    Path("build.toml").write_text('[build]\narch = ["sm_90"]\n[[kernel]]\nname = "product"\nschedule = { warps = 2 }\n')
    for status in ("1 built", "1 up to date"):
        assert commands.run(["build"]) == 0
        out, err = capsys.readouterr()
        assert status in out + err and err.count("note[N0103]: ") == 1
    assert "note[N0102]" not in err  # as for other notes


def test_equal_notes_are_printed_once() -> None:
    span = {"file": "k.py", "line": 3, "column": 4, "end_line": 3, "end_column": 9}
    record = {"code": "N0101", "message": "`x` is read 2 bytes at a time", "span": span, "hint": "widen it"}
    elsewhere = record | {"span": span | {"line": 4}}
    found = notes(
        [("a", record), ("b", record), ("b", record), ("c", record), ("c", elsewhere), ("d", record | {"span": None})]
    )
    assert [(one.primary and one.primary.span.line, one.notes) for one in found] == [
        (3, ("in a and 2 more",)), (4, ("in c",)), (None, ("in d",)),
    ]  # fmt: skip


def test_notes_with_other_suggestions_are_printed_apart() -> None:
    """A row of f32 and one of bf16 need other multiples."""
    span = {"file": "k.py", "line": 3, "column": 4, "end_line": 3, "end_column": 9}
    record = {"code": "N0101", "message": "`x` is read 4 bytes at a time", "span": span, "hint": "multiples of 4"}
    found = notes([("f32", record), ("bf16", record | {"hint": "multiples of 8"}), ("f32 of other rows", record)])
    assert [(one.hint, one.notes) for one in found] == [
        ("multiples of 4", ("in f32 and 1 more",)), ("multiples of 8", ("in bf16",)),
    ]  # fmt: skip


def test_locations_in_json_count_from_one_with_exclusive_ends() -> None:
    item = Diagnostic("E0302", "m", Label(Span("k.py", 3, 4, 3, 9), "here"), (Label(Span("k.py", 1, 0, 1, 2)),))
    data = diagnostic_json(item)
    assert data["at"] == {"file": "k.py", "line": 3, "column": 5, "end_line": 3, "end_column": 10, "text": "here"}
    assert [one["line"] for one in data["labels"]] == [1]
    assert (data["level"], data["counterexample"]) == ("error", None)
