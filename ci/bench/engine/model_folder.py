"""Writes a model folder that has nothing but its config: what `python -m engine.bench --dummy-weights` needs of one.

python3 ci/bench/engine.py model_folder qwen3-4b artifacts/models/qwen3-4b
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ci.bench.engine.weights import config_of
from ci.bench.front import Outcome


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this case."""
    parser.add_argument("model", help="of build.toml")
    parser.add_argument("folder", type=Path)


def measure(options: argparse.Namespace) -> Outcome:
    """Write config.json."""
    config = config_of(options.model)
    options.folder.mkdir(parents=True, exist_ok=True)
    keys: dict[str, Any] = {"model_type": config.model_type} | asdict(config)
    if keys.get("rope_scaling"):
        keys["rope_scaling"]["rope_type"] = "llama3"  # the only kind of `RopeScaling`
    (options.folder / "config.json").write_text(json.dumps(keys, indent=1) + "\n", encoding="utf-8")
    return Outcome(None)
