"""Whether a row's bits follow from the row alone, on the GPU of this machine: in any batch, and a prompt in any chunks.

    python ci/bench/kernels.py rows_gpu artifacts/build/sm_90a [MORE_FOLDERS] [--only products,batches,prompts] [--out FOLDER]

- products: every specialisation of a product of small M, by numbers of rows up to 256, against the one with the smallest tile
  of tokens on 256 rows. Products of prompts (`matmul`, `matmul_silu_mul`) are compared too, and only reported.
- batches: attention of a step over pages (`chunk_starts`, `paged_decode_attention`, `paged_merge`) of 16 bits and of codes
  (`paged_decode_attention_c8`), each row alone, in another pool, against the row among 256, at 40 lengths.
- prompts: `flash_attention` after `paged_gather`, and `paged_flash_attention`, in chunks of several sizes against the whole.

Status 1 if bits differ. Times of the same kernels are those of `kernels_gpu`. Needs torch and cuda-bindings; `--dry-run` runs
everything on a processor with a driver that launches nothing.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ci.bench import front
from ci.bench.front import Outcome
from ci.bench.markdown import grid, page

if TYPE_CHECKING:
    from ci.bench.kernels.row_bits import Row

PARTS: Final = ("products", "batches", "prompts")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--only", type=front.names, default=[], metavar="PARTS")
    parser.add_argument("--dry-run", action="store_true")


def measure(options: argparse.Namespace) -> Outcome | int:
    """Compare bits."""
    from ci.bench.kernels import row_bits
    from ci.bench.kernels.launch import Bench, find_artifacts

    bench = Bench(options.dry_run)
    entries, broken = find_artifacts(options.folders, bench.device.architecture)
    print(*broken, sep="\n")
    run = {"products": row_bits.products, "batches": row_bits.batches, "prompts": row_bits.prompts}
    rows = [row for part in options.only or PARTS for row in run[part](bench, entries)]
    missing = [part for part in options.only or PARTS if not any(row.part == part for row in rows)]
    failed = bool(missing) or any(row.different and row.binding for row in rows)
    data = {"rows": [asdict(row) for row in rows], "missing": missing}
    whole = not options.only and not options.dry_run
    return Outcome(data, {f"{options.name}.md": table(rows, missing)}, int(failed and not options.dry_run), whole=whole)


def table(rows: list[Row], missing: list[str]) -> str:
    """The page."""
    head = ("part", "what", "case", "elements", "different", "must be 0")
    cells = [(row.part, f"`{row.what}`", row.case, row.elements, row.different, "yes" if row.binding else "no") for row in rows]
    gone = [f"No kernels for: {', '.join(missing)}.", ""] if missing else []
    return page(["# Bits of a row in any company", "", *gone, *grid(head, cells, left=3)])
