"""Every entry of the page of decisions can be found: it has a question and a day, and the contents list it once with both."""

from __future__ import annotations

import re
from typing import Final

import pytest

from tests.files import ROOT

PAGE: Final = (ROOT / "docs/decisions.md").read_text(encoding="utf-8")
ROW: Final = re.compile(r"^\| \[([^\]]+)\]\(#([\w-]+)\) \| ([^|]+) \| ([^|]+) \| (\d{4}-\d\d-\d\d) \|$", re.MULTILINE)
QUESTION: Final = re.compile(r"^\*(?!\d{4})([^*]+\?)\*", re.MULTILINE)
DAY: Final = re.compile(r"\d{4}-\d\d-\d\d")


def entries(page: str) -> dict[str, str]:
    """Texts of the entries by title: the sections of the third level, and those of the second that begin with a question."""
    contents, _, rest = page.partition("## Contents")[2].partition("\n## ")
    assert contents
    sections = re.findall(r"^(###?) (.+)\n((?:(?!##).*\n)*)", f"## {rest}", re.MULTILINE)
    return {title: text for level, title, text in sections if level == "###" or QUESTION.match(text.strip())}


def problems(page: str) -> list[str]:
    """What is missing in the page or in its contents."""
    rows = ROW.findall(page)
    titles = [title for title, *_ in rows]
    found: list[str] = []
    for title, text in entries(page).items():
        if titles.count(title) != 1:
            found.append(f"`{title}` is {titles.count(title)} times in the contents")
            continue
        _, anchor, asked, _, day = rows[titles.index(title)]
        if anchor != re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-"):
            found.append(f"`{title}`: `#{anchor}` is not its anchor")
        question = QUESTION.search(text)
        if question is None or not " ".join(question[1].split()).endswith(asked):
            found.append(f"`{title}` does not ask `{asked}`")
        if day != max(
            DAY.findall(" ".join(re.findall(r"^\*\d{4}-[^*]+\*|^\|.* \| \d{4}-.*$", text, re.MULTILINE))), default=""
        ):
            found.append(f"`{title}` is not of {day}")
    return [*found, *(f"no entry `{title}`" for title in titles if title not in entries(page))]


def test_the_contents_list_every_entry_with_its_question_and_day() -> None:
    assert len(entries(PAGE)) > 40
    assert not problems(PAGE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("### f16 tiles\n", "### f16 and its tiles\n"),
        ("*Are logits in f16 as near", "*Are they as near"),
        ("*2026-11-22*: `910ec04:", "`910ec04:"),
        ("(#long-prompts) |", "(#long-prompt) |"),
        ("| fixed | 2026-11-28 |", "| fixed | 2026-11-27 |"),
        ("## Prompts\n", "## Prompts\n\n### More\n\n*Is there more?*\n"),
    ],
)
def test_what_is_missing_is_found(old: str, new: str) -> None:
    assert old in PAGE
    assert problems(PAGE.replace(old, new))
