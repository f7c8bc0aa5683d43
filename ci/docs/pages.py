"""The pages of `docs/` that are made from sources: words, types, commands, errors, the interface of programs.

    python ci/docs/pages.py [--write]      status 1 if a page is not what the sources say; `--write` makes them again

They lie in the repository, so that links work where it is read. `architecture.md` alone is made when the site is built, because
every file that is moved changes it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from ci.docs.api import api  # noqa: E402
from ci.docs.commands import commands  # noqa: E402
from ci.docs.errors import errors  # noqa: E402
from ci.docs.language import types, words  # noqa: E402

NOTE: Final = "<!-- Made from sources by `python ci/docs/pages.py --write`. -->\n\n"


def pages() -> dict[str, str]:
    """The text of each page by its path in `docs/`."""
    made = {"language/words.md": words(), "language/types.md": types(), "commands.md": commands(), "api.md": api()}
    return {name: NOTE + text for name, text in (made | errors()).items()}


def main() -> int:
    """Compare or write; returns the exit status."""
    changed = [name for name, text in pages().items() if not _is_written(ROOT / "docs" / name, text)]
    if "--write" not in sys.argv[1:]:
        for name in changed:
            print(f"docs/{name} is not what the sources say: `python ci/docs/pages.py --write`")
        return int(bool(changed))
    for name, text in pages().items():
        path = ROOT / "docs" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


def _is_written(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    raise SystemExit(main())
