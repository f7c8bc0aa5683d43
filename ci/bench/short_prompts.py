"""Times short prompts under several bundles of a model on this machine's GPU, and holds the logits of each against the first's.

    python3 ci/bench/short_prompts.py BEFORE AFTER [MORE] [--model qwen3-4b] [--lengths 1,18] [--out FOLDER] [--name NAME]

Each folder holds the bundle of a build, whose step and kernels the engine then runs. For prompts of several lengths: the first
of its length, and the median of five more (`engine_check.prefill_speed`). For the lengths in COMPARED: how far the logits
behind the prompt are from the first bundle's, in the Euclidean norm, over its own. Weights are random. Writes
`short_prompts.json` and `.md`, or as `--name` says. Needs cuda-bindings.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

ROOT: Final = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "ci" / "bench")]

from engine_check import BlockWeights, config_of, prefill_speed  # noqa: E402

from engine.backends.load import load_on_gpu  # noqa: E402

LENGTHS: Final = (18, 1, 8, 16, 24, 32, 33, 48, 64, 65, 128, 512, 2048, 18, 32, 64)
"""In this order; of a length that comes again the last time counts."""
COMPARED: Final = (1, 17, 32, 33, 64)
SLOTS: Final = 4096


def main() -> int:
    """Time each bundle, then report; the exit status."""
    parser = argparse.ArgumentParser(description="short prompts under several bundles")
    parser.add_argument("bundles", type=Path, nargs="+")
    parser.add_argument("--model", default="qwen3-4b")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ROOT / "ci" / "bench" / "results")))
    parser.add_argument("--lengths", type=lambda text: [int(one) for one in text.split(",")], default=list(LENGTHS))
    parser.add_argument("--name", default="short_prompts", help="of the written files")
    options = parser.parse_args()
    config = config_of(options.model)
    weights = BlockWeights(config, "bf16")
    ids = [int(i) for i in np.random.default_rng(3).integers(0, config.vocab_size, max(COMPARED))]
    record: dict[str, Any] = {}
    first: dict[int, Any] = {}
    for folder in options.bundles:
        began = time.perf_counter()
        backend = load_on_gpu(folder / f"{options.model}-sm_90a.bundle", config, weights, SLOTS, "bf16")
        found: dict[str, Any] = {"load_s": time.perf_counter() - began, "far": {}}
        for length in COMPARED:
            logits = backend.prompt_logits(backend.begin(), ids[:length])
            exact = first.setdefault(length, logits)
            found["far"][str(length)] = float(np.linalg.norm(logits - exact) / np.linalg.norm(exact))
        record[folder.name] = found | prefill_speed(backend, config, options.lengths)
        backend.close()
        print(folder.name, json.dumps(record[folder.name]), flush=True)
    report(record, options.model, options.lengths, options.out / options.name)
    return 0


def report(record: dict[str, Any], model: str, lengths: list[int], path: Path) -> None:
    """Write the record and its table, and below it the record's `note`, where there is one."""
    names = [name for name in record if name != "note"]
    lines = [f"# Short prompts: {model}, bf16, NVIDIA H200", ""]
    lines += ["Milliseconds of a prompt: the median, and beside it the first of its length.", ""]
    lines += [f"| tokens | {' | '.join(f'{name} | first' for name in names)} |", f"|--:|{'--:|' * (2 * len(names))}"]
    for length in sorted(set(lengths)):
        times = (record[name][f"{which}prefill_{length}_ms"] for name in names for which in ("", "first_"))
        lines.append(f"| {length} | {' | '.join(f'{time:.2f}' for time in times)} |")
    lines += ["", f"| | {' | '.join(names)} |", f"|---|{'--:|' * len(names)}"]
    for length in COMPARED:
        far = (record[name]["far"][str(length)] for name in names)
        lines.append(f"| logits behind {length}, from those of `{names[0]}` | {' | '.join(f'{one:.4f}' for one in far)} |")
    loads = (f"{record[name]['load_s']:.2f}" for name in names)
    lines.append(f"| load, s | {' | '.join(loads)} |")
    lines += ["", record["note"]] if "note" in record else []
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
