"""Launches a bundle's kernels from C on a GPU and compares the results with float64.

    python ci/bench/kernels.py torch_ops --build FOLDER      makes the bundle; needs the compiler, no GPU
    python ci/bench/kernels.py c_launcher FOLDER --build     makes launcher and program, FOLDER/c/c_launcher; needs a C compiler
    python ci/bench/kernels.py c_launcher FOLDER             runs it; needs a GPU

Status 1 if a result is not rounded once, or if a launch that must be refused is not.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ci.bench.front import Outcome

PROGRAM: Final = Path(__file__).with_suffix(".c")
FLAGS: Final = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror")
ROWS, HIDDEN, EPS = 37, 1024, 1e-6
STEP: Final = 2.0**-8
"""Half the relative distance between adjacent bf16 numbers."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("folder", type=Path, help="folder that was built in")
    parser.add_argument("--build", action="store_true", help="make launcher and program")


def measure(options: argparse.Namespace) -> Outcome | int:
    """Build, or run and compare."""
    if options.build:
        return build(options.folder)
    with tempfile.TemporaryDirectory() as data:
        found = measured(options.folder / "c" / "c_launcher", Path(data))
    print(json.dumps(found, indent=1))
    return Outcome(found, status=int(not right(found)))


def build(folder: Path) -> int:
    """Build launcher and program with the user's commands."""
    from tilec.cli import commands

    (bundle,) = (folder / "artifacts" / "bundles").glob("*.bundle")
    output_folder = folder / "c"
    status = commands.run(["bundle", "launcher", str(bundle), "-o", str(output_folder), "--prefix", "layer"])
    if status:
        return status
    shutil.copy(PROGRAM, output_folder)
    command = ["cc", *FLAGS, "c_launcher.c", "layer.c", "-o", "c_launcher"]
    return subprocess.run(command, cwd=output_folder, check=False).returncode


def as_bf16(values: NDArray[Any]) -> NDArray[Any]:
    """The bits of the nearest bf16."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def as_numbers(bits: NDArray[Any]) -> NDArray[Any]:
    """The values of bf16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def measured(program: Path, folder: Path) -> dict[str, Any]:
    """The largest errors, in units of `STEP`, and the program's messages for launches that it must refuse. The program reads
    and writes files of `folder`."""
    draw = np.random.default_rng(1)
    given = {"x": as_bf16(draw.normal(size=(ROWS, HIDDEN))), "y": as_bf16(draw.normal(size=(ROWS, HIDDEN)))}
    given["weight"] = as_bf16(draw.uniform(0.5, 1.5, size=HIDDEN))
    folder.mkdir(parents=True, exist_ok=True)
    for name, bits in given.items():
        (folder / name).write_bytes(bits.tobytes())
    found = subprocess.run([program, folder], capture_output=True, text=True, check=False, timeout=60)
    result: dict[str, Any] = {"status": found.returncode, "refusals": found.stdout.splitlines(), "said": found.stderr[-2000:]}
    if found.returncode == 0:
        x, y, weight = (as_numbers(given[name]) for name in ("x", "y", "weight"))
        normed = x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + EPS) * weight
        for name, wanted in (("sum", x + y), ("normed", normed)):
            bits = np.frombuffer((folder / name).read_bytes(), np.uint16).reshape(ROWS, HIDDEN)
            result[name] = round(float(np.max(np.abs(as_numbers(bits) - wanted) / np.maximum(np.abs(wanted) * STEP, 1e-9))), 3)
    return result


def right(found: dict[str, Any]) -> bool:
    """Whether everything is correct: results are rounded once, and each refusal has its own code."""
    codes = [line.partition("[")[2][:5] for line in found["refusals"]]
    rounded = all(found.get(name, 9.0) <= 1.01 for name in ("sum", "normed"))
    return found["status"] == 0 and rounded and codes == ["E0908", "E0909", "E0914", "E0906"]
