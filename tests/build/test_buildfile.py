"""Errors in build.toml point at the line that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec.build.buildfile import read_build_file
from tilec.diagnostics import CompileError, Diagnostic

GOOD = '[build]\narch = ["sm_90"]\n[[kernel]]\nname = "add"\nconstants = { E = ["bf16", "f16"], N = 8 }\n'


def refused(tmp_path: Path, text: str | bytes) -> list[Diagnostic]:
    (tmp_path / "kernels_src").mkdir(exist_ok=True)
    (tmp_path / "kernels_src/add.py").touch()
    path = tmp_path / "build.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(CompileError) as caught:
        read_build_file(path)
    return list(caught.value.diagnostics)


@pytest.mark.parametrize(
    ("old", "new", "code", "line", "word"),
    [
        ("[build]\n", "[build\n", "E0801", 1, None),
        ("arch", "arhc", "E0802", 2, "arhc"),
        ('["sm_90"]', '["sm_91"]', "E0802", 2, "arch"),
        ('["sm_90"]', "[]", "E0802", 2, "arch"),
        ('["sm_90"]', '["sm_90", "90a"]', "E0806", 2, "arch"),
        ('name = "add"', 'name = "sub"', "E0803", 4, "name"),
        ('name = "add"', "name = 3", "E0802", 4, "name"),
        ("N = 8", "N = { a = 1 }", "E0802", 5, "N"),
        ("N = 8", "N = []", "E0802", 5, "N"),
        ("N = 8", "N = [8, 8]", "E0806", 5, "N"),
        ("N = 8 }\n", "N = 8 }\nbudget = { max_register = 8 }\n", "E0802", 6, "max_register"),
        ("N = 8 }\n", "N = 8 }\nbudget = { spill_bytes = -1 }\n", "E0802", 6, "spill_bytes"),
        ("N = 8 }\n", "N = 8 }\nnum_warps = 33\n", "E0802", 6, "num_warps"),
        ("N = 8 }\n", "N = 8 }\nmin_blocks = 0\n", "E0802", 6, "min_blocks"),
        ("N = 8 }\n", 'N = 8 }\n[[kernel]]\nname = "add"\nconstants = {N = 8, E = "f16"}\n', "E0806", 7, "name"),
        ("[[kernel]]", "[[kernels]]", "E0802", 3, None),
    ],
)
def test_error_points_at_the_line(tmp_path: Path, old: str, new: str, code: str, line: int, word: str | None) -> None:
    assert old in GOOD
    text = GOOD.replace(old, new)
    problems = [item for item in refused(tmp_path, text) if item.code == code]
    assert problems, "no such error"
    span = problems[0].primary.span  # type: ignore[union-attr]
    assert span.line == line
    if word is not None:
        assert text.split("\n")[line - 1][span.column : span.end_column] == word


def test_specialisations_are_the_product_in_order(tmp_path: Path) -> None:
    (tmp_path / "kernels_src").mkdir()
    (tmp_path / "kernels_src/add.py").touch()
    (tmp_path / "build.toml").write_text(GOOD)
    (entry,) = read_build_file(tmp_path / "build.toml").entries
    assert entry.specialisations() == [{"E": "bf16", "N": 8}, {"E": "f16", "N": 8}]


def test_missing_and_undecodable_files(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="E0801"):
        read_build_file(tmp_path / "build.toml")
    assert refused(tmp_path, b"\xff\xfe")[0].code == "E0801"
