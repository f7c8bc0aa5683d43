"""Errors in build.toml point at the wrong line."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.project.read.buildfile import read_build_file
from tilec.target.schedule import merged
from tilec.target.targets import SM_90A, SM_120A

ROOT = Path(__file__).resolve().parents[2]
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
    ("old", "new", "code", "line", "marked_text"),
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
        ("N = 8 }\n", "N = 8 }\nnum_warps = 8\n", "E0802", 6, "num_warps"),
        ("N = 8 }\n", "N = 8 }\naligned = 0\n", "E0802", 6, "aligned"),
        ('["sm_90"]\n', '["sm_90"]\naligned = 1\n', "E0802", 3, "aligned"),
        ("N = 8 }\n", 'N = 8 }\naligned = "yes"\n', "E0802", 6, "aligned"),
        ("N = 8 }\n", "N = 8 }\nrequested = 1\n", "E0802", 6, "requested"),
        ('["sm_90"]\n', '["sm_90"]\nrequested = true\n', "E0802", 3, "requested"),
        ("N = 8 }\n", 'N = 8, if = "N % 8 == 0" }\n', "E0802", 5, "if"),
        ("N = 8 }\n", "N = 8 }\nschedule = 3\n", "E0802", 6, "schedule"),
        ("N = 8 }\n", "N = 8 }\nschedule = [3]\n", "E0802", 6, "schedule"),
        ("N = 8 }\n", "N = 8 }\nschedule = { wraps = 8 }\n", "E0802", 6, "wraps"),
        ("N = 8 }\n", "N = 8 }\nschedule = { warps = 0 }\n", "E0802", 6, "warps"),
        ("N = 8 }\n", "N = 8 }\nschedule = { warps = true }\n", "E0802", 6, "warps"),
        ("N = 8 }\n", 'N = 8 }\nschedule = { stages = "4" }\n', "E0802", 6, "stages"),
        ("N = 8 }\n", "N = 8 }\nschedule = { persistent = 1 }\n", "E0802", 6, "persistent"),
        ("N = 8 }\n", "N = 8 }\nschedule = { warps = 33 }\n", "E0809", 6, "warps"),
        ("N = 8 }\n", "N = 8 }\nschedule = { warps = 8, blocks = 9 }\n", "E0809", 6, "blocks"),
        ("N = 8 }\n", "N = 8 }\nschedule = { stages = 17 }\n", "E0809", 6, "stages"),
        ("N = 8 }\n", "N = 8 }\nschedule = { cluster = 2 }\n", "E0809", 6, "cluster"),
        ("N = 8 }\n", "N = 8 }\nschedule = { persistent = true }\n", "E0809", 6, "persistent"),
        ("N = 8 }\n", "N = 8 }\nschedule = { split = 4 }\n", "E0802", 6, "split"),
        ("N = 8 }\n", 'N = 8 }\nschedule = { order = "snake" }\n', "E0809", 6, "order"),
        ("N = 8 }\n", 'N = 8 }\nschedule = { order = "pingpong", persistent = false }\n', "E0809", 6, "order"),
        ("N = 8 }\n", 'N = 8 }\nschedule = { order = "pingpong", consumers = 1 }\n', "E0809", 6, "order"),
        ("N = 8 }\n", 'N = 8 }\nschedule = { copy = "tma", mma = "dot" }\n', "E0809", 6, "copy"),
        ("N = 8 }\n", 'N = 8 }\nschedule = { copy = "tma", consumers = 4 }\n', "E0809", 6, "consumers"),
        ("N = 8 }\n", 'N = 8 }\nschedule = { mma = "tcgen05" }\n', "E0809", 6, "mma"),
        ("N = 8 }\n", 'N = 8 }\nschedule = { mma = "tcgen06" }\n', "E0809", 6, "mma"),
        ("N = 8 }\n", 'N = 8 }\nschedule = { mma = "mma_snyc" }\n', "E0809", 6, "mma"),
        ("N = 8 }\n", "N = 8 }\nschedule = { constants = { M = 8 }, warps = 4 }\n", "E0804", 6, "M"),
        ("N = 8 }\n", "N = 8 }\nschedule = { constants = { N = 9 }, warps = 4 }\n", "E0804", 6, "N"),
        ("N = 8 }\n", "N = 8 }\nschedule = { constants = 3 }\n", "E0802", 6, "constants"),
        ("N = 8 }\n", 'N = 8 }\nschedule = { arch = ["sm_100"], warps = 4 }\n', "E0802", 6, "arch"),
        ("N = 8 }\n", 'N = 8 }\nschedule = { arch = "sm_91" }\n', "E0802", 6, "arch"),
        ("N = 8 }\n", 'N = 8 }\n[[kernel]]\nname = "add"\nconstants = {N = 8, E = "f16"}\n', "E0806", 7, "name"),
        ("[[kernel]]", "[[kernels]]", "E0802", 3, None),
        ('["sm_90"]\n', '["sm_90"]\nremote = "redis://h/0"\n', "E0802", 3, "remote"),
        ('["sm_90"]\n', '["sm_90"]\nremote = [3]\n', "E0802", 3, "remote"),
        ('["sm_90"]\n', '["sm_90"]\nremote = ["python://h"]\n', "E0802", 3, "remote"),
        ('["sm_90"]\n', '["sm_90"]\nremote = ["filecache::s3://b/x"]\n', "E0802", 3, "remote"),
        ('["sm_90"]\n', '["sm_90"]\nremote = ["redis://u:pw@h/0"]\n', "E0802", 3, "remote"),
        ('["sm_90"]\n', '["sm_90"]\nremote = ["redis://h/0", "redis://h/0"]\n', "E0806", 3, "remote"),
        ('["sm_90"]\n', '["sm_90"]\nremote = [{ url = "redis://h/0", readonly = true }]\n', "E0802", 3, "readonly"),
        ('["sm_90"]\n', '["sm_90"]\nremote = [{ url = "redis://h/0", read_only = 1 }]\n', "E0802", 3, "read_only"),
        ('["sm_90"]\n', '["sm_90"]\nremote = [{ url = 3 }]\n', "E0802", 3, "url"),
    ],
)
def test_error_points_at_the_line(tmp_path: Path, old: str, new: str, code: str, line: int, marked_text: str | None) -> None:
    assert old in GOOD
    text = GOOD.replace(old, new)
    problems = [item for item in refused(tmp_path, text) if item.code == code]
    assert problems, "no such error"
    span = problems[0].primary.span  # type: ignore[union-attr]
    assert span.line == line
    if marked_text is not None:
        assert text.split("\n")[line - 1][span.column : span.end_column] == marked_text


def test_specialisations_are_the_product_in_order(tmp_path: Path) -> None:
    (tmp_path / "kernels_src").mkdir()
    (tmp_path / "kernels_src/add.py").touch()
    (tmp_path / "build.toml").write_text(GOOD)
    (entry,) = read_build_file(tmp_path / "build.toml").entries
    assert entry.specialisations() == [{"E": "bf16", "N": 8}, {"E": "f16", "N": 8}]


def test_a_schedule_is_fixed_for_some_specialisations_and_targets(tmp_path: Path) -> None:
    (tmp_path / "kernels_src").mkdir()
    (tmp_path / "kernels_src/add.py").touch()
    rules = '[{ warps = 4 }, { constants = { E = "f16" }, warps = 8, blocks = 2 }, { arch = ["sm_120"], warps = 2, early = 0 }]'
    text = GOOD.replace('["sm_90"]', '["sm_90", "sm_120"]') + f"schedule = {rules}\n"
    (tmp_path / "build.toml").write_text(text)
    (entry,) = read_build_file(tmp_path / "build.toml").entries
    found = {
        (values["E"], target): merged(entry.overrides(values), target).given()
        for values in entry.specialisations()
        for target in (SM_90A, SM_120A)
    }
    assert found == {
        ("bf16", SM_90A): {"warps": 4},
        ("f16", SM_90A): {"warps": 8, "blocks": 2},
        ("bf16", SM_120A): {"warps": 2, "early": 0},
        ("f16", SM_120A): {"warps": 2, "blocks": 2, "early": 0},
    }


def test_the_old_options_are_named_anew(tmp_path: Path) -> None:
    (problem,) = refused(tmp_path, GOOD + "min_blocks = 3\n")
    assert problem.hint == "write `schedule = { blocks = 3 }`"


def test_a_schedule_does_not_split_products_and_names_the_alternative(tmp_path: Path) -> None:
    (problem,) = refused(tmp_path, GOOD + "schedule = { split = 2 }\n")
    named = re.findall(r"\w+\.py", str(problem.hint))
    assert named and all((ROOT / "kernels_src" / name).is_file() for name in named)


@pytest.mark.parametrize("named", ["/elsewhere", "../elsewhere"])
def test_kernels_may_lie_outside_of_the_project(tmp_path: Path, named: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/add.py").touch()
    (tmp_path / "project").mkdir()
    folder = f"{tmp_path}{named}" if named.startswith("/") else named
    (tmp_path / "project/build.toml").write_text(GOOD.replace("[build]\n", f'[build]\nkernels = "{folder}"\n'))
    build = read_build_file(tmp_path / "project/build.toml")
    assert (build.root / (build.kernels / "add.py").relative_to(build.root)).samefile(tmp_path / "elsewhere/add.py")


def test_a_build_file_with_steps_reaches_a_worker() -> None:
    build = read_build_file(ROOT / "build.toml")
    again = pickle.loads(pickle.dumps(build))
    assert again.families.keys() == build.families.keys() != set()
    assert again.entries == build.entries


def test_missing_and_undecodable_files(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="E0801"):
        read_build_file(tmp_path / "build.toml")
    assert refused(tmp_path, b"\xff\xfe")[0].code == "E0801"
