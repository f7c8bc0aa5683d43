"""`add` and `rms_norm` at extents that are not powers of two: right on the device, and about as fast as at nearby extents.

Needs a GPU, torch and the project that `python ci/bench/kernels.py extents_gpu FOLDER --build` makes; `TILEC_EXTENTS` names the
folder.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ci.bench.kernels import extents_gpu

pytestmark = pytest.mark.gpu


def test_odd_extents_are_right_and_about_as_fast_as_even_ones() -> None:
    folder = os.environ.get("TILEC_EXTENTS")
    assert folder, "TILEC_EXTENTS names no folder"
    result = extents_gpu.measured(Path(folder))
    assert not result["wrong"]
    assert not result["slow"], result["times"]
    assert set(result["times"]) == {"add", "rms_norm"}
