"""Formats of linear weights in build.toml: which kernels a build makes for each, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.campaign import first
from tests.project import project
from tests.shipped import ROOT
from tilec.cli import commands
from tilec.diagnostics.diagnostic import CompileError
from tilec.project.read.buildfile import read_build_file
from tilec.project.read.closed_world import default_entries, enumerate_world
from tilec.project.read.plan import artifact_name
from tilec.step.formats import SIXTEEN_BIT
from tilec.step.step import DTYPES
from tilec.target.targets import MAIN_TARGETS

BUILD = """
[[kernel]]
name = "copy_b_fp8"
constants = { BLOCK = [128, 256] }
requested = true

[[kernel]]
name = "dequantise_fp8"
constants = { E = ["bf16", "f16"], BLOCK = 64 }
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
"""
STEP = """
formats = {"fp8": scaled(f8e4m3, [128, 128])}
weights = {"w.weight": linear([hidden_size, hidden_size])}


def decode():
    norm = copy_a(BLOCK=hidden_size)
    project = copy_b(BLOCK=hidden_size, w=w)


def prefill():
    project = copy_b(BLOCK=256, w=dequantised(w))
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    folder = project.make(tmp_path / "p")
    monkeypatch.chdir(folder)
    source = (folder / "kernels_src" / "copy_b.py").read_text()
    for name in ("copy_b_fp8", "dequantise_fp8"):
        text = source.replace("def copy_b(", f"def {name}(")
        with_dtype = text.replace("BLOCK: tl.Const", "E: tl.Const,\n    BLOCK: tl.Const", 1)
        (folder / "kernels_src" / f"{name}.py").write_text(with_dtype if name == "dequantise_fp8" else text)
    (folder / "kernels_src" / "f.step").write_text(STEP)
    path = folder / "build.toml"
    path.write_text(path.read_text() + BUILD)
    return folder


def changed(root: Path, old: str, new: str) -> list[str]:
    """Codes and messages after a change of the build file."""
    path = root / "build.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    try:
        world = enumerate_world(read_build_file(path), weights=(SIXTEEN_BIT, "fp8"))
    except CompileError as error:
        return [f"{item.code} {item.message}" for item in error.diagnostics]
    return [f"{item.code} {item.message}" for item in world.problems]


def test_each_format_has_its_world(root: Path) -> None:
    build = read_build_file(root / "build.toml")
    sixteen, fp8 = (enumerate_world(build, weights=(each,)) for each in (SIXTEEN_BIT, "fp8"))
    assert not sixteen.problems and not fp8.problems
    target = MAIN_TARGETS[0]
    assert set(sixteen.artifacts("small", target)) == {"copy_a-BLOCK=128", "copy_b-BLOCK=128", "copy_b-BLOCK=256"}
    expected = {"copy_a-BLOCK=128", "copy_b_fp8-BLOCK=128", "copy_b-BLOCK=256", "dequantise_fp8-E=bf16-BLOCK=64"}
    assert set(fp8.artifacts("small", target, "fp8")) == {*expected, "dequantise_fp8-E=f16-BLOCK=64"}
    assert not fp8.artifacts("large", target, "fp8") and not fp8.artifacts("small", target)
    both = enumerate_world(build, weights=(SIXTEEN_BIT, "fp8"))
    assert len(both.uses) == len(sixteen.uses) + len(fp8.uses)


def test_a_build_has_the_kernels_of_a_format_if_it_is_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build = read_build_file(root / "build.toml")
    names = {each: {entry.name for entry in default_entries(build, enumerate_world(build, weights=(each,)))}
             for each in (SIXTEEN_BIT, "fp8")}  # fmt: skip
    assert names["fp8"] - names[SIXTEEN_BIT] == {"copy_b_fp8", "dequantise_fp8"} and names["fp8"] > names[SIXTEEN_BIT]
    for options, expected in (
        ([], {SIXTEEN_BIT}),
        (["--weights", "fp8"], {"fp8"}),
        (["--weights", "all"], {SIXTEEN_BIT, "fp8"}),
    ):
        assert commands.run(["build", "--plan", "--json", *options]) == 0
        data = json.loads(capsys.readouterr().out)
        assert {use["weights"] for use in data["uses"]} == expected
        assert any("copy_b_fp8" in use["artifact"] for use in data["uses"]) == ("fp8" in expected)
    for options, message in (
        (["--weights", "int4"], "no model of `build.toml` has weights in `int4`; those of its models are 16bit, fp8"),
        (["--weights", ","], "`--weights` names no format"),
        (["copy_a", "--weights", "fp8"], "leave out `--weights`"),
    ):
        assert commands.run(["build", *options]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('weights = ["16bit", "fp8"]', 'weights = "fp8"', "E0802 `weights` of `small` is not a list of formats"),
        ('weights = ["16bit", "fp8"]', "weights = []", "E0802 `weights` of `small` is not a list of formats"),
        ('weights = ["16bit", "fp8"]', 'weights = ["fp8", "fp8"]', "E0802 `weights` of `small` is not a list of formats"),
        ('weights = ["16bit", "fp8"]', "weights = [8]", "E0802 `weights` of `small` is not a list of formats"),
        ('weights = ["16bit", "fp8"]', 'weights = ["fp6"]', "E0802 the step of `small` has no weights in `fp6`"),
        ("hidden_size = 128", 'weight_format = "fp8", hidden_size = 128', "E0802 `weight_format` is no number of a model"),
        ("hidden_size = 128", "hidden_size = 192", "E0808 the step of `small`: `w.weight` is [192, 192]"),
        ('name = "large"', 'name = "small-fp8"', "E0806 `small-fp8` cannot be the name of a bundle"),
        ('name = "small"', 'name = "' + "s" * 62 + '"', "E0806 `" + "s" * 62 + "-fp8` cannot be the name of a bundle"),
        ("BLOCK = [128, 256] }\nrequested", "BLOCK = 256 }\nrequested", "E0807 no artifact of `copy_b_fp8` with BLOCK = 128"),
    ],
)  # fmt: skip
def test_errors_of_a_models_formats_are_reported(root: Path, old: str, new: str, expected: str) -> None:
    found = changed(root, old, new)
    assert any(line.startswith(expected) for line in found), found


SHIPPED = read_build_file(ROOT / "build.toml")


OF_NO_MODEL = re.compile(r"(route_experts-.*\bNORMALIZE=False\b|paged_flash_attention-|.*\bRANKS=[48]\b)")
"""Kernels that no model asks for: shares of experts that are not normalised; of pages, attention of prompts that reads them
itself; and those in which more than two GPUs meet."""


def test_every_shipped_model_finds_its_kernels_for_every_format() -> None:
    requested = {use.artifact for use in enumerate_world(SHIPPED, caches=(SIXTEEN_BIT, "fp8")).uses}
    mixtures = [model.name for model in SHIPPED.models if model.requested]
    requested |= {use.artifact for use in enumerate_world(SHIPPED, models=mixtures).uses}
    requested |= {use.artifact for use in enumerate_world(SHIPPED, caches=(SIXTEEN_BIT, "fp8"), gpus=(2,)).uses}
    for weight_format in ("fp8", "w8a8", "int4", "fp8_head", "int4_head"):
        world = enumerate_world(SHIPPED, weights=(weight_format,))
        assert not world.problems
        assert {use.model for use in world.uses} == {model.name for model in SHIPPED.models if weight_format in model.weights}
        requested |= {use.artifact for use in world.uses}
        shared = enumerate_world(SHIPPED, models=mixtures, weights=(weight_format,), gpus=(2,))
        requested |= {use.artifact for use in shared.uses}
    # Whatever is built for a format only is requested by a model, so that no bundle has what nothing launches. No step has
    # scales of another dtype than the model.
    listed = [
        artifact_name(entry.name, values)
        for entry in SHIPPED.entries
        if entry.requested
        for values in entry.specialisations()
        if values.get("F", values.get("E")) == values.get("E")
    ]
    assert [name for name in listed if name not in requested and not OF_NO_MODEL.match(name)] == []


@pytest.mark.parametrize("model", first(1, [model.name for model in SHIPPED.models]))
def test_the_world_of_every_bundle_of_a_model_is_closed(model: str) -> None:
    """Each format of weights with each of caches, on each number of GPUs, on every architecture, in both dtypes."""
    (own,) = (each for each in SHIPPED.models if each.name == model)
    world = enumerate_world(SHIPPED, None, (model,), own.weights, own.caches, own.gpus)
    assert world.problems == ()
    met = {(use.weights, use.cache, use.gpus, use.target, dtype) for use in world.uses for dtype in dtypes_of(use.constants)}
    forms = {bundle[1:] for bundle in own.bundles()}
    assert met == {(*form, target, dtype) for form in forms for target in SHIPPED.targets for dtype in DTYPES}


def dtypes_of(constants: Mapping[str, object]) -> set[object]:
    return {value for value in constants.values() if value in DTYPES}


def test_no_model_of_16_bits_has_kernels_of_a_format(capsys: pytest.CaptureFixture[str]) -> None:
    of_16 = {use.kernel for use in enumerate_world(SHIPPED).uses}
    assert not {kernel for kernel in of_16 if kernel.endswith(("_fp8", "_int4"))}
    assert commands.run(["build", "--project", str(ROOT), "--plan", "--json"]) == 0
    assert not any("fp8" in name or "int4" in name for name in json.loads(capsys.readouterr().out)["unused"])
