"""Compares the PTX emulator with a GPU: every built artifact at small and odd sizes, output by output.

    python ci/bench/judges.py emulator_gpu prepare artifacts/build/sm_90a --work artifacts/emulator_gpu     # no GPU
    python ci/bench/judges.py emulator_gpu device artifacts/build/sm_90a --work artifacts/emulator_gpu --out $OUT
    python ci/bench/judges.py emulator_gpu compare artifacts/build/sm_90a --work artifacts/emulator_gpu --gpu FOLDER

`prepare` lists the launches that the GPU has not run yet (`--all`: all) with the digest of each one's inputs, which are
generated from a seed. `device` generates the same inputs (NumPy), refuses others, launches every CUBIN through `tilec.runtime`
(torch and cuda-bindings) and writes the outputs as `outputs-N.npz` of at most 12 MB. `compare` records the GPU's outputs in
`verdicts/gpu_outputs.txt`, by CUBIN and inputs; emulates every launch without a verdict in `verdicts/emulator_gpu.txt`, keyed
by the GPU's outputs, the PTX and the emulator's source; and writes `emulator_gpu.{md,json}`. Without `--gpu` it compares with
the recorded outputs, so that an edit of the emulator needs no GPU.
"""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path
from typing import Any, Final

import numpy as np

from ci.bench.front import Outcome
from ci.bench.judges.emulator_cases import OUTPUTS, Array, Case, cases, digest, launch_key, make_arrays
from ci.evidence import ROOT
from ci.evidence.verdicts import Verdicts
from tilec.target.dtypes import DTYPES

SEEDS: Final = (0,)
PREPARED: Final = "prepared.json"
MOST_BYTES: Final = 12_000_000
"""Maximum compressed bytes of one outputs file."""
GUARD: Final = 256
"""Bytes of 0xFF before and after each written tensor on the device."""
PERSISTENT_BLOCKS: Final = 3
"""Persistent blocks of a launch: as few as in the emulator, so that each processes several tiles of a small problem."""


def prepare(folder: Path, work: Path, only: str, *, again: bool) -> int:
    """Write the list of launches."""
    listed: list[dict[str, Any]] = []
    seen = Verdicts(OUTPUTS)
    for case in cases(folder, only):
        for seed in SEEDS:
            inputs = digest(make_arrays(case, seed))
            if not again and seen.find(case.name, launch_key(case, inputs)) is not None:
                continue
            listed.append(
                {
                    "case": case.name, "seed": seed, "dims": case.dims, "scalars": case.scalars,
                    "cubin": case.manifest.digests["cubin"], "inputs": inputs,
                }
            )  # fmt: skip
    work.mkdir(parents=True, exist_ok=True)
    (work / PREPARED).write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
    print(f"{len(listed)} launches of {len({row['cubin'] for row in listed})} CUBINs in {work / PREPARED}")
    return 0


def device(folder: Path, work: Path, out: Path) -> int:
    """Launch everything on this machine's GPU."""
    torch: Any = importlib.import_module("torch")
    runtime: Any = importlib.import_module("tilec.runtime")
    torch.zeros(1, device="cuda")  # makes torch's context current before `Device` looks for one
    chip = runtime.Device()
    listed = {(row["case"], row["seed"]): row for row in json.loads((work / PREPARED).read_text(encoding="utf-8"))}
    outputs: dict[str, Array] = {}
    problems: list[str] = []
    launched = 0
    for case in cases(folder):
        for seed in SEEDS:
            row = listed.get((case.name, seed))
            if row is None:
                continue
            arrays = make_arrays(case, seed)
            if digest(arrays) != row["inputs"] or case.manifest.digests["cubin"] != row["cubin"]:
                problems.append(f"{case.name}: the inputs or the CUBIN are not those prepared")
                continue
            try:
                found = _launch(torch, runtime, chip, case, arrays)
            except Exception as error:
                problems.append(f"{case.name}: {type(error).__name__}: {error}"[:400])
                if "CUDA" in str(error):
                    break  # the context is lost
                continue
            launched += 1
            outputs |= {f"{case.name}|{seed}|{name}": value for name, value in found.items()}
    out.mkdir(parents=True, exist_ok=True)
    files = _write(outputs, out)
    record = {"gpu": chip.name, "arch": chip.architecture, "launched": launched, "wanted": len(listed), "problems": problems}
    (out / "device.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"{launched} of {len(listed)} launches on {chip.name}; {len(outputs)} tensors in {files} files")
    print("\n".join(problems))
    return int(bool(problems) or launched != len(listed))


def _launch(torch: Any, runtime: Any, chip: Any, case: Case, arrays: dict[str, Array]) -> dict[str, Array]:
    manifest = case.manifest
    tensors: dict[str, Any] = {}
    wholes: dict[str, Any] = {}
    for spec in manifest.tensors:
        array = np.ascontiguousarray(arrays[spec.name])
        guarded = torch.full((array.nbytes + 2 * GUARD,), 255, dtype=torch.uint8, device="cuda")
        body = guarded[GUARD : GUARD + array.nbytes]
        body.copy_(torch.from_numpy(array.reshape(-1).view(np.uint8)))
        tensors[spec.name] = body.view(getattr(torch, DTYPES[spec.dtype].numpy)).view(array.shape)
        wholes[spec.name] = guarded
    kernel = runtime.Kernel(manifest, case.cubin, chip)
    if kernel.at_once is not None:
        kernel.at_once = PERSISTENT_BLOCKS
    trusted = {check.tensor: runtime.TRUSTED for check in manifest.value_checks}
    plan = kernel.plan({**tensors, **case.scalars}, values=trusted)
    plan.launch(int(torch.cuda.current_stream().cuda_stream))
    torch.cuda.synchronize()
    found: dict[str, Array] = {}
    for spec in manifest.tensors:
        bytes_ = wholes[spec.name].cpu().numpy()
        if not (np.concatenate((bytes_[:GUARD], bytes_[-GUARD:])) == 255).all():
            raise ValueError(f"bytes next to `{spec.name}` were written")
        if spec.access != "in":
            found[spec.name] = bytes_[GUARD:-GUARD]
    kernel.close()
    return found


def _write(outputs: dict[str, Array], out: Path) -> int:
    """Write files of similar size, none above MOST_BYTES before compression."""
    batch: dict[str, Array] = {}
    size = files = 0
    for position, (name, value) in enumerate(outputs.items()):
        batch[name] = value
        size += value.nbytes
        if size > MOST_BYTES or position == len(outputs) - 1:
            np.savez_compressed(out / f"outputs-{files}.npz", allow_pickle=False, **batch)
            batch, size, files = {}, 0, files + 1
    return files


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("phase", choices=("prepare", "device", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--work", type=Path, default=ROOT / "artifacts" / "emulator_gpu")
    parser.add_argument("--gpu", type=Path, default=None, help="where `compare` finds the GPU's outputs")
    parser.add_argument("--only", default="", help="artifacts whose name contains this")
    parser.add_argument("--all", action="store_true", help="launch what was launched before, too")


def measure(options: argparse.Namespace) -> Outcome | int:
    """Run one phase; status 1 of `compare` if something disagrees."""
    if options.phase == "prepare":
        return prepare(options.folder, options.work, options.only, again=options.all)
    if options.phase == "device":
        return device(options.folder, options.work, options.out)
    from ci.bench.judges.emulator_gpu_report import compare

    return compare(options.folder, options.gpu, options.only, options.jobs, options.budget)
