"""`tilec check`, `dump` and `graph` on real kernels: proofs, refusals, and answers kept in the store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.build.test_real_products import BUILD, KERNEL
from tilec.cli import check_command, commands


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("TILEC_CACHE_DIR", raising=False)
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
