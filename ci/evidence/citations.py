"""Finds citations of results in README and documentation, and reports those that are not allowed.

A stale result must be cited with the day it was measured, in the link's text or after the link,
`([audit.md](ci/bench/results/audit.md), 2026-11-23)`. `dated` adds the dates, and removes them once a result is fresh. The
changelog is not checked: its entries have dates of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ci.evidence.registry import Entry
from ci.evidence.result import Status

PAGES: Final = (
    "README.md", "SECURITY.md", "CONTRIBUTING.md", "docs/**/*.md", "artifacts/*.md", "ci/team/*.md", "tests/README.md",
)  # fmt: skip
LINK: Final = re.compile(r"\[(?P<text>[^\]]*)\]\((?:[\w./-]*?)results/(?P<file>[\w.]+)\)|`[\w./-]*?results/(?P<plain>[\w.]+)`")
DATE: Final = re.compile(r", \d{4}-\d\d-\d\d$")
DATE_DISTANCE: Final = 16
"""Characters after a citation in which its date may be."""


@dataclass(frozen=True, slots=True)
class Citation:
    """A citation: its location `page:line`, the results file it names, and the text in which a date counts."""

    at: str
    file: str
    text: str


def pages(root: Path) -> Iterator[Path]:
    """The pages that cite results."""
    for pattern in PAGES:
        yield from sorted(root.glob(pattern))


def citations(root: Path) -> list[Citation]:
    """Every citation on every page."""
    found: list[Citation] = []
    for page in pages(root):
        text = page.read_text(encoding="utf-8")
        for match in LINK.finditer(text):
            location = f"{page.relative_to(root).as_posix()}:{text.count(chr(10), 0, match.start()) + 1}"
            around = f"{match['text'] or ''} {text[match.end() : match.end() + DATE_DISTANCE]}"
            found.append(Citation(location, match["file"] or match["plain"], around))
    return found


def owners(entries: Iterable[Entry]) -> dict[str, Entry]:
    """The result that each file belongs to."""
    return {file: entry for entry in entries for file in (*entry.files(), f"{entry.name}.md")}


def complaints(found: Iterable[Citation], states: Mapping[str, Status], entries: Iterable[Entry]) -> list[str]:
    """A line for each citation that is not allowed. `states` is by name of the result."""
    by_file, lines = owners(entries), list[str]()
    for citation in found:
        entry = by_file.get(citation.file)
        if entry is None:
            lines.append(f"{citation.at}: `{citation.file}` is no result of ci/evidence/results.toml")
        elif not _may_stand(states[entry.name], citation.text):
            state = states[entry.name]
            remedy = (
                f"renew it, or cite it with its date, {state.age} (`python ci/figures.py --write`)" if state.age else "renew it"
            )
            lines.append(f"{citation.at}: `{citation.file}` is {state.state}: {'; '.join(state.reasons)}: {remedy}")
    return lines


def _may_stand(state: Status, text: str) -> bool:
    """Whether a citation is allowed: without a date if the result is fresh, with one if it is stale, never if it failed."""
    return state.state == "fresh" or (state.state == "stale" and bool(state.age) and state.age in text)


def dated(text: str, states: Mapping[str, Status], entries: Iterable[Entry]) -> str:
    """A page in which links to stale results contain their dates, and links to fresh ones do not."""
    by_file = owners(entries)

    def one(match: re.Match[str]) -> str:
        entry = by_file.get(match["file"] or "")
        if entry is None:
            return match[0]
        state = states[entry.name]
        bare = DATE.sub("", match["text"])
        label = f"{bare}, {state.age}" if state.state == "stale" and state.age else bare
        return match[0].replace(f"[{match['text']}]", f"[{label}]", 1)

    return LINK.sub(one, text)
