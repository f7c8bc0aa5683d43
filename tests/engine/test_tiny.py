"""The tiny model for tests and trials: complete, reproducible, and never written over anything."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.models.families import read_config
from engine.text.policy import QWEN3 as POLICY
from engine.text.tokenizer import Text
from engine.tools.tiny import write_tiny_model
from tests import shipped


def test_a_tiny_model_is_complete_and_reproducible(tmp_path: Path) -> None:
    first = tmp_path / "first"
    write_tiny_model(first)
    text_model, config = Text.read(first, POLICY), read_config(first)
    assert text_model.size <= config.vocab_size < text_model.size + 8  # a whole number of vectors of logits
    assert text_model.decode(text_model.encode("Why is the sky blue? Ä 🦊")) == "Why is the sky blue? Ä 🦊"
    assert text_model.decode(text_model.chat([{"role": "user", "content": "the sky"}])) == "user\nthe sky\nassistant\n"
    write_tiny_model(tmp_path / "again")
    write_tiny_model(tmp_path / "other", seed=1)
    files = sorted(path.name for path in first.iterdir())
    assert files == [
        "chat_template.jinja", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
    ]  # fmt: skip
    same = [name for name in files if (tmp_path / "again" / name).read_bytes() == (first / name).read_bytes()]
    assert same == files
    other = [name for name in files if (tmp_path / "other" / name).read_bytes() != (first / name).read_bytes()]
    assert other == ["model.safetensors"]


def tiny(*arguments: str) -> tuple[int, str]:
    command: Sequence[str] = [sys.executable, "-m", "engine.tiny", *arguments]
    process = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=shipped.ROOT)
    assert process.stdout == ""
    return process.returncode, process.stderr


def test_a_tiny_model_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    assert tiny(str(tmp_path)) == (2, f"error: {tmp_path}: the folder is not empty; name a new one\n")
    status, message = tiny(str(tmp_path / "notes"))
    assert (status, message.split(": ")[2]) == (2, "no model can be written there")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("notes", "mine")]
