"""Launches that the module or its target forbids."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.tiny import kinds, launch, program


@pytest.mark.parametrize(
    ("target", "limit"),
    [("sm_90", 232448), ("sm_90a", 232448), ("sm_100a", 232448), ("sm_100f", 232448), ("sm_120a", 101376), ("sm_86", 101376)],
)
@pytest.mark.parametrize("static", [0, 16])
def test_shared_memory_of_a_block_has_a_limit(target: str, limit: int, static: int) -> None:
    text = program(f".shared .align 16 .b8 own[{static}];" if static else "", ["out"], shared=1, target=target)
    for over in (0, 4):
        report = launch(text, {"out": np.zeros(1, np.uint32)}, shared=limit - static + over)
        assert kinds(report) == ({"launch"} if over else set())


def test_a_target_of_unknown_limit_has_none() -> None:
    text = program("", ["out"], shared=1, target="sm_999")
    assert launch(text, {"out": np.zeros(1, np.uint32)}, shared=1 << 20).clean


def test_threads_of_a_block() -> None:
    text = program("", ["out"], threads=64)
    assert launch(text, {"out": np.zeros(1, np.uint32)}, threads=64).clean
    assert kinds(launch(text, {"out": np.zeros(1, np.uint32)}, threads=32)) == {"launch"}
