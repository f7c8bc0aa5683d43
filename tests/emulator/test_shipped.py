"""Shipped kernels, from source to PTX, emulated: no fault in any schedule, and the values of the float64 reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import shipped, shipped_launches
from tilec.cli.emulate_command import _built  # pyright: ignore[reportPrivateUsage]
from tilec.emulator import emulate
from tilec.project.buildfile import read_build_file
from tilec.target import Target

TOLERANCE = {"bf16": 2.0**-6, "f16": 2.0**-8}
ARCHITECTURES = ("sm_90", "sm_100", "sm_120")
NAMES = ("add", "silu_mul", "rms_norm", "add_rms_norm", "argmax_blocks", "advance", "matvec", "kv_update", "qk_norm_rope_kv")


def built(name: str, size: dict[str, Any], arch: str) -> tuple[str, Any]:
    entry, constants = shipped.specialisation(name, size)
    build = read_build_file(shipped.ROOT / "build.toml")
    given = tuple(f"{key}={value}" for key, value in constants.items())
    ptx, manifest, _ = _built(build, entry, given, Target.parse(arch))
    return ptx, manifest


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("name", "arch"), [(name, ARCHITECTURES[k % 3]) for k, name in enumerate(NAMES)])
def test_shipped_kernel_agrees_with_the_reference(name: str, arch: str, seed: int) -> None:
    size = shipped_launches.SIZES[name][-1 if name != "matvec" else 0]
    function = shipped.load(name, size)
    env = shipped_launches.launch_values(function, size)
    arrays = shipped_launches.make_arrays(function, env)
    ptx, manifest = built(name, size, arch)
    report = emulate(ptx, manifest, arrays, env, seed=seed)
    assert report.clean, "\n".join(map(str, report.faults))
    assert report.statistics["coverage"] > 0.3
    wanted = shipped_launches.expected(function, arrays, env)
    for tensor, values in wanted.items():
        found = report.tensors[tensor].astype(np.float64)
        tolerance = TOLERANCE.get(str(function.constants.get("E")), 0.0)
        assert np.allclose(found, np.asarray(values, np.float64), rtol=tolerance, atol=tolerance), tensor
