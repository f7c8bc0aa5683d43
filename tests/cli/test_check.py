"""`tilec check`, `dump` and `graph` on real kernels: proofs, refusals, and results cached in the store."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.project.test_real_products import BUILD, KERNEL
from tilec.cli import check_command, commands
from tilec.diagnostics.diagnostic import Diagnostic
from tilec.project.build.worker import Outcome
from tilec.target.targets import MAIN_TARGETS

pytestmark = pytest.mark.usefixtures("kept_workers")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    (tmp_path / "kernels_src").mkdir()
    (tmp_path / "kernels_src/add.py").write_text(KERNEL)
    (tmp_path / "build.toml").write_text(BUILD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_proofs_name_the_rung_of_every_obligation(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(["check", "--proofs"]) == 0
    out, err = capsys.readouterr()
    assert "add-E=bf16-BLOCK=1024  proven" in out
    assert "bounds of load from `x`: static" in out
    assert err == ""


def test_the_schedule_is_shown_for_each_architecture(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "build.toml").write_text(BUILD + "schedule = { warps = 2, blocks = 3 }\n")
    assert commands.run(["check", "--schedule"]) == 0
    shown = capsys.readouterr().out
    assert commands.run(["check", "--schedule", "--json"]) == 0
    records = json.loads(capsys.readouterr().out)["kernels"]
    for record in records:
        assert record["schedule"]
        for arch, schedule in record["schedule"].items():
            assert f"  {arch}: 2 warps; 3 blocks a multiprocessor\n" in shown
            assert (schedule["roles"], schedule["blocks"]) == ([{"name": "all", "warps": 2, "registers": None}], 3)
    assert commands.run(["check", "--json"]) == 0
    assert "schedule" not in json.loads(capsys.readouterr().out)["kernels"][0]


def test_a_schedule_that_cannot_be_points_at_the_build_file(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "build.toml").write_text(BUILD + "schedule = { warps = 2, stages = 3 }\n")
    assert commands.run(["check", "--arch", "sm_90"]) == 2
    err = capsys.readouterr().err
    assert err.count("error[E0809]") == 1 and "build.toml:" in err and "stages" in err


def test_second_check_runs_nothing(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    assert commands.run(["check", "--json"]) == 0
    first = capsys.readouterr().out
    monkeypatch.setattr(check_command, "run", None)
    assert commands.run(["check", "--json"]) == 0
    assert capsys.readouterr().out == first
    assert json.loads(first)["kernels"][0]["proofs"]["static"] > 0


def test_refusal_has_its_counterexample_once_for_all_specialisations(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    path = root / "kernels_src/add.py"
    path.write_text(KERNEL.replace(", mask=True", ""))
    assert commands.run(["check"]) == 1
    out, err = capsys.readouterr()
    assert err.count("error[") == err.count("error[E0302]") == 1
    assert "counterexample: N = " in err
    assert out.count("refused") == 2


def test_wrong_constants_point_at_the_build_file(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "build.toml").write_text(BUILD.replace("BLOCK = 1024", "BLOK = 1024"))
    assert commands.run(["check"]) == 2
    err = capsys.readouterr().err
    assert "error[E0804]: kernel `add` has no constant `BLOK`" in err
    assert "--> build.toml:5:36" in err
    assert "no value for `BLOCK`" in err


def test_dump_prints_the_chosen_specialisation_only(root: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert commands.run(["dump", "add", "-c", "E=f16"]) == 0
    out, err = capfdbinary.readouterr()
    assert out.startswith(b"kernel @add(%x: in tensor<f16, [N]")
    assert err == b""
    assert commands.run(["dump", "add", "--stage", "proofs", "-o", "proofs.json"]) == 0
    assert json.loads((root / "proofs.json").read_text())["obligations"]


@pytest.mark.parametrize("pipe_path", ["-", "/dev/stdout", "pipe"])
@pytest.mark.parametrize("command", [("dump", "add", "-c", "E=f16"), ("graph", "add", "-c", "E=f16")])
def test_a_product_is_written_into_a_pipe(
    root: Path, capfdbinary: pytest.CaptureFixture[bytes], command: tuple[str, ...], pipe_path: str
) -> None:  # fmt: skip
    """Without any other file."""
    assert commands.run([*command, "-o", "file"]) == 0
    capfdbinary.readouterr()
    os.mkfifo(root / "pipe")
    handle = os.open(root / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    assert commands.run([*command, "-o", pipe_path]) == 0
    piped = os.read(handle, 1 << 16)
    os.close(handle)
    assert capfdbinary.readouterr().out + piped == (root / "file").read_bytes()


@pytest.mark.parametrize("constants", ["E=f32", "F=1", "E"])
def test_dump_of_a_specialisation_that_is_not_built(
    root: Path, capsys: pytest.CaptureFixture[str], constants: str
) -> None:  # fmt: skip
    assert commands.run(["dump", "add", "-c", constants]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_graph_writes_an_svg(root: Path) -> None:
    import xml.etree.ElementTree

    assert commands.run(["graph", "add", "-o", "add.svg"]) == 0
    assert xml.etree.ElementTree.parse(root / "add.svg").getroot().tag.endswith("svg")
    (root / "kernels_src/add.py").write_text(KERNEL.replace(", pad=0", ""))
    assert commands.run(["graph", "add", "-o", "refused.svg"]) == 1
    assert not (root / "refused.svg").exists()


PRODUCT = '''"""A product of matrices."""
import tilec
from tilec import Const, Dim, Element, In, Out, bid, f32, grid, load, mma, requires, store, zeros


class E(Element):
    """bf16 or f8"""


class M(Dim):
    """rows"""


class N(Dim):
    """columns"""


@tilec.kernel
def product(a: In[E, M, 16], b: In[E, N, 16], out: Out[f32, M, N], *, E: Const):
    grid(M // 64, N // 64)
    requires(M % 64 == 0, N % 64 == 0)
    rows, columns = load(a, (bid(0), 0), shape=(64, 16)), load(b, (bid(1), 0), shape=(64, 16))
    store(out, (bid(0), bid(1)), mma(rows, columns.T, zeros((64, 64), f32)))
'''


def test_check_refuses_what_build_refuses(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A product of f8 over 16 elements can be proven but has no tensor-core instruction: `check` passed it, `build` failed."""
    (root / "kernels_src/product.py").write_text(PRODUCT)
    entry = '\n[[kernel]]\nname = "product"\nconstants = { E = ["bf16", "f8e4m3"] }\n'
    (root / "build.toml").write_text(BUILD + entry)
    assert commands.run(["check", "product"]) == 1
    out, err = capsys.readouterr()
    assert [line.split()[:2] for line in out.splitlines()] == [["product-E=bf16", "proven"], ["product-E=f8e4m3", "refused"]]
    assert err.count("error[E0506]") == 1
    assert "with a depth that is a multiple of 32" in err
    message = err.partition("\n   = ")[0]
    assert commands.run(["build", "-k", "product"]) == 1
    out, err = capsys.readouterr()
    assert "3 built, 0 up to date, 3 failed" in out
    assert message.partition("\n\n")[0] in err
    assert commands.run(["check", "product", "--json"]) == 1  # cached in the store
    assert [one["status"] for one in json.loads(capsys.readouterr().out)["kernels"]] == ["proven", "refused"]


def test_check_names_the_architectures_that_refuse(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(["check", "--arch", "sm_100,sm_120", "--json"]) == 0
    assert "refused" not in capsys.readouterr().out
    request = SimpleNamespace(kernel="k", constants={})
    group = cast(Any, [SimpleNamespace(request=request, name="k", target=target) for target in MAIN_TARGETS])
    refused = (Diagnostic("E0507", "too much shared memory"),)
    proofs = {"proofs": b'{"obligations": [], "unsafe": []}'}
    outcomes = [Outcome(0, products=proofs), Outcome(1, products=proofs), Outcome(2, refused)]
    record = check_command.record_of(group, outcomes, proofs=False)
    assert (record["status"], record["refused_for"]) == ("refused", ["sm_120a"])
    assert "refused_for" not in check_command.record_of(group, [Outcome(0, refused)], proofs=False)
    assert check_command.record_of(group, outcomes[:2], proofs=False)["status"] == "proven"
