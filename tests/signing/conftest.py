"""A signed bundle for each test that requests one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.signing import scene


@pytest.fixture
def signed_setup(tmp_path: Path) -> scene.SignedSetup:
    """A bundle signed with two keys, and a policy that requires both."""
    folder = tmp_path / "scene"
    folder.mkdir()
    return scene.make(folder.resolve())
