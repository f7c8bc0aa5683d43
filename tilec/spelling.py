"""Suggestions for misspelt words: a name that is not known goes in, the nearest known one comes out.

Every error about an unknown name (of the language, a kernel, a constant, a key of `build.toml`, an error code) asks here, so
that all suggest by the same measure.
"""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known word most like `name`, upper and lower case being alike; None where none is near (difflib's ratio, 0.6)."""
    import difflib

    lower: dict[str, str] = {}
    for word in sorted(known):
        lower.setdefault(word.lower(), word)
    found = difflib.get_close_matches(name.lower(), lower, 1)
    return lower[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """The question as a hint, such as "did you mean `bid`?"; `otherwise` where no known word is near."""
    found = nearest(name, known)
    return otherwise if found is None else f"did you mean `{found}`?"


def ask_first(name: str, known: Iterable[str], rest: str) -> str:
    """A hint that says `rest`, behind the question where a known word is near."""
    return f"{did_you_mean(name, known)} {rest}".lstrip()


def or_mean(name: str, known: Iterable[str]) -> str:
    """The question as the end of a message that has no hint: "; did you mean `bid`?", or nothing."""
    question = did_you_mean(name, known)
    return f"; {question}" if question else ""
