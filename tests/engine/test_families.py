"""A family is a folder: config.json, its step and build.toml use one name for it, and no other code names it."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ModelError
from engine.models import families
from engine.models.families import FAMILIES, read_config
from engine.tools.tiny import write_tiny_model
from tests import shipped


@pytest.mark.parametrize("name", FAMILIES)
def test_one_name_is_used_everywhere(name: str) -> None:
    family = FAMILIES[name]
    folder = shipped.ROOT / "engine" / "models" / name
    assert family.package == f"engine.models.{name}"
    assert (folder / f"{name}.step").is_file()
    assert name in {model["family"] for model in tomllib.loads((shipped.ROOT / "build.toml").read_text())["model"]}
    assert "decode" in family.declaration().modes


def test_no_other_code_names_a_family() -> None:
    """Outside their folders, but for tiny models, and for what a process knows that reads a tokenizer and imports no family."""
    allowed = {"engine/tools/tiny.py", "engine/text/policy.py"}
    code = [path for path in (shipped.ROOT / "engine").rglob("*.py") if "models" not in path.parts]
    code = [path for path in code if path.relative_to(shipped.ROOT).as_posix() not in allowed]
    for path in code:
        assert not re.search("|".join(f"[\"']{name}[\"']|models[.]{name}" for name in FAMILIES), path.read_text()), path


def test_a_second_family_is_an_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = write_tiny_model(tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    file.write_text(file.read_text().replace('"model_type": "qwen3"', '"model_type": "other"'))
    with pytest.raises(ModelError, match='`model_type` is "other", and must be "qwen3"'):
        read_config(tmp_path / "model")
    qwen3 = FAMILIES["qwen3"]
    other: Any = replace(
        qwen3, model_type="other", config=lambda keys: replace(config, hidden_size=keys.integer("hidden_size", 1, 99))
    )
    monkeypatch.setattr(families, "FAMILIES", {"qwen3": qwen3, "other": other})
    assert read_config(tmp_path / "model") == config
    file.write_text(file.read_text().replace('"model_type": "other"', '"model_type": "third"'))
    with pytest.raises(ModelError, match='must be "qwen3" or "other"'):
        read_config(tmp_path / "model")
