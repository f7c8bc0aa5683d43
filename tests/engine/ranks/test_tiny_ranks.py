"""What `python -m engine.tiny` writes can be shared by two ranks, whatever its family: both generate what one generates."""

from __future__ import annotations

from pathlib import Path

import pytest
from interpreter_ranks import greedy, one_rank, two_ranks

from engine.tools.tiny import KINDS, write_tiny_model


@pytest.mark.parametrize("family", KINDS)
def test_a_tiny_model_on_two_ranks(family: str, tmp_path: Path) -> None:
    write_tiny_model(tmp_path / family, family=family)
    found: list[list[int]] = []
    for load in (one_rank, two_ranks):
        backend = load(tmp_path / family)
        found.append(greedy(backend, [72, 105], 3))
        backend.close()
    assert found[0] == found[1] and len(found[0]) >= 3
