"""The site builds without a warning and without a network, contains everything it links to, and requests nothing from other
sites."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tilec.runtime
from ci.docs.api import api
from ci.docs.commands import commands
from ci.docs.errors import errors
from ci.docs.language import SECTIONS, words
from ci.docs.pages import pages
from ci.docs.refusals import refusals
from ci.docs.repository import LinkError, Repository
from tests.files import ROOT
from tilec.language import words as stubs

NO_NETWORK = """
import socket
def refuse(*_): raise OSError("no network while the site is built")
socket.socket.connect = socket.getaddrinfo = refuse
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. `strict` of mkdocs.yml makes every warning an error: a broken link or anchor, an unreachable page."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "sitecustomize.py").write_text(NO_NETWORK)
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder / "site")]
    paths = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return folder / "site"


@pytest.mark.campaign
def test_every_page_of_the_navigation_is_there(site: Path) -> None:
    for name in ("index", "language/words", "language/types", "language/meaning", "commands", "architecture", "errors/bounds"):
        assert (site / f"{name}.html").stat().st_size > 4000, name
    assert (site / "repository/ci/bench/results/torch_ops.html").is_file()
    assert (site / "repository/kernels_src/matmul.py.html").is_file()


@pytest.mark.campaign
def test_nothing_comes_from_elsewhere(site: Path) -> None:
    """A browser that shows a page loads only that page and the files next to it."""
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    loads = re.compile(r'<(?:script|img|iframe|source)[^>]*\bsrc="|<link[^>]*rel="(?:stylesheet|icon|preconnect)"')
    for page in pages:
        for match in loads.finditer(page.read_text(encoding="utf-8")):
            tag = match.string[match.start() : match.string.index(">", match.start())]
            assert not re.search(r'(?:src|href)="(?:https?:)?//', tag), f"{page.name}: {tag}"


@pytest.mark.campaign
def test_what_pages_load_is_there(site: Path) -> None:
    for page in set(site.rglob("*.html")) - {site / "404.html"}:  # shown at any address, so its links are absolute
        text = page.read_text(encoding="utf-8")
        for address in re.findall(r'<img[^>]*\bsrc="([^"]+)"|<a [^>]*href="([^"#:]+)[#"]', text):
            target = next(filter(None, address))
            assert (page.parent / target).exists(), f"{page.relative_to(site)}: {target}"


def test_pages_made_from_sources_are_what_these_say() -> None:
    for name, text in pages().items():
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == text, f"docs/{name}: `python ci/docs/pages.py --write`"


def test_links_work_where_the_repository_is_read() -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        for address in re.findall(r"\]\((?!https?:)([^)\s#]+)(?:#[^)\s]*)?\)", _without_code(page)):
            assert (page.parent / address).exists(), f"{page.relative_to(ROOT)}: {address}"


def test_anchors_of_links_between_pages_exist() -> None:
    """The site is built by a campaign only; this finds the headings that an edit or a merge removed."""
    for page in (ROOT / "docs").rglob("*.md"):
        for address, anchor in re.findall(r"\]\((?!https?:)([^)\s#]*)#([^)\s]+)\)", _without_code(page)):
            target = page.parent / address if address else page
            if target.suffix == ".md":
                assert anchor in _anchors(target), f"{page.relative_to(ROOT)}: {address}#{anchor}"


def _without_code(page: Path) -> str:
    return re.sub(r"^( *)```.*?^\1```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def _anchors(page: Path) -> set[str]:
    """Those that the headings of a page get, by their text or as they say themselves."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", _without_code(page), re.MULTILINE):
        text, _, own = heading.partition("{: #")
        found.add(own.split()[0] if own else re.sub(r"[^\w -]", "", text).strip().lower().replace(" ", "-"))
    return found


def test_every_word_is_on_its_page() -> None:
    headings = set(re.findall(r"^### (\w+) ", words(), re.MULTILINE))
    assert headings == set(stubs.__all__)
    assert {word for section in SECTIONS.values() for word in section} <= headings


def test_a_word_lists_its_refusals() -> None:
    """From the source of the frontend, and from the prover's errors for the kernels of tests/ui."""
    documented = refusals(ROOT)
    assert ("E0113", "`load` takes either an index or `offset=`") in documented["load"]
    assert ("E0206", "`sum` reduces a tile, found a scalar") in documented["sum"]
    assert {"E0301", "E0402", "E0405"} <= {code for code, _ in documented["load"]}
    assert {"E0302", "E0401", "E0403", "E0404"} <= {code for code, _ in documented["store"]}
    assert not [message for _, message in documented["exp"] if "numbers" in message], "what `abs` alone is refused for"
    silent = {
        "inf",
        "nan",
        "kernel",
        "function",
        "unsafe",
        "maximum",
        "minimum",
        "clamp",
        "isnan",
        "isinf",
        "isfinite",
        "static_range",
        "meet",  # its rules are those of whole kernels: E0116 and E0407
    }
    assert {word for word in stubs.__all__ if word not in documented} <= silent


def test_every_code_and_command_is_on_its_page() -> None:
    pages = "\n".join(errors().values())
    codes = {path.stem for path in (ROOT / "tilec/diagnostics/explain").glob("*.md")}
    assert codes == set(re.findall(r"^## ([EN]\d{4}):", pages, re.MULTILINE))
    assert all(f"\n### tilec bundle {name} " in commands() for name in ("pack", "verify", "launcher"))
    assert "`-c, --constants NAME=VALUE`" in commands()


def test_what_programs_call_is_on_its_page() -> None:
    headings = set(re.findall(r"^### tilec\.runtime\.(\w+) ", api(), re.MULTILINE))
    assert headings == set(tilec.runtime.__all__)
    assert "prebuilt: str | Path | None = None" in api() and "- `prebuilt`: a bundle" in api()


def test_links_into_the_repository(tmp_path: Path) -> None:
    """They lead to the rendered page of the file; the targets of links in a file's page are reported; a missing file is an
    error."""
    (tmp_path / "a.md").write_text("[b](b.py), [here](../docs/p.md)")
    (tmp_path / "b.py").write_text("x = 1\n")
    repository = Repository(tmp_path)
    text = "# A page\n\n[a](../a.md#x) and [page](p.md) and [site](https://example.com)\n\n```text\n[c](../c.py)\n```\n"
    made = repository.linked({"p.md": text})
    assert list(made) == ["repository/a.md"]
    assert repository.relinked(text, "p.md") == text.replace("../a.md", "repository/a.md")
    assert repository.relinked("[b](b.py)", "repository/a.md") == "b"
    assert "the file `a.md` of the repository, from: [A page](../p.md)." in repository.origin("repository/a.md")
    assert repository.origin("p.md") == ""
    with pytest.raises(LinkError, match=r"p.md: `../gone.py`"):
        repository.linked({"p.md": "[gone](../gone.py)"})
