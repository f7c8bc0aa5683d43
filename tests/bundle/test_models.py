"""The closed world: every kernel that a model requests is found, or reported as missing at the request's location."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.project import project
from tilec.cli import commands
from tilec.diagnostics.diagnostic import CompileError
from tilec.project.read.buildfile import BuildFile, read_build_file
from tilec.project.read.closed_world import enumerate_world
from tilec.step.expressions import StepError, parse
from tilec.target.targets import MAIN_TARGETS

ROOT = Path(__file__).resolve().parents[2]
MODELS = """
[[model]]
name = "small"
family = "f"
config = { hidden_size = 128, heads = 2 }

[[model]]
name = "large"
family = "f"
config = { hidden_size = 256, heads = 1 }
"""
STEP = """
width = heads * hidden_size // heads


def decode():
    norm = copy_a(BLOCK=hidden_size)


def prefill():
    if head == "logits":
        project = copy_b(BLOCK=width)
    project = copy_b(BLOCK=256 if tokens > 7 else hidden_size)
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    folder = project.make(tmp_path / "p")
    monkeypatch.chdir(folder)
    return folder


def with_models(root: Path, old: str = "", new: str = "") -> BuildFile:
    """The build file of the project with models and a step, in which `old` is replaced by `new`."""
    path = root / "build.toml"
    path.write_text(path.read_text() + (MODELS.replace(old, new, 1) if old in MODELS else MODELS))
    (root / "kernels_src" / "f.step").write_text(STEP.replace(old, new, 1) if old not in MODELS or not old else STEP)
    return read_build_file(path)


def refused(root: Path, old: str, new: str) -> list[str]:
    """Codes and messages of the errors that replacing `old` by `new` causes."""
    try:
        return [f"{item.code} {item.message}" for item in enumerate_world(with_models(root, old, new)).problems]
    except CompileError as error:
        return [f"{item.code} {item.message}" for item in error.diagnostics]


def test_every_artifact_that_a_model_asks_for(root: Path) -> None:
    world = enumerate_world(with_models(root))
    assert not world.problems
    found = {(use.model, use.op, use.artifact, use.target.name) for use in world.uses}
    wanted = {
        ("small", "decode_norm", "copy_a-BLOCK=128"),
        ("small", "prefill_project", "copy_b-BLOCK=128"),
        ("small", "prefill_project", "copy_b-BLOCK=256"),
        ("large", "decode_norm", "copy_a-BLOCK=256"),
        ("large", "prefill_project", "copy_b-BLOCK=256"),
    }
    assert found == {(*one, target.name) for one in wanted for target in MAIN_TARGETS[:2]}
    assert set(world.artifacts("large", MAIN_TARGETS[0])) == {"copy_a-BLOCK=256", "copy_b-BLOCK=256"}


def test_constants_that_the_step_leaves_open_must_be_the_only_ones(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_models(root, "BLOCK=hidden_size)", ")")
    assert commands.run(["build"]) == 2
    err = capsys.readouterr().err
    assert "error[E0810]: several artifacts of `copy_a`: `copy_a-BLOCK=128` and `copy_a-BLOCK=256`" in err
    assert "f.step:6" in err
    assert "asked for by `decode_norm` of `small`, `large`" in err


TUNING = """
[[tuning]]
family = "f"
kernel = "copy_a"
cost = "cdiv(x[0], BLOCK) * time"
choices = [{ BLOCK = 128, time = 1.0 }, { BLOCK = 256, time = 1.5 }]
measured = "nowhere"
"""
TUNED = """
buffers = {"x": input(i32, [tokens])}


def decode():
    pass


def prefill():
    copied = copy_a(x=x)
"""


def test_tuning_chooses_by_the_extents(root: Path) -> None:
    """One block of 128 is cheapest up to 128 tokens, one of 256 up to 256; exactly these two are needed."""
    for longest, wanted in (("", {"copy_a-BLOCK=128", "copy_a-BLOCK=256"}), ("min(tokens, 128)", {"copy_a-BLOCK=128"})):
        path = root / "build.toml"
        before = path.read_text()
        path.write_text(before + MODELS + TUNING)
        (root / "kernels_src" / "f.step").write_text(TUNED.replace("[tokens]", f"[{longest}]") if longest else TUNED)
        world = enumerate_world(read_build_file(path))
        assert not world.problems
        assert {use.artifact for use in world.uses} == wanted
        path.write_text(before)


def test_missing_artifact_fails_the_build(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_models(root, "hidden_size = 256", "hidden_size = 512")
    assert commands.run(["build"]) == 2
    err = capsys.readouterr().err
    assert "error[E0807]: no artifact of `copy_a` with BLOCK = 512 for sm_90a, sm_100a" in err
    assert "norm = copy_a(BLOCK=hidden_size)" in err
    assert "asked for by `decode_norm` of `large`" in err
    assert "hint: add BLOCK = 512 to an entry of `copy_a`" in err
    assert not (root / "artifacts/build").exists()
    assert commands.run(["build", "--plan"]) == 2
    out, err = capsys.readouterr()
    assert "error[E0807]" in err
    assert "small  decode_norm" in out


def test_entry_for_fewer_architectures_is_missing_there(root: Path) -> None:
    path = root / "build.toml"
    path.write_text(path.read_text().replace('name = "copy_b"\n', 'name = "copy_b"\narch = ["sm_90"]\n'))
    problems = enumerate_world(with_models(root)).problems
    assert [item.message for item in problems] == [
        "no artifact of `copy_b` with BLOCK = 128 for sm_100a",
        "no artifact of `copy_b` with BLOCK = 256 for sm_100a",
    ]


def test_an_entry_of_its_own_architectures_is_for_no_other_whatever_is_asked_for(root: Path) -> None:
    path = root / "build.toml"
    path.write_text(path.read_text().replace('name = "copy_b"\n', 'name = "copy_b"\narch = ["sm_90"]\n'))
    build = with_models(root)
    kernels_by_target = {target.name: {use.kernel for use in enumerate_world(build, (target,)).uses} for target in MAIN_TARGETS}
    assert kernels_by_target == {"sm_90a": {"copy_a", "copy_b"}, "sm_100a": {"copy_a"}, "sm_120a": {"copy_a"}}
    entries = {entry.name: entry for entry in build.entries}
    assert entries["copy_b"].among(MAIN_TARGETS) == MAIN_TARGETS[:1] and entries["copy_a"].among(MAIN_TARGETS) == MAIN_TARGETS


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("hidden_size = 128", "hidden = 128", "E0808 the step of `small`: there is no number `hidden_size`"),
        ("heads = 2", "heads = 0", "E0808 the step of `small`: divides by zero in `heads * hidden_size // heads`"),
        ("heads = 2", 'heads = "x"', "E0808 the step of `small`: `heads * hidden_size // heads` has no value"),
        ("BLOCK=hidden_size", "BLOCK=hidden_size.bit_length()", "E0808 `hidden_size.bit_length()` is no expression"),
        ("BLOCK=hidden_size", "BLOCK={}", "E0808 `{}` is no expression"),
        ("BLOCK=hidden_size", "BLOCK=1 if first_layer else 2", "E0808 only a condition may ask for the first or last layer"),
        ("BLOCK=hidden_size", "BLOCK=1 if filled else 2", "E0808 only a condition may ask for the first or last"),
        ("BLOCK=hidden_size", "BLOCK=past", "E0808 only a scalar may depend on how many tokens came before"),
        ("BLOCK=hidden_size", "BLOK=hidden_size", "E0807 no artifact of `copy_a` with BLOK = 128"),
        ("BLOCK=hidden_size", "BLOCK=True", "E0807 no artifact of `copy_a` with BLOCK = True"),
        ("BLOCK=hidden_size", "x=a.b", "E0808 there is no buffer or weight `a.b`"),
        ("BLOCK=hidden_size", "hidden_size", "E0808 not a launch"),
        ("copy_a", "copy_z", "E0807 no artifact of `copy_z`"),
        ('if head == "logits"', "if first_layer", "E0808 only a layer is the first or the last"),
        ('if head == "logits"', "if tokens > 3", "E0808 a condition may depend on how many tokens there are only by"),
        ("norm = copy_a(BLOCK=hidden_size)", "import os", "E0808 not a launch"),
        ("norm = copy_a(BLOCK=hidden_size)", "norm = copy_a(", "E0808 not the syntax of a step: '(' was never closed"),
        (
            "def prefill()",
            "def fill()",
            "E0808 not a number, `weights`, `buffers`, `tied`, `variants`, `formats`, `caches`, `shards`, `sums`, "
            "`def decode()`",
        ),
        ("width = ", "heads = width = ", "E0808 not a number"),
        (
            "width = ",
            'buffers = {"x": input(i32, [tokens, 2], low=0, high=4, distinct_in_rows=True)}\nwidth = ',
            "E0808 `x` has rows that no kernel writes: `distinct_in_rows` is for an activation or an output of two axes",
        ),
        (
            "width = ",
            'buffers = {"x": activation(i32, [tokens], low=0, high=4, distinct_in_rows=True)}\nwidth = ',
            "E0808 `x` has rows that no kernel writes",
        ),
        ("width = heads", "width = 1 << 9 ** heads", "E0808 `1 << 9 ** heads * hidden_size // heads` is no expression"),
        ("width = heads", "width = " + "not " * 9000, "E0808 "),
        ('name = "large"', 'name = "small"', "E0806 model `small` is named twice"),
        ('name = "large"', 'name = "../large"', "E0802 `name` is not a name for a model"),
        ('family = "f"', 'family = "g"', "E0808 `g.step`, the step of `small`, cannot be read: No such file"),
        ('family = "f"\n', "", "E0802 `family` is not the name of a family's step"),
        ('name = "large"', 'name = "large"\npath = "f"', "E0802 unknown key `path`"),
        ("config = { hidden_size = 256, heads = 1 }", "config = 3", "E0802 `config` of `large` is not a table"),
        ("hidden_size = 256, heads = 1", "hidden_size = [256], heads = 1", "E0802 `hidden_size` is not a number"),
        ("[[model]]", "[model]", "E0801 not valid TOML"),
        ("[[model]]", "[[step]]\n[[model]]", "E0802 unknown table `step`"),
        ("[[model]]", "[[tuning]]\nnumbers = 3\nfamily = 'f'\n[[model]]", "E0802 `measured` does not say"),
        ("[[model]]", "[[tuning]]\nnumbers = 3\nfamily = 'f'\nmeasured = 'x'\n[[model]]", "E0802 `numbers` is not a table"),
        ("[[model]]", "[[tuning]]\nkernel = 'k'\nfamily = 'f'\nmeasured = 'x'\n[[model]]", "E0802 `cost` is neither"),
    ],
)  # fmt: skip
def test_errors_of_a_model_are_reported(root: Path, old: str, new: str, problem: str) -> None:
    found = refused(root, old, new)
    assert any(line.startswith(problem) for line in found), found


def test_expression_is_arithmetic_only() -> None:
    assert parse("(a + 3) // 2 * b % 7 - 1").value({"a": 9, "b": 5}) == (9 + 3) // 2 * 5 % 7 - 1
    assert parse("cdiv(x[0], 4) if a > 1 and not b else 2").value({"x[0]": 9, "a": 2, "b": False}) == 3
    for text in (
        "",
        "a(",
        "f(1)",
        "a.b",
        "a ** 9",
        "-a",
        "[1]",
        "a" * 600,
        "cdiv(1)",
        "lambda: 1",
        "a[b]",
        "9" * 30,
        "a < b < c",
    ):
        with pytest.raises(StepError):
            parse(text)
    with pytest.raises(StepError, match="has no value"):
        parse("a * a").value({"a": 1 << 61})


def test_shipped_models_find_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(["build", "--project", str(ROOT), "--plan", "--json", "--dtype", "all"]) == 0
    data = json.loads(capsys.readouterr().out)
    build = read_build_file(ROOT / "build.toml")
    qwen3 = {f"qwen3-{size}b" for size in ("0.6", "1.7", "4", "8", "14", "32")}
    assert {use["model"] for use in data["uses"]} == qwen3 | {"llama3.1-8b", "qwen3-30b-a3b", "qwen3-235b-a22b"}
    assert {use["arch"] for use in data["uses"]} == {target.name for target in build.targets}
    by_model = {model: {use["op"] for use in data["uses"] if use["model"] == model} for model in ("qwen3-0.6b", "qwen3-32b")}
    assert by_model["qwen3-0.6b"] == by_model["qwen3-32b"] > {"decode_attention", "prefill_attention", "decode_sample"}
    down = next(use for use in data["uses"] if (use["model"], use["op"]) == ("qwen3-14b", "decode_down_proj"))
    assert down["requested"]["K"] == 17408
    assert not {use["artifact"] for use in data["uses"]} & set(data["unused"])
    batches = {name for name in data["unused"] if "-B=" in name}
    others = {name.partition("-GROUP")[0] for name in set(data["unused"]) - batches}
    tile = "BM=128-BN=128-BK=64"  # no table of a tuning takes it
    assert others == {
        f"{name}-E={e}-{rest}" for e in ("bf16", "f16") for name, rest in (("add", "BLOCK=2048"), ("matmul", tile))
    }
    assert {name.partition("-")[0] for name in batches if "-B=1-" in name} == {"matvec_add"}


def test_every_code_has_its_page() -> None:
    package = Path(commands.__file__).parents[1]
    raised = {code for path in package.rglob("*.py") for code in re.findall(r'"(E0[78]\d\d)"', path.read_text())}
    assert {"E0703", "E0705", "E0708", "E0807"} <= raised
    assert raised <= {path.stem for path in (package / "diagnostics" / "explain").glob("*.md")}
