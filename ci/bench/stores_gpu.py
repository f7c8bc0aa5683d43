"""Times products that are stored by copies through tensor maps beside the same without; `stores.py` builds them and calls this.

    python3 ci/bench/stores_gpu.py FOLDER [--only 128x256] [--out FOLDER]

Each is first run on odd sizes in a child process (`products_gpu.py`); one that is wrong is left out. At each shape all are
timed in turns, in CUDA graphs that walk through more data than the L2 cache holds, as the engine launches them: each may begin
while what is before it ends. `matmul` stands beside torch's product, `matmul_silu_mul` beside torch's product of as many
columns, which leaves out what follows it. Writes `stores.json` and `.md`; exit code 1 where a candidate was wrong.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

from products_gpu import ALLOWED, ROTATED_BYTES, Bench, arguments, built, checked, checks
from stores import GATED

STORED: Final = "_storetma"
CUBLAS: Final = "cuBLAS"
PLAIN: Final = (
    (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192),
    (128, 2560, 9728), (512, 6144, 2560), (512, 2560, 4096), (512, 19456, 2560), (512, 2560, 9728),
    (2048, 6144, 2560), (2048, 2560, 4096), (2048, 19456, 2560), (2048, 2560, 9728),
    (2048, 10240, 5120), (2048, 5120, 8192), (2048, 51200, 5120), (2048, 5120, 25600), (8192, 19456, 2560),
)  # fmt: skip
"""M, N and K of `matmul`."""
GATES: Final = ((512, 9728, 2560), (2048, 9728, 2560), (8192, 9728, 2560), (2048, 25600, 5120))
"""M, I and K of `matmul_silu_mul`."""
ODD: Final = ((1, 8, 8), (72, 136, 200), (129, 264, 72), (1000, 1000, 1000), (300, 2560, 648))
ROUNDS: Final = 15


def main() -> int:
    """Check, time, report; the exit status."""
    options = arguments("products that are stored by copies beside those that are not").parse_args()
    if options.check is not None:
        for name in options.check:
            print("@" + json.dumps(checked(options.folder, name, Stores, ODD)), flush=True)
        return 0
    names = built(options)
    wrong = {name: text for name, text in checks(options.folder, names, __file__).items() if text}
    rows: list[dict[str, Any]] = []
    for gated, shapes in ((False, PLAIN), (True, GATES)):
        chosen = [name for name in names if name not in wrong and name.startswith(GATED) == gated]
        bench = Stores(options.folder, chosen)
        rows += [bench.row(shape) | {"gated": gated} for shape in shapes if chosen]
    return report({"wrong": wrong, "rows": rows}, options.out)


class Stores(Bench):
    """The candidates of one of the two kernels on the device."""

    @property
    def gated(self) -> bool:
        return any(name.startswith(GATED) for name in self.entries)

    def tensors(self, shape: tuple[int, int, int]) -> dict[str, Any]:
        m, n, k = shape
        made = super().tensors((m, 2 * n if self.gated else n, k))
        if self.gated:
            made["out"] = self.torch.full((m, n), math.nan, device="cuda", dtype=self.torch.bfloat16)
            made["b"] = made["b"].mul_(k**-0.5).view(2, n, k)  # else silu is a step
            made["both"] = self.torch.empty((m, 2 * n), device="cuda", dtype=self.torch.bfloat16)
        return made

    def judge(self, tensors: Any) -> Any:
        if not self.gated:
            return super().judge(tensors)
        a, (gate, up) = tensors["a"].float(), tensors["b"].float()
        truth = self.torch.nn.functional.silu(a @ gate.T) * (a @ up.T)
        size = float(truth.norm())
        allowed = ALLOWED * float((truth.bfloat16().float() - truth).norm()) / size
        return lambda: (float((tensors["out"].float() - truth).norm()) / size, allowed)

    def product(self, tensors: Any) -> None:
        if self.gated:
            self.torch.matmul(tensors["a"], tensors["b"].flatten(0, 1).T, out=tensors["both"])
        else:
            super().product(tensors)

    def row(self, shape: tuple[int, int, int]) -> dict[str, Any]:
        m, n, k = shape
        flops, moved = 2.0 * m * n * k * (1 + self.gated), 2 * (m * k + n * k * (1 + self.gated) + m * n)
        sets = [self.tensors(shape) for _ in range(min(40, ROTATED_BYTES // moved + 2))]
        plans = {name: self.planned(name, sets) for name in self.entries}
        wrong = self.wrong(plans, sets[0], 0, False) + self.wrong(plans, sets[-1], -1, True)
        runs: dict[str, Any] = {name: [partial(self.launch, one, True) for one in made] for name, made in plans.items()}
        runs[CUBLAS] = [partial(self.product, one) for one in sets]
        times = importlib.import_module("gpu_clock").measure(runs, max(flops / 6e8, moved / 4e6), rounds=ROUNDS)
        self.torch.cuda.empty_cache()
        us = {name: time.median for name, time in times.items()}
        print(json.dumps({"shape": shape, "us": us, "wrong": wrong}), flush=True)
        return {"shape": shape, "us": us, "wrong": wrong, "gpu": self.gpu}


def report(record: dict[str, Any], folder: Path) -> int:
    """Write and print the table; the exit status."""
    rows = record["rows"]
    lines = [f"# Tiles stored by copies through tensor maps, bf16, {rows[0]['gpu']}", ""]
    lines += ['Time without over time with `store = "tma"`, of the same tile in the same run: above 1, copies are faster.']
    lines += ["Behind it, the speed with and without beside cuBLAS; of the gated product, beside cuBLAS without the gate.", ""]
    for gated in (False, True):
        of = [row for row in rows if row["gated"] == gated]
        names = sorted({name for row in of for name in row["us"] if STORED in name})
        lines += [f"| M x {'I' if gated else 'N'} x K | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
        lines += [
            f"| {' x '.join(map(str, row['shape']))} | " + " | ".join(cell(row["us"], n) for n in names) + " |" for row in of
        ]
        lines.append("")
    wrong = [*(f"{name}: {text}" for name, text in record["wrong"].items()), *(text for row in rows for text in row["wrong"])]
    lines += [f"- wrong: {text}" for text in wrong]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stores.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    (folder / "stores.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    return int(bool(wrong))


def cell(us: dict[str, float], name: str) -> str:
    """What a table says of a candidate at a shape."""
    other = name.replace(STORED, "")
    beside = f"{us[CUBLAS] / us[name]:.3f}"
    if other not in us:
        return f"({beside})"
    return f"{us[other] / us[name]:.3f} ({beside}, {us[CUBLAS] / us[other]:.3f})"


if __name__ == "__main__":
    sys.exit(main())
