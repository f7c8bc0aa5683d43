"""The command line as its users see it: stdout, stderr, exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project import fake_stages, project
from tilec.cli import build_command, commands
from tilec.project.build import driver

pytestmark = pytest.mark.usefixtures("kept_workers")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    folder = project.make(tmp_path / "p")
    monkeypatch.chdir(folder)
    defaults = dict(driver.build_project.__kwdefaults__ or {})
    monkeypatch.setattr(driver.build_project, "__kwdefaults__", defaults | {"runner": fake_stages.run, "preload": ()})
    monkeypatch.setattr(build_command, "toolchain", lambda store: project.TOOLCHAIN)
    return folder


def test_build_prints_table_and_second_build_is_all_hits(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(["build"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0].split() == ["kernel", "constants", "arch", "registers", "spills", "shared", "proofs", "ms"]
    assert "8 built, 0 up to date" in out
    assert "\x1b" not in out + err
    assert commands.run(["build", "--arch", "sm_90", "-k", "copy_a"]) == 0
    out, err = capsys.readouterr()
    assert "0 built, 2 up to date" in out
    assert err == ""


def test_arguments_of_build_name_kernels(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Alone, several, with `--kernel`, and twice the same; each of them builds only what it names."""

    def built(*arguments: str) -> list[tuple[str, str]]:
        assert commands.run(["build", "--json", "--arch", "sm_90", *arguments]) == 0
        data = json.loads(capsys.readouterr().out)
        return [(one["kernel"], one["status"]) for one in data["artifacts"]]

    assert built("copy_b") == [("copy_b", "built")] * 2
    assert built("copy_a", "--kernel", "copy_b") == [("copy_a", "built")] * 2 + [("copy_b", "hit")] * 2
    both = [("copy_a", "hit")] * 2 + [("copy_b", "hit")] * 2
    assert built("copy_b", "copy_a") == built("copy_a,copy_b") == built("copy_a", "-k", "copy_a", "copy_b") == both
    assert built() == both


def test_json_is_all_of_stdout(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(["build", "--json", "--explain"]) == 0
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert len(data["artifacts"]) == 8
    assert data["artifacts"][0]["resources"]["registers"] == 40
    assert "copy_a-BLOCK=128 sm_90a: not built before" in err


def test_refused_kernel_is_status_1_with_its_source(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = root / "kernels_src/copy_a.py"
    path.write_text(path.read_text() + "#! refuse\n")
    assert commands.run(["build"]) == 1
    out, err = capsys.readouterr()
    assert "error[E0301]" in err
    assert '1 | """Copy."""' in err
    assert "4 failed" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build", "--kernel", "copy_c"], "did you mean `copy_"),
        (["build", "copy_a", "copy_c"], "no kernel `copy_c` in `build.toml`; did you mean `copy_"),
        (["build", "copy_c", "--plan"], "did you mean `copy_"),
        (["build", "--arch", "sm_10"], "E0603"),
        (["build", "--dump-stage", "sass", "x"], "no stage `sass`"),
        (["build", "--project", "nowhere"], "E0801"),
        (["build", "--jobs", "0"], "0"),
        (["explain", "E9999"], "no error"),
        (["explain", "../E0301"], "no error"),
        (["cache", "prune", "--max-size", "many"], "not a size"),
        (["frobnicate"], "No such command"),
        ([], "Usage"),
    ],
)
def test_wrong_usage_is_status_2(
    root: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:  # fmt: skip
    assert commands.run(arguments) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert out == ""
    assert "Traceback" not in err


@pytest.mark.parametrize("text", ["[build\narch = 1\n", '[build]\narch = ["sm_9"]\n'])
def test_an_error_in_the_build_file_of_another_folder_shows_its_line(
    root: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    """Whether the file is no TOML or says something wrong: the path is as `--project` has it."""
    (root / "other").mkdir()
    (root / "other/build.toml").write_text(text)
    assert commands.run(["check", "--project", "other"]) == 2
    err = capsys.readouterr().err
    assert "other/build.toml:" in err
    assert any(f"| {line}\n" in err for line in text.splitlines())


def test_unwritable_store_is_status_2(root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "file").write_text("")
    monkeypatch.setenv("TILEC_CACHE_DIR", str(root / "file"))
    assert commands.run(["build"]) == 2
    assert "error[E0701]" in capsys.readouterr().err


def test_unwritable_output_is_status_2(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "artifacts").mkdir()
    (root / "artifacts/build").write_text("")
    assert commands.run(["build"]) == 2
    assert "error[E0702]" in capsys.readouterr().err


def test_interrupt_is_status_130(root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(build_command, "build_project", interrupt)
    assert commands.run(["build"]) == 130
    assert capsys.readouterr().err.strip() == "interrupted"


def test_cache_commands(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands.run(["build"])
    capsys.readouterr()
    assert commands.run(["cache", "dir"]) == 0
    assert capsys.readouterr().out.strip() == str(root.parent / "store")
    assert commands.run(["cache", "size", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["blobs"] > 8
    assert commands.run(["cache", "verify"]) == 0
    path = next((root.parent / "store/v2/blobs").iterdir())
    path.write_bytes(path.read_bytes() + b"x")
    assert commands.run(["cache", "verify"]) == 1
    assert commands.run(["cache", "verify"]) == 0
    # Products of the entries that `verify` removed are pruned once they are too old to belong to a running build.
    for blob in (root.parent / "store/v2/blobs").iterdir():
        os.utime(blob, (0, 0))
    assert commands.run(["cache", "prune", "--max-size", "0"]) == 0
    capsys.readouterr()
    commands.run(["cache", "size"])
    assert int(capsys.readouterr().out.split()[0]) == 0
    assert commands.run(["cache", "clean"]) == 0
    assert list((root.parent / "store").iterdir()) == []


def test_explain_prints_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(["explain", "e0301"]) == 0
    assert capsys.readouterr().out.startswith("# E0301")


def test_every_code_the_build_raises_has_a_page() -> None:
    import re

    folder = Path(driver.__file__).parents[2]
    used: set[str] = set()
    for area in ("cache", "project", "cli"):
        for path in (folder / area).rglob("*.py"):
            used |= set(re.findall(r'"(E0\d{3})"', path.read_text()))
    assert {"E0701", "E0805"} <= used
    assert [code for code in sorted(used) if not (folder / "diagnostics" / "explain" / f"{code}.md").is_file()] == []


def test_command_line_starts_without_heavy_packages() -> None:
    heavy = ["torch_mlir", "llvmlite", "islpy", "networkx", "numpy", "rich", "tilec.frontend", "tilec.passes"]
    code = f"import sys, tilec.cli.build_command, tilec.cli.commands; print([m for m in {heavy!r} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
