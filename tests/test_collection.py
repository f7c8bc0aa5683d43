"""Every test file of git is one that pytest collects; the check of the gate that holds this finds planted ones."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.files import ROOT

_spec = importlib.util.spec_from_file_location("check_tests", ROOT / "ci" / "check_tests.py")
assert _spec is not None and _spec.loader is not None
check_tests = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(check_tests)

# Asks pytest which files it would make modules of, and imports none of them: a second, where a collection takes a minute.
NAMES = """
import os, sys, pytest
class Names:
    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makemodule(self, module_path, parent):
        class Seen(pytest.Module):
            def collect(self):
                return []
        print("FILE", os.path.relpath(module_path), flush=True)
        return Seen.from_parent(parent, path=module_path)
sys.exit(pytest.main(["--collect-only", "-q", "-s", "-n", "0", "-p", "no:cacheprovider", "-o", "addopts="], [Names()]))
"""


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
def test_no_test_file_is_passed_over() -> None:
    done = subprocess.run([sys.executable, "-c", NAMES], cwd=ROOT, capture_output=True, text=True, check=False)
    names = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("FILE ")}
    wanted = check_tests.test_files(ROOT)
    assert len(wanted) > 100, done.stderr
    assert sorted(wanted - names) == []


def project(root: Path, *files: str, content: str = "def test_it() -> None: ...\n") -> Path:
    """A checkout with `files`, and a pytest that looks into `tests`."""
    (root / "pyproject.toml").write_text('[tool.pytest.ini_options]\ntestpaths = ["tests"]\naddopts = "-m \'not gpu\' -q"\n')
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    subprocess.run(["git", "add", "-A"], cwd=root, check=True)
    return root


def test_a_tree_whose_tests_are_all_collected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = project(tmp_path, "tests/test_a.py", "tests/area/test_b.py", "tests/area/helper.py")
    assert check_tests.main(root) == 0
    assert capsys.readouterr().out == "2 test files, each collected\n"


def test_files_that_pytest_passes_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of some folders, and one without a test; one whose only test is for a GPU counts."""
    names = ["ci/test_b.py", "tests/.hidden/b_test.py", "tests/build/test_b.py", "tests/dist/test_b.py", "tests/test_z.py"]
    root = project(tmp_path, "tests/test_a.py", "tests/test_gpu.py", *names)
    (root / "tests" / "test_z.py").write_text("def tset_it() -> None: ...\n")
    (root / "tests" / "test_gpu.py").write_text("import pytest\n@pytest.mark.gpu\ndef test_it() -> None: ...\n")
    assert check_tests.main(root) == 1
    assert capsys.readouterr().out.splitlines() == [f"{name}: pytest collects no test of it" for name in names]


def test_a_file_that_cannot_be_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_tests.main(project(tmp_path, "tests/test_a.py", content="import no_such_package\n")) == 1
    assert "no_such_package" in capsys.readouterr().out
