"""`also` and `like` of a build file: what is built only on request, and which kernels and schedules it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import shipped
from tilec.diagnostics.diagnostic import CompileError
from tilec.project.read.buildfile import BuildFile, read_build_file
from tilec.target.schedule import merged
from tilec.target.targets import MAIN_TARGETS, SM_80, SM_86, SM_89, SM_90A, SM_100A, SM_100F, SM_103A, SM_120A, TARGETS

TEXT = """[build]
kernels = "kernels"
arch = ["sm_90", "sm_100"]
also = ["sm_80"]
like = { sm_89 = "sm_80", sm_100f = "sm_100" }

[[kernel]]
name = "everywhere"
schedule = [{ warps = 2 }, { arch = ["sm_80"], warps = 4 }, { arch = ["sm_89"], warps = 8 }, { arch = ["sm_100"], warps = 1 }]

[[kernel]]
name = "some"
arch = ["sm_100", "sm_80"]
schedule = { arch = ["sm_100f"], warps = 16 }
"""


def read(folder: Path, text: str = TEXT) -> BuildFile:
    """A build file with two kernels."""
    (folder / "kernels").mkdir(exist_ok=True)
    for name in ("everywhere", "some"):
        (folder / "kernels" / f"{name}.py").write_text("")
    (folder / "build.toml").write_text(text)
    return read_build_file(folder / "build.toml")


def test_others_are_built_on_request_alone(tmp_path: Path) -> None:
    build = read(tmp_path)
    everywhere, some = build.entries
    assert build.targets == everywhere.among(None) == (SM_90A, SM_100A) and some.among(None) == (SM_100A,)
    assert everywhere.among(TARGETS) == TARGETS
    assert set(some.among(TARGETS)) == {SM_80, SM_89, SM_100A, SM_100F}


def test_a_target_takes_the_schedules_of_the_target_it_is_like(tmp_path: Path) -> None:
    everywhere, some = read(tmp_path).entries
    warps = {target: merged(everywhere.overrides({}), target).warps for target in TARGETS}
    assert {target: number for target, number in warps.items() if number != 2} == {
        SM_80: 4, SM_89: 8, SM_100A: 1, SM_100F: 1,
    }  # fmt: skip
    assert merged(some.overrides({}), SM_100F).warps == 16 and merged(some.overrides({}), SM_100A).warps is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('arch = ["sm_90", "sm_100"]', "arch = []", "`arch` is not a list of architectures"),
        ('arch = ["sm_90", "sm_100"]', "arch = [90]", "`arch` is not a list of architectures"),
        ('arch = ["sm_90", "sm_100"]', 'arch = ["sm_100", "sm_75"]', "unknown architecture `sm_75`"),
        ('also = ["sm_80"]', 'also = "sm_80"', "`also` is not a list of architectures"),
        ('also = ["sm_80"]', "also = [80]", "`also` is not a list of architectures"),
        ('also = ["sm_80"]', 'also = ["sm_75"]', "unknown architecture `sm_75`"),
        ('also = ["sm_80"]', 'also = ["sm_80", "sm_90"]', "architecture `sm_90` is named twice"),
        ('sm_89 = "sm_80"', 'sm_89 = "sm_86"', "`sm_89` cannot be like `sm_86`"),
        ('sm_89 = "sm_80"', 'sm_90 = "sm_80"', "`sm_90` cannot be like `sm_80`"),
        ('sm_89 = "sm_80"', "sm_89 = 80", "unknown architecture ``"),
        ('like = { sm_89 = "sm_80", sm_100f = "sm_100" }', "like = 1", "`like` is not a table of architectures"),
        ('arch = ["sm_100f"]', 'arch = ["sm_120"]', "this schedule is for `sm_120`, which is not built"),
    ],
)
def test_a_mistake_is_an_error_on_its_line(old: str, new: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(CompileError) as caught:
        read(tmp_path, TEXT.replace(old, new))
    found = [one for one in caught.value.diagnostics if message in one.message]
    assert found and found[0].code == "E0802" and found[0].primary is not None
    line = next(number for number, text in enumerate(TEXT.replace(old, new).splitlines(), 1) if new in text)
    assert found[0].primary.span.line == line


def test_every_shipped_kernel_is_planned_for_every_target() -> None:
    build = read_build_file(shipped.ROOT / "build.toml")
    entries = [entry for entry in build.entries if not entry.requested]
    count = {target: sum(len(one.specialisations()) for one in entries if one.among((target,))) for target in TARGETS}
    assert build.targets == MAIN_TARGETS
    assert count[SM_103A] == count[SM_100F] == count[SM_100A] > count[SM_80] == count[SM_86] == count[SM_120A] > 400
