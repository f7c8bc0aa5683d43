"""Builds candidates of the products of a batch, and times them where there is a GPU.

    python3 ci/bench/rows.py FOLDER [--only qkv] [--build-only] [--out FOLDER]

A candidate is a form of a block (rows of weights, warps that share a sum, columns of a warp's turn) and a schedule. Each is a
project below FOLDER with one artifact, of the sizes of Qwen3 4B; `rows_gpu.py` times those that are there.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Final

from candidates import ROOT, Part, arguments, build, built

BATCH: Final = 8


@dataclass(frozen=True)
class Form:
    """Constants of a product, warps of a block, turns that are loaded early, blocks that share a multiprocessor."""

    rows: int
    split: int
    block: int
    early: int | None
    blocks: int
    warps: int | None = None

    @property
    def name(self) -> str:
        """A folder's name."""
        return f"rows{self.rows}_split{self.split}_block{self.block}_warps{self.warps}_early{self.early}_blocks{self.blocks}"

    @property
    def schedule(self) -> str:
        """As the build file writes it."""
        early = f", early = {self.early}" if self.early is not None else ""
        return f"warps = {self.warps or self.split}, blocks = {self.blocks}{early}"


ADDED: Final = (
    Form(16, 8, 64, 2, 3), Form(16, 8, 64, 4, 2), Form(16, 8, 64, 1, 3), Form(16, 4, 128, 1, 5), Form(16, 4, 64, 2, 6),
    Form(16, 4, 64, 4, 4), Form(16, 16, 32, 2, 2), Form(16, 16, 32, 4, 2), Form(16, 8, 32, 4, 3),
)  # fmt: skip
PRODUCTS: Final = {
    "qkv": ("scaled_matvec_rows", 2560, (
        Form(16, 4, 64, 2, 6), Form(16, 4, 64, 1, 6), Form(16, 4, 128, 1, 5), Form(16, 8, 64, 2, 3), Form(16, 8, 32, 4, 3),
        Form(16, 4, 32, 4, 6), Form(16, 2, 128, 1, 10), Form(32, 4, 64, 1, 5), Form(16, 4, 64, 4, 4), Form(16, 8, 64, 5, 2),
    )),
    "o": ("matvec_add_scaled_rows", 4096, ADDED),
    "gate_up": ("scaled_matvec_silu_mul_rows", 2560, (
        Form(16, 4, 64, 1, 5), Form(16, 4, 32, 2, 5), Form(16, 8, 32, 2, 3), Form(16, 4, 64, 2, 4), Form(16, 2, 64, 1, 10),
        Form(16, 4, 64, 0, 6), Form(16, 8, 64, 1, 3), Form(16, 8, 64, 2, 2),
    )),
    "down": ("matvec_add_scaled_rows", 9728, ADDED),
    "head": ("scaled_matvec_argmax_rows", 2560, (
        Form(32, 2, 64, None, 5, 4), Form(16, 4, 64, None, 5, 4), Form(64, 1, 64, None, 5, 4), Form(32, 2, 128, None, 4, 4),
        Form(64, 1, 128, None, 4, 4), Form(32, 4, 64, None, 5, 4),
    )),
}  # fmt: skip
"""Of each product of a layer, and the head: its kernel, inputs, and forms."""


def main() -> int:
    """Build what is missing, then time; the exit status."""
    options = arguments("candidates of the products of a batch").parse_args()
    failed = 0
    for name, (kernel, inputs, forms) in PRODUCTS.items():
        for form in forms:
            folder = options.folder / name / form.name
            size = f"ROWS = {form.rows}, SPLIT = {form.split}, BLOCK = {form.block}"
            part = Part(kernel, f'E = "bf16", B = {BATCH}, K = {inputs}, {size}', form.schedule)
            if options.only in f"{name}/{form.name}" and not built(folder, [part]) and not build([part], folder):
                print(f"not built: {name}/{form.name}", file=sys.stderr)
                failed += 1
    if options.build_only:
        return int(failed > 0)
    command = [sys.executable, str(ROOT / "ci" / "bench" / "rows_gpu.py"), str(options.folder), "--only", options.only]
    command += ["--out", str(options.out or options.folder)]
    return subprocess.run(command, check=False).returncode or int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
