"""`add` and `rms_norm` at extents that are not powers of two: right on the device, and about as fast as at nearby extents.

Needs a GPU, torch and the project that `python ci/bench/extents_gpu.py --build FOLDER` makes; `TILEC_EXTENTS` names the folder.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).resolve().parents[2]


def test_odd_extents_are_right_and_about_as_fast_as_even_ones() -> None:
    sys.path.append(str(ROOT / "ci" / "bench"))
    folder = os.environ.get("TILEC_EXTENTS")
    assert folder, "TILEC_EXTENTS names no folder"
    result = importlib.import_module("extents_gpu").measured(Path(folder))
    assert not result["wrong"]
    assert not result["slow"], result["times"]
    assert set(result["times"]) == {"add", "rms_norm"}
