"""Every instruction that the PTX ISA defines bit for bit, on thousands of operands: the emulator agrees with an sm_90 GPU.

`chip_answers.npz` contains the GPU's results, written by `ci/bench/judges.py ptx_semantics_gpu keep`; NaN bits are compared
too.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ci.bench.judges import ptx_semantics_gpu as tool

HERE = Path(__file__).resolve().parent


def test_every_exact_instruction_equals_the_chip() -> None:
    cases = {case.name: case for case in tool.listed.cases()}
    wrong: dict[str, str] = {}
    with np.load(HERE / "chip_answers.npz") as data:
        names, digests, chip_values = data["names"].tolist(), data["digests"], data["kept"]
    assert len(names) == len(set(names)) > 500
    for name, expected, some in zip(names, digests, chip_values, strict=True):
        case = cases[name]
        blocks, threads = tool.listed.COUNT // tool.listed.THREADS, tool.listed.THREADS
        emulated = tool.emulated(tool.listed.ptx(case), case.inputs(), tool.empty(case), blocks, threads)
        if (tool.digest(emulated) != expected).any():
            differing = np.flatnonzero(emulated[:: tool.KEPT] != some)
            wrong[name] = "; ".join(f"{emulated[tool.KEPT * k]:#x} for {some[k]:#x}" for k in differing[:3].tolist())
    assert not wrong
