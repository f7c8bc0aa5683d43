"""The page of the library has a row for each function, with its parameters."""

from __future__ import annotations

import inspect
import re

from tests.files import ROOT
from tilec import kernels

ROW = re.compile(r"^\| `(\w+)\(([^)]*)\)` \|", re.MULTILINE)


def test_every_function_has_a_row_with_its_parameters() -> None:
    rows = dict(ROW.findall((ROOT / "docs/library.md").read_text(encoding="utf-8")))
    assert sorted(rows) == sorted(kernels.__all__)
    for name, shown in rows.items():
        parameters = list(inspect.signature(getattr(kernels, name)).parameters)
        named = [text.strip().removesuffix("=") for text in shown.split(",")]
        assert named == parameters or (named[-1] == "..." and named[:-1] == parameters[: len(named) - 1])
