"""A wheel has every file of the packages: modules, pages of error codes, SEMANTICS.md, py.typed.

setuptools itself is asked what it would copy, with the tables of pyproject.toml; the build of a wheel copies just that.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.files import ROOT, tracked

COPIED = """
import sys
from setuptools import Distribution, find_packages
root, include, data = eval(sys.argv[1])
tables = {"packages": find_packages(root, include=include), "package_data": data, "package_dir": {"": root}, "script_name": "-"}
build = Distribution(tables).get_command_obj("build_py")
build.finalize_options()
print("\\n".join(build.get_outputs(include_bytecode=False)))
"""


def in_a_wheel(elsewhere: Path) -> list[str]:
    """Paths relative to the root of a wheel, sorted. Runs in an empty folder, where setuptools reads no other tables."""
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    given = repr((str(ROOT), tables["packages"]["find"]["include"], tables["package-data"]))
    done = subprocess.run([sys.executable, "-c", COPIED, given], cwd=elsewhere, capture_output=True, text=True, check=True)
    return sorted(os.path.relpath(line, os.path.join("build", "lib")) for line in done.stdout.splitlines())


def test_wheel_has_every_file_of_the_packages(tmp_path: Path) -> None:
    found, wanted = in_a_wheel(tmp_path), tracked("tilec", "engine")
    assert len(wanted) > 400
    assert [name for name in wanted if name not in found] == []
    assert [name for name in found if name.partition("/")[0] not in ("tilec", "engine")] == []


def test_the_data_that_the_wheel_is_for_is_there() -> None:
    """What a build or an answer would miss at run time; without a page `tilec explain` has nothing to print."""
    wanted = tracked("tilec", "engine")
    for name in ("tilec/py.typed", "engine/py.typed", "tilec/ir/SEMANTICS.md", "tilec/explain/E0302.md"):
        assert name in wanted and Path(ROOT, name).is_file(), name
