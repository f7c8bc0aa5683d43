"""Files of the repository on the site: those that are pages of their own, and those that pages link to.

A page of `docs/` links to a file by its path in the repository, `[matmul.py](../kernels_src/matmul.py)`, which works when
browsing the repository. On the site the file has a page `repository/...`: Markdown as text, pictures unchanged, sources as
code. Links on such a page become plain text unless their target is on the site anyway. LinkError if a file does not exist.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

COPIES: Final = {
    "language/meaning.md": "tilec/ir/SEMANTICS.md",
    "shipping/artifacts.md": "artifacts/README.md",
    "shipping/signing.md": "artifacts/SIGNING.md",
    "shipping/teams.md": "ci/team/README.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
    "changes.md": "CHANGELOG.md",
}
"""Pages of the site that are files of the repository."""
PAGES: Final = "docs/"
PICTURES: Final = (".svg", ".png", ".jpg")
_LINK: Final = re.compile(r"(!?)\[((?:[^][]|\[[^]]*\])*)\]\(([^)\s]+)\)")
_FENCE: Final = re.compile(r"^( *)```.*?^\1```[ \t]*$", re.MULTILINE | re.DOTALL)
_LEXERS: Final = {".py": "python", ".json": "json", ".jsonl": "json", ".toml": "toml", ".c": "c", ".sh": "sh", ".yaml": "yaml"}


class LinkError(Exception):
    """A page links to a file that the repository does not have."""


class Repository:
    """The repository at `root`, as shown on the site."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.page_of = {name: uri for uri, name in COPIES.items()}
        self.name_of = dict(COPIES)
        self.linked_from: dict[str, dict[str, str]] = {}

    def copy(self, name: str) -> str:
        """The text of a file that is a page."""
        return (self.root / name).read_text(encoding="utf-8")

    def linked(self, texts: Mapping[str, str]) -> dict[str, str | bytes]:
        """The repository files that the pages of `texts` link to, as pages or pictures by their path on the site."""
        found: dict[str, str | bytes] = {}
        for uri, text in texts.items():
            for match in _LINK.finditer(_FENCE.sub("", text)):
                name = self._target(match[3].partition("#")[0], uri)
                if name is None or name in COPIES.values() or name.startswith(PAGES):
                    continue
                self.linked_from.setdefault(name, {})[uri] = _title(text, uri)
                if name in self.page_of:
                    continue
                path = self.root / name
                if not path.is_file():
                    raise LinkError(f"{uri}: `{match[3]}` is no file of the repository")
                page = f"repository/{name}" if path.suffix in (*PICTURES, ".md") else f"repository/{name}.md"
                self.page_of[name], self.name_of[page] = page, name
                found[page] = self._shown(path, name)
        return found

    def relinked(self, text: str, uri: str) -> str:
        """A page whose links to repository files lead to their pages; links to files outside the site become plain text."""
        kept = [(match.start(), match.end()) for match in _FENCE.finditer(text)]

        def change(match: re.Match[str]) -> str:
            if any(start <= match.start() < end for start, end in kept):
                return match[0]
            address, hash_sign, anchor = match[3].partition("#")
            name = self._target(address, uri)
            if name is None:
                return match[0]
            page = name.removeprefix(PAGES) if name.startswith(PAGES) else self.page_of.get(name)
            if page is None:
                return match[2]
            return f"{match[1]}[{match[2]}]({posixpath.relpath(page, posixpath.dirname(uri) or '.')}{hash_sign}{anchor})"

        return _LINK.sub(change, text)

    def origin(self, uri: str) -> str:
        """What stands below a file's page: its name, and the pages that lead to it. Empty for pages of `docs/`."""
        name = self.name_of.get(uri, "")
        pages = self.linked_from.get(name, {})
        links = ", ".join(f"[{title}]({posixpath.relpath(page, posixpath.dirname(uri))})" for page, title in pages.items())
        return f"\n\n---\n\nThis is the file `{name}` of the repository, from: {links}.\n" if links else ""

    def _target(self, address: str, uri: str) -> str | None:
        """The repository file that an address on a page refers to; None for a page of the site, or another site."""
        if not address or re.match(r"[a-z]+:", address):
            return None
        source = self.name_of.get(uri, f"docs/{uri}")
        name = posixpath.normpath(posixpath.join(posixpath.dirname(source), address))
        return None if name.startswith((PAGES, "../")) and source.startswith(PAGES) else name

    def _shown(self, path: Path, name: str) -> str | bytes:
        if path.suffix in PICTURES:
            return path.read_bytes()
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".md":
            return text
        return f"# {path.name}\n\n`{name}`\n\n````{_LEXERS.get(path.suffix, 'text')}\n{text.rstrip()}\n````\n"


def _title(text: str, uri: str) -> str:
    """The heading of a page."""
    found = re.search(r"^# ([^\n{]+)", text, re.MULTILINE)
    return found[1].strip() if found else uri
