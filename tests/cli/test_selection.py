"""What `tilec build` selects by model, format and dtype: its plan and its build agree, and both with the closed world."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.campaign import first
from tests.project import fake_stages, project
from tests.shipped import ROOT
from tilec.cache import Store
from tilec.cli import build_command, commands
from tilec.cli.selection import Selection, in_dtypes, narrowed_to, select
from tilec.diagnostics.diagnostic import Span
from tilec.project.build import driver
from tilec.project.read import models
from tilec.project.read.buildfile import read_build_file
from tilec.project.read.closed_world import enumerate_world
from tilec.project.read.kernel_entry import KernelEntry
from tilec.step.step import DTYPES
from tilec.target.targets import SM_90A

pytestmark = pytest.mark.usefixtures("kept_workers")
SHIPPED = read_build_file(ROOT / "build.toml")
BUILD = """
[[kernel]]
name = "norm"
constants = { E = ["bf16", "f16"], BLOCK = [128, 256] }

[[kernel]]
name = "norm_fp8"
constants = { E = ["bf16", "f16"], BLOCK = [128, 256] }
requested = true

[[kernel]]
name = "experts"
constants = { E = ["bf16", "f16"], BLOCK = [128, 256] }
requested = true

[[model]]
name = "small"
family = "f"
weights = ["16bit", "fp8"]
config = { hidden_size = 128 }

[[model]]
name = "large"
family = "f"
config = { hidden_size = 256 }

[[model]]
name = "mixture"
family = "g"
requested = true
config = { hidden_size = 256 }
"""
STEP = """
formats = {"fp8": scaled(f8e4m3, [128, 128])}
weights = {"w.weight": linear([hidden_size, hidden_size])}


def decode():
    project = norm(E=dtype, BLOCK=hidden_size, w=w)
    copy = copy_a(BLOCK=hidden_size)


def prefill():
    pass
"""
OF_MIXTURES = "def decode():\n    project = experts(E=dtype, BLOCK=hidden_size)\n\n\ndef prefill():\n    pass\n"
PLAIN = {f"copy_{name}-BLOCK={size}" for name in "ab" for size in (128, 256)}
"""Of no dtype of a step: every build of all kernels has them."""
BF16 = {"norm-E=bf16-BLOCK=128", "norm-E=bf16-BLOCK=256"}
F16 = {name.replace("bf16", "f16") for name in BF16}
ALL = PLAIN | {f"{name}-E={e}-BLOCK={size}" for name in ("norm", "norm_fp8", "experts") for e in DTYPES for size in (128, 256)}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of two families, with fake stages."""
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    folder = project.make(tmp_path / "p", arch='"sm_90"')
    for name in ("norm", "norm_fp8", "experts"):
        text = project.KERNEL.format(name=name).replace("BLOCK: Const", "E: Const, BLOCK: Const")
        (folder / "kernels_src" / f"{name}.py").write_text(text)
    (folder / "kernels_src" / "f.step").write_text(STEP)
    (folder / "kernels_src" / "g.step").write_text(OF_MIXTURES)
    path = folder / "build.toml"
    path.write_text(path.read_text() + BUILD)
    monkeypatch.chdir(folder)
    defaults = dict(driver.build_project.__kwdefaults__ or {})
    monkeypatch.setattr(driver.build_project, "__kwdefaults__", defaults | {"runner": fake_stages.run, "preload": ()})
    monkeypatch.setattr(build_command, "toolchain", fake_toolchain)
    return folder


def fake_toolchain(_: Store) -> dict[str, str]:
    return project.TOOLCHAIN


def run(capsys: pytest.CaptureFixture[str], *options: str) -> Any:
    assert commands.run(["build", "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def files(root: Path) -> set[str]:
    return {path.stem for path in (root / "artifacts/build/sm_90a").glob("*.cubin")}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], PLAIN | BF16),
        (["--dtype", "f16"], PLAIN | F16),
        (["--dtype", "bf16", "--dtype", "f16"], PLAIN | BF16 | F16),
        (["--dtype", "f16,bf16"], PLAIN | BF16 | F16),
        (["--dtype", "all"], PLAIN | BF16 | F16),
        (["--weights", "fp8"], PLAIN | BF16 | {"norm_fp8-E=bf16-BLOCK=128"}),
        (["--all"], ALL),
        (["--model", "small"], {"copy_a-BLOCK=128", "norm-E=bf16-BLOCK=128"}),
        (["-m", "small", "-m", "large"], BF16 | {"copy_a-BLOCK=128", "copy_a-BLOCK=256"}),
        (["--model", "small,large", "--dtype", "f16"], F16 | {"copy_a-BLOCK=128", "copy_a-BLOCK=256"}),
        (["--model", "small", "--weights", "fp8"], {"copy_a-BLOCK=128", "norm_fp8-E=bf16-BLOCK=128"}),
        (["--model", "mixture"], {"experts-E=bf16-BLOCK=256"}),
        (["--model", "all"], BF16 | {"copy_a-BLOCK=128", "copy_a-BLOCK=256", "experts-E=bf16-BLOCK=256"}),
        (["norm"], BF16 | F16),
    ],
)
def test_a_build_has_what_its_plan_lists(
    root: Path, capsys: pytest.CaptureFixture[str], options: list[str], expected: set[str]
) -> None:
    plan = run(capsys, "--plan", *options)
    listed = {use["artifact"] for use in plan["uses"]}
    assert (listed | set(plan["unused"])) == expected
    assert not listed & set(plan["unused"])
    built = run(capsys, *options)
    assert [one["name"] for one in built["artifacts"] if one["status"] != "built"] == []
    assert {one["name"] for one in built["artifacts"]} == files(root) == expected


def test_a_build_of_a_model_keeps_what_others_have(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As one of named kernels does; a build of all kernels removes what earlier ones of all kernels wrote."""
    run(capsys, "--dtype", "all")
    run(capsys, "--model", "mixture", "--dtype", "f16")
    assert files(root) == PLAIN | BF16 | F16 | {"experts-E=f16-BLOCK=256"}
    run(capsys)
    assert files(root) == PLAIN | BF16 | {"experts-E=f16-BLOCK=256"}


def test_a_note_names_what_a_build_leaves_out(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    note = "note: 2 specialisations of other dtypes are left out; `--dtype all` builds them too"
    for options, expected in (([], True), ([], False), (["--dtype", "bf16"], False), (["--dtype", "all"], False)):
        assert commands.run(["build", *options]) == 0
        assert (note in capsys.readouterr().err) == expected, options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "smal"], "no model `smal` in `build.toml`; did you mean `small`?"),
        (["--model", "large", "--weights", "fp8"], "`large` of `build.toml` has weights in 16bit, not in fp8; choose with"),
        (["--dtype", "f32"], "no step runs in the dtype `f32`; the dtypes are bf16, f16"),
        (["--dtype", "fp8"], "the dtypes are bf16, f16; `fp8` is a format of weights or caches (`--weights`, `--cache`)"),
        (["--dtype", ","], "`--dtype` names no dtype; write it as `--dtype f16`"),
        (["norm", "--model", "small"], "a kernel that is named is built at every specialisation; leave out `--model`"),
        (["norm", "--dtype", "f16"], "leave out `--dtype`"),
        (["norm", "--all"], "`--all` is everything in the build file; leave it out, or the names of kernels"),
        (["--all", "--model", "small", "--gpus", "2"], "leave it out, or `--model` and `--gpus`"),
        (["--model", "small", "--gpus", "2"], "no model of `build.toml` is shared by `2` GPUs"),
    ],
)
def test_what_cannot_be_selected_is_refused(
    root: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    for plan in ([], ["--plan"]):
        assert commands.run(["build", *options, *plan]) == 2
        out, err = capsys.readouterr()
        assert out == "" and message in " ".join(err.split()), err
    assert not (root / "artifacts").exists()


def test_a_project_without_models_has_every_dtype(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = root / "build.toml"
    path.write_text(path.read_text().partition("[[model]]")[0].replace("requested = true\n", ""))
    assert {one["name"] for one in run(capsys)["artifacts"]} == files(root) == ALL
    for options, message in ((["--dtype", "f16"], "has no `[[model]]`, so all"), (["--model", "small"], "has no `[[model]]`;")):
        assert commands.run(["build", *options]) == 2
        assert message in capsys.readouterr().err


def test_a_dtype_that_is_missing_fails_every_build(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The world is closed in every dtype, whichever of them is built."""
    path = root / "build.toml"
    path.write_text(path.read_text().replace('E = ["bf16", "f16"]', 'E = "bf16"', 1))
    for options in ([], ["--dtype", "bf16"], ["--model", "small"], ["--all"]):
        assert commands.run(["build", *options]) == 2
        assert "error[E0807]: no artifact of `norm` with E = f16" in capsys.readouterr().err


VALUES = st.lists(st.sampled_from(["bf16", "f16", "f32", 1, 2]), min_size=1, max_size=3, unique=True).map(tuple)


@given(
    constants=st.dictionaries(st.sampled_from("EFK"), VALUES, max_size=3),
    dtypes=st.lists(st.sampled_from(DTYPES), min_size=1, unique=True),
)
def test_narrowing_keeps_the_specialisations_of_the_dtypes(constants: dict[str, Any], dtypes: list[str]) -> None:
    entry = KernelEntry("k", constants, {}, (), (SM_90A,), Span("build.toml", 1, 0, 1, 0), {})
    narrowed = [values for one in narrowed_to([entry], dtypes) for values in one.specialisations()]
    kept = [values for values in entry.specialisations() if in_dtypes(values, dtypes)]
    assert sorted(narrowed, key=repr) == sorted(kept, key=repr)
    for values in entry.specialisations():
        named = {value for value in values.values() if value in ("bf16", "f16")}
        assert (values in kept) == (not named or bool(named & set(dtypes)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("model", first(1, [model.name for model in SHIPPED.models]))
def test_a_dtype_has_what_steps_in_it_request(model: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The constants of a specialisation tell its dtype: what they say is what the step in this dtype alone requests."""
    asked = Selection(models=(model,), weights="all", dtypes=(dtype,))
    selected = select(SHIPPED, (SM_90A,), asked)
    weights = next(one.weights for one in SHIPPED.models if one.name == model)
    monkeypatch.setattr(models, "DTYPES", (dtype,))
    own = enumerate_world(SHIPPED, (SM_90A,), (model,), weights)
    assert {(use.op, use.artifact, use.weights) for use in selected.uses} == {
        (use.op, use.artifact, use.weights) for use in own.uses
    }
    assert selected.problems == own.problems == () and selected.left > 0


def test_the_first_command_of_the_readme_builds_half_of_what_both_dtypes_need() -> None:
    """And no kernel of a mixture, of pages, or of a format."""
    both = select(SHIPPED, (SM_90A,), Selection(dtypes=("all",)))
    default = select(SHIPPED, (SM_90A,), Selection())
    counts = [sum(len(entry.specialisations()) for entry in one.entries if entry.among((SM_90A,))) for one in (default, both)]
    assert default.left == counts[1] - counts[0] and counts[0] <= 260 and both.left == 0
    named = [values for entry in default.entries for values in entry.specialisations() if "f16" in values.values()]
    assert named == []
