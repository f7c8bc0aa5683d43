"""Compares the PTX emulator with a GPU, instruction by instruction, bit by bit.

    python ci/bench/judges.py ptx_semantics_gpu prepare --work artifacts/ptx_semantics   # no GPU; needs nvJitLink
    python ci/bench/judges.py ptx_semantics_gpu device --work artifacts/ptx_semantics --out $OUT   # numpy and cuda-bindings
    python ci/bench/judges.py ptx_semantics_gpu compare --work artifacts/ptx_semantics --gpu FOLDER   # no GPU
    python ci/bench/judges.py ptx_semantics_gpu keep --gpu FOLDER   # no GPU

`prepare` assembles the PTX of every case (`ptx_semantics_cases`) to `cubins.npz`. `device` launches them and writes
`outputs.npz`. `compare` emulates the same PTX on the same operands and writes `ptx_semantics_gpu.{md,json}`: results must be
bitwise equal if the PTX ISA defines them exactly; for approximations it reports the distance in units in the last place. Two
NaN with different bits are counted separately. `keep` writes the data for `tests/emulator/test_chip_answers.py`: of each exact
case a digest of all results, and some of them.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

from ci.bench.front import Outcome
from ci.bench.judges import ptx_semantics_cases as listed
from ci.bench.judges.ptx_semantics_cases import Array, Case
from ci.bench.markdown import grid, line, page
from ci.evidence import ROOT

ARCHITECTURE: Final = "sm_90a"
KEPT: Final = 31
"""One of this many results of a case is kept for the tests."""
SHOWN: Final = 3
"""Operand combinations shown for a case that differs."""


def prepare(work: Path) -> int:
    """Assemble every case; cases that the assembler refuses are skipped and listed."""
    assemble, target = (
        importlib.import_module("tilec.assemble").assemble,
        importlib.import_module("tilec.target.targets").Target,
    )
    found: dict[str, Array] = {}
    refused: list[str] = []
    texts = {case.name: listed.ptx(case) for case in listed.cases()}
    texts |= {name: listed.product_ptx(name) for name in listed.PRODUCTS}
    for name, text in texts.items():
        try:
            found[name] = np.frombuffer(assemble(text, target.parse(ARCHITECTURE)).cubin, np.uint8)
        except Exception as error:
            refused.append(f"{name}: {getattr(getattr(error, 'diagnostic', None), 'notes', error)}"[:300])
    work.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(work / "cubins.npz", **found)  # pyright: ignore[reportArgumentType]
    print(f"{len(found)} CUBINs, {(work / 'cubins.npz').stat().st_size} bytes; refused by the assembler: {len(refused)}")
    print("\n".join(refused))
    return 0


# Device


class Gpu:
    """A minimal interface to the first device's driver."""

    def __init__(self) -> None:
        self.driver: Any = importlib.import_module("cuda.bindings.driver")
        self.call(self.driver.cuInit(0))
        ordinal = self.call(self.driver.cuDeviceGet(0))
        self.call(self.driver.cuCtxSetCurrent(self.call(self.driver.cuDevicePrimaryCtxRetain(ordinal))))
        self.name = self.call(self.driver.cuDeviceGetName(128, ordinal)).split(b"\0")[0].decode()

    def call(self, reply: Any) -> Any:
        """The result of a driver call; RuntimeError if it failed."""
        if int(reply[0]):
            raise RuntimeError(str(reply[0]))
        return reply[1] if len(reply) == 2 else reply[1:]

    def run(self, cubin: bytes, inputs: list[Array], result: Array, blocks: int, threads: int) -> Array:
        """Launch entry `k` on copies of the inputs; returns the result's bytes."""
        driver = self.driver
        module = self.call(driver.cuModuleLoadData(cubin))
        function = self.call(driver.cuModuleGetFunction(module, b"k"))
        pointers: list[Any] = []
        for array in (*inputs, result):
            pointer = self.call(driver.cuMemAlloc(array.nbytes))
            self.call(driver.cuMemcpyHtoD(pointer, np.ascontiguousarray(array).ctypes.data, array.nbytes))
            pointers.append(pointer)
        values = [np.array([int(pointer)], np.uint64) for pointer in pointers]
        addresses = np.array([value.ctypes.data for value in values], np.uint64)
        self.call(driver.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, 0, addresses.ctypes.data, 0))
        self.call(driver.cuCtxSynchronize())
        found = np.empty_like(result)
        self.call(driver.cuMemcpyDtoH(found.ctypes.data, pointers[-1], found.nbytes))
        for pointer in pointers:
            self.call(driver.cuMemFree(pointer))
        self.call(driver.cuModuleUnload(module))
        return found


def device(work: Path, out: Path) -> int:
    """Launch every CUBIN on this machine's GPU."""
    began = time.monotonic()
    gpu = Gpu()
    outputs: dict[str, Array] = {}
    problems: list[str] = []
    with np.load(work / "cubins.npz") as data:
        cubins = {name: data[name].tobytes() for name in data.files}
    for case in listed.cases():
        if case.name not in cubins:
            continue
        try:
            outputs[case.name] = gpu.run(
                cubins[case.name], case.inputs(), empty(case), listed.COUNT // listed.THREADS, listed.THREADS
            )
        except RuntimeError as error:
            problems.append(f"{case.name}: {error}")
    for name in listed.PRODUCTS:
        for small_integers in (True, False):
            inputs = list(listed.product_inputs(name, small_integers))
            outputs[f"{name}|{small_integers}"] = gpu.run(cubins[name], inputs, np.zeros_like(inputs[2]), listed.FRAGMENTS, 32)
    for name, array in outputs.items():
        if array.dtype == np.uint32 and not array.size % 4 and (array <= 1).all():
            outputs[name] = array.astype(np.uint8)
    out.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out / "outputs.npz", **outputs)  # pyright: ignore[reportArgumentType]
    record = {"gpu": gpu.name, "cases": len(outputs), "problems": problems, "seconds": round(time.monotonic() - began, 1)}
    (out / "device.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(record), (out / "outputs.npz").stat().st_size, "bytes")
    return int(bool(problems))


def empty(case: Case) -> Array:
    """A zeroed array for the results of a case."""
    return np.zeros(listed.COUNT, np.uint32 if case.result == 1 else f"u{case.result // 8}")


# Comparison


def emulated(text: str, inputs: list[Array], result: Array, blocks: int, threads: int) -> Array:
    """The same launch in the emulator; AssertionError if it reports a fault."""
    emulator: Any = importlib.import_module("tilec.emulator")
    memory = emulator.Memory()
    addresses = [memory.allocate(f"in{k}", array, writable=False) for k, array in enumerate(inputs)]
    addresses.append(memory.allocate("out", result, initialised=False, checked=True))
    report = emulator.run(emulator.parse(text), "k", (blocks,), (threads,), addresses, memory)
    assert not report.faults, report.faults[0]
    return report.tensors["out"]


def compare(gpu: Path) -> Outcome:
    """Emulate everything that the GPU ran; status 1 if an exact case differs."""
    with np.load(gpu / "outputs.npz") as data:
        outputs = {name: data[name] for name in data.files}
    record = json.loads((gpu / "device.json").read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = []
    for case in listed.cases():
        if case.name in outputs:
            rows.append(_row(case, outputs[case.name]))
    for name in listed.PRODUCTS:
        for small_integers in (True, False):
            inputs = list(listed.product_inputs(name, small_integers))
            own = emulated(listed.product_ptx(name), inputs, np.zeros_like(inputs[2]), listed.FRAGMENTS, 32)
            label = f"{name}, {'whole numbers' if small_integers else 'normal numbers'}"
            rows.append(
                _difference(label, "f32", small_integers, own, outputs[f"{name}|{small_integers}"].astype(np.uint32), [])
            )
    wrong = [row["case"] for row in rows if row["exact"] and row["different"]]
    print(f"{len(rows)} cases on {record['gpu']}; {len(wrong)} exact ones differ: {', '.join(wrong) or 'none'}")
    for row in rows:
        if row["exact"] and (row["different"] or row["nan"]):
            print(f"  {row['case']}: {row['different']} different, {row['nan']} NaN with other bits; {row['shown']}")
    return Outcome({**record, "rows": rows}, {"ptx_semantics_gpu.md": table(rows, record)}, int(bool(wrong)))


def digest(results: Array) -> Array:
    """The first 8 bytes of the SHA-256 of an array's bytes."""
    return np.frombuffer(hashlib.sha256(np.ascontiguousarray(results).tobytes()).digest()[:8], np.uint8)


def keep(gpu: Path, path: Path) -> int:
    """Write `names` of the exact cases, their `digests` [cases, 8] and every KEPT-th result of each as `kept` [cases, n]."""
    with np.load(gpu / "outputs.npz") as data:
        known = [case for case in listed.cases() if case.exact and case.name in data.files]
        answers = [(case.name, data[case.name].astype(empty(case).dtype)) for case in known]
    np.savez_compressed(
        path,
        names=np.array([name for name, _ in answers]),
        digests=np.stack([digest(results) for _, results in answers]),
        kept=np.stack([results[::KEPT].astype(np.uint64) for _, results in answers]),
    )
    print(f"{len(answers)} cases, {path.stat().st_size} bytes")
    return 0


def _row(case: Case, theirs: Array) -> dict[str, Any]:
    result = empty(case)
    try:
        own = emulated(listed.ptx(case), case.inputs(), result, listed.COUNT // listed.THREADS, listed.THREADS)
    except Exception as error:
        found = {"case": case.name, "kind": case.kind, "exact": case.exact, "count": 0, "different": 0, "nan": 0}
        return {**found, "ulps": 0, "mean_ulps": 0.0, "shown": [], "refused": f"{type(error).__name__}: {error}"[:200]}
    return _difference(case.name, case.kind, case.exact, own, theirs.astype(result.dtype), case.inputs())


def _difference(name: str, kind: str, exact: bool, own: Array, theirs: Array, inputs: list[Array]) -> dict[str, Any]:
    """The difference of two results. Units in the last place are counted on the ordered encodings of a float type."""
    own, theirs = np.ascontiguousarray(own).reshape(-1), np.ascontiguousarray(theirs).reshape(-1)
    single = kind.removesuffix("x2")
    rows = np.arange(len(own))
    if kind.endswith("x2"):
        own, theirs, rows = own.view(np.uint16), theirs.view(np.uint16), np.repeat(rows, 2)
    unequal = own != theirs
    nan = unequal & _is_nan(single, own) & _is_nan(single, theirs)
    different = unequal & ~nan
    distance = np.abs(_ordered(single, own) - _ordered(single, theirs)) if single in ("f32", "f16", "bf16") else different
    distance = np.where(nan, 0, distance).astype(np.float64)
    ends = _is_nan(single, own) != _is_nan(single, theirs)
    shown = [
        f"({', '.join(f'{int(x[rows[at]]):#x}' for x in inputs)}) -> GPU {int(theirs[at]):#x}, emulator {int(own[at]):#x}"
        for at in np.flatnonzero(different if different.any() else nan)[:SHOWN]
    ]
    return {
        "case": name, "kind": kind, "exact": exact, "count": len(own), "different": int(different.sum()),
        "nan": int(nan.sum()), "ulps": int(distance[~ends].max(initial=0)), "mean_ulps": float(distance[~ends].mean()),
        "nan_against_number": int(ends.sum()), "shown": shown,
    }  # fmt: skip


def _is_nan(kind: str, bits: Array) -> Array:
    top = {"f32": 0x7F800000, "f16": 0x7C00, "bf16": 0x7F80}.get(kind)
    return np.zeros(len(bits), np.bool_) if top is None else (bits & _body(bits)) > top


def _body(bits: Array) -> Any:
    return bits.dtype.type((1 << (8 * bits.dtype.itemsize - 1)) - 1)


def _ordered(kind: str, bits: Array) -> Array:
    magnitude: Array = (bits & _body(bits)).astype(np.int64)
    return np.where(bits >> bits.dtype.type(8 * bits.dtype.itemsize - 1), -magnitude, magnitude)


def table(rows: list[dict[str, Any]], record: dict[str, Any]) -> str:
    """A readable table: exact cases that differ, approximations, and how many agree."""
    exact = [row for row in rows if row["exact"] and "refused" not in row]
    same = [row for row in exact if not row["different"]]
    lines = [
        "# Instructions: emulator against GPU",
        "",
        f"{record['gpu']}. {len(exact)} cases that the PTX ISA defines to the bit, {len(same)} of them equal in all of "
        f"{sum(row['count'] for row in exact)} results; {sum(row['nan'] for row in exact)} NaN have other bits.",
        "",
        "| exact case that differs | results | different | NaN bits | examples |",
        "|---|--:|--:|--:|---|",
    ]
    lines += [
        line([f"`{row['case']}`", row["count"], row["different"], row["nan"], "; ".join(row["shown"])])
        for row in exact
        if row["different"] or row["nan"]
    ]
    approximate = [
        (f"`{row['case']}`", row["count"], row["count"] - row["different"], row["ulps"], f"{row['mean_ulps']:.3f}",
         row["nan_against_number"])
        for row in rows if not row["exact"] and "refused" not in row
    ]  # fmt: skip
    header = ["approximation", "results", "equal", "worst ulp", "mean ulp", "NaN against a number"]
    lines += ["", *grid(header, approximate)]
    refused = [f"- `{row['case']}`: {row['refused']}" for row in rows if "refused" in row]
    return page([*lines, "", f"Not emulated: {len(refused)}.", "", *refused])


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("phase", choices=("prepare", "device", "compare", "keep"))
    parser.add_argument("--work", type=Path, default=ROOT / "artifacts" / "ptx_semantics")
    parser.add_argument("--gpu", type=Path, default=None, help="where `compare` finds the GPU's outputs; `--work` without it")


def measure(options: argparse.Namespace) -> Outcome | int:
    """Run one phase; status 1 of `compare` if an exact case differs."""
    if options.phase == "prepare":
        return prepare(options.work)
    if options.phase == "device":
        return device(options.work, options.out)
    if options.phase == "keep":
        return keep(options.gpu or options.work, ROOT / "tests" / "emulator" / "chip_answers.npz")
    return compare(options.gpu or options.work)
