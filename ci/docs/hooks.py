"""MkDocs hooks: add the pages that lie elsewhere in the repository, and rewrite links into it.

In: `docs/`, and the files that it links to. Out, only in memory: their pages, and `architecture.md`. A link from a page to a
file of the repository leads to a page of that file; if the file does not exist, the build fails.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # MkDocs may be started in any folder

from ci.docs.architecture import architecture  # noqa: E402
from ci.docs.repository import COPIES, Repository  # noqa: E402

_repository = Repository(ROOT)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files of the repository that are pages of the site, and those that pages link to."""
    texts = {file.src_uri: file.content_string for file in files.documentation_pages()}
    added = {uri: _repository.copy(name) for uri, name in COPIES.items()} | {"architecture.md": architecture(ROOT)}
    for uri, text in added.items():
        files.append(File.generated(config, uri, content=text))
    texts |= added
    for uri, content in _repository.linked(texts).items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace links to files of the repository by links to their pages. These lead back, and the search ranks them last."""
    uri = page.file.src_uri
    if uri.startswith("repository/"):
        page.meta["search"] = {"boost": 0.1}
    return _repository.relinked(markdown, uri) + _repository.origin(uri)
