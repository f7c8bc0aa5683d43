"""The tables of `persistent_step.py`: what it measured in, Markdown out.

python ci/bench/persistent_table.py FILE.json    writes FILE.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

PHASE_COLUMNS: Final = {
    "last_to_last_us": "from the last block's end to the next's", "input_behind_last_us": "input behind the last block's end",
    "works_us": "works", "starved_us": "of it waits for weights",
}  # fmt: skip


def markdown(results: Mapping[str, Any]) -> str:
    """A table of steps, one of reads of the L2 cache, and one of phases for each variant whose phases were timed."""
    models: Mapping[str, Any] = results["models"]
    lines = [f"# A decode step in one persistent kernel, {results['gpu']}, bf16, {results['length']} slots filled", ""]
    lines += _row(["", *(f"{name}, us | TB/s | tok/s" for name in models)])
    lines += ["|---|" + "--:|" * (3 * len(models))]
    lines += _row(["weights at 4.58 TB/s", *(_speed(found, found["floor_us"]) for found in models.values())])
    if all("chain_us" in found for found in models.values()):
        lines += _row(["chain of launches, `engine.bench`", *(_speed(found, found["chain_us"]) for found in models.values())])
    for variant in next(iter(models.values()))["step_us"]:
        lines += _row([variant, *(_speed(found, found["step_us"][variant]) for found in models.values())])
    lines += ["", "A read of a word in the L2 cache meanwhile, cycles: mean and worst, medians of the blocks.", ""]
    lines += _row(["", *models])
    lines += ["|---|" + "--:|" * len(models)]
    for variant in next(iter(models.values()))["read_cycles"]:
        lines += _row([variant, *("{}, {}".format(*found["read_cycles"][variant]) for found in models.values())])
    for name, found in models.items():
        for variant, phases in found["phases"].items():
            lines += ["", f"Phases of {name}, {variant}, us: medians over inner layers, and over blocks.", ""]
            lines += _row(["", *PHASE_COLUMNS.values()])
            lines += ["|---|" + "--:|" * len(PHASE_COLUMNS)]
            for phase, times in phases.items():
                if all(key in times for key in PHASE_COLUMNS):
                    lines += _row([phase, *(f"{times[key]:.1f}" for key in PHASE_COLUMNS)])
    return "\n".join(lines) + "\n"


def _row(cells: list[str]) -> list[str]:
    return [f"| {' | '.join(cells)} |"]


def _speed(found: Mapping[str, Any], microseconds: float) -> str:
    return f"{microseconds:.0f} | {found['weight_bytes'] / microseconds / 1e6:.2f} | {1e6 / microseconds:.0f}"


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.with_suffix(".md").write_text(markdown(json.loads(file.read_text())))
