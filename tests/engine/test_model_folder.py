"""A folder with a model's config alone: the engine reads from it what build.toml says of the model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.bench.engine.model_folder import measure
from ci.bench.engine.weights import config_of
from engine.models.families import read_config


@pytest.mark.parametrize("model", ["qwen3-4b", "qwen3-30b-a3b", "llama3.1-8b"])
def test_the_engine_reads_the_config_that_was_written(model: str, tmp_path: Path) -> None:
    options: Any = SimpleNamespace(model=model, folder=tmp_path / "models" / model)
    assert measure(options).data is None
    assert read_config(options.folder) == config_of(model)
    assert [path.name for path in options.folder.iterdir()] == ["config.json"]
