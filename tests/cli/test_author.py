"""From `tilec new` to a kernel that is proven, compared with its reference, and built; and the messages of each failure."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.files import copy_kernels
from tests.shipped import ROOT
from tilec.cli import commands
from tilec.ir.core import Function
from tilec.passes.prover import prove
from tilec.passes.prover.prove import Proofs
from tilec.project.trial.launches import Contract, random_tensors, small_launches
from tilec.project.trial.scaffold import FILES
from tilec.project.trial.trial import Trial, TrialRequest, trials

pytestmark = pytest.mark.usefixtures("kept_workers")


def trial_request(project: Path, **changes: Any) -> TrialRequest:
    path = project / "kernels_src/softmax.py"
    request = TrialRequest(
        path, project, {"E": "bf16", "N": 40}, {"T": 3}, reference=(path.with_name("reference.py"), "softmax")
    )
    return replace(request, **changes)


def tried(trial_request: TrialRequest) -> Trial:
    (found,) = trials(trial_request)
    return found


def test_a_new_project_is_proven_run_tested_and_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    assert commands.run(["new", "softmax"]) == 0
    assert "next: cd softmax && tilec test" in capsys.readouterr().out
    monkeypatch.chdir("softmax")
    assert {str(path.relative_to(Path.cwd())) for path in Path.cwd().rglob("*") if path.is_file()} == {
        name.replace("NAME", "softmax") for name in FILES
    }
    assert commands.run(["check"]) == 0
    assert commands.run(["test", "--launches", "2"]) == 0
    out = capsys.readouterr().out
    assert out.count("right") == 4
    assert "wrong" not in out
    assert commands.run(["build", "--arch", "sm_90", "-c", "N=4096"]) == 2  # an option of other commands
    assert commands.run(["build", "--arch", "sm_90"]) == 0
    assert len(list(Path("artifacts/build/sm_90a").glob("*.cubin"))) == 4
    (launched,) = re.findall(r'load\("(.*)"\)', Path("README.md").read_text())
    assert Path(launched).is_file()


@pytest.mark.parametrize("name", ["max", "two words", "class", "1st", "reference", "baseline", "tilec", "np", "E", "row"])
def test_a_name_that_no_kernel_can_have(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(["new", str(tmp_path / name)]) == 2
    assert "write --name with" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_a_name_and_one_that_links_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert commands.run(["new", ""]) == 2
    assert "the name of the folder is empty" in capsys.readouterr().err
    Path("softmax").symlink_to("softmax")
    assert commands.run(["new", "softmax"]) == 2
    assert "cannot make the project `softmax`" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["softmax"]


@pytest.mark.parametrize("command", ["check", "run", "test", "emulate"])
def test_a_file_that_links_to_itself(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one.py").symlink_to("other.py")
    Path("other.py").symlink_to("one.py")
    assert commands.run([command, "one.py"]) == 2
    assert "E0102" in (message := capsys.readouterr().err)
    assert "Too many levels of symbolic links" in message


def test_a_folder_that_is_there_stays_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "softmax").mkdir()
    (tmp_path / "softmax/mine").touch()
    assert commands.run(["new", str(tmp_path / "softmax")]) == 2
    assert "name a new or an empty folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["softmax"]
    assert [path.name for path in (tmp_path / "softmax").iterdir()] == ["mine"]


def test_an_empty_folder_is_filled_and_stays_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "softmax").mkdir()
    monkeypatch.chdir(tmp_path / "softmax")
    assert commands.run(["new", "."]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [".gitignore", "next: tilec test"]
    assert sorted(path.name for path in Path().iterdir()) == [".gitignore", "README.md", "build.toml", "kernels_src", "tests"]
    assert "def softmax(" in Path("kernels_src/softmax.py").read_text()
    assert commands.run(["new", "."]) == 2


def test_run_reports_what_was_written_and_its_error_against_the_reference(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.run(["run", "softmax", "-c", "E=f16,N=1000", "--dims", "T=3", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["values"], data["blocks"], data["right"], data["compared"]) == ({"T": 3}, 3, True, True)
    (out,) = data["written"]
    assert (out["name"], out["shape"]) == ("out", [3, 1000])
    assert 0 < out["error"] <= 1


def test_a_kernel_that_computes_something_else_is_wrong_at_its_worst_element(project: Path) -> None:
    path = project / "kernels_src/softmax.py"
    path.write_text(path.read_text().replace("- tl.max(v, axis=1)[:, None]", "* 2"))
    found = tried(trial_request(project))
    assert not found.right
    (out,) = found.written
    assert out.error is not None and out.error > 1
    assert abs(out.found - out.expected) > 1.6e-2 * out.expected
    assert tried(trial_request(project, reference=None)).right  # nothing to compare with


def test_all_launches_of_a_specialisation_rest_on_one_proof(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proven: list[str] = []

    def counted(function: Function) -> Proofs:
        proven.append(function.name)
        return prove(function)

    monkeypatch.setattr("tilec.passes.prover.prove", counted)
    found = trials(trial_request(project, dims={}, seed=7, launches=3))
    assert proven == ["softmax"]
    assert all(one.right for one in found)
    assert [one.seed for one in found] == [7, 8, 9]
    assert len({tuple(one.values.items()) for one in found}) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def softmax(y):\n    return y\n", "asks for `y`; there are"),
        ("def softmax(x):\n    return x, x\n", "returns 2 arrays; the kernel writes 1"),
        ("def softmax(x):\n    return x[0]\n", "`out` has shape (3, 40), the reference's (40,)"),
        ("def softmax(x):\n    return x / nothing\n", "fails at line 2: NameError"),
        ("import nothing_there\ndef softmax(x):\n    return x\n", "fails at line 1: ModuleNotFoundError"),
        ("softmax = 3\n", "has no function `softmax`"),
        ("def softmax(x):\n    return [[1], [2, 3]]\n", "`reference.py:softmax` fails: ValueError"),
        ("def softmax(x):\n    return 'much'\n", "`reference.py:softmax` fails: ValueError"),
        ("import sys\ndef softmax(x):\n    sys.exit(0)\n", "fails at line 3: SystemExit"),
    ],
)
def test_a_reference_that_cannot_be_used_is_reported(text: str, message: str, project: Path) -> None:
    (project / "kernels_src/reference.py").write_text(text)
    found = tried(trial_request(project))
    assert message in found.problem
    assert not found.right


@pytest.mark.parametrize("large", ["float('inf')", "1e200"])
def test_a_large_element_excuses_nothing_at_the_others(large: str, project: Path) -> None:
    path = project / "kernels_src/reference.py"
    path.write_text(f"def softmax(x):\n    found = x.astype(float) * 7\n    found[0, 0] = {large}\n    return found\n")
    (out,) = tried(trial_request(project)).written
    assert out.error is not None and out.error > 1
    kernel = project / "kernels_src/softmax.py"
    kernel.write_text(kernel.read_text().replace("weights / tl.sum(weights, axis=1)[:, None]", "v * 7"))
    (again,) = tried(trial_request(project)).written
    assert again.worst == (0, 0) and again.error is not None and again.error > 1  # all others are right


def test_what_a_reference_prints_is_no_part_of_the_json(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = project / "kernels_src/reference.py"
    path.write_text('print("loaded")\n' + path.read_text().replace("    wide = ", '    print("called")\n    wide = ', 1))
    command = ["run", "softmax", "--dims", "T=2", "--project", str(project), "--json"]
    assert commands.run(command) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["values"] == {"T": 2}
    assert "loaded\ncalled\n" in err


def test_a_reference_chooses_its_tolerance(project: Path) -> None:
    path = project / "kernels_src/reference.py"
    path.write_text(path.read_text() + 'TOLERANCES = {"softmax": 1e-9}\n')
    assert not tried(trial_request(project)).right
    assert tried(trial_request(project, tolerance=(1e-2, None))).right


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ("T=1e400", "`T=1e400` is out of range"), ("T=nan", "`T=nan` is not NAME=NUMBER"), ("T", "`T` is not NAME=NUMBER"),
        ("T=18446744073709551616", "is out of range"),
        ("T=9223372036854775808", "no launch has T=9223372036854775808: T is at most"), ("T=3,T=4", "`T` is given twice"),
        ("T=0", "no launch has T=0: T is at least 1"), ("T=3000000000", "no launch has T=3000000000: T is at most"),
        ("T=1.5", "`T` is an integer, found 1.5"), ("R=1", "no launch value `R`; they are T"),
    ],
)  # fmt: skip
def test_dims_that_no_launch_has(dims: str, message: str, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(["run", "softmax", "--dims", dims]) == 2
    assert message in capsys.readouterr().err


def test_a_kernel_without_launch_values_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fixed.py").write_text(
        "import tilec\nfrom tilec import In, Out, bf16, grid, load, store\n\n\n@tilec.kernel\n"
        "def fixed(x: In[bf16, 64], out: Out[bf16, 64]):\n    grid(1)\n    store(out, 0, load(x, 0, shape=64))\n"
    )
    assert commands.run(["run", "fixed.py"]) == 0
    out = capsys.readouterr().out
    assert "1 blocks" in out and "out bf16[64]" in out


def test_a_launch_has_one_value_of_each_constant(tmp_path: Path, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernel = str(project / "kernels_src/softmax.py")
    for command in (["run", kernel], ["run", "softmax"], ["emulate", kernel]):
        assert commands.run([*command, "-c", "E=bf16,N=64", "-c", "N=65"]) == 2
        assert "`N` has several values: 64 and 65; give one" in capsys.readouterr().err


def test_nothing_to_test_names_what_to_write(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "kernels_src/reference.py").unlink()
    assert commands.run(["test"]) == 2
    assert "write `def softmax(...)` in `kernels_src/reference.py`" in capsys.readouterr().err


def test_integers_are_compared_exactly_and_json_is_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("large.py").write_text(
        "import tilec\nfrom tilec import Out, f32, full, grid, i64, inf, store\n\n\n@tilec.kernel\n"
        "def large(out: Out[i64, 4], wide: Out[f32, 4]):\n    grid(1)\n"
        "    store(out, 0, full(4, 9007199254740993, i64))\n    store(wide, 0, full(4, inf, f32))\n"
    )
    text = "import numpy as np\ndef large():\n    return np.full(4, {}, np.int64), np.full(4, {})\n"
    for integer, wide, right in ((2**53, "np.inf", False), (2**53 + 1, "np.inf", True), (2**53 + 1, "1.0", False)):
        Path("reference.py").write_text(text.format(integer, wide))
        assert commands.run(["run", "large.py", "--json"]) == int(not right)
        data = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
        assert data["right"] == right
    assert (data["written"][1]["error"], data["written"][1]["found"]) == ("inf", "inf")
    Path("reference.py").write_text(text.format(2**53 + 1, "1j"))
    assert commands.run(["run", "large.py"]) == 1
    assert "the reference of `wide` is complex" in capsys.readouterr().out


@pytest.mark.parametrize(
    "command", [["check"], ["build"], ["run", "softmax", "--seed", "-1"], ["emulate", "softmax", "--schedule-seed", "-1"]]
)
def test_an_empty_list_of_architectures_and_a_negative_seed_are_usage(
    command: list[str], project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.run([*command, *(["--arch", ","] if len(command) == 1 else [])]) == 2
    assert ("names no architecture" if len(command) == 1 else "Invalid value for") in capsys.readouterr().err


def test_a_file_is_checked_without_a_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    copy_kernels(tmp_path, "add")
    assert commands.run(["check", "add.py", "-c", "E=bf16", "-c", "E=f16", "-c", "BLOCK=64", "--arch", "sm_90", "--json"]) == 0
    kernels = json.loads(capsys.readouterr().out)["kernels"]
    assert [(one["status"], one["constants"]) for one in kernels] == [
        ("proven", {"E": "bf16", "BLOCK": 64}), ("proven", {"E": "f16", "BLOCK": 64}),
    ]  # fmt: skip
    assert commands.run(["check", "add.py"]) == 2
    assert "no value for `E`, `BLOCK` of kernel `add`\n\nhint: give them: -c E=bf16 -c BLOCK=1024" in capsys.readouterr().err
    assert commands.run(["check", "add.py", "-c", "BLOK=64"]) == 2
    assert "did you mean `BLOCK`?" in capsys.readouterr().err
    assert commands.run(["check", "add.py", "-c", f"E=bf16,BLOCK={1 << 70}"]) == 2
    assert "error[E0514]: `BLOCK` is out of range" in capsys.readouterr().err
    assert commands.run(["check", "add.py", "softmax"]) == 2
    assert "give it alone" in capsys.readouterr().err
    Path("add.py").rename("sum2.py")
    assert commands.run(["check", "sum2.py", "-c", "E=bf16,BLOCK=64"]) == 2
    assert "error[E0803]: `sum2.py` holds the kernel `add`\n\nhint: name the file `add.py`" in capsys.readouterr().err


def test_specialisations_are_chosen_over_all_entries_of_a_kernel(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert commands.run(["dump", "matmul", "-c", "BM=128", "-c", "E=f16"]) == 0
    assert "BM = 128" in capsys.readouterr().out
    assert commands.run(["dump", "matmul", "-c", "BM=127"]) == 2
    assert "no specialisation of `matmul` with BM=127" in capsys.readouterr().err


def test_values_of_a_launch_differ_by_number_and_hold_what_must_be_distinct() -> None:
    from tests import shipped

    function = shipped.load("kv_update")
    contract = Contract.of_function(function, prove(function))
    found = small_launches(contract, {})[:5]
    assert len({tuple(one.items()) for one in found}) == 5
    for one in found:
        slots = random_tensors(contract, one, 0)["slots"]
        assert len(set(slots.tolist())) == one["T"] <= one["S"]
