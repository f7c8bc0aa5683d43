"""Model folders for the server's tests: a tiny one that the interpreter runs, and one without weights that thinks and calls
tools, whose generations tests write themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_process import Server, says, server, write_talker

from engine.tools.tiny import write_tiny_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    write_tiny_model(folder)
    return folder


@pytest.fixture(scope="session")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("talker") / "talker"
    write_talker(folder)
    return folder


@pytest.fixture
def speaker(talker: Path) -> Server:
    """A server whose model thinks, then says why."""
    return server(talker, says(talker, "<think>\nhm\n</think>\n\nBecause."))
