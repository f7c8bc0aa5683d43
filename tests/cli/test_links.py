"""A foreign project has links wherever a command writes: nothing outside of the project is written."""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bundle import samples
from tests.project import fake_stages
from tests.project import project as small
from tests.tuning import tuned_project
from tilec.cli import audit_command, commands, ratchet_command, tune_command
from tilec.diagnostics.diagnostic import CompileError
from tilec.project.build import driver
from tilec.untrusted.output import write_named

ROOT = Path(__file__).resolve().parents[2]
CHILD = ROOT / "tests/tuning/fake_child.py"
SECRET = b"alias ls=ls\n"
TABLES = "kernels_src/tuning"
BUILT = "artifacts/tune/double/warps=4/sm_90a"


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own folder, with a file that is executed at login."""
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home/.bashrc").write_bytes(SECRET)
    return tmp_path / "home"


def untouched(outside: Path) -> bool:
    return {path.name: path.read_bytes() for path in outside.iterdir() if path.is_file()} == {".bashrc": SECRET} and {
        path.name for path in outside.iterdir()
    } == {".bashrc"}


def replace_by_link(root: Path, link_path: str, outside: Path) -> None:
    """Replaces the path by a link to the outside folder, or, if it names a file, to the file in that folder."""
    path = root / link_path
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(outside / ".bashrc" if path.suffix in (".json", ".jsonl", ".bundle", ".cubin", ".ptx") else outside)


@pytest.mark.parametrize("budget", ["0", "60"])
@pytest.mark.parametrize("link_path", [TABLES, f"{TABLES}/double-sm_90a.json", f"{TABLES}/double-sm_90a.jsonl"])
def test_tune_measures_into_the_project(
    tmp_path: Path,
    outside: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    link_path: str,
    budget: str,
) -> None:
    root = tuned_project.make(tmp_path / "p")
    (tmp_path / "modes.json").write_text("{}")
    monkeypatch.setattr(tune_command, "CHILD", (sys.executable, str(CHILD), str(tmp_path)))
    command = ["tune", "--prebuilt", "--project", str(root)]
    if budget == "0":  # a table is made of the records
        assert commands.run(command) == 0
        records = (root / TABLES / "double-sm_90a.jsonl").read_bytes()
        shutil.move(root / TABLES, tmp_path / "tables")
        if link_path == TABLES:
            (outside / "double-sm_90a.jsonl").write_bytes(records)
        else:
            shutil.copytree(tmp_path / "tables", root / TABLES)
            (root / TABLES / "double-sm_90a.json").unlink()
    replace_by_link(root, link_path, outside)
    capsys.readouterr()
    status = commands.run([*command, "--budget", budget])
    if link_path == TABLES and budget == "0":
        (outside / "double-sm_90a.jsonl").unlink()
    assert untouched(outside)
    err = capsys.readouterr().err
    assert status == 2 and "is a link" in err and link_path in err


@pytest.mark.parametrize("link_path", ["artifacts", "artifacts/tune", "artifacts/tune/double", BUILT, f"{BUILT}/sources.json"])
def test_tune_builds_into_the_project(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], link_path: str
) -> None:
    root = tuned_project.make(tmp_path / "p")
    shutil.rmtree(root / "artifacts")
    build = (root / "build.toml").read_text().replace("warps = 2", "warps = 4")  # as in the stub stages
    (root / "build.toml").write_text(build)
    fake = functools.partial(driver.build_project, runner=fake_stages.run, preload=())
    monkeypatch.setattr(driver, "build_project", fake)
    replace_by_link(root, link_path, outside)
    assert commands.run(["tune", "--build-only", "--project", str(root), "-j", "1"]) == 2
    assert untouched(outside)
    err = capsys.readouterr().err
    assert "error[E0702]" in err and f"{link_path}` is a link" in err


@pytest.mark.parametrize(
    "link_path", ["artifacts", "artifacts/build/sm_90a", "artifacts/build/sm_90a/copy_a-BLOCK=128.json",
              "artifacts/build/sm_90a/copy_a-BLOCK=128.cubin"],
)  # fmt: skip
def test_build_writes_into_the_project(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], link_path: str
) -> None:
    from tilec.cli import build_command

    root = small.make(tmp_path / "p", arch='"sm_90"')
    fake = functools.partial(driver.build_project, runner=fake_stages.run, preload=())
    monkeypatch.setattr(build_command, "build_project", fake)
    replace_by_link(root, link_path, outside)
    assert commands.run(["build", "--project", str(root), "-j", "1"]) == 2
    assert untouched(outside)
    assert f"{link_path}` is a link" in capsys.readouterr().err


@pytest.mark.parametrize("link_path", ["dumped/sm_90a", "dumped/sm_90a/copy_a-BLOCK=128.ptx"])
def test_build_dumps_into_the_folder_that_was_named(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], link_path: str
) -> None:
    """The user names the folder; a link inside it, in a foreign project, is not followed."""
    from tilec.cli import build_command

    root = small.make(tmp_path / "p", arch='"sm_90"')
    fake = functools.partial(driver.build_project, runner=fake_stages.run, preload=())
    monkeypatch.setattr(build_command, "build_project", fake)
    replace_by_link(root, link_path, outside)
    command = ["build", "--project", str(root), "-j", "1", "--dump-stage", "ptx", str(root / "dumped")]
    assert commands.run(command) == 2
    assert untouched(outside)
    assert f"{link_path}` is a link" in capsys.readouterr().err


@pytest.mark.parametrize("link_path", ["tests", "tests/golden", "tests/golden/proofs.json", "tests/golden/resources.json"])
def test_ratchet_writes_into_the_project(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], link_path: str
) -> None:
    root = small.make(tmp_path / "p", ("copy_a",), arch='"sm_90"')
    monkeypatch.setattr(ratchet_command, "build_project", lambda *_, **__: driver.BuildResult([], [], []))
    replace_by_link(root, link_path, outside)
    assert commands.run(["ratchet", "--update", "--project", str(root)]) == 2
    assert untouched(outside)
    assert f"{link_path}` is a link" in capsys.readouterr().err


@pytest.mark.parametrize("link_path", ["artifacts", "artifacts/bundles"])
def test_pack_writes_into_the_project(
    tmp_path: Path, outside: Path, capsys: pytest.CaptureFixture[str], link_path: str
) -> None:  # fmt: skip
    """Before anything is built; in the user's cache, the engine would find the bundle."""
    root = tmp_path / "p"
    for name in ("kernels_src", "engine/models"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "build.toml", root)
    replace_by_link(root, link_path, outside)
    assert commands.run(["bundle", "pack", "--project", str(root), "--model", "qwen3-0.6b", "--arch", "sm_90"]) == 2
    assert untouched(outside)
    err = capsys.readouterr().err
    assert f"{link_path}` is a link" in err and "hint: remove the link" in err


WRITERS: dict[str, Callable[[Path], object]] = {
    "audit --json": lambda path: audit_command._write(str(path), {}),  # pyright: ignore[reportPrivateUsage]
    "bench --plot, dump and graph": lambda path: write_named(str(path), b"x"),
}


@pytest.mark.parametrize("command", WRITERS)
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_file_that_the_user_names_is_a_file_or_is_read_from(tmp_path: Path, outside: Path, command: str, kind: str) -> None:
    path = tmp_path / "out"
    if kind == "link":
        path.symlink_to(outside / ".bashrc")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(CompileError, match="E0702"):
        WRITERS[command](path)
    assert untouched(outside)


@pytest.mark.parametrize(
    "command",
    [["bundle", "wheel", "tiny.bundle", "-o", "out", "--version", "1.0"], ["bundle", "attest", "tiny.bundle", "-o", "out"]],
)
def test_files_in_a_folder_that_the_user_names(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.bundle").write_bytes(samples.bundle())
    assert commands.run(command) == 0, capsys.readouterr().err
    created = sorted(path.name for path in Path("out").iterdir())
    assert created
    for path in Path("out").iterdir():
        path.unlink()
    for one in created:
        (Path("out") / one).symlink_to(outside / ".bashrc")
    assert commands.run(command) == 2
    assert untouched(outside)
    assert "is a link" in capsys.readouterr().err


def test_a_new_project_is_a_folder_of_its_own(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "autostart").mkdir()
    Path("softmax").symlink_to(tmp_path / "autostart")
    assert commands.run(["new", "softmax", "--name", "softmax"]) == 2
    assert not list((tmp_path / "autostart").iterdir())
    assert "is a link" in capsys.readouterr().err
