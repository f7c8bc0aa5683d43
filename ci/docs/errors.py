"""Generates pages of the error codes, one for each hundred, with the unchanged text of `tilec explain`."""

from __future__ import annotations

import importlib.resources
from typing import Final

GROUPS: Final = {
    "E01": ("text", "The kernel's text", "The file is not a kernel, or says what the language does not have."),
    "E02": ("types", "Types and constants", "Dtypes, shapes, axes and constants that do not fit."),
    "E03": ("bounds", "Bounds", "An access may leave its tensor, or an index its integer type."),
    "E04": ("ownership", "Ownership", "Two blocks may access the same element, or no block writes it."),
    "E05": ("lowering", "Lowering and limits", "A kernel that is proven, and cannot be lowered or is too large."),
    "E06": ("toolchain", "Toolchain", "A package, an architecture, the assembler."),
    "E07": ("stores", "Stores, bundles, registries", "What is kept, shipped, signed and fetched."),
    "E08": ("project", "The build file and budgets", "What `build.toml` says, and what building it may cost."),
    "E09": ("launches", "Launches", "What a launch breaks of its kernel's contract; raised as `tilec.runtime.LaunchError`."),
    "N01": ("notes", "Notes", "The kernel is right, and slower than it need be. `--deny notes` makes a note a failure."),
}
"""By the first three characters of a code: name of the page, title, topic."""


def errors() -> dict[str, str]:
    """The pages, by path."""
    folder = importlib.resources.files("tilec") / "diagnostics" / "explain"
    files = {one.name.removesuffix(".md"): one for one in folder.iterdir() if one.name.endswith(".md")}
    pages = {code: file.read_text(encoding="utf-8") for code, file in files.items()}
    made: dict[str, str] = {}
    index = ["# Error codes\n", _ABOUT]
    for start, (name, title, about) in GROUPS.items():
        codes = sorted(code for code in pages if code.startswith(start))
        index.append(f"## {title}\n\n{about}\n")
        index.append("\n".join(f"- [{_heading(pages[code])}]({name}.md#{code.lower()})" for code in codes) + "\n")
        parts = [f"# {title}\n", f"{about}\n", *(_entry(code, pages.pop(code)) for code in codes)]
        made[f"errors/{name}.md"] = "\n".join(parts)
    if pages:
        raise LookupError(f"no page of the site is for {', '.join(sorted(pages))}")
    return made | {"errors/index.md": "\n".join(index)}


_ABOUT: Final = (
    "What `tilec explain CODE` prints, for every code. A code means the same for good: one that goes is not used again. Errors "
    "begin with `E`, and notes, of what is slow, with `N`. At a terminal each comes with the place, the reason and a hint; "
    "with `--json` with the same as data.\n"
)


def _heading(page: str) -> str:
    return page.partition("\n")[0].removeprefix("# ")


def _entry(code: str, page: str) -> str:
    heading, _, rest = page.partition("\n")
    return f"## {heading.removeprefix('# ')} {{: #{code.lower()} }}\n{rest.rstrip()}\n"
