"""The closed world: what models ask for is found, or reported as missing at the place that asks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.build import project
from tilec.build.buildfile import BuildFile, read_build_file
from tilec.build.closed_world import enumerate_world
from tilec.build.models import expression
from tilec.cli import commands
from tilec.diagnostics import CompileError
from tilec.target import TARGETS

ROOT = Path(__file__).resolve().parents[2]
MODELS = """
[[model]]
name = "small"
config = { hidden_size = 128, heads = 2 }

[[model]]
name = "large"
config = { hidden_size = 256, heads = 1 }

[[step]]
op = "norm"
kernel = "copy_a"
constants = { BLOCK = "hidden_size" }

[[step]]
op = "project"
kernel = "copy_b"
constants = { BLOCK = ["heads * hidden_size // heads", 256] }
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("TILEC_CACHE_DIR", raising=False)
    made = project.make(tmp_path / "p")
    monkeypatch.chdir(made)
    return made


def with_models(root: Path, old: str = "", new: str = "") -> BuildFile:
    path = root / "build.toml"
    path.write_text(path.read_text() + MODELS.replace(old, new, 1))
    return read_build_file(path)


def refused(root: Path, old: str, new: str) -> list[str]:
    """Codes and messages of the problems that replacing `old` by `new` makes."""
    try:
        return [f"{item.code} {item.message}" for item in enumerate_world(with_models(root, old, new)).problems]
    except CompileError as error:
        return [f"{item.code} {item.message}" for item in error.diagnostics]


def test_every_artifact_that_a_model_asks_for(root: Path) -> None:
    world = enumerate_world(with_models(root))
    assert not world.problems
    found = {(use.model, use.op, use.artifact, use.target.name) for use in world.uses}
    wanted = {
        ("small", "norm", "copy_a-BLOCK=128"),
        ("small", "project", "copy_b-BLOCK=128"),
        ("small", "project", "copy_b-BLOCK=256"),
        ("large", "norm", "copy_a-BLOCK=256"),
        ("large", "project", "copy_b-BLOCK=256"),
    }
    assert found == {(*one, target.name) for one in wanted for target in TARGETS[:2]}
    assert set(world.artifacts("large", TARGETS[0])) == {"copy_a-BLOCK=256", "copy_b-BLOCK=256"}


def test_constants_that_the_step_leaves_open_are_tuning(root: Path) -> None:
    world = enumerate_world(with_models(root, 'constants = { BLOCK = "hidden_size" }\n', ""))
    assert {use.artifact for use in world.uses if use.op == "norm"} == {"copy_a-BLOCK=128", "copy_a-BLOCK=256"}


def test_missing_artifact_fails_the_build(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_models(root, "hidden_size = 256", "hidden_size = 512")
    assert commands.run(["build"]) == 2
    err = capsys.readouterr().err
    assert "error[E0807]: no artifact of `copy_a` with BLOCK = 512 for sm_90a, sm_100a" in err
    assert 'kernel = "copy_a"' in err
    assert "asked for by `norm` of `large`" in err
    assert "hint: add BLOCK = 512 to an entry of `copy_a`" in err
    assert not (root / "artifacts/build").exists()
    assert commands.run(["build", "--plan"]) == 2
    out, err = capsys.readouterr()
    assert "error[E0807]" in err
    assert "small  norm" in out


def test_entry_for_fewer_architectures_is_missing_there(root: Path) -> None:
    path = root / "build.toml"
    path.write_text(path.read_text().replace('name = "copy_b"\n', 'name = "copy_b"\narch = ["sm_90"]\n'))
    problems = enumerate_world(with_models(root)).problems
    assert [item.message for item in problems] == [
        "no artifact of `copy_b` with BLOCK = 128 for sm_100a",
        "no artifact of `copy_b` with BLOCK = 256 for sm_100a",
    ]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("hidden_size = 128", "hidden = 128", "E0808 operation `norm` of `small`: the model has no number `hidden_size`"),
        ("heads = 2", "heads = 0", "E0808 operation `project` of `small`: the model divides by zero"),
        ('"hidden_size"', '"hidden_size.bit_length()"', "E0802 `BLOCK` is neither a dtype nor an expression"),
        ('"hidden_size"', "[{}]", "E0802 `BLOCK` is not a number, bool, dtype or expression"),
        ("BLOCK = \"", "BLOK = \"", "E0807 no artifact of `copy_a` with BLOK = 128"),
        ('"hidden_size"', "true", "E0807 no artifact of `copy_a` with BLOCK = True"),
        ('"copy_a"', '"copy_z"', "E0807 no artifact of `copy_z`"),
        ('op = "project"', 'op = "norm"', "E0806 operation `norm` is named twice"),
        ('op = "norm"', 'op = "../norm"', "E0802 `op` is not a name"),
        ('name = "large"', 'name = "small"', "E0806 model `small` is named twice"),
        ('name = "large"', 'name = "../large"', "E0802 `name` is not a name for a model"),
        ('name = "large"', 'name = "large"\nfamily = "f"', "E0808 no operation is in the step of `large`"),
        ('name = "large"', 'name = "large"\npath = "f"', "E0802 unknown key `path`"),
        ("config = { hidden_size = 256, heads = 1 }", "config = 3", "E0802 `config` of `large` is not a table"),
        ("hidden_size = 256, heads = 1", "hidden_size = [256], heads = 1", "E0802 `hidden_size` is not a number"),
        ("[[step]]", "[step]", "E0801 not valid TOML"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(root: Path, old: str, new: str, problem: str) -> None:
    found = refused(root, old, new)
    assert any(line.startswith(problem) for line in found), found


def test_expression_is_arithmetic_only() -> None:
    assert expression("(a + 3) // 2 * b % 7 - 1").evaluate({"a": 9, "b": 5}) == (9 + 3) // 2 * 5 % 7 - 1
    for text in ("", "a(", "f(1)", "a.b", "a ** 9", "1.5", "a if b else c", "'x'", "-a", "[1]", "a" * 300):
        with pytest.raises(ValueError):
            expression(text)


def test_shipped_models_find_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(["build", "--project", str(ROOT), "--plan", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    build = read_build_file(ROOT / "build.toml")
    assert {use["model"] for use in data["uses"]} == {f"qwen3-{size}b" for size in ("0.6", "1.7", "4", "8", "14", "32")}
    assert {use["arch"] for use in data["uses"]} == {target.name for target in build.targets}
    by_model = {model: {use["op"] for use in data["uses"] if use["model"] == model} for model in ("qwen3-0.6b", "qwen3-32b")}
    assert by_model["qwen3-0.6b"] == by_model["qwen3-32b"] == {step.op for step in build.steps}
    down = next(use for use in data["uses"] if (use["model"], use["op"]) == ("qwen3-14b", "decode_down_proj"))
    assert down["requested"]["K"] == 17408
    assert not {use["artifact"] for use in data["uses"]} & set(data["unused"])


def test_every_code_has_its_page() -> None:
    package = Path(commands.__file__).parents[1]
    raised = {code for path in package.rglob("*.py") for code in re.findall(r'"(E0[78]\d\d)"', path.read_text())}
    assert {"E0703", "E0705", "E0708", "E0807"} <= raised
    assert raised <= {path.stem for path in (package / "explain").glob("*.md")}
