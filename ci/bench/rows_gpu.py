"""Times candidates of the products of a batch on this machine's GPU; `rows.py` builds them and calls this.

    python3 ci/bench/rows_gpu.py FOLDER [--only qkv] [--out FOLDER]

Below FOLDER each `PRODUCT/FORM` holds one artifact. A candidate's result is held against float64; then it is launched for
36 layers' weights one after the other in a CUDA graph, each launch let in early as in a step, and the median of the graph's
times gives bytes of weights per second. Writes `rows.json` and `.md`; exit code 1 where one is wrong.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np

ROOT: Final = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "kernels_src")]

from tilec.runtime import Device, TensorView, load  # noqa: E402
from tilec.runtime.tensors import contiguous_strides  # noqa: E402

SHAPES: Final = {"qkv": (6144, 2560, 36), "o": (2560, 4096, 36), "gate_up": (19456, 2560, 36), "down": (2560, 9728, 36),
                 "head": (151936, 2560, 4)}  # fmt: skip
"""Rows and columns of the weights, and how many there are one after the other."""
PARTS: Final = 660
ROUNDS: Final = 15
EPS: Final = 1e-6
ALLOWED: Final = 2.0**-7
"""Relative error in the Euclidean norm: twice a rounding to bf16."""
NAMES: Final = {"float32": "f32", "int32": "i32", "bfloat16": "bf16"}


class Memory:
    """Arrays on the device."""

    def __init__(self) -> None:
        self.device = Device()
        self.driver = self.device.driver
        self.stream = self.driver.create_stream()

    def put(self, array: Any, copies: int = 1) -> int:
        """The pointer of an array, `copies` times one after the other."""
        held = np.ascontiguousarray(array)
        pointer = self.driver.allocate(held.nbytes * copies, self.stream)
        self.driver.copy_to_device(pointer, held.ctypes.data, held.nbytes, self.stream)
        for copy in range(1, copies):
            self.driver.copy_on_device(pointer + copy * held.nbytes, pointer, held.nbytes, self.stream)
        self.driver.synchronize(self.stream)
        return pointer

    def get(self, pointer: int, like: Any) -> Any:
        """An array of the shape and dtype of another."""
        made = np.empty_like(like)
        self.driver.copy_to_host(made.ctypes.data, pointer, made.nbytes, self.stream)
        self.driver.synchronize(self.stream)
        return made


def arrays_of(product: str, batch: int, rows: int, weights: Any) -> dict[str, Any]:
    """Arguments of a product, poisoned where they are only written."""
    n, k, _ = SHAPES[product]
    random = np.random.default_rng(batch)
    made: dict[str, Any] = {"x": random.normal(size=(batch, k)).astype(ml_dtypes.bfloat16), "w": weights}
    if product in ("o", "down"):
        made |= {
            "residual": random.normal(size=(batch, n)).astype(ml_dtypes.bfloat16),
            "weight": random.normal(size=n).astype(ml_dtypes.bfloat16),
            "scaled": np.full((batch, n), np.nan, ml_dtypes.bfloat16),
            "squares": np.full((batch, n // rows), np.nan, np.float32),
        }  # fmt: skip
        return made
    made["squares"] = (16 * random.uniform(0.5, 1.5, (batch, k // 16))).astype(np.float32)
    if product == "head":
        made |= {"maxima": np.full((batch, PARTS), np.nan, np.float32), "indices": np.full((batch, PARTS), -1, np.int32)}
    else:
        made["out"] = np.full((batch, n // 2 if product == "gate_up" else n), np.nan, ml_dtypes.bfloat16)
    return made


def expected(product: str, arrays: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """What float64 says of what is written."""
    reference: Any = importlib.import_module("reference")
    x, w, squares = (arrays[name] for name in ("x", "w", "squares"))
    if product in ("o", "down"):
        found = reference.matvec_add_scaled_rows(x, w, arrays["residual"], arrays["weight"], rows)
        return dict(zip(("residual", "scaled", "squares"), found, strict=True))
    if product == "head":
        maxima, _ = reference.scaled_matvec_argmax_rows(x, squares, w, EPS, PARTS, rows)
        return {"maxima": maxima}
    made = reference.scaled_matvec_silu_mul_rows if product == "gate_up" else reference.scaled_matvec_rows
    return {"out": made(x, squares, w, EPS)}


def plans_of(kernel: Any, arrays: Mapping[str, Any], pointers: Mapping[str, int], layers: int) -> list[Any]:
    """A launch for each layer's weights."""
    plans: list[Any] = []
    for layer in range(layers):
        given: dict[str, Any] = {
            name: TensorView(
                pointers[name] + (layer * array.nbytes if name == "w" else 0), NAMES[array.dtype.name], array.shape,
                contiguous_strides(array.shape),
            )
            for name, array in arrays.items()
        }  # fmt: skip
        scalars = {scalar.name: EPS for scalar in kernel.manifest.scalars}
        plans.append(kernel.plan(given | scalars))
    return plans


def error_of(memory: Memory, kernel: Any, product: str, batch: int, rows: int, weights: Any, pointer: int) -> float:
    """The largest relative error of what a launch writes."""
    arrays = arrays_of(product, batch, rows, weights)
    pointers = {name: pointer if name == "w" else memory.put(array) for name, array in arrays.items()}
    (plan,) = plans_of(kernel, arrays, pointers, 1)
    plan.launch(memory.stream)
    worst = 0.0
    for name, exact in expected(product, arrays, rows).items():
        found = memory.get(pointers[name], arrays[name]).astype(np.float64)
        with np.errstate(invalid="ignore"):
            difference = np.where(found == exact, 0.0, found - exact)  # equal infinities are equal
        worst = max(worst, float(np.linalg.norm(difference) / np.linalg.norm(np.where(np.isfinite(exact), exact, 0.0))))
    return worst if np.isfinite(worst) else float("inf")


def seconds_of(memory: Memory, plans: list[Any]) -> float:
    """Median seconds of a graph of all launches."""
    driver, stream = memory.driver, memory.stream
    driver.begin_capture(stream)
    for place, plan in enumerate(plans):
        plan.launch(stream, overlap=place > 0)
    graph = driver.end_capture(stream)
    began, ended = driver.create_event(timing=True), driver.create_event(timing=True)
    times: list[float] = []
    for _ in range(ROUNDS + 3):
        driver.record_event(began, stream)
        driver.launch_graph(graph, stream)
        driver.record_event(ended, stream)
        driver.synchronize(stream)
        times.append(1e-3 * driver.elapsed(began, ended))
    driver.destroy_graph(graph)
    return float(np.median(times[3:]))


def main() -> int:
    """Check and time every candidate; the exit status."""
    parser = argparse.ArgumentParser(description="candidates of the products of a batch")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ROOT / "ci/bench/results")))
    options = parser.parse_args()
    memory, found, wrong = Memory(), list[dict[str, Any]](), 0
    for product, (n, k, layers) in SHAPES.items():
        manifests = sorted(options.folder.glob(f"{product}/*/artifacts/build/sm_90a/*.json"))
        manifests = [path for path in manifests if options.only in str(path.relative_to(options.folder))]
        if not manifests:
            continue
        weights = (np.random.default_rng(1).standard_normal((n, k), np.float32) * k**-0.5).astype(ml_dtypes.bfloat16)
        pointer = memory.put(weights, layers)
        for path in manifests:
            kernel, form = load(path, memory.device), path.parents[3].name
            rows = int(kernel.manifest.constants["ROWS"])
            error = error_of(memory, kernel, product, 8, rows, weights, pointer)
            arrays = arrays_of(product, 8, rows, weights)
            pointers = {name: pointer if name == "w" else memory.put(array) for name, array in arrays.items()}
            seconds = seconds_of(memory, plans_of(kernel, arrays, pointers, layers))
            rate = layers * weights.nbytes / seconds / 1e12
            wrong += error > ALLOWED
            found.append({"product": product, "form": form, "us": 1e6 * seconds / layers, "tb_s": rate, "error": error})
            print(f"{product:8} {rate:6.3f} TB/s {found[-1]['us']:8.2f} us  error {error:.1e}  {form}", flush=True)
        memory.driver.free(pointer, memory.stream)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "rows.json").write_text(json.dumps(found, indent=1) + "\n")
    lines = ["| product | form | us | TB/s of weights |", "|---|---|--:|--:|"]
    lines += [f"| {one['product']} | {one['form']} | {one['us']:.2f} | {one['tb_s']:.3f} |" for one in found]
    (options.out / "rows.md").write_text("# Products of eight rows, candidates\n\n" + "\n".join(lines) + "\n")
    return int(wrong > 0 or not found)


if __name__ == "__main__":
    sys.exit(main())
