"""Pictures drawn from results: the JSON files of each, the command that draws it, and a mark with the digest of the JSON.

The digest is in a comment of the picture, so that an outdated one is detected without drawing it.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ci.evidence.registry import ROOT
from ci.evidence.result import STAMP

MARK: Final = re.compile(r"<!-- made of \S+ ([0-9a-f]{16}) -->\n")


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture in the results folder. `command` draws it; `{0}`, `{1}` are its JSON files and `{out}` is the picture."""

    name: str
    sources: tuple[str, ...]
    command: tuple[str, ...]

    def digest(self, folder: Path) -> str:
        """The digest of the measurements in its JSON files, independent of their stamps and formatting."""
        digest_ = hashlib.sha256()
        for source in self.sources:
            data: dict[str, Any] = json.loads((folder / source).read_text(encoding="utf-8"))
            digest_.update(json.dumps({k: v for k, v in data.items() if k not in STAMP}, sort_keys=True).encode())
        return digest_.hexdigest()[:16]

    def is_current(self, folder: Path) -> bool:
        """Whether it was drawn from its current JSON."""
        path = folder / self.name
        found = MARK.search(path.read_text(encoding="utf-8")) if path.exists() else None
        return found is not None and found[1] == self.digest(folder)

    def draw(self, folder: Path) -> None:
        """Draw it and mark it; CalledProcessError if the command fails."""
        path = folder / self.name
        paths = [str(folder / source) for source in self.sources]
        command = [part.format(*paths, out=path) for part in self.command]
        subprocess.run([sys.executable, *command], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        self.mark(folder)

    def mark(self, folder: Path) -> None:
        """Write the mark before the drawing."""
        path = folder / self.name
        text = MARK.sub("", path.read_text(encoding="utf-8"))
        comment = f"<!-- made of {','.join(self.sources)} {self.digest(folder)} -->\n"
        path.write_text(text.replace("<svg", f"{comment}<svg", 1), encoding="utf-8")


PICTURES: Final = (
    Picture("bench_4b.svg", ("bench_4b.json",), ("-m", "engine.bench", "--from-json", "{0}", "--plot", "{out}")),
    Picture("lengths.svg", ("lengths.json",), ("-m", "ci.bench.engine.lengths_plot", "{0}", "{out}")),
)
