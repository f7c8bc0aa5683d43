"""Compares candidates of the matrix product with cuBLAS on this machine's GPU; `products.py` builds them and calls this.

    python3 ci/bench/products_gpu.py FOLDER [--only 128x256] [--shapes table|few|all|short|split|left|seam|edges] [--triton]

Each folder below FOLDER with a built `matmul` or `matmul_few`, or a `matmul_split` and the `merge_splits` that adds its parts,
is a candidate; one built at another commit may be there under another name. Of two kernels the second may overlap the first,
and both are timed together; the first is also timed alone, because the next kernel may add its parts. Each candidate first runs
at odd sizes and a small cube, in a child process; one that faults, hangs or is wrong is reported and excluded. Then all are
timed at each shape, alternately with torch's product, in CUDA graphs that access more data than the L2 cache holds; the result
at that shape is compared once more. Random data. Candidates are also timed *overlapped*, as the engine launches them: a product
may begin while the previous launch still runs. With `--triton` Triton's persistent product is timed too, with its best
configuration at each shape (`triton_products.py`). Writes `products.json` and `.md`, or as `--name` says; exit code 1 if a
candidate was wrong.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

CUBES: Final = tuple((size, size, size) for size in (1024, 2048, 4096, 8192))
LAYERS: Final = {
    "4B": ((6144, 2560), (2560, 4096), (19456, 2560), (2560, 9728)),
    "32B": ((10240, 5120), (5120, 8192), (51200, 5120), (5120, 25600)),
}
FEW: Final = (*CUBES, *((2048, *layer) for layer in LAYERS["4B"]), (512, 2560, 9728), (128, 2560, 9728), (8192, 19456, 2560))
ALL: Final = (
    *FEW,
    (16384, 16384, 16384),
    *((512, *layer) for layer in LAYERS["4B"][:3]),
    *((rows, *layer) for rows in (512, 2048) for layer in LAYERS["32B"]),
)
SHORT: Final = tuple((rows, *layer) for rows in (16, 32, 64, 128, 256) for layer in LAYERS["4B"])
"""M, N and K. For small M, reading the weights dominates."""
SPLIT: Final = tuple((rows, *layer) for rows in (16, 32, 64, 128, 512) for layer in LAYERS["4B"])
"""Small M, or few tiles."""
TABLE: Final = (*ALL, *((rows, *layer) for rows in (16, 32, 64) for layer in LAYERS["4B"]))
LEFT: Final = SHORT[:16]
EDGES: Final = tuple((rows, *LAYERS["4B"][layer]) for layer in (3, 2) for rows in (1, 17, 40, 65, 96, 128, 385, 401, 512))
"""M of less than a tile, with a partial last tile, and with full tiles."""
SHAPES: Final = {
    "table": TABLE, "few": FEW, "all": ALL, "short": SHORT, "split": SPLIT, "left": LEFT, "seam": LEFT[:12], "edges": EDGES,
}  # fmt: skip
TRITON: Final = "Triton"
ODD: Final = ((1, 8, 8), (72, 136, 200), (129, 264, 72), (1000, 1000, 1000), (300, 2560, 648), (1024, 1024, 1024))
ROTATED_BYTES: Final = 200_000_000
READ_RATE: Final = 4.33e12
"""Bytes per second of the best read measured on an H200, for the floor of small-M products."""
KERNELS: Final = ("matmul", "matmul_silu_mul", "matmul_few", "matmul_split", "merge_splits")
"""Kernels of candidates, in launch order."""
OVERLAPPED: Final = ", overlapped"
UNMERGED: Final = f"{OVERLAPPED} and not merged"
"""The parts alone: the next kernel can add them."""
SILENCE: Final = 40.0
ROUNDS: Final = 9
ALLOWED: Final = 1.5
"""Allowed error, as a multiple of torch's own against float32."""


def main() -> int:
    """Check, time, report; returns the exit status."""
    parser = arguments("candidates of the matrix product beside cuBLAS")
    parser.add_argument("--shapes", choices=sorted(SHAPES), default="few")
    parser.add_argument("--triton", action="store_true", help="time Triton's product too")
    parser.add_argument(
        "--kept", type=int, default=1000, help="candidates of a shape, the best of a first round, that are timed"
    )
    parser.add_argument("--name", default="products", help="of the written files")
    options = parser.parse_args()
    names = built(options)
    if options.check is not None:
        for name in options.check:
            print("@" + json.dumps(checked(options.folder, name)), flush=True)
        return 0
    found = checks(options.folder, names)
    right = [name for name in names if found[name] == ""]
    for name in names:
        if found[name]:
            print(f"left out: {name}: {found[name]}", flush=True)
    bench = Bench(options.folder, right, options.triton, options.kept)
    rows: list[dict[str, Any]] = []
    for shape in SHAPES[options.shapes]:
        rows.append(bench.row(shape))
        print(json.dumps(rows[-1]), flush=True)
    for name, text in bench.triton.left_out.items() if bench.triton else ():
        print(f"left out of Triton's: {name}: {text}", flush=True)
    return report(
        {
            "wrong": {name: text for name, text in found.items() if text},
            "rows": rows,
            "gpu": bench.gpu,
            "element": bench.element,
        },
        options.out,
        options.name,
    )


def arguments(description: str) -> argparse.ArgumentParser:
    """The arguments of a script that times candidates of products."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="candidates whose names hold this")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ROOT / "ci/bench/results")))
    parser.add_argument("--check", nargs="*", default=None, help=argparse.SUPPRESS)
    return parser


def built(options: argparse.Namespace) -> list[str]:
    """The names of the selected candidates."""
    found = options.folder.glob("*/artifacts/build/*/*.cubin")
    return sorted({path.parents[3].name for path in found if options.only in str(path)})


def checks(folder: Path, names: list[str], script: str = __file__) -> dict[str, str]:
    """The error message of each candidate, empty if it is correct. A child running `script` that dies or hangs invalidates only
    its current candidate."""
    found: dict[str, str] = {}
    while remaining := [name for name in names if name not in found]:
        command = [sys.executable, script, str(folder), "--check", *remaining]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        heard = threading.Event()

        def watch(child: subprocess.Popen[str] = child, heard: threading.Event = heard) -> None:
            while heard.wait(SILENCE):
                heard.clear()
            child.kill()

        threading.Thread(target=watch, daemon=True).start()
        for line in child.stdout:
            heard.set()
            if line.startswith("@"):
                name, text = json.loads(line[1:])
                found[name] = text
        status = child.wait()
        still = [name for name in remaining if name not in found]
        if still:
            found[still[0]] = "it hung" if status < 0 else f"its process ended with status {status}"
    return found


def checked(
    folder: Path, name: str, kind: type[Bench] | None = None, shapes: tuple[tuple[int, int, int], ...] = ODD
) -> tuple[str, str]:
    """The candidate's name and its error message, if any."""
    bench = (kind or Bench)(folder, [name])
    for shape in shapes:
        try:
            error, allowed = bench.error(name, shape)
        except Exception as problem:
            if "CUDA" in str(problem):
                print("@" + json.dumps((name, f"at {shape}: {problem}"[:200])), flush=True)
                raise SystemExit(70) from None  # the context is lost
            return name, f"at {shape}: {problem}"[:200]
        if not error <= allowed:
            return name, f"at {shape}: error {error:.2e}, torch's {allowed / ALLOWED:.2e}"
    return name, ""


class Bench:
    """The candidates on the device."""

    def __init__(self, folder: Path, names: list[str], triton: bool = False, kept: int = 1000) -> None:
        self.kept = kept
        self.torch: Any = importlib.import_module("torch")
        self.torch.zeros(1, device="cuda")
        self.torch.backends.cuda.matmul.allow_tf32 = False
        cases = importlib.import_module("gpu_cases")
        self.worker = importlib.import_module("gpu_worker").Bench(False)
        self.gpu = self.worker.device.name
        self.triton: Any = importlib.import_module("triton_products").TritonProducts(self.torch) if triton else None
        self.entries: dict[str, list[Any]] = {}
        for name in names:
            found, broken = cases.find_artifacts([folder / name / "artifacts"], self.worker.device.architecture)
            assert found and not broken, broken
            self.entries[name] = sorted(found, key=lambda entry: KERNELS.index(entry.manifest.kernel))
        elements = {entry.manifest.constants["E"] for alternatives in self.entries.values() for entry in alternatives}
        (self.element,) = elements or {"bf16"}
        self.dtype = {"bf16": self.torch.bfloat16, "f16": self.torch.float16}[self.element]

    def tensors(self, shape: tuple[int, int, int]) -> dict[str, Any]:
        """Normally distributed inputs; a poisoned output."""
        m, n, k = shape
        alternatives = {
            name: self.torch.randn(size, device="cuda", dtype=self.dtype) for name, size in (("a", (m, k)), ("b", (n, k)))
        }
        return alternatives | {"out": self.torch.full((m, n), math.nan, device="cuda", dtype=self.dtype)}

    def error(self, name: str, shape: tuple[int, int, int]) -> tuple[float, float]:
        """The relative error of one launch against float32, and the allowed error."""
        tensors = self.tensors(shape)
        self.launch(self.planned(name, [tensors])[0])
        self.worker.synchronize()
        return self.compared(tensors)

    def planned(self, name: str, sets: list[dict[str, Any]]) -> list[list[Any]]:
        """The launches of a candidate on several sets of tensors, which share the intermediate tensor between two launches."""
        between: dict[str, Any] = {}
        if len(self.entries[name]) > 1:
            count = self.entries[name][0].manifest.constants["S"]
            between["parts"] = self.torch.full((count, *sets[0]["out"].shape), math.nan, device="cuda")
        return [[self.worker.plan(entry, between | self.named(entry, one)) for entry in self.entries[name]] for one in sets]

    def named(self, entry: Any, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """The tensors that are parameters of a kernel."""
        return {spec.name: tensors[spec.name] for spec in entry.manifest.tensors if spec.name in tensors}

    def launch(self, plans: list[Any], overlap: bool = False) -> None:
        """One product; with `overlap` it may begin while the previous launch still runs."""
        for index, plan in enumerate(plans):
            plan.launch(self.worker.stream(), overlap=overlap or index > 0)

    def compared(self, tensors: Mapping[str, Any]) -> tuple[float, float]:
        """The error of `out`, and the allowed error."""
        return self.error_of(tensors)()

    def error_of(self, tensors: Mapping[str, Any]) -> Callable[[], tuple[float, float]]:
        """A function that returns the current error of `out`, and the allowed error."""
        a, b = tensors["a"], tensors["b"]
        truth = a.float() @ b.float().T
        size = float(truth.norm())
        allowed = ALLOWED * float(((a @ b.T).float() - truth).norm()) / size
        return lambda: (float((tensors["out"].float() - truth).norm()) / size, allowed)

    def product(self, tensors: Mapping[str, Any]) -> None:
        """Torch's product."""
        self.torch.matmul(tensors["a"], tensors["b"].T, out=tensors["out"])

    def row(self, shape: tuple[int, int, int]) -> dict[str, Any]:
        """Microseconds of each candidate at one shape."""
        m, n, k = shape
        moved, flops = 2 * (m * k + n * k + m * n), 2.0 * m * n * k
        sets = [self.tensors(shape) for _ in range(min(40, ROTATED_BYTES // moved + 2))]
        plans = {name: self.planned(name, sets) for name in self.entries}
        expected, configuration = max(flops / 6e8, moved / 4e6), None
        clock = importlib.import_module("gpu_clock")
        wrong = self.wrong(plans, sets[0], 0, False)
        alternatives: dict[str, Any] = {name: [partial(self.launch, one) for one in made] for name, made in plans.items()}
        first = clock.measure(alternatives, expected, rounds=1)
        best = sorted(plans, key=lambda name: first[name].median)[: self.kept]
        alternatives = {name: alternatives[name] for name in best}
        alternatives |= {name + OVERLAPPED: [partial(self.launch, one, True) for one in plans[name]] for name in best}
        alternatives |= {
            name + UNMERGED: [partial(self.launch, one[:1], True) for one in plans[name]]
            for name in best
            if len(plans[name][0]) > 1
        }
        alternatives["cuBLAS"] = [partial(self.product, tensors) for tensors in sets]
        wrong += self.wrong({name: plans[name] for name in best}, sets[-1], -1, True)
        if self.triton:
            configuration, alternatives[TRITON] = self.triton.best(sets, expected, self.error_of(sets[0]))
        times = clock.measure(alternatives, expected, rounds=ROUNDS)
        self.torch.cuda.empty_cache()
        found = {"shape": shape, "us": {name: time.median for name, time in times.items()}, "wrong": wrong, "flops": flops}
        return found | {"read_us": 2 * n * k / READ_RATE * 1e6, "triton": configuration}

    def wrong(
        self, plans: Mapping[str, list[list[Any]]], tensors: Mapping[str, Any], place: int, overlap: bool
    ) -> list[str]:  # fmt: skip
        """The candidates whose result on a set of tensors is wrong, with the error."""
        error_of, found = self.error_of(tensors), list[str]()
        for name, alternatives in plans.items():
            tensors["out"].fill_(math.nan)
            for one in alternatives if overlap else (alternatives[place],):
                self.launch(one, overlap)
            self.worker.synchronize()
            error, allowed = error_of()
            if not error <= allowed:
                found.append(f"{name}{OVERLAPPED * overlap}: {error:.2e}")
        return found


def report(record: dict[str, Any], folder: Path, name: str) -> int:
    """Write and print the tables; returns the exit status."""
    rows = record["rows"]
    ratios = [{name: row["us"]["cuBLAS"] / us for name, us in row["us"].items()} for row in rows]
    ours = [{name: ratio for name, ratio in row_ratios.items() if name not in ("cuBLAS", TRITON)} for row_ratios in ratios]
    best = [max((ratio, name) for name, ratio in row_ratios.items() if OVERLAPPED not in name) for row_ratios in ours]
    overlapped = [
        max((ratio, name.removesuffix(OVERLAPPED)) for name, ratio in row_ratios.items() if name.endswith(OVERLAPPED))
        for row_ratios in ours
    ]
    with_triton = TRITON in ratios[0]
    lines = [f"# Products beside cuBLAS, {record['element']}, {record['gpu']}", ""]
    lines += [
        "`read`: the time of reading `b` once over the time taken. Overlapped: a product may begin while the one before ends.",
        "",
        f"| M x N x K | cuBLAS, TFLOP/s | read |{' Triton | ratio |' if with_triton else ''} best | ratio | read | candidate "
        "| overlapped: ratio | read | candidate |",
        f"|---|--:|--:|{'--:|--:|' if with_triton else ''}--:|--:|--:|---|--:|--:|---|",
    ]
    for i, (row, (ratio, candidate), (more, other)) in enumerate(zip(rows, best, overlapped, strict=True)):
        rate, floor = row["flops"] / row["us"]["cuBLAS"] / 1e6, row["read_us"] / row["us"]["cuBLAS"]
        shape = " x ".join(map(str, row["shape"]))
        first = f"{rate:.0f} | {floor:.2f}"
        first += f" | {rate * ratios[i][TRITON]:.0f} | {ratios[i][TRITON]:.3f}" if with_triton else ""
        second = f"{rate * ratio:.0f} | {ratio:.3f} | {floor * ratio:.2f} | {candidate}"
        lines.append(f"| {shape} | {first} | {second} | {more:.3f} | {floor * more:.2f} | {other} |")
    lines += ["", record["note"]] if "note" in record else []
    lines += ["", *_summary(rows, {"best": best, "best, overlapped": overlapped}), ""]
    if with_triton:
        of_triton = [(row_ratios[TRITON], "") for row_ratios in ratios]
        lines += _summary(rows, {"Triton": of_triton})
        lines += ["", "Triton's configurations, in the order above: " + ", ".join(str(row["triton"]) for row in rows) + ".", ""]
    lines += ["Each candidate, ratio to cuBLAS in the order above; `-`: left out after a first round.", ""]
    lines += [
        f"- {name}: {' '.join(f'{row_ratios[name]:.2f}' if name in row_ratios else '-' for row_ratios in ours)}"
        for name in sorted(set[str]().union(*ours))
    ]
    lines += [
        f"- wrong: {text}"
        for text in [*(f"{k}: {v}" for k, v in record["wrong"].items()), *(t for row in rows for t in row["wrong"])]
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    (folder / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    return int(bool(record["wrong"]) or any(row["wrong"] for row in rows))


def _summary(rows: list[dict[str, Any]], found: Mapping[str, list[tuple[float, str]]]) -> list[str]:
    """Least ratio to cuBLAS and geometric mean, separately for small and large M."""
    lines: list[str] = []
    for series, ratios in found.items():
        for label, chosen in (
            ("M >= 128", [ratio for row, (ratio, _) in zip(rows, ratios, strict=True) if row["shape"][0] >= 128]),
            ("M < 128", [ratio for row, (ratio, _) in zip(rows, ratios, strict=True) if row["shape"][0] < 128]),
        ):
            if chosen:
                mean = math.exp(sum(map(math.log, chosen)) / len(chosen))
                lines.append(f"- {series}, {label}: least {min(chosen):.3f} of cuBLAS, geometric mean {mean:.3f}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
