"""The registry of results: parses `results.toml` into an `Entry` for each result.

README and docs cite a fresh result without a date, and a stale one with its date. A closed experiment is not a result: it has
an entry in `docs/decisions.md`.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = "ci/bench/results"
RESULTS: Final = ROOT / FOLDER
REGISTRY: Final = Path(__file__).with_name("results.toml")


@dataclass(frozen=True, slots=True)
class Entry:
    """A result: its files (`NAME.json` and `pages`), what it rests on, the command that renews it from the root of the
    repository, and whether that needs a GPU. `at_least`: minimum counts of what its JSON must say was tried."""

    name: str
    rests_on: tuple[str, ...]
    command: str
    gpu: bool = False
    pages: tuple[str, ...] = ()
    at_least: Mapping[str, int] = field(default_factory=dict[str, int])

    def files(self) -> tuple[str, ...]:
        """Names of all its files in the results folder."""
        return (f"{self.name}.json", *self.pages)


class RegistryError(Exception):
    """`results.toml` is invalid; the message says where."""


def read_registry(path: Path = REGISTRY) -> dict[str, Entry]:
    """Entries by name. `common` in the file names sets of digests: `"@prover"` in `rests_on` expands to the set of that
    name."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    sets: dict[str, list[str]] = data.pop("common", {})
    found: dict[str, Entry] = {}
    for name, fields in data.items():
        rests_on: list[str] = []
        for item in fields.pop("rests_on", []):
            if item.startswith("@") and item[1:] not in sets:
                raise RegistryError(f"{path.name}: `{name}` rests on `{item}`, which [common] does not have")
            rests_on += sets[item[1:]] if item.startswith("@") else [item]
        fields["pages"] = tuple(fields.get("pages", ()))
        if unknown := fields.keys() - {field.name for field in dataclasses.fields(Entry)}:
            raise RegistryError(f"{path.name}: `{name}` has fields that no result has: {', '.join(sorted(unknown))}")
        entry = Entry(name, tuple(dict.fromkeys(rests_on)), **({"command": ""} | fields))
        if not (entry.rests_on and entry.command):
            raise RegistryError(f"{path.name}: a result names what it rests on and the command that renews it: `{name}`")
        found[name] = entry
    return found
