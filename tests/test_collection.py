"""The gate's checks that every test file is collected and that every test is in a run find planted violations; the gate runs
both."""

from __future__ import annotations

import importlib.util
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.files import ROOT

_spec = importlib.util.spec_from_file_location("check_tests", ROOT / "ci" / "check_tests.py")
assert _spec is not None and _spec.loader is not None
check_tests = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(check_tests)

OWN_OPTIONS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
CASES = """
import pytest

@pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.campaign)])
def test_it(number: int) -> None: ...
"""

MARKED = """
@pytest.mark.slow
def test_slow() -> None: ...

@pytest.mark.campaign
@pytest.mark.parametrize("number", [1, 2])
def test_all(number: int) -> None: ...

@pytest.mark.campaign
@pytest.mark.parametrize("number", [pytest.param(1, marks=pytest.mark.long), 2])
def test_too_slow(number: int) -> None: ...

@pytest.mark.campaign
def test_at_length() -> None: ...
"""


@pytest.mark.skipif(not (ROOT / ".ci").exists(), reason="not a checkout")
def test_the_gate_runs_the_campaigns_and_this_check() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    run = shlex.join([".venv/bin/pytest", *check_tests.CAMPAIGNS])
    assert [line for line in lines if line.startswith(run)]
    assert ".venv/bin/python ci/check_tests.py" in lines


def project(root: Path, *files: str, content: str = "def test_it() -> None: ...\n") -> Path:
    """A checkout with `files`, and a pytest that looks into `tests` and has this project's options."""
    (root / "pyproject.toml").write_text(
        f'[tool.pytest.ini_options]\ntestpaths = ["tests"]\naddopts = "{OWN_OPTIONS["addopts"]}"\n'
    )
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    subprocess.run(["git", "add", "-A"], cwd=root, check=True)
    return root


def test_a_tree_whose_tests_are_all_collected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = project(tmp_path, "tests/test_a.py", "tests/area/test_b.py", "tests/area/helper.py")
    (root / "tests" / "test_a.py").write_text(CASES)
    assert check_tests.main(root) == 0
    assert capsys.readouterr().out == "2 test files, each collected; 3 tests, each in a run\n"


def test_files_that_pytest_passes_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files of some folders, and a file without a test; a file whose only test is for a GPU counts as tested."""
    names = ["ci/test_b.py", "tests/.hidden/b_test.py", "tests/build/test_b.py", "tests/dist/test_b.py", "tests/test_z.py"]
    root = project(tmp_path, "tests/test_a.py", "tests/test_gpu.py", *names)
    (root / "tests" / "test_z.py").write_text("def tset_it() -> None: ...\n")
    (root / "tests" / "test_gpu.py").write_text("import pytest\n@pytest.mark.gpu\ndef test_it() -> None: ...\n")
    assert check_tests.main(root) == 1
    assert capsys.readouterr().out.splitlines() == [f"{name}: pytest collects no test of it" for name in names]


def test_tests_that_no_run_selects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tests with marks that the default run excludes and no other run selects; and functions and files that only campaigns
    run."""
    root = project(tmp_path, "tests/test_a.py", "tests/test_b.py")
    (root / "tests" / "test_b.py").write_text("import pytest\n@pytest.mark.campaign\ndef test_it() -> None: ...\n")
    options = (root / "pyproject.toml").read_text()
    (root / "pyproject.toml").write_text(options.replace("not campaign", "not campaign and not slow"))
    (root / "tests" / "test_a.py").write_text(CASES + MARKED)
    assert check_tests.main(root) == 1
    assert capsys.readouterr().out.splitlines() == [
        "tests/test_a.py::test_slow: no run selects it",
        "tests/test_a.py::test_all: the default run has no case of it",
        "tests/test_b.py: the default run has no case of it",
    ]


def test_a_file_that_cannot_be_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_tests.main(project(tmp_path, "tests/test_a.py", content="import no_such_package\n")) == 1
    assert "no_such_package" in capsys.readouterr().out


def test_many_functions_without_a_time_are_named() -> None:
    few = {f"tests/test_it.py::test_{number}[{case}]" for number in range(check_tests.MOST_UNTIMED) for case in (1, 2)}
    assert check_tests.without_time(few) == []
    found = check_tests.without_time({*few, "tests/test_it.py::test_new"})
    assert len(found) == check_tests.MOST_UNTIMED + 1
    assert found[-1].startswith("tests/test_it.py::test_new: no recorded time")
