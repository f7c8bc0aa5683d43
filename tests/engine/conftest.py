"""The bundle that the engine's tests load, open."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec.runtime import Bundle, open_bundle


@pytest.fixture(scope="session")
def bundle(shipped_bundle: Path) -> Bundle:
    return open_bundle(shipped_bundle)
