"""A bundle of another digest than the one asked for runs nothing: the engine says both digests and ends with status 4."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_engine_cli import answer, model
from test_text import folder

from engine.api import Engine
from engine.errors import BundleRefused, UsageError
from tilec.runtime import Bundle

__all__ = ["answer", "folder", "model"]  # fixtures of other modules


def test_the_command_takes_a_digest(answer: Callable[..., Any], bundle: Bundle) -> None:
    right = hashlib.sha256(bundle.path.read_bytes()).hexdigest()
    assert answer("--dummy-weights", "--max-new-tokens", "2", "--bundle-digest", right) == (0, "!!\n", "")
    status, out, err = answer("--dummy-weights", "--bundle-digest", "0" * 64)
    assert (status, out, err.count("\n")) == (4, "", 1)
    assert f"its sha256 is {right}, not {'0' * 64}" in err
    status, out, err = answer("--dummy-weights", "--bundle-digest", "right")
    assert (status, out) == (4, "") and "no sha256 of 64 hex digits" in err


def test_the_interpreter_has_no_bundle(answer: Callable[..., Any]) -> None:
    status, out, err = answer("--backend", "interpreter", "--bundle-digest", "0" * 64, **{"--bundle": None})
    assert (status, out) == (2, "") and "--bundle-digest changes nothing" in err


def test_the_api_takes_a_digest(model: Path, bundle: Bundle) -> None:
    with pytest.raises(BundleRefused, match=f"its sha256 is {bundle.digest}, not {'1' * 64}"):
        Engine.from_pretrained(model, bundle=bundle.path, dummy=0, bundle_digest="1" * 64)
    with pytest.raises(UsageError):
        Engine.from_pretrained(model, backend="interpreter", dummy=0, bundle_digest="1" * 64)
