"""Shipped kernels, built from source to PTX, emulated by their manifests: no fault, and the reference's values.

`test_every_kernel` emulates all of them, compiled in its own process.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests import shipped, shipped_launches
from tests.campaign import first
from tests.clean import check_clean
from tilec.cli.emulate_command import _built  # pyright: ignore[reportPrivateUsage]
from tilec.emulator import emulate
from tilec.project.read.buildfile import read_build_file
from tilec.target.targets import Target

TOLERANCE = {"bf16": 2.0**-6, "f16": 2.0**-8}


@pytest.mark.parametrize(
    ("name", "arch"), first(1, [("add", "sm_90"), ("argmax_reduce", "sm_100"), ("qk_norm_rope_kv", "sm_120")])
)
def test_shipped_kernel_agrees_with_the_reference(
    name: str, arch: str, shipped_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(shipped_store))
    size = shipped_launches.SIZES[name][-1]
    entry, constants = shipped.specialisation(name, size)
    one = replace(entry, constants={key: (value,) for key, value in constants.items()})
    ptx, manifest, _, _ = _built(read_build_file(shipped.ROOT / "build.toml"), one, Target.parse(arch))
    function = shipped.load(name, size)
    env = shipped_launches.launch_values(function, size)
    arrays = shipped_launches.make_arrays(function, env)
    for seed in (0, 1):
        report = emulate(ptx, manifest, arrays, env, seed=seed)
        check_clean(report)
        assert report.statistics["coverage"] > 0.3
        for tensor, values in shipped_launches.expected(function, arrays, env).items():
            found = report.tensors[tensor].astype(np.float64)
            tolerance = TOLERANCE.get(str(function.constants.get("E")), 0.0)
            assert np.allclose(found, np.asarray(values, np.float64), rtol=tolerance, atol=tolerance), tensor
