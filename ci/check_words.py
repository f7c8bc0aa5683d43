"""Words that this project no longer uses: where they still stand, and whether there are more of them than recorded.

    python ci/check_words.py                     counts, and the places of every word that rose; status 1 if one did
    python ci/check_words.py --list [WORD ...]   every place, or those of some words; --under docs for those of a folder
    python ci/check_words.py --record            write the counts that fell; --force writes those that rose too

`ci/words.toml` has the words, `ci/word_counts.json` the recorded counts, which may only fall. Three kinds are counted apart:

    prose         Markdown without code, docstrings and comments of Python without what stands in backticks; places
    identifiers   distinct names of Python and of its files, `_` and capitals between their words
    strings       other string constants of Python; places

Generated pages (results, the schema, golden files) are not looked at.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
WORDS: Final = "ci/words.toml"
COUNTS: Final = "ci/word_counts.json"
KINDS: Final = ("prose", "identifiers", "strings")
SKIPPED: Final = (
    "ci/bench/results/",
    "docs/errors/",
    "docs/language/words.md",
    "docs/language/types.md",
    "docs/commands.md",
    "docs/api.md",
    "tests/golden/",
    "ci/check_words.py",
    "tests/evidence/test_words.py",
)
CODE: Final = re.compile(r"^( *)(`{3,}).*?^\1\2[ \t]*$|``[^`]+``|`[^`]+`|\]\([^)\s]+\)|<!--.*?-->", re.MULTILINE | re.DOTALL)
"""What is no prose in Markdown and docstrings: fences, code, addresses of links, comments."""

Counts = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True, eq=False)
class Word:
    """An entry of `ci/words.toml`."""

    name: str
    pattern: re.Pattern[str]
    write: str
    only: tuple[str, ...] = ()
    allow: dict[str, str] = field(default_factory=dict[str, str])
    kinds: tuple[str, ...] = KINDS

    def counts_in(self, path: str) -> bool:
        """Whether it is counted in a file."""
        inside = not self.only or any(_is_below(path, folder) for folder in self.only)
        return inside and not any(_is_below(path, folder) for folder in self.allow)


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of a file: its kind, the line at which it begins, and what it says, line breaks kept."""

    kind: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a word stands."""

    word: Word
    kind: str
    path: str
    line: int
    found: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: `{self.found}` ({self.kind}): write {self.word.write}"


def read_words(root: Path) -> list[Word]:
    """The table."""
    data = tomllib.loads((root / WORDS).read_text(encoding="utf-8"))
    return [
        Word(
            entry["word"],
            _compiled(entry.get("find", entry["word"])),
            entry["write"],
            tuple(entry.get("only", ())),
            entry.get("allow", {}),
            tuple(entry.get("kinds", KINDS)),
        )
        for entry in data["word"]
    ]


def _compiled(find: str) -> re.Pattern[str]:
    spaced = find.replace(" ", r"\s+")
    return re.compile(rf"\b(?:{spaced})\b", re.IGNORECASE)


def files(root: Path) -> list[str]:
    """The Markdown and Python that git knows, but for what is generated."""
    command = ["git", "ls-files", "-z", "*.md", "*.py"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    names = sorted(name for name in done.stdout.split("\0") if name and not name.startswith(SKIPPED))
    return [name for name in names if (root / name).is_file()]


def texts(path: Path) -> Iterator[Text]:
    """The pieces of a file."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield Text("prose", 1, _bare(source))
        return
    yield Text("identifiers", 1, _as_words(path.stem))
    tree = ast.parse(source)
    documents = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_prose = node in documents
            yield Text("prose" if is_prose else "strings", node.lineno, _bare(node.value) if is_prose else node.value)
    yield from _of_tokens(source)


def _of_tokens(source: str) -> Iterator[Text]:
    """Comments, those of adjacent lines as one; and names, each once."""
    block: list[str] = []
    names: set[str] = set()
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME and token.string not in names:
            names.add(token.string)
            yield Text("identifiers", token.start[0], _as_words(token.string))
        elif token.type == tokenize.COMMENT:
            if block and token.start[0] != last + 1:
                yield Text("prose", last - len(block) + 1, _bare("\n".join(block)))
                block = []
            block.append(token.string.lstrip("# "))
            last = token.start[0]
    if block:
        yield Text("prose", last - len(block) + 1, _bare("\n".join(block)))


def _as_words(name: str) -> str:
    """`WayOut` and `way_out` as `way_out`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).strip("_")


def _bare(text: str) -> str:
    """Prose without code, in as many lines."""
    return CODE.sub(lambda match: "\n" * match[0].count("\n") or " ", text)


def places(root: Path, words: list[Word]) -> list[Place]:
    """Every place of every word; of identifiers the first of each name."""
    found: list[Place] = []
    matching: dict[str, list[Word]] = {}
    named: set[tuple[str, str]] = set()
    for path in files(root):
        here = [word for word in words if word.counts_in(path)]
        for text in texts(root / path):
            if text.kind != "identifiers":
                found += [place for word in here if text.kind in word.kinds for place in _in_text(word, path, text)]
                continue
            if text.text not in matching:
                spaced = text.text.replace("_", " ")
                matching[text.text] = [word for word in words if text.kind in word.kinds and word.pattern.search(spaced)]
            for word in matching[text.text]:
                if word in here and (word.name, text.text) not in named:
                    named.add((word.name, text.text))
                    found.append(Place(word, text.kind, path, text.line, text.text))
    return found


def _in_text(word: Word, path: str, text: Text) -> Iterator[Place]:
    for match in word.pattern.finditer(text.text):
        line = text.line + text.text.count("\n", 0, match.start())
        yield Place(word, text.kind, path, line, " ".join(match[0].split()))


def counts_of(found: Iterable[Place], words: list[Word]) -> Counts:
    """How many places there are, by kind and word."""
    counts = {kind: {word.name: 0 for word in words} for kind in KINDS}
    for place in found:
        counts[place.kind][place.word.name] += 1
    return counts


def read_counts(root: Path) -> Counts:
    """The recorded counts; none where nothing was recorded."""
    path = root / COUNTS
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def risen(counts: Counts, recorded: Counts) -> list[tuple[str, str]]:
    """Kind and word of each count that is above what is recorded; a word without a record must not be there."""
    return [
        (kind, word)
        for kind, of_kind in counts.items()
        for word, count in of_kind.items()
        if count > recorded.get(kind, {}).get(word, 0)
    ]


def lowered(counts: Counts, recorded: Counts, *, force: bool) -> Counts:
    """What to record: the lower of both counts, today's of a new word, and today's at all if forced."""
    return {
        kind: {
            word: count if force else min(count, recorded.get(kind, {}).get(word, count))
            for word, count in sorted(of_kind.items())
        }
        for kind, of_kind in counts.items()
    }


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _table(counts: Counts, recorded: Counts) -> Iterator[str]:
    width = max(len(word) for word in counts["prose"])
    yield f"{'word':{width}}  " + "  ".join(f"{kind:>18}" for kind in KINDS)
    for word in counts["prose"]:
        cells = (f"{counts[kind][word]} of {recorded.get(kind, {}).get(word, 0)}" for kind in KINDS)
        yield f"{word:{width}}  " + "  ".join(f"{cell:>18}" for cell in cells)


def main() -> int:
    """Count, list or record; the exit status."""
    parser = argparse.ArgumentParser(description="words that this project no longer uses")
    parser.add_argument("root", nargs="?", type=Path, default=ROOT)
    parser.add_argument("--list", nargs="*", metavar="WORD", help="every place, or those of some words")
    parser.add_argument("--under", metavar="FOLDER", default="", help="with --list: of this folder or file alone")
    parser.add_argument("--record", action="store_true", help="write the counts that fell")
    parser.add_argument("--force", action="store_true", help="with --record: write those that rose too")
    options = parser.parse_args()
    words = read_words(options.root)
    found = places(options.root, words)
    counts, recorded = counts_of(found, words), read_counts(options.root)
    if options.list is not None:
        wanted = [place for place in found if not options.list or place.word.name in options.list]
        print("\n".join(str(place) for place in wanted if not options.under or _is_below(place.path, options.under)))
        return 0
    if options.record:
        recorded = lowered(counts, recorded, force=options.force)
        (options.root / COUNTS).write_text(json.dumps(recorded, indent=2) + "\n", encoding="utf-8")
    print("\n".join(_table(counts, recorded)))
    over = risen(counts, recorded)
    for kind, name in over:
        print(f"\nerror: `{name}` in {kind}: {counts[kind][name]}, {recorded.get(kind, {}).get(name, 0)} are recorded")
        print("\n".join(f"  {place}" for place in found if (place.kind, place.word.name) == (kind, name)))
    return int(bool(over))


if __name__ == "__main__":
    sys.exit(main())
