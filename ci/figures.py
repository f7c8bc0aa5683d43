"""Fills figures, tables and pictures of README and documentation from the JSON of results.

    python ci/figures.py --write      put every figure, table and picture to what the JSON says
    python ci/figures.py --check      say which are not; status 1 if any is not, or if a figure is written by hand

In Markdown, a figure is the text between two comments that name its source, and a table the lines between two:

    <!--= engine_check speed[model=qwen3-4b].decode_at_18_tok_s .0f -->482<!--/-->
    <!-- table: engine -->
    <!-- /table -->

`ci/evidence/values.py` describes paths and formats, `tables.py` has the tables, `pictures.py` the pictures. A number with a
point or a percent sign, outside such comments, in a paragraph that cites a current result counts as written by hand. No line
may begin with a figure: in Markdown, a comment that begins a line ends the paragraph. A link to a stale result has its date.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ci.evidence import Entry, read_registry, states_of  # noqa: E402
from ci.evidence.citations import LINK, dated, owners, pages  # noqa: E402
from ci.evidence.pictures import PICTURES  # noqa: E402
from ci.evidence.tables import TABLES  # noqa: E402
from ci.evidence.values import Results, WrongFigure  # noqa: E402

FIGURE: Final = re.compile(r"(<!--= (\S+) ((?:\[[^\]]*\]|\S)+)(?: (\S+))? -->)(.*?)(<!--/-->)", re.DOTALL)
TABLE: Final = re.compile(r"(<!-- table: (\S+) -->\n)(.*?)(<!-- /table -->)", re.DOTALL)
CODE: Final = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
BY_HAND: Final = re.compile(r"(?<![\w.])\d+\.\d+(?![\w.]|\s?(?:tokenizers|or newer))|(?<![\w.])\d+(?:\.\d+)? %")
"""Numbers that can only come from a measurement. Model sizes (`0.6B`) and versions do not match."""


def filled(text: str, results: Results) -> str:
    """A page with current figures and tables; WrongFigure if one has no source."""

    def figure(match: re.Match[str]) -> str:
        return f"{match[1]}{results.text(match[2], match[3], match[4] or '')}{match[6]}"

    def table(match: re.Match[str]) -> str:
        if match[2] not in TABLES:
            raise WrongFigure(f"ci/evidence/tables.py has no table `{match[2]}`")
        lines = "\n".join(TABLES[match[2]](results))
        return f"{match[1]}\n{lines}\n\n{match[4]}"

    return TABLE.sub(table, FIGURE.sub(figure, text))


def by_hand(text: str, claims: dict[str, Entry]) -> Iterator[tuple[int, str]]:
    """Line and number of each figure written by hand in a paragraph that cites a current result."""
    blank = re.compile(r"[^\n]")
    bare = TABLE.sub(lambda m: blank.sub(" ", m[0]), text)
    bare = FIGURE.sub(lambda m: blank.sub(" ", m[0]), bare)
    start = 0
    for paragraph in re.split(r"(\n\s*\n)", bare):
        cited = {match["file"] or match["plain"] for match in LINK.finditer(paragraph)}
        if any(file in claims for file in cited):
            shown = CODE.sub(lambda m: blank.sub(" ", m[0]), LINK.sub(lambda m: blank.sub(" ", m[0]), paragraph))
            for match in BY_HAND.finditer(shown):
                yield text.count("\n", 0, start + match.start()) + 1, match[0]
        start += len(paragraph)


def wrong(root: Path, folder: Path, entries: dict[str, Entry]) -> list[str]:
    """A line for each figure, table and picture that differs from the JSON, and each figure written by hand."""
    results, lines, states = Results(folder), list[str](), states_of(root, entries)
    claims = owners(entries.values())
    for page in pages(root):
        name, text = page.relative_to(root).as_posix(), page.read_text(encoding="utf-8")
        try:
            now = dated(filled(text, results), states, entries.values())
        except WrongFigure as error:
            lines.append(f"{name}: {error}")
            continue
        for old, new in zip(FIGURE.finditer(text), FIGURE.finditer(now), strict=True):
            if old[5] != new[5]:
                line = text.count("\n", 0, old.start()) + 1
                lines.append(f"{name}:{line}: `{old[5]}` is {new[5]} in {old[2]}.json (`python ci/figures.py --write`)")
        for old, new in zip(TABLE.finditer(text), TABLE.finditer(now), strict=True):
            if TABLE.sub("", FIGURE.sub("", old[3])) != TABLE.sub("", FIGURE.sub("", new[3])):
                line = text.count("\n", 0, old.start()) + 1
                lines.append(f"{name}:{line}: the table `{old[2]}` is not what the JSON says (`python ci/figures.py --write`)")
        if dated(text, states, entries.values()) != text:
            lines.append(f"{name}: dates of stale results are missing, or are of renewed ones (`python ci/figures.py --write`)")
        lines += [
            f"{name}:{text.count(chr(10), 0, match.end()) + 1}: a figure begins the line, which ends a paragraph in Markdown"
            for match in re.finditer(r"^<!--=", text, re.MULTILINE)
        ]
        lines += [
            f"{name}:{line}: `{number}` is written by hand next to a current result" for line, number in by_hand(text, claims)
        ]
    lines += [
        f"{picture.name} is not of today's {', '.join(picture.sources)} (`python ci/figures.py --write`)"
        for picture in PICTURES
        if not picture.is_current(folder)
    ]
    return lines


def write(root: Path, folder: Path, entries: dict[str, Entry]) -> int:
    """Update what differs from the JSON; returns 1 if a figure has no source."""
    results, failed = Results(folder), False
    states = states_of(root, entries)
    for page in pages(root):
        text = page.read_text(encoding="utf-8")
        try:
            now = dated(filled(text, results), states, entries.values())
        except WrongFigure as error:
            print(f"error: {page.relative_to(root).as_posix()}: {error}")
            failed = True
            continue
        if now != text:
            page.write_text(now, encoding="utf-8")
            print(f"wrote {page.relative_to(root).as_posix()}")
    for picture in PICTURES:
        if not picture.is_current(folder):
            picture.draw(folder)
            print(f"drew {picture.name}")
    return int(failed)


def main() -> int:
    """Check or write; returns the exit status."""
    parser = argparse.ArgumentParser(description="figures of README and documentation, made of results")
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", action="store_true")
    mode.add_argument("--write", action="store_true")
    options = parser.parse_args()
    folder = ROOT / "ci" / "bench" / "results"
    if options.write:
        return write(ROOT, folder, read_registry())
    lines = wrong(ROOT, folder, read_registry())
    print("\n".join(f"error: {line}" for line in lines) or "every figure, table and picture is what the JSON says")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
