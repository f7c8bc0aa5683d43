"""The table that `tilec tune` writes for the build: the selected candidates, their costs, and the origin of the measurements.

There is one file per kernel and architecture, in the folder `tuning` next to the kernels: `matmul-sm_90a.json`, with its
measurements in `matmul-sm_90a.jsonl` (`records`). Every read of a build file reads it, so this is kept cheap. A table of other
sources or another toolchain is stale, and the build ignores it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final, cast

from tilec.untrusted.limits import read_file
from tilec.untrusted.strict_json import parse

FORMAT: Final = 1
FOLDER: Final = "tuning"
MAX_TABLE: Final = 1 << 20
MAX_KEPT: Final = 100
PREDICTED: Final = ", predicted by the model of time and never measured"
"""Follows the name of the card in the `device` of a table of predictions."""
NO_DRIVER: Final = "none"
"""The `driver` of such a table."""
ORIGIN: Final = "predicted: "
"""How the description of such a table begins."""
Value = int | float | bool | str


@dataclass(frozen=True, slots=True)
class Kept:
    """A selected candidate: its constants, schedule overrides, numbers of its cost, and digests of its machine code by
    artifact."""

    constants: Mapping[str, Value]
    schedule: Mapping[str, Value]
    numbers: Mapping[str, float]
    cubins: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Table:
    """`cost` is an expression over extents, constants and numbers of `kept`. `sources` maps paths relative to the project to
    sha256; `toolchain` is that of the manifests. `regret` and `held_out` are (mean, worst) fractions (`tilec.tuning.fit`)."""

    kernel: str
    arch: str
    device: str
    driver: str
    dates: tuple[str, str]
    sources: Mapping[str, str]
    toolchain: Mapping[str, str]
    cost: str
    kept: tuple[Kept, ...]
    shapes: int
    candidates: int
    regret: tuple[float, float]
    held_out: tuple[float, float] | None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"format": FORMAT, **asdict(self)}

    @property
    def predicted(self) -> bool:
        """Whether the times are predictions instead of measurements."""
        return self.driver == NO_DRIVER and self.device.endswith(PREDICTED)

    def description(self) -> str:
        """The origin of the times and the regret, as one line; of predictions it begins with `ORIGIN`."""
        first, last = self.dates
        when = first if first == last else f"{first} to {last}"
        mean, worst = (100 * part for part in self.held_out or self.regret)
        kind = "A held-out shape" if self.held_out else "A shape"
        front, driver = (ORIGIN, "") if self.predicted else ("", f", driver {self.driver or '?'}")
        return (
            f"{front}{self.candidates} candidates at {self.shapes} shapes on {self.device}{driver}, {when}. "
            f"{kind} takes {mean:.1f} % longer than at its fastest, at worst {worst:.0f} %"
        )


def origin(measured: str) -> str:
    """The origin of a table's times as it is shown, from its description or from the text of `measured` in build.toml."""
    return measured if measured.startswith(ORIGIN) else f"measured: {measured}"


def table_path(kernels: Path, kernel: str, arch: str) -> Path:
    """Path of a kernel's table; its records have the suffix `.jsonl` in the same folder."""
    return kernels / FOLDER / f"{kernel}-{arch}.json"


def read_table(path: Path) -> Table | None:
    """A table; None if there is no file. ValueError if it is malformed; the text continues a sentence that begins with the
    file's name."""
    try:
        data = parse(read_file(path, MAX_TABLE), limit=MAX_TABLE)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    if not isinstance(data, dict) or cast("dict[str, Any]", data).get("format") != FORMAT:
        raise ValueError(f"is not a table of format {FORMAT}")
    try:
        return _table(cast("dict[str, Any]", data))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ValueError("is not what `tilec tune` writes") from None


def _table(data: dict[str, Any]) -> Table:
    kept = tuple(
        Kept(
            _values(one["constants"], (int, float, bool, str)), _values(one["schedule"], (int, bool, str)),
            _values(one["numbers"], (int, float)), _values(one["cubins"], (str,)),
        )
        for one in data["kept"]
    )  # fmt: skip
    texts = [data[name] for name in ("kernel", "arch", "device", "driver", "cost")]
    counts = (data["shapes"], data["candidates"])
    if not all(type(text) is str and len(text) <= 500 for text in texts) or not all(type(one) is int for one in counts):
        raise TypeError
    if not 0 < len(kept) <= MAX_KEPT:
        raise TypeError
    kernel, arch, device, driver, cost = texts
    held_out = data["held_out"]
    return Table(
        kernel, arch, device, driver, _pair(data["dates"], str), _values(data["sources"], (str,)),
        _values(data["toolchain"], (str,)), cost, kept, *counts, _pair(data["regret"], float),
        None if held_out is None else _pair(held_out, float),
    )  # fmt: skip


def _values(data: Any, kinds: tuple[type, ...]) -> dict[str, Any]:
    if not isinstance(data, dict) or any(type(value) not in kinds for value in cast("dict[Any, Any]", data).values()):
        raise TypeError
    return cast("dict[str, Any]", data)


def _pair(data: Any, kind: type) -> Any:
    first, second = data
    if type(first) is not kind or type(second) is not kind:
        raise TypeError
    return first, second


def stale(table: Table, root: Path) -> str:
    """Why a table is not valid for the sources in `root` and the installed toolchain, as the end of a sentence; empty if it is.
    Packages that are not installed are skipped: a machine can use tables without a compiler."""
    verb = "predicted" if table.predicted else "measured"
    if not table.sources:
        return "it names no sources"
    for name, digest in table.sources.items():
        path = PurePosixPath(name)
        inside = not path.is_absolute() and ".." not in path.parts
        try:
            same = inside and hashlib.sha256(read_file(root / path, MAX_TABLE)).hexdigest() == digest
        except (OSError, ValueError):
            same = False
        if not same:
            return f"`{name}` is not what was {verb}"
    for name, text in table.toolchain.items():
        try:
            version = importlib.metadata.version(name)
        except (importlib.metadata.PackageNotFoundError, ValueError):
            continue
        if version != text.split(" ")[0]:
            return f"it was {verb} with {name} {text.split(' ')[0]:.40}, and {version} is installed"
    return ""
