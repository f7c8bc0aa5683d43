"""`tilec emulate` compares with the interpreter: right and planted results, inputs of one's own, and writes of one value."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tilec.cli import commands, emulate_command

pytestmark = pytest.mark.usefixtures("kept_workers")

SUMS = """
import tilec
from tilec import Dim, In, Out, bid, f32, grid, load, store

class T(Dim): "rows"

@tilec.kernel
def sums(x: In[f32, T, 64], out: Out[f32, T]):
    grid(T)
    store(out, bid(0), tilec.sum(load(x, (bid(0), 0), shape=(1, 64)), axis=1), mask=True)
"""
COMMAND = ["emulate", "sums.py", "--arch", "sm_90", "--dims", "T=3"]
GUARD = r"setp\.ne\.b32 \t(%p\d+), %r1, 0;\n\t@\1 bra[^\n]*"
"""What keeps all threads but the first from storing."""
built: Any = emulate_command._built  # pyright: ignore[reportPrivateUsage]
kept: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The kernel's folder, in which the commands run; tests share what they build."""
    (tmp_path / "sums.py").write_text(SUMS)
    monkeypatch.chdir(tmp_path)
    plant(monkeypatch, "^", "")
    return tmp_path


def plant(monkeypatch: pytest.MonkeyPatch, pattern: str, text: str) -> None:
    """Replaces what matches in the PTX that is emulated."""

    def changed(build: Any, entry: Any, target: Any) -> Any:
        if target.name not in kept:
            kept[target.name] = built(build, entry, target)
        ptx, *others = kept[target.name]
        assert re.search(pattern, ptx)
        return re.sub(pattern, text, ptx), *others

    monkeypatch.setattr(emulate_command, "_built", changed)


def test_right_results_are_compared_unless_that_is_declined(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(COMMAND) == 0
    out = capsys.readouterr().out
    assert re.search(
        r"`out` is as the interpreter has it; the largest difference takes \S+ of what rounding allows, at `out", out
    )
    assert commands.run([*COMMAND, "--json"]) == 0
    (launch,) = json.loads(capsys.readouterr().out)
    assert launch["results"][0]["name"] == "out" and 0 <= launch["results"][0]["error"] <= 1 and not launch["differs"]
    assert commands.run([*COMMAND, "--no-compare"]) == 0
    assert "interpreter" not in capsys.readouterr().out
    assert commands.run([*COMMAND, "--no-compare", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["results"] is None


@pytest.mark.parametrize(
    ("pattern", "text", "message"),
    [
        (r"shfl\.sync\.bfly\.b32( \t%r\d+, %r\d+), 4,", r"shfl.sync.bfly.b32\1, 2,", r"DIFFERS: `out\[\d\]`, which is "),
        (r"(%rd\d+), 16;", r"\1, 0;", r"times what rounding allows"),
        (r"add\.f32( \t%r3, )(%r\d+), (%r\d+);", r"mov.b32\1 0x7FC00000;", r"`out` is not finite in 3 of 3 results, first at "),
    ],
    ids=["a sum over other threads", "half of the elements", "a NaN"],
)  # fmt: skip
def test_other_results_are_status_1(
    pattern: str, text: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(monkeypatch, pattern, text)
    assert commands.run(COMMAND) == 1
    out = capsys.readouterr().out
    assert re.search(message, out) and out.rstrip().endswith("OTHER RESULTS than the interpreter's")
    assert commands.run([*COMMAND, "--json"]) == 1
    (launch,) = json.loads(capsys.readouterr().out)
    assert launch["faults"] == [] and launch["differs"]
    assert commands.run([*COMMAND, "--no-compare"]) == 0  # the emulator alone sees no fault


def test_a_launch_that_ends_early_is_not_compared(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    plant(monkeypatch, r"\n\tret;", "\n\ttrap;\n\tret;")
    assert commands.run(COMMAND) == 1
    out = capsys.readouterr().out
    assert "not compared: the launch ended early, by a fault of the kind `trap`" in out and "DIFFERS" not in out


def test_writes_of_one_value_are_listed_apart(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    plant(monkeypatch, GUARD, "")
    assert commands.run(COMMAND) == 1
    out = capsys.readouterr().out
    assert "  same value, race-same-value: " in out
    assert out.rstrip().endswith("SAME VALUES written without an order, and no other fault")
    assert commands.run([*COMMAND, "--json"]) == 1
    (launch,) = json.loads(capsys.readouterr().out)
    assert launch["faults"] and all(one["same_value"] for one in launch["faults"]) and not launch["differs"]


def test_other_faults_come_first_and_decide(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    plant(monkeypatch, r"st\.global\.b32( \t\[%rd\d+\]), %r\d+;", r"st.global.b32\1, %r1;")
    unguarded = emulate_command._built  # pyright: ignore[reportPrivateUsage]

    def both(*arguments: Any) -> Any:
        ptx, *others = unguarded(*arguments)
        return re.sub(GUARD, "", ptx), *others

    monkeypatch.setattr(emulate_command, "_built", both)
    assert commands.run(COMMAND) == 1
    out = capsys.readouterr().out
    assert "  race: " in out and "same value" not in out and out.rstrip().endswith("FAULTS")


def test_inputs_of_ones_own_are_emulated(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = "import numpy as np\n\ndef sums_inputs(rng, dims):\n    return {'x': np.full((dims['T'], 64), %s)}\n"
    (folder / "reference.py").write_text(own % "np.nan")
    assert commands.run([*COMMAND, "--json"]) == 0
    (launch,) = json.loads(capsys.readouterr().out)
    assert launch["results"][0]["summary"] == "nothing finite, 3 not finite" and launch["results"][0]["not_finite"] == 0
    (folder / "reference.py").write_text(own % "'x'")
    assert commands.run(COMMAND) == 2
    assert "error[E0815]: `reference.py:sums_inputs` gives `x` in another dtype" in capsys.readouterr().err
