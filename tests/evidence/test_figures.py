"""Figures, tables and pictures of README and docs are what the JSON says, and the gate's command finds those that are not."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from ci.evidence.pictures import PICTURES, Picture
from ci.evidence.values import Results, WrongFigure, formatted
from tests.evidence.repository import entry, results, write
from tests.files import ROOT

_spec = importlib.util.spec_from_file_location("figures", ROOT / "ci" / "figures.py")
assert _spec is not None and _spec.loader is not None
figures = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(figures)

DATA: dict[str, Any] = {
    "speed": [{"model": "a", "tok_s": 481.6}, {"model": "b-4", "tok_s": 66.0}],
    "costs": {"one, of two": 1.25}, "18": {"8": 0.8},
}  # fmt: skip
README = "It makes <!--= judged speed[model=a].tok_s .0f -->482<!--/--> tokens ([judged.md](ci/bench/results/judged.md)).\n"
CLAIM = entry("source:tilec")


def complaints(root: Path, text: str) -> list[str]:
    write(root / "README.md", text)
    return figures.wrong(root, results(root, judged=DATA), {"judged": CLAIM})


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "PICTURES", ())


@pytest.mark.parametrize(
    ("path", "form", "text"),
    [
        ("speed[model=a].tok_s", ".0f", "482"),
        ("speed[1].tok_s", ".1f", "66.0"),
        ("speed[model=b-4].tok_s", "ms", "66"),
        ("costs[one, of two]", "x100.0f", "125"),
        ("18.8", "ms", "0.8"),
        ("speed[0].model", "", "a"),
    ],
)
def test_a_path_leads_to_a_figure(path: str, form: str, text: str, tmp_path: Path) -> None:
    assert Results(results(tmp_path, judged=DATA)).text("judged", path, form) == text


@pytest.mark.parametrize(
    ("name", "path", "form"),
    [
        ("gone", "speed", ""), ("judged", "speed[model=c].tok_s", ""), ("judged", "speed[9]", ""), ("judged", "slow", ""),
        ("judged", "speed[0].tok_s", "d"), ("judged", "view.speed", ""), ("judged", "speed!", ""), ("judged", "costs", ".1f"),
    ],
)  # fmt: skip
def test_a_path_that_leads_nowhere_is_refused(name: str, path: str, form: str, tmp_path: Path) -> None:
    with pytest.raises(WrongFigure):
        Results(results(tmp_path, judged=DATA)).text(name, path, form)


def test_milliseconds_have_two_decimals_or_none() -> None:
    assert [formatted(value, "ms") for value in (0.04, 3.13, 9.94, 9.96, 902.1)] == ["0.0", "3.1", "9.9", "10", "902"]


def test_a_figure_that_differs_from_the_json_is_found_and_fixed(tmp_path: Path) -> None:
    assert complaints(tmp_path, README) == []
    (line,) = complaints(tmp_path, README.replace(">482<", ">404<"))
    assert line.startswith("README.md:1: `404` is 482 in judged.json")
    figures.write(tmp_path, tmp_path / "ci/bench/results", {})
    assert (tmp_path / "README.md").read_text() == README


def test_a_table_is_made_of_the_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(figures.TABLES, "speeds", lambda found: ["| a |", "|---|", f"| {found.text('judged', '18.8')} |"])
    text = "Before.\n\n<!-- table: speeds -->\n<!-- /table -->\n"
    assert "the table `speeds` is not" in complaints(tmp_path, text)[0]
    figures.write(tmp_path, tmp_path / "ci/bench/results", {})
    now = (tmp_path / "README.md").read_text()
    assert now == "Before.\n\n<!-- table: speeds -->\n\n| a |\n|---|\n| 0.8 |\n\n<!-- /table -->\n"
    assert complaints(tmp_path, now) == []
    assert complaints(tmp_path, now.replace("0.8", "0.9")) != []
    assert "no table `slow`" in complaints(tmp_path, now.replace("speeds", "slow"))[0]


@pytest.mark.parametrize("number", ["0.92", "81 %", "1.5"])
def test_a_figure_by_hand_next_to_a_fresh_result_is_found(number: str, tmp_path: Path) -> None:
    text = f"{README}\nIt takes {number} of it ([judged.md](ci/bench/results/judged.md)).\n"
    assert complaints(tmp_path, text) == [f"README.md:3: `{number}` is written by hand next to a current result"]
    assert complaints(tmp_path, f"{README}\nIt takes {number} of it.\n") == []


def test_names_and_code_are_no_figures(tmp_path: Path) -> None:
    text = "Qwen3 0.6B and 32B on sm_90a take `0.5` of 3 ([judged.md 1.5](ci/bench/results/judged.md)).\n"
    assert complaints(tmp_path, text) == []


def test_a_figure_that_begins_a_line_is_refused(tmp_path: Path) -> None:
    (line,) = complaints(tmp_path, README.replace("It makes ", "It makes\n"))
    assert line.startswith("README.md:2: a figure begins the line")


def test_a_picture_of_another_json_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = Picture("judged.svg", ("judged.json",), ())
    monkeypatch.setattr(figures, "PICTURES", (picture,))
    folder = results(tmp_path, judged=DATA)
    write(folder / "judged.svg", '<?xml version="1.0"?>\n<svg>drawn</svg>\n')
    assert "judged.svg is not of today's judged.json" in complaints(tmp_path, README)[0]
    picture.mark(folder)
    assert complaints(tmp_path, README) == []
    results(tmp_path, judged=DATA | {"rests_on": {"source:tilec": "0"}, "measured_on": "2026-01-01"})
    assert picture.is_current(folder)  # a stamp draws nothing
    results(tmp_path, judged=DATA | {"18": {"8": 0.9}})
    assert not picture.is_current(folder)
    picture.mark(folder)
    assert (folder / "judged.svg").read_text().count("made of") == 1 and picture.is_current(folder)


def test_the_pages_of_this_project_agree_with_the_json() -> None:
    folder = ROOT / "ci" / "bench" / "results"
    assert figures.wrong(ROOT, folder, figures.read_registry()) == []
    assert [picture.name for picture in PICTURES if not picture.is_current(folder)] == []
