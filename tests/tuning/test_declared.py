"""`[[tuning]]` of a kernel in the build file: what is accepted, what is refused, and the resulting entries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.bundle import samples
from tests.tuning import tuned_project
from tilec.diagnostics.diagnostic import CompileError
from tilec.project.read.buildfile import read_build_file
from tilec.runtime import open_bundle
from tilec.runtime.trust_location import NO_POLICY
from tilec.ship.bundle.describe import tuning_json, tuning_lines
from tilec.step.reader import read_declaration

CHOICES = tuned_project.TUNING.partition("choices = ")[2].partition("\nshapes")[0]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("cost = {", "cost = 3 # {", "`cost` is neither an expression nor a table of expressions"),
        ("cost = { turn = ", "cost = { other = 3, turn = ", "`cost` is neither an expression nor a table of expressions"),
        ("at_once * BLOCK", "at_once * DEPTH", "`cost` uses `DEPTH`, which choice BLOCK = 64 does not set"),
        ("at_once * BLOCK", "import os", "is no expression"),
        (CHOICES, "3", "`choices` is not a list of tables"),
        (CHOICES, "[]", "`choices` is not a list of tables"),
        (CHOICES, "[{ BLOCK = 64, time = 1.5 }]", "`measured` does not name the source of the choices' numbers"),
        (CHOICES, '[{ BLOCK = "x" }]', "`choices` is not a table of numbers"),
        ("warps = 2", "warps = 2000", "`warps` is not a number from 1 to 1024"),
        ("warps = 2", "early = -1", "`early` is not a number from 0 to 1024"),
        ("{ N = 17000 }", "{ N = 0 }", "`shapes` is not a list of tables of extents"),
        ("{ N = 17000 }", "{}", "`shapes` is not a list of tables of extents"),
        ("[{ N = [1000, 20000, 400000] }, { N = 17000 }]", "3", "`shapes` is not a list of tables of extents"),
        ("shapes =", "keep = 0\nshapes =", "`keep` is not a number from 1 to 100"),
        ("shapes =", 'predicted = "sm_100"\nshapes =', "`predicted` is not a list of architectures"),
        ("shapes =", "predicted = [100]\nshapes =", "`predicted` is not a list of architectures"),
        ("shapes =", 'predicted = ["sm_1"]\nshapes =', "unknown architecture `sm_1`"),
        ("shapes =", 'predicted = ["sm_100", "sm_100a"]\nshapes =', "`predicted` names an architecture twice"),
        ("shapes =", "constants = { E = [1] }\nshapes =", "`constants` is not a table of one value each"),
        ("shapes =", "shape = 1\nshapes =", "unknown key `shape`"),
        ('name = "double"', 'name = "double"\nconstants = { BLOCK = [64, 128, 256] }', "choices of `double` have a `schedule`"),
        ("\n[[tuning]]", tuned_project.TUNING + "\n[[tuning]]", "`double` is tuned twice"),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path: Path, old: str, new: str, problem: str) -> None:
    path = tuned_project.make(tmp_path) / "build.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(CompileError) as caught:
        read_build_file(path)
    assert any(problem in one.message for one in caught.value.diagnostics), caught.value.diagnostics


def test_shapes_are_bounded(tmp_path: Path) -> None:
    path = tuned_project.make(tmp_path) / "build.toml"
    many = ", ".join(map(str, range(1, 40)))
    path.write_text(path.read_text().replace("{ N = 17000 }", f"{{ N = [{many}], M = [{many}] }}"))
    with pytest.raises(CompileError) as caught:
        read_build_file(path)
    assert [one.code for one in caught.value.diagnostics] == ["E0514"]


def test_a_choice_is_one_where_its_schedule_is_for(tmp_path: Path) -> None:
    path = tuned_project.make(tmp_path) / "build.toml"
    text = path.read_text().replace('arch = ["sm_90"]', 'arch = ["sm_90", "sm_100"]')
    path.write_text(
        text.replace("BLOCK = 256, schedule = { warps = 2", 'BLOCK = 256, schedule = { arch = ["sm_90"], warps = 2')
    )
    build = read_build_file(path)
    served = {one.target.name: [c.constants["BLOCK"] for c in one.candidates] for one in build.served}
    assert served["sm_90a"] == [64, 128, 256]
    assert served["sm_100a"] == [64, 128]
    built = {str(entry.constants["BLOCK"][0]): [t.name for t in entry.among(None)] for entry in build.entries}
    assert built == {"64": ["sm_90a", "sm_100a"], "128": ["sm_90a", "sm_100a"], "256": ["sm_90a"]}


def test_a_choice_is_one_where_its_kernel_is_built(tmp_path: Path) -> None:
    path = tuned_project.make(tmp_path) / "build.toml"
    text = path.read_text().replace('arch = ["sm_90"]', 'arch = ["sm_90", "sm_100"]').replace(", schedule = { warps = 2 }", "")
    one = '[[kernel]]\nname = "double"\n'
    small, large = one + "constants = { BLOCK = [64, 128] }\n\n", one + 'constants = { BLOCK = 256 }\narch = ["sm_90"]\n'
    path.write_text(text.replace(one, small + large))
    served = {one.target.name: [c.constants["BLOCK"] for c in one.candidates] for one in read_build_file(path).served}
    assert served["sm_90a"] == [64, 128, 256]
    assert served["sm_100a"] == [64, 128]


STEP = """
buffers = {"x": input(i32, [tokens])}


def decode():
    pass


def prefill():
    scaled = scale(x=x)
"""


def test_a_bundle_lists_which_artifact_serves_which_lengths(tmp_path: Path) -> None:
    choices: list[dict[str, Any]] = [{"N": 1, "turn": 1.0, "start": 0.0}, {"N": 2, "turn": 0.5, "start": 100.0}]
    table = {"kernel": "scale", "cost": "start + turn * x[0]", "measured": "on a GPU", "choices": choices}
    path = tmp_path / "b.bundle"
    description, blobs = samples.parts()
    path.write_bytes(samples.encode(description | {"step": read_declaration(STEP).syntax, "tuning": [table]}, blobs))
    with open_bundle(path, trust=NO_POLICY) as bundle:
        data = tuning_json(bundle)
        lines = tuning_lines(bundle)
    assert [(one["tokens"], one["constants"]) for one in data["serves"]] == [([1, 200], {"N": 1}), ([201, 2048], {"N": 2})]
    assert "  measured: on a GPU" in lines
    assert any(line.startswith("  prefill_scaled") and line.endswith("201 to  2048 tokens  N=2") for line in lines)
