"""Fifty broken kernels: correct ones, each with one typical mistake of authors.

A `Broken` is derived from a correct kernel (a file with constants, and its reference) and differs from it in one place.
`broken()` raises if a mistake no longer applies to the text of a kernel.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ci.evidence import ROOT

Constant = int | float | bool | str
SHIPPED: Final = ROOT / "kernels_src"
EXAMPLES: Final = ROOT / "examples" / "kernels"
KERNELS_FOLDER: Final = Path(__file__).resolve().parent / "mender_kernels"
B16: Final[dict[str, Constant]] = {"E": "bf16"}

RIGHT: Final[dict[str, tuple[Path, dict[str, Constant]]]] = {
    "add": (SHIPPED, B16 | {"BLOCK": 64}),
    "silu_mul": (EXAMPLES, B16 | {"BLOCK": 64}),
    "rms_norm": (SHIPPED, B16 | {"H": 64}),
    "add_rms_norm": (SHIPPED, B16 | {"H": 64}),
    "embedding": (SHIPPED, B16 | {"H": 100, "BLOCK": 64}),
    "gather_row": (SHIPPED, B16 | {"H": 100, "BLOCK": 64}),
    "kv_update": (EXAMPLES, B16 | {"HKV": 2, "D": 32}),
    "topk_blocks": (SHIPPED, B16 | {"BLOCK": 64}),
    "matvec": (SHIPPED, B16 | {"B": 1, "K": 128, "ROWS": 8, "BLOCK": 64}),
    "transpose": (KERNELS_FOLDER, B16 | {"BLOCK": 32}),
    "head_permute": (KERNELS_FOLDER, {"HEADS": 8, "D": 32}),
    "padded_softmax": (KERNELS_FOLDER, B16 | {"BLOCK": 64}),
    "scale_rows": (KERNELS_FOLDER, {"ROWS": 4, "BLOCK": 32}),
    "block_sum": (KERNELS_FOLDER, {"BLOCK": 32}),
}
"""Correct kernels: the folder, and the constants with which they are checked and run."""

MISTAKES: Final = (
    ("missing mask", "add", "store(out, i, total, mask=True)", "store(out, i, total)"),
    ("missing mask", "silu_mul", ", mask=True)", ")"),
    ("missing mask", "embedding", "row, mask=True)", "row)"),
    ("missing mask", "transpose", "tile.T, mask=True", "tile.T"),
    ("missing mask", "scale_rows", "part * BLOCK), mask=True)", "part * BLOCK))"),
    ("missing mask", "padded_softmax", ", E), mask=True)", ", E))"),
    ("missing mask", "matvec", "axis=2), E), mask=True)", "axis=2), E))"),
    ("missing pad", "add", "load(y, i, shape=BLOCK, pad=0)", "load(y, i, shape=BLOCK)"),
    ("missing pad", "silu_mul", "load(gate, i, shape=BLOCK, pad=0)", "load(gate, i, shape=BLOCK)"),
    ("missing pad", "embedding", "shape=(1, BLOCK), pad=0)", "shape=(1, BLOCK))"),
    ("missing pad", "gather_row", "shape=(1, BLOCK), pad=0)", "shape=(1, BLOCK))"),
    ("missing pad", "transpose", "shape=(BLOCK, BLOCK), pad=0)", "shape=(BLOCK, BLOCK))"),
    ("missing pad", "padded_softmax", "shape=(1, BLOCK), pad=-inf)", "shape=(1, BLOCK))"),
    ("missing pad", "topk_blocks", "shape=(1, BLOCK), pad=-inf)", "shape=(1, BLOCK))"),
    ("missing pad", "scale_rows", "shape=ROWS, pad=0)", "shape=ROWS)"),
    ("missing pad", "matvec", "shape=(ROWS, BLOCK), pad=0).astype(f32)", "shape=(ROWS, BLOCK)).astype(f32)"),
    ("off by one", "add", "store(out, i, total", "store(out, i + 1, total"),
    ("off by one", "rms_norm", "load(x, (row, 0)", "load(x, (row + 1, 0)"),
    ("off by one", "rms_norm", "store(out, (row, 0)", "store(out, (row - 1, 0)"),
    ("off by one", "head_permute", "load(x, (m, h, 0)", "load(x, (m, h + 1, 0)"),
    ("off by one", "head_permute", "(h * M + m, 0)", "(h * M + m + 1, 0)"),
    ("off by one", "embedding", "load(ids, token)", "load(ids, token + 1)"),
    ("off by one", "block_sum", "offset=part * BLOCK", "offset=part * BLOCK + 1"),
    ("off by one", "topk_blocks", "store(best, (row, part, k)", "store(best, (row, part + 1, k)"),
    ("off by one", "matvec", "for k in range(K // BLOCK):\n            a = load(x, (0, k), shape=(1",
     "for k in range(K // BLOCK + 1):\n            a = load(x, (0, k), shape=(1"),
    ("swapped ids", "transpose", "store(out, (n, m)", "store(out, (m, n)"),
    ("swapped ids", "transpose", "m, n = bid(0), bid(1)\n    tile", "m, n = bid(1), bid(0)\n    tile"),
    ("swapped ids", "head_permute", "m, h = bid(0), bid(1)", "m, h = bid(1), bid(0)"),
    ("swapped ids", "head_permute", "load(x, (m, h, 0)", "load(x, (h, m, 0)"),
    ("swapped ids", "embedding", "token, part = bid(0), bid(1)", "token, part = bid(1), bid(0)"),
    ("swapped ids", "topk_blocks", "part, row = bid(0), bid(1)", "part, row = bid(1), bid(0)"),
    ("swapped ids", "topk_blocks", "store(indices, (row, part, k)", "store(indices, (row, k, part)"),
    ("swapped ids", "scale_rows", "part, rows = bid(0), bid(1)", "part, rows = bid(1), bid(0)"),
    ("wrong stride", "head_permute", "(h * M + m, 0)", "(m * M + h, 0)"),
    ("wrong stride", "head_permute", "(h * M + m, 0)", "(h * HEADS + m, 0)"),
    ("wrong stride", "scale_rows", "offset=(rows * ROWS, part * BLOCK), mask", "offset=(rows * BLOCK, part * BLOCK), mask"),
    ("wrong stride", "block_sum", "offset=part * BLOCK", "offset=part * N"),
    ("wrong stride", "scale_rows", "offset=(rows * ROWS, part * BLOCK), mask", "offset=(rows, part * BLOCK), mask"),
    ("wrong grid", "add", "grid(cdiv(N, BLOCK))", "grid(N // BLOCK)"),
    ("wrong grid", "silu_mul", "grid(cdiv(N, BLOCK))", "grid(cdiv(N, BLOCK) - 1)"),
    ("wrong grid", "transpose", "cdiv(N, BLOCK))", "cdiv(M, BLOCK))"),
    ("wrong grid", "scale_rows", "grid(cdiv(C, BLOCK), cdiv(R, ROWS))", "grid(cdiv(R, ROWS), cdiv(C, BLOCK))"),
    ("wrong grid", "embedding", "grid(T, cdiv(H, BLOCK))", "grid(T, H // BLOCK)"),
    ("wrong grid", "rms_norm", "grid(T)", "grid(T + 1)"),
    ("missing contract", "kv_update", "    values(slots, 0, S, distinct=True)\n", ""),
    ("missing contract", "kv_update", "values(slots, 0, S, distinct=True)", "values(slots, 0, S)"),
    ("missing contract", "block_sum", "    requires(P * BLOCK == N)\n", ""),
    ("missing contract", "padded_softmax", "    requires(N <= BLOCK)\n", ""),
    ("misspelt or not imported", "add_rms_norm", "rsqrt, store, sum\n", "store, sum\n"),
    ("misspelt or not imported", "transpose", "out: Out[E, N, M]", "out: Out[E, NN, M]"),
)  # fmt: skip
"""Kind, kernel, correct text, text with the mistake."""


@dataclass(frozen=True)
class Broken:
    """A kernel with a mistake, the folder of the correct one, and constants."""

    kind: str
    kernel: str
    what: str
    text: str
    folder: Path
    constants: dict[str, Constant]


def by_name(text: str) -> str:
    """A kernel file that imports words by name and declares its dims itself, from one that has `tl.` and shared dims."""
    shared = re.search(r"\nfrom \.dims import (.*)\n", text)
    if "import tilec as tl" not in text:
        return text
    for name in shared[1].split(", ") if shared else ():
        kind = "Element" if name == "E" else "Dim"
        text = text.replace("\n\n@tl.kernel", f'\n\nclass {name}(tl.{kind}):\n    """of the shipped kernels"""\n\n\n@tl.kernel')
    words = sorted({*re.findall(r"\btl\.(\w+)", text)} - {"kernel"})
    text = text.replace(shared[0], "") if shared else text
    text = text.replace("import tilec as tl\n", f"import tilec\nfrom tilec import {', '.join(words)}\n")
    return text.replace("@tl.", "@tilec.").replace("tl.", "")


def broken() -> list[Broken]:
    """All broken kernels, in order."""
    found: list[Broken] = []
    for kind, kernel, right, wrong in MISTAKES:
        folder, constants = RIGHT[kernel]
        text = by_name((folder / f"{kernel}.py").read_text(encoding="utf-8"))
        if text.count(right) != 1:
            raise ValueError(f"`{right}` stands {text.count(right)} times in {kernel}.py")
        mistake = f"`{right.strip()}` is `{wrong.strip()}`" if wrong else f"`{right.strip()}` is missing"
        found.append(Broken(kind, kernel, mistake, text.replace(right, wrong), folder, dict(constants)))
    return found
