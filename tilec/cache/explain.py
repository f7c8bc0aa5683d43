"""Why an artifact was rebuilt: the difference between its recorded inputs and the current ones."""

from __future__ import annotations

from collections.abc import Mapping


def reasons(old: Mapping[str, str] | None, fresh: Mapping[str, str]) -> list[str]:
    """One phrase per input that changed; empty if none did. Field names are `kind name`, as `tilec.pipeline` makes them."""
    if old is None:
        return ["not built before"]
    found: list[str] = []
    for name in sorted({*old, *fresh}):
        before, after = old.get(name), fresh.get(name)
        if before != after:
            kind, _, rest = name.partition(" ")
            found.append(_phrase(kind, rest, before, after))
    return found


def _phrase(kind: str, name: str, before: str | None, after: str | None) -> str:
    if kind == "source":
        return f"source {name} is new" if before is None else f"source of {name} changed"
    if kind == "toolchain":
        old, new = _brief(before, after)
        return f"toolchain changed: {name} {old} -> {new}"
    if kind == "compiler":
        return f"tilec's {name} stage changed"
    if kind == "constant":  # `typed` writes the type before the value
        before, after = (text and text.partition(" ")[2] for text in (before, after))
    return f"{kind} {name} changed: {before or 'none'} -> {after or 'none'}"


def _brief(before: str | None, after: str | None) -> tuple[str, str]:
    old, new = before or "none", after or "none"
    if old.split()[0] != new.split()[0]:
        return old.split()[0], new.split()[0]
    return f"{old.split()[0]} (other binary)", new.split()[0]
