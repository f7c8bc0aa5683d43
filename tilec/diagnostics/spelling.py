"""Suggestions for misspelt words: takes an unknown name, returns the nearest known one.

Every error about an unknown name (of the language, a kernel, a constant, a key of `build.toml`, an error code) uses this
module, so that all suggestions use the same metric.
"""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known word most similar to `name`, ignoring case; None if no word is similar enough (difflib's ratio, 0.6)."""
    import difflib

    lower: dict[str, str] = {}
    for word in sorted(known):
        lower.setdefault(word.lower(), word)
    found = difflib.get_close_matches(name.lower(), lower, 1)
    return lower[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """The suggestion as a hint, such as "did you mean `bid`?"; `otherwise` if no known word is near."""
    found = nearest(name, known)
    return otherwise if found is None else f"did you mean `{found}`?"


def ask_first(name: str, known: Iterable[str], rest: str) -> str:
    """The hint `rest`, preceded by the suggestion if a known word is near."""
    return f"{did_you_mean(name, known)} {rest}".lstrip()


def or_mean(name: str, known: Iterable[str]) -> str:
    """The suggestion as the end of a message that has no hint: "; did you mean `bid`?", or nothing."""
    suggestion = did_you_mean(name, known)
    return f"; {suggestion}" if suggestion else ""
