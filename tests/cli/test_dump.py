"""`tilec dump --after`: the tile IR after each scheduling pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.shipped import ROOT
from tilec.cli import commands
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.passes.schedule import PASSES
from tilec.passes.schedule.passes import pass_names

pytestmark = pytest.mark.usefixtures("kept_workers")
SELECTED = ["dump", "add", "-c", "E=f16", "--arch", "sm_90", "--project", str(ROOT)]


def test_the_tile_ir_after_every_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Each is text that parses back, and shows what its pass does."""
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    texts: dict[str, str] = {}
    for name in pass_names():
        assert commands.run([*SELECTED, "--after", name]) == 0
        out, err = capfdbinary.readouterr()
        assert not err
        texts[name] = out.decode()
        assert print_function(parse_function(texts[name])) == texts[name]
    assert list(texts) == [one.name.replace("_", "-") for one in PASSES]
    first = {part: next(name for name in texts if part in texts[name]) for part in ("wait_prior", "  if ", "vector = 16")}
    assert first == {"wait_prior": "dependency-wait", "  if ": "versioning", "vector = 16": "layout"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--after", "stagin"), "no pass `stagin`; the passes are networks, canonicalize, pairs, dependency-wait, "),
        (("--after", "stagin"), "did you mean `staging`?"),
        (("--after", "dependency_wait"), "did you mean `dependency-wait`?"),
        (("--after", "staging", "--stage", "ptx"), "leave one out"),
    ],
)
def test_wrong_options_are_status_2(capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str) -> None:
    assert commands.run([*SELECTED, *options]) == 2
    out, err = capsys.readouterr()
    assert not out and err.startswith("error: ") and message in err


def test_help_lists_every_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(["dump", "--help"]) == 0
    shown = "".join(capsys.readouterr().out.split())
    assert ",".join(pass_names()) in shown
