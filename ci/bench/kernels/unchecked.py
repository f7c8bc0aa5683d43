"""Times products and attention as they are shipped, compared with the same text without masks, launched without checks.

    python ci/bench/kernels.py unchecked FOLDER                 build what is missing, compare, time
    python ci/bench/kernels.py unchecked FOLDER --build-only    on a machine with no GPU; FOLDER then goes to one that has it

Kernels of `kernels_src` at the tiles and schedules that build.toml has for prompts on sm_90. The other form of each has no
`pad=` and no `mask=`: it requires instead that tiles divide the extents, so that nothing has to be masked, and its launches are
packed once and handed to the driver. `code`: both in CUDA graphs, so that the kernels alone differ. `launched`: from the host,
where the safe form's contract is checked at every launch. Results must be equal bit by bit. Status 1 if a build fails, if two
results differ, or if the safe code of a tile takes more than 0.5 % longer in the median of its sizes. Timing needs torch and
cuda-bindings.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ci.bench.front import Outcome
from ci.bench.kernels.projects import ARCH, Part, write
from ci.bench.markdown import grid, page

SAFE, UNCHECKED = "safe", "unchecked"
ALLOWED: Final = 0.005
"""By how much longer the safe form may take."""
PERSISTENT: Final = "persistent = true"
PINGPONG: Final = f'{PERSISTENT}, order = "pingpong"'
STORED: Final = 'store = "tma"'


@dataclass(frozen=True)
class Tile:
    """A tile of a kernel: rows, columns, stages, the rest of its schedule, and rows of tiles per group (0: none)."""

    kernel: str
    rows: int
    columns: int
    stages: int
    more: str = ""
    group: int = 16

    @property
    def name(self) -> str:
        """Of its folders, before `_safe` and `_unchecked`."""
        return f"{self.kernel}_{self.rows}x{self.columns}"

    @property
    def part(self) -> Part:
        """The kernel at this tile, in the build file's syntax."""
        constants = f'E = "bf16", BM = {self.rows}, BN = {self.columns}'
        constants += f", BK = 64, GROUP = {self.group}" if self.group else ", D = 128"
        schedule = f'copy = "tma", consumers = 2, stages = {self.stages}' + (f", {self.more}" if self.more else "")
        return Part(self.kernel, constants, f"schedule = {{ {schedule} }}")


TILES: Final = (
    Tile("matmul", 128, 128, 4, f"{PINGPONG}, {STORED}"),
    Tile("matmul", 128, 160, 4, PINGPONG),
    Tile("matmul", 128, 192, 4, f"{PERSISTENT}, {STORED}", 8),
    Tile("matmul", 128, 256, 3, f"{PERSISTENT}, {STORED}"),
    Tile("matmul_silu_mul", 128, 64, 5, f"{PINGPONG}, {STORED}"),
    Tile("matmul_silu_mul", 128, 80, 4, f"{PINGPONG}, {STORED}"),
    Tile("flash_attention", 128, 128, 2, "", 0),
)
DIVIDED: Final = {
    "matmul": "tl.requires(M % BM == 0 and N % BN == 0 and K % BK == 0)",
    "matmul_silu_mul": "tl.requires(M % BM == 0 and I % BN == 0 and K % BK == 0)",
    "flash_attention": "tl.requires(T % BM == 0)",
}
"""By kernel: what makes its masks needless."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this case."""
    parser.add_argument("folder", type=Path)
    parser.add_argument("--build-only", action="store_true", help="for a machine that has no GPU")


def measure(options: argparse.Namespace) -> Outcome | int:
    """Build what is missing, compare, time."""
    forms = [(folder(options, tile, form), tile, form) for tile in TILES for form in (SAFE, UNCHECKED)]
    failed = [path.name for path, tile, form in forms if not _is_built(path, tile) and _build(path, tile, form)]
    for name in failed:
        print(f"not built: {name}", file=sys.stderr)
    if failed or options.build_only:
        return int(bool(failed))
    from ci.bench.kernels.unchecked_gpu import Pairs

    pairs = Pairs()
    rows = [
        row for tile in TILES for row in pairs.rows(tile.name, *(folder(options, tile, form) for form in (SAFE, UNCHECKED)))
    ]
    return outcome({"gpu": pairs.gpu, "rows": rows}, options.name)


def folder(options: argparse.Namespace, tile: Tile, form: str) -> Path:
    """The project of a form of a tile."""
    return options.folder / f"{tile.name}_{form}"


def _is_built(path: Path, tile: Tile) -> bool:
    return any(path.glob(f"artifacts/build/{ARCH}a/{tile.kernel}-*.cubin"))


def _build(path: Path, tile: Tile, form: str) -> int:
    write([tile.part], path)
    if form == UNCHECKED:
        source = path / "kernels" / f"{tile.kernel}.py"
        source.write_text(unmasked(source.read_text(encoding="utf-8"), DIVIDED[tile.kernel]), encoding="utf-8")
    return subprocess.run([sys.executable, "-P", "-m", "tilec", "build", "--project", str(path)], check=False).returncode


def unmasked(text: str, condition: str) -> str:
    """A kernel's text without its masks, and with `condition` after its grid. ValueError if it has no mask or not one grid."""
    text, pads = re.subn(r", pad=0\b", "", text)
    text, masks = re.subn(r", mask=True\b", "", text)
    text, grids = re.subn(r"^( +)(tl\.grid\(.*\))$", rf"\1\2\n\1{condition}", text, flags=re.MULTILINE)
    if not (pads and masks and grids == 1):
        raise ValueError(f"{pads} pads, {masks} masks and {grids} grids in the text of a kernel")
    return text


def outcome(data: Mapping[str, Any], name: str) -> Outcome:
    """The result and its table."""
    rows = data["rows"]
    lines = [f"# Shipped kernels compared with the same without masks and checks, bf16, {data['gpu']}", ""]
    cells = [
        (row["tile"], " x ".join(map(str, row["dims"].values())), f"{row['us']:.1f}", f"{row['unchecked_us']:.1f}",
         f"{row['code']:+.2%}", f"{row['launched']:+.2%}")
        for row in rows
    ]  # fmt: skip
    lines += grid(("tile", "size", "safe, us", "unchecked, us", "code", "launched"), cells, left=2)
    for what in ("code", "launched"):
        found = [row[what] for row in rows]
        within = sum(one <= ALLOWED for one in found)
        spread = (
            f"{min(found):+.2%} to {max(found):+.2%}, {statistics.median(found):+.2%} in the median" if found else "nothing"
        )
        lines += ["", f"{what.capitalize()}: the safe form takes {spread} longer; {within} of {len(found)} within 0.5 %."]
    lines += ["", f"More than 0.5 % longer in the median of its sizes: {', '.join(slow(rows)) or 'no tile'}."]
    differ = [f"- not the same bits: {row['tile']} at {row['dims']}" for row in rows if not row["equal"]]
    return Outcome(dict(data), {f"{name}.md": page([*lines, "", *differ])}, int(bool(differ) or not rows or bool(slow(rows))))


def slow(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The tiles whose safe code takes too much longer in the median of their sizes."""
    tiles = dict.fromkeys(row["tile"] for row in rows)
    return [tile for tile in tiles if statistics.median(row["code"] for row in rows if row["tile"] == tile) > ALLOWED]
