"""A small repository for tests: sources, a build file, a lock, results with their registry, and a README that cites them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ci.evidence import Digests, Entry, digests
from ci.evidence.products import Record, write_products

SOURCE = '''"""A judge."""


def judge(number: int) -> bool:
    """Whether it is small."""
    return number < 3
'''
KERNEL = '''"""A kernel."""

x = 1
'''
RECORD: Record = {
    "tir": {"add-N=1": "aa", "mul-N=1": "bb"},
    "ptx:sm_90a": {"add-N=1": "cc", "mul-N=1": "dd"},
    "cubin:sm_90a": {"add-N=1": "ee", "mul-N=1": "ff"},
}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its root. The compiler is `tilec`, its toolchain one package."""
    monkeypatch.setattr(digests, "COMPILER", ("tilec",))
    monkeypatch.setattr(digests, "TOOLCHAIN", ("numpy",))
    for name, text in {
        "tilec/judge.py": SOURCE, "other/tool.py": SOURCE, "kernels_src/add.py": KERNEL, "kernels_src/reference.py": KERNEL,
        "build.toml": '[build]\nkernels = "kernels_src"\n\n[[kernel]]\nname = "add"\n',
        "requirements.lock": "numpy==2.1.0 \\\n    --hash=sha256:00\n",
    }.items():  # fmt: skip
        write(tmp_path / name, text)
    record(tmp_path)
    return tmp_path


def write(path: Path, text: str) -> None:
    """Write a file in a folder that may not be there yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def record(root: Path, changes: Record | None = None) -> None:
    """Record the products of the sources as they are."""
    products = {kind: found | (changes or {}).get(kind, {}) for kind, found in RECORD.items()}
    (root / "tests" / "golden").mkdir(parents=True, exist_ok=True)
    write_products(root / digests.PRODUCTS, Digests(root).made_from(), products)


def entry(*rests_on: str, **fields: Any) -> Entry:
    """A result."""
    return Entry("judged", rests_on, "python judge.py", **fields)


def results(root: Path, **data: Any) -> Path:
    """Write JSON of results by name; the folder."""
    folder = root / "ci" / "bench" / "results"
    for name, value in data.items():
        write(folder / f"{name}.json", json.dumps(value))
    return folder
