"""Opens the bundle that the engine's tests load once, and caches its parsed manifest."""

from __future__ import annotations

import functools
from collections.abc import Generator
from pathlib import Path

import pytest

from tilec.runtime import Bundle, open_bundle
from tilec.runtime import bundle as bundles


@pytest.fixture(scope="session", autouse=True)
def read_once() -> Generator[None]:
    """A hundred tests open the same bundle: equal manifest bytes are parsed once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundles, "read_contents", functools.lru_cache(4)(bundles.read_contents))
        yield


@pytest.fixture(scope="session")
def bundle(shipped_bundle: Path) -> Bundle:
    return open_bundle(shipped_bundle)
