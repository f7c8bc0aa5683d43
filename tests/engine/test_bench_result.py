"""A benchmark result as data: its shares, its JSON and back, JSON of something else, plots from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.tools.bench.command import run
from engine.tools.bench.result import Bandwidth, CellResult, Report, Statistic


def report(bandwidth: float | None = 3e9) -> Report:
    cells = tuple(
        CellResult(pp, tg, 1e7, Statistic((tg / 100, tg / 80)), Statistic((1 / 1000, 1 / 500)), True)
        for pp, tg in ((18, 37), (18, 129), (512, 37))
    )
    measured = None if bandwidth is None else Bandwidth("read of the head", Statistic((bandwidth,)))
    model, policy = {"name": "qwen3-4b", "dtype": "bf16"}, {"what": "greedy"}
    return Report("2026-01-02T03:04:05+00:00", {"gpu": "a GPU"}, model, policy, 4e9, cells, measured)


def test_shares_of_the_rooflines() -> None:
    cell = CellResult(18, 37, 1e7, Statistic((0.2,)), Statistic((0.02,)), True)  # 185 tok/s, 200 tok/s of decode
    shares = replace(report(), cells=(cell,)).shares(cell)
    assert cell.roofline(4e9) == pytest.approx(400)
    assert shares == pytest.approx({
        "end_to_end_of_nominal": 100 * 185 / 400, "decode_of_nominal": 50.0,
        "end_to_end_of_measured": 100 * 185 / 300, "decode_of_measured": 100 * 200 / 300,
    })  # fmt: skip
    assert set(report(None).shares(cell)) == {"end_to_end_of_nominal", "decode_of_nominal"}


@pytest.mark.parametrize("bandwidth", [3e9, None])
def test_json_and_back(bandwidth: float | None) -> None:
    original = report(bandwidth)
    data = json.loads(json.dumps(original.to_json()))
    assert Report.from_json(data) == original
    first = data["cells"][0]
    assert first["decode_tokens_per_second"]["samples"] == pytest.approx([36 / 0.369, 36 / 0.4605])
    assert first["end_to_end_seconds"]["n"] == 2
    assert first["percent"]["decode_of_nominal"] == pytest.approx(np.median([36 / 0.369, 36 / 0.4605]) / 4)


def broken(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    data = report().to_json()
    change(data)
    return data


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.pop("format"), "`format` is not 'engine.bench 1'"),
        (lambda data: data.update(date=3), "`date` is not a line of text"),
        (lambda data: data["model"].pop("name"), "`name` is not a line of text"),
        (lambda data: data["machine"].update(gpu="a\x1b[2J"), "`gpu` is not a line of text"),
        (lambda data: data.update(machine=[]), "`machine` is not an object"),
        (lambda data: data.update(cells=[]), "`cells` is not a list, or empty"),
        (
            lambda data: data.update(nominal_bytes_per_second=-1),
            "`nominal_bytes_per_second` is not a number from 1e-09 to 1e+18",
        ),
        (lambda data: data["cells"][1].update(tg=1), "`pp` and `tg` are not numbers of tokens"),
        (lambda data: data["cells"][1].update(prefill_seconds={}), "`prefill_seconds.samples` is not a list, or empty"),
        (
            lambda data: data["cells"][1]["end_to_end_seconds"].update(samples=[1, "2"]),
            "`end_to_end_seconds.samples` is not a num",
        ),
        (lambda data: data["cells"][1]["prefill_seconds"].update(samples=[1]), "are not as many as"),
        (lambda data: data["cells"][1]["prefill_seconds"].update(samples=[1e3, 1e3]), "are not below"),
        (lambda data: data["measured_bandwidth"].pop("what"), "`what` is not a line of text"),
    ],
)
def test_invalid_json_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[dict[str, Any]], object], message: str
) -> None:
    file = tmp_path / "in.json"
    file.write_text(json.dumps(broken(change)))
    assert run(["--from-json", str(file)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {file}: is not a result of `python -m engine.bench`: ") and err.count("\n") == 1
    assert message in err


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_a_plot_from_json_needs_no_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str) -> None:
    (tmp_path / "in.json").write_text(json.dumps(report().to_json()))
    plots = [tmp_path / f"{name}{suffix}" for name in ("one", "two")]
    for plot in plots:
        assert run(["--from-json", str(tmp_path / "in.json"), "--plot", str(plot)]) == 0
    first, second = (plot.read_bytes() for plot in plots)
    assert first == second
    assert first.startswith(b"\x89PNG" if suffix == ".png" else b"<?xml")
    out, err = capsys.readouterr()
    assert err == ""
    assert "qwen3-4b bf16 on a GPU, greedy" in out
    assert len(list(tmp_path.iterdir())) == 3, "a temporary file is left"


def test_one_cell_alone_can_be_drawn(tmp_path: Path) -> None:
    single_cell = replace(report(None), cells=report().cells[:1])
    (tmp_path / "in.json").write_text(json.dumps(single_cell.to_json()))
    assert run(["--from-json", str(tmp_path / "in.json"), "--plot", str(tmp_path / "out.svg")]) == 0
