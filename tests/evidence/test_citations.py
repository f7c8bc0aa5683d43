"""README and docs may cite what is fresh, and what is stale with its date; else the gate's command fails and says where."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ci.evidence import Status
from ci.evidence.citations import citations, complaints, dated
from tests.evidence.repository import entry, write
from tests.files import ROOT

NOW = entry("source:tilec")
OF_DAY = {"judged": Status(NOW, "stale", ("source:tilec changed",), "2026-01-02")}


def complaints_of(root: Path, text: str, state: str) -> list[str]:
    write(root / "README.md", text)
    reasons = ("source:tilec changed",) if state == "stale" else ()
    return complaints(citations(root), {"judged": Status(NOW, state, reasons)}, [NOW])


@pytest.mark.parametrize(
    "text",
    [
        "It is right: [judged.md](ci/bench/results/judged.md).",
        "It is right: `ci/bench/results/judged.json`.",
        "![picture](ci/bench/results/judged.json)",
        "[the\nresult](../ci/bench/results/judged.md)",
    ],
)
def test_a_stale_result_is_not_cited(text: str, tmp_path: Path) -> None:
    assert complaints_of(tmp_path, text, "fresh") == []
    (line,) = complaints_of(tmp_path, text, "stale")
    assert line.startswith("README.md:1: ") and "is stale: source:tilec changed" in line
    assert len(complaints_of(tmp_path, text, "failed")) == 1


@pytest.mark.parametrize(("state", "is_right"), [("stale", True), ("failed", False), ("fresh", True)])
def test_a_stale_result_is_cited_with_its_date_and_a_failed_one_never(state: str, is_right: bool, tmp_path: Path) -> None:
    """The date is written where the result is stale, and goes once it is fresh."""
    of_day = {"judged": Status(NOW, state, ("source:tilec changed",), "2026-01-02")}
    bare, with_date = "[judged.md](ci/bench/results/judged.md)", "[judged.md, 2026-01-02](ci/bench/results/judged.md)"
    for text in (bare, with_date):
        found = dated(text, of_day, [NOW])
        assert found == (with_date if state == "stale" else bare)
        write(tmp_path / "README.md", found)
        assert (complaints(citations(tmp_path), of_day, [NOW]) == []) == is_right
    other = {"judged": Status(NOW, "stale", ("source:tilec changed",), "2026-01-03")}
    write(tmp_path / "README.md", with_date)
    assert len(complaints(citations(tmp_path), other, [NOW])) == 1


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("[judged.md](ci/bench/results/judged.md)", False),
        ("[judged.md, 2026-01-02](ci/bench/results/judged.md)", True),
        ("([judged.md](ci/bench/results/judged.md), 2026-01-02)", True),
        ("`ci/bench/results/judged.md` of 2026-01-02", True),
        ("[judged.md, 2026-01-03](ci/bench/results/judged.md)", False),
        ("On 2026-01-02 we sat. [judged.md](ci/bench/results/judged.md) says what it says.", False),
    ],
)
def test_a_date_counts_in_the_link_or_right_after_it(text: str, is_right: bool, tmp_path: Path) -> None:
    write(tmp_path / "README.md", text)
    assert (complaints(citations(tmp_path), OF_DAY, [NOW]) == []) == is_right


def test_what_is_no_result_is_not_cited(tmp_path: Path) -> None:
    assert "is no result" in complaints_of(tmp_path, "[x](ci/bench/results/gone.md)", "fresh")[0]


def test_the_command_fails_where_a_stale_result_is_cited(tmp_path: Path) -> None:
    """The same repository, once before and once after an edit of the source that the result rests on."""
    write(tmp_path / "tilec/judge.py", "x = 1\n")
    registry = '[judged]\nrests_on = ["source:tilec"]\ncommand = "python judge.py"\n'
    write(tmp_path / "ci/evidence/results.toml", registry)
    write(tmp_path / "README.md", "All of it is right: [judged.md](ci/bench/results/judged.md).\n")
    make = (
        "import sys; from pathlib import Path; from ci.evidence import Result, read_registry; root = Path(sys.argv[1]);"
        "entry = read_registry(root / 'ci/evidence/results.toml')['judged'];"
        "Result('judged', root=root, entry=entry).write({'wrong': 0}, root / 'ci/bench/results', exit_status=0)"
    )
    subprocess.run([sys.executable, "-c", make, str(tmp_path)], check=True, cwd=ROOT)
    command = [sys.executable, str(ROOT / "ci/check_results.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "1 results: 1 fresh, 0 stale, 0 failed")
    write(tmp_path / "tilec/judge.py", "x = 2\n")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "error: README.md:1: `judged.md` is stale: source:tilec changed" in done.stdout
    assert "renew: python ci/renew.py judged" in done.stdout
