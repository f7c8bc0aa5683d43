"""`tilec emulate` as its users see it: exit status, text, JSON, and the reported location of a planted fault."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests import shipped
from tilec.cli import commands, emulate_command

pytestmark = pytest.mark.usefixtures("kept_workers")

built: Any = emulate_command._built  # pyright: ignore[reportPrivateUsage]
kept: dict[tuple[str, str, str, str], Any] = {}


@pytest.fixture(autouse=True)
def _in_the_project(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    """Runs the command in this project; tests share what it has built."""

    def once(build: Any, entry: Any, target: Any) -> Any:
        key = (str(build.root), entry.name, str(entry.constants), str(target))
        if key not in kept:
            kept[key] = built(build, entry, target)
        return kept[key]

    monkeypatch.chdir(shipped.ROOT)
    monkeypatch.setattr(emulate_command, "_built", once)


def plant(monkeypatch: pytest.MonkeyPatch, pattern: str) -> list[int]:
    """Removes the first matching instruction from the PTX; its line number is appended to the result when the command runs."""
    lines: list[int] = []
    real: Any = emulate_command._built  # pyright: ignore[reportPrivateUsage]

    def built(*arguments: Any) -> Any:
        ptx, *others = real(*arguments)
        found = re.search(pattern, ptx, re.MULTILINE)
        assert found
        lines.append(ptx.count("\n", 0, found.start()) + 1)
        return ptx[: found.start()] + "//" + ptx[found.start() :], *others

    monkeypatch.setattr(emulate_command, "_built", built)
    return lines


def leave_out(monkeypatch: pytest.MonkeyPatch, pattern: str) -> None:
    """Removes all instructions that match from the PTX; no line number changes."""
    real: Any = emulate_command._built  # pyright: ignore[reportPrivateUsage]

    def built(*arguments: Any) -> Any:
        ptx, *others = real(*arguments)
        changed, count = re.subn(pattern + "[^;\n]*;", "", ptx)
        assert count
        return changed, *others

    monkeypatch.setattr(emulate_command, "_built", built)


def test_a_right_kernel_is_status_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(["emulate", "add", "--arch", "sm_90", "--dims", "N=1000", "--schedule-seed", "2"]) == 0
    out, _ = capsys.readouterr()
    assert "add on sm_90a, N=1000, schedule 2" in out and "nothing found" in out


def test_omitted_sizes_make_a_short_launch_of_several_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(["emulate", "rms_norm", "--arch", "sm_120", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert all(one["kernel"] == "rms_norm" and one["arch"] == "sm_120a" and one["faults"] == [] for one in results)
    assert 2 <= results[0]["values"]["T"] <= 8


def test_omitted_sizes_are_several_with_more_iterations_than_stages(capsys: pytest.CaptureFixture[str]) -> None:
    """K iterations include an odd and an even number above ten, so that a ring of ten stages wraps; each launch has its own
    thread order."""
    assert commands.run(["emulate", "matmul_few", "--arch", "sm_90", "-c", "BM=16", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert {11, 12} <= {-(-one["values"]["K"] // one["constants"]["BK"]) for one in results}
    assert [one["seed"] for one in results] == list(range(len(results)))


def test_a_planted_fault_is_status_1_and_named_down_to_the_source_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dropped = plant(monkeypatch, r"^\s*(@%p\d+ )?ld\.global")
    assert commands.run(["emulate", "add", "--arch", "sm_90", "--dims", "N=5000", "--json"]) == 1
    (result,) = json.loads(capsys.readouterr().out)
    fault = next(fault for fault in result["faults"] if fault["tensor"] == "out")
    assert fault["kind"] == "poison" and fault["ptx_line"] > dropped[0] and "st.global" in fault["instruction"]
    assert fault["block"] == [0, 0, 0] and fault["thread"] is not None and fault["element"][0] < 5000
    file, line, _ = fault["source"].split(":")
    source = (shipped.ROOT / file).read_text(encoding="utf-8").split("\n")[int(line) - 1]
    assert Path(file).name == "add.py" and "store(" in source


def test_the_text_names_what_the_json_names(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    plant(monkeypatch, r"^\s*bar\.sync")
    assert commands.run(["emulate", "rms_norm", "--arch", "sm_90", "--dims", "T=2"]) == 1
    out, _ = capsys.readouterr()
    race = next(text for text in out.split("\n") if text.startswith("  race:"))
    assert re.search(r"PTX line \d+: ld\.shared.* block \(0, 0, 0\), thread \d+, address 0x[0-9a-f]+", race)
    assert re.search(r"kernels_src/rms_norm\.py:\d+:\d+: \S", out) and out.rstrip().endswith("FAULTS")


NOTED = ["emulate", "matmul", "--arch", "sm_100", "-c", "E=bf16", "-c", "BM=64", "-c", "BN=64", "--dims", "M=70,N=72,K=136"]


def test_a_note_has_its_source_line_and_is_no_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_out(monkeypatch, r"tcgen05\.fence::after_thread_sync")
    assert commands.run(NOTED) == 0
    out, _ = capsys.readouterr()
    note = next(text for text in out.split("\n") if text.startswith("  note, tensor-fence: "))
    assert re.search(r"PTX line \d+: .* block \(0, 0, 0\), thread \d+", note)
    assert re.search(r"    kernels_src/matmul\.py:\d+:\d+: \S", out) and out.rstrip().endswith("notes, but no fault")


def test_a_launch_with_faults_tells_its_notes_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    leave_out(monkeypatch, r"tcgen05\.wait::ld")
    assert commands.run(NOTED) == 1
    out, _ = capsys.readouterr()
    assert "  async: " in out and "  note, tensor-wait: " in out and out.rstrip().endswith("FAULTS")


def test_denied_notes_are_status_1_and_the_json_lists_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.run([*NOTED, "--deny", "notes", "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert result["faults"] == result["notes"] == []
    leave_out(monkeypatch, r"tcgen05\.fence::after_thread_sync")
    assert commands.run([*NOTED, "--deny", "notes", "--json"]) == 1
    (result,) = json.loads(capsys.readouterr().out)
    assert result["faults"] == [] and {note["kind"] for note in result["notes"]} == {"tensor-fence"}
    assert all(Path(note["source"].split(":")[0]).name == "matmul.py" for note in result["notes"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["add", "--dims", "Q=1"], "no launch value `Q`"),
        (["add", "--dims", "N"], "is not NAME=NUMBER"),
        (["rms_norm", "--dims", "T=-1"], "no launch has T=-1: T is at least 1"),
        (["nobody"], "nobody"),
    ],
)
def test_what_cannot_be_launched_is_status_2(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(["emulate", "--arch", "sm_90", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_unknown_ptx_is_status_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    real: Any = emulate_command._built  # pyright: ignore[reportPrivateUsage]

    def built(*arguments: Any) -> Any:
        ptx, *others = real(*arguments)
        return ptx.replace("ret;", "frobnicate.u32 %r1;\nret;", 1), *others

    monkeypatch.setattr(emulate_command, "_built", built)
    assert commands.run(["emulate", "add", "--arch", "sm_90"]) == 2
    assert "unknown opcode: frobnicate" in capsys.readouterr().err


OFFSET_EXTENT = """
import tilec
from tilec import Dim, In, InOut, bid, cdiv, f32, grid, load, requires, store, u32

class N(Dim): "offset length"
class M(Dim): "columns"

@tilec.kernel
def offset_extent(y: In[f32, M], out: InOut[f32, N - 2147483648], N: u32):
    grid(cdiv(M, 64))
    requires(M <= 1000000)
    b = bid(0)
    store(out, b, load(y, b, shape=64, pad=0), mask=True)
"""


def test_sizes_are_ones_that_the_launcher_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The contract itself refuses an extent below 1, without a launch check."""
    (tmp_path / "kernels_src").mkdir()
    (tmp_path / "kernels_src/offset_extent.py").write_text(OFFSET_EXTENT)
    (tmp_path / "build.toml").write_text('[build]\narch = ["sm_90"]\n[[kernel]]\nname = "offset_extent"\n')
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    command = ["emulate", "offset_extent", "--project", str(tmp_path), "--dims"]
    assert commands.run([*command, "N=5"]) == 2
    assert "no small sizes" in capsys.readouterr().err
    assert commands.run([*command, "N=2147483653,M=100"]) == 0
    assert "nothing found" in capsys.readouterr().out
