"""Verdicts are found by what they follow from, survive a run that is stopped, and are small."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.evidence.verdicts import Budget, Verdict, Verdicts, key


def test_a_verdict_is_found_by_its_case_and_any_of_its_keys(tmp_path: Path) -> None:
    kept = Verdicts("judged", tmp_path)
    kept.add(7, [key("compiler", "text"), key("ptx")], Verdict("equal", {"launches": 3}))
    again = Verdicts("judged", tmp_path)
    assert again.find(7, key("compiler", "text")) == again.find("7", "x", key("ptx")) == Verdict("equal", {"launches": 3})
    assert again.find(7, key("another")) is None and again.find(8, key("ptx")) is None and again.find(7) is None


def test_the_last_verdict_counts_and_close_leaves_one_line_a_case(tmp_path: Path) -> None:
    kept = Verdicts("judged", tmp_path)
    for number in (10, 9, 100):
        kept.add(number, [key("old")], Verdict("wrong"))
        kept.add(number, [key("new")], Verdict("right"))
    assert Verdicts("judged", tmp_path).find(9, key("old")) is None
    kept.close([9, 10])
    lines = kept.path.read_text().splitlines()
    assert lines == [f"9 {key('new')} right", f"10 {key('new')} right"]
    assert [path.name for path in tmp_path.iterdir()] == ["judged.txt"]


@pytest.mark.parametrize("end", ["8 ", "8 abcdefab", '8 abcdefab right {"a":', "\n"])
def test_a_line_that_was_cut_off_is_passed_over(end: str, tmp_path: Path) -> None:
    kept = Verdicts("judged", tmp_path)
    kept.add(7, [key("a")], Verdict("right"))
    with kept.path.open("a") as file:
        file.write(end)
    again = Verdicts("judged", tmp_path)
    assert again.find(7, key("a")) == Verdict("right") and again.known(8) is None


def test_keys_distinguish_parts() -> None:
    assert len({key("ab", "c"), key("a", "bc"), key("abc"), key("ab", "c", "")}) == 4


def test_twenty_thousand_verdicts_are_less_than_a_megabyte(tmp_path: Path) -> None:
    kept = Verdicts("judged", tmp_path)
    for number in range(200):
        codes = [["E0302", "E0401"], []] if number % 3 == 0 else []
        kept.add(number + 19_000, [key(number)], Verdict("refused_confirmed" if codes else "accepted", [24, *codes]))
    assert kept.path.stat().st_size * 100 < 1_000_000


def test_a_budget_is_spent_or_endless() -> None:
    assert Budget(0).is_spent() and not Budget(None).is_spent() and not Budget(1e9).is_spent()
