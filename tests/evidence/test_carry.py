"""What results need reaches a machine that has no checkout, or one line says what is missing; what it renews comes back."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.carried import Joined
from ci.carry import CannotPack, Parts, bytes_of, chosen_wheels, requirements, steps_of
from ci.evidence import Digests, read_registry, status
from ci.renew_all import Job, read_plan
from tests.files import ROOT

REGISTRY = '[judged]\nrests_on = ["source:tilec"]\ncommand = "python judge.py"\n'
PLAN = """[steps.built]
command = "python make.py {processors}"
makes = "artifacts/built/done"
carries = ["artifacts/built"]

[results.judged]
needs = ["built"]
"""
MAKE = """
import pathlib
folder = pathlib.Path("artifacts/built")
folder.mkdir(parents=True)
folder.joinpath("number").write_text("41")
folder.joinpath("done").touch()
"""
JUDGE = """
import json, pathlib
import helper
number = helper.next_of(int(pathlib.Path("artifacts/built/number").read_text()))
pathlib.Path("ci/bench/results/judged.json").write_text(json.dumps({"number": number}))
"""
FILES = {
    "judge.py": JUDGE, "make.py": MAKE, "tilec/source.py": "x = 1\n", ".gitignore": "/artifacts/\n/build/\n",
    "ci/evidence/results.toml": REGISTRY, "ci/evidence/renewals.toml": PLAN, "ci/bench/results/judged.json": "{}\n",
    "docs/picture.svg": "<svg/>", "long.txt": "".join(f"{number**5}\n" for number in range(5000)),
}  # fmt: skip
RESULT = "ci/bench/results/judged.json"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small repository with the programs of `ci` and one result, which reads what a step makes."""
    root = tmp_path / "checkout"
    shutil.copytree(ROOT / "ci/evidence", root / "ci/evidence", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("ci/carry.py", "ci/carried.py", "ci/renew.py", "ci/renew_all.py", "ci/bench/markdown.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *words], cwd=root, check=True)
    return root


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """Two wheels: one that the result imports, with a module in its data, and one that the other machine has."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name, files in {
        "help_er-1.0-py3-none-any.whl": {"help_er-1.0.data/purelib/helper.py": "def next_of(number):\n    return number + 1\n",
                                         "help_er-1.0.data/scripts/tool": "x"},
        "There.Already-2.0-py3-none-any.whl": {"there.py": "x"},
    }.items():  # fmt: skip
        with zipfile.ZipFile(folder / name, "w") as archive:
            for path, text in files.items():
                archive.writestr(path, text)
    return folder


def python(script: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """A program in an environment that has nothing of this one."""
    command = [sys.executable, str(script), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env={"PATH": os.environ["PATH"]}, check=False)


def packed(checkout: Path, *words: object) -> Path:
    """The folder of the parts of the result."""
    folder = checkout.parent / "parts"
    done = python(checkout / "ci/carry.py", "judged", "--to", folder, "--build", "--part-size", "20kB", *words)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_result_is_packed_unpacked_renewed_and_collected(checkout: Path, wheels: Path, tmp_path: Path) -> None:
    (tmp_path / "has").write_text("there-already==1.9\nnumpy==1\n")
    parts = packed(checkout, "--wheels", wheels, "--has", tmp_path / "has")
    sizes = [path.stat().st_size for path in sorted(parts.glob("part-*"))]
    assert len(sizes) > 1 and sizes[:-1] == [20000] * (len(sizes) - 1) and 0 < sizes[-1] <= 20000
    (tmp_path / "later").mkdir()
    (parts / "part-02").rename(tmp_path / "later/part-02")

    there = tmp_path / "there"
    done = python(parts / "carried.py", "unpack", parts, tmp_path / "later", "--to", there)
    assert done.returncode == 0, done.stderr
    assert f"export PYTHONPATH={there}/repository:{there}/packages\n" in done.stdout
    assert sorted(path.name for path in (there / "packages").rglob("*")) == ["helper.py"]
    assert (there / "repository/judge.py").exists() and not (there / "repository/docs/picture.svg").exists()

    (there / "repository" / RESULT).write_text('{"number": 0}')
    assert contents(there, tmp_path).keys() == {"artifacts/carried/unfinished/judged.json"}

    done = python(there / "carried.py", "run", "--seconds", 60, "--processors", 1)
    assert done.returncode == 0 and "renews judged" in done.stdout, done.stderr
    deadline = time.monotonic() + 60
    while RESULT not in (found := contents(there, tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.1)
    data = json.loads(found[RESULT])
    assert data["number"] == 42
    assert status(read_registry(checkout / "ci/evidence/results.toml")["judged"], data, Digests(checkout)).state == "fresh"
    assert {"artifacts/carried/judged.log", "artifacts/carried/renew_all.log"} < found.keys()
    while (
        "the run is under way" in python(there / "carried.py", "collect", tmp_path / "got").stdout
        and time.monotonic() < deadline
    ):
        time.sleep(0.1)
    done = python(there / "carried.py", "run", "--seconds", 60)
    assert done.returncode == 1 and done.stderr == "error: every result that travelled is renewed\n"

    (there / "repository/artifacts/carried/renew_all.log").write_text("judged: not done: no time after 3 s\n")
    assert {"artifacts/carried/unfinished/judged.json"} == {
        name for name in contents(there, tmp_path) if name.endswith(".json")
    }


def contents(there: Path, folder: Path) -> dict[str, bytes]:
    """What `collect` brings, by path."""
    done = python(there / "carried.py", "collect", folder / "got.tar.xz")
    assert done.returncode == 0, done.stderr
    with tarfile.open(folder / "got.tar.xz") as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}  # pyright: ignore


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (Path.unlink, "error: part-02 of {count} parts is missing: bring it to {parts}\n"),
        (cut, "error: {parts}/part-02 is damaged, with 19999 bytes of 20000: bring it again\n"),
        (flip, "error: {parts}/part-02 is damaged, with 20000 bytes of 20000: bring it again\n"),
    ],
)
def test_a_part_that_is_missing_or_damaged_is_named(checkout: Path, damage: Callable[[Path], None], message: str) -> None:
    parts = packed(checkout)
    count = len([*parts.glob("part-*")])
    damage(parts / "part-02")
    done = python(parts / "carried.py", "unpack", parts, "--to", parts.parent / "there")
    assert (done.returncode, done.stderr) == (1, message.format(parts=parts, count=count))
    assert not (parts.parent / "there").exists()


def test_other_digests_there_are_refused(checkout: Path, tmp_path: Path) -> None:
    parts = packed(checkout)
    manifest = json.loads((parts / "manifest.json").read_text())
    manifest["digests"]["source:tilec"] = "0" * 16
    (parts / "manifest.json").write_text(json.dumps(manifest))
    done = python(parts / "carried.py", "unpack", parts, "--to", tmp_path / "there")
    assert done.returncode == 1
    assert done.stderr == "error: source:tilec (1 in all) has another digest here than where it was packed\n"


def test_a_folder_without_a_manifest_is_named(checkout: Path, tmp_path: Path) -> None:
    done = python(checkout / "ci/carried.py", "unpack", tmp_path / "none", "--to", tmp_path / "there")
    assert (done.returncode, done.stderr) == (1, f"error: no manifest.json in {tmp_path / 'none'}\n")


def test_what_is_not_built_is_named_with_its_command(checkout: Path, tmp_path: Path) -> None:
    done = python(checkout / "ci/carry.py", "judged", "--to", tmp_path / "parts", "--processors", 3)
    assert done.returncode == 1 and not (tmp_path / "parts").exists()
    assert done.stderr == "error: not built (`--build` runs these):\n  built: python make.py 1\n"


def test_files_that_differ_from_the_commit_are_named(checkout: Path, tmp_path: Path) -> None:
    (checkout / "tilec/source.py").write_text("x = 2\n")
    done = python(checkout / "ci/carry.py", "judged", "--to", tmp_path / "parts", "--build")
    assert done.returncode == 1 and "commit or stash them\n M tilec/source.py\n" in done.stderr


def test_a_folder_that_is_not_empty_is_refused(checkout: Path) -> None:
    done = python(checkout / "ci/carry.py", "judged", "--to", checkout / "ci", "--build")
    assert (done.returncode, done.stderr) == (1, f"error: {checkout / 'ci'} is not empty\n")


@given(st.lists(st.binary(max_size=70), max_size=12), st.integers(1, 40), st.integers(1, 50))
def test_parts_together_are_what_was_written(pieces: list[bytes], size: int, buffer: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        parts = Parts(Path(name), size)
        with parts:
            for piece in pieces:
                parts.write(piece)
        paths = [Path(name) / part["name"] for part in parts.listed]
        assert all(0 < path.stat().st_size <= size for path in paths)
        assert io.BufferedReader(Joined(paths), buffer).read() == b"".join(pieces)


def test_steps_that_no_gpu_makes_travel_and_the_others_run_there() -> None:
    jobs = (
        Job("a", "x", makes="a"), Job("b", "x", makes="b", needs=("a",)), Job("c", "x", makes="c", gpus=1, needs=("b",)),
        Job("d", "x", gpus=1, needs=("c",)), Job("e", "x", makes="e"),
    )  # fmt: skip
    assert [job.name for job in steps_of({job.name: job for job in jobs}, ["d"])] == ["a", "b"]


def test_what_travels_has_that_by_which_a_step_is_recognised() -> None:
    """Otherwise the other machine would run it again."""
    for job in read_plan(read_registry()).values():
        patterns = job.carries or (job.makes,)
        assert any(fnmatchcase(job.makes, pattern) or job.makes.startswith(f"{pattern}/") for pattern in patterns), job.name


def test_extras_that_name_others_bring_their_packages() -> None:
    names = [line.split(">")[0] for line in requirements(ROOT, ["serve"])]
    assert {"numpy", "tokenizers", "uvicorn"} <= {*names} and not any("tilec" in name for name in names)
    with pytest.raises(CannotPack, match="no extra `nothing`"):
        requirements(ROOT, ["nothing"])


def test_two_versions_of_one_package_are_refused(tmp_path: Path) -> None:
    for name in ("a_b-1.0-py3-none-any.whl", "A.b-2.0-py3-none-any.whl"):
        (tmp_path / name).touch()
    with pytest.raises(CannotPack, match="several wheels of one package: a-b"):
        chosen_wheels(tmp_path, [])


@pytest.mark.parametrize(("text", "size"), [("7", 7), ("50MB", 50_000_000), ("2 MiB", 2 << 20)])
def test_sizes_have_units(text: str, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["", "0MB", "-1", "5 feet", "1.5MB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(Exception, match="is no size"):
        bytes_of(text)
