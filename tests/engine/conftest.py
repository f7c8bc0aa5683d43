"""The bundle that the engine's tests load: every kernel of the smallest model for one architecture."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import shipped
from tilec.runtime import Bundle, open_bundle


@pytest.fixture(scope="session")
def bundle(made_once: Callable[..., Path], shipped_store: Path) -> Bundle:
    def pack(folder: Path) -> None:
        command = [sys.executable, "-m", "tilec", "bundle", "pack", "--project", str(shipped.ROOT), "--model", "qwen3-0.6b"]
        environment = os.environ | {"TILEC_CACHE_DIR": str(shipped_store)}
        subprocess.run([*command, "--arch", "sm_90", "-o", str(folder)], env=environment, check=True, capture_output=True)

    (path,) = made_once("bundle", pack).iterdir()
    return open_bundle(path)
