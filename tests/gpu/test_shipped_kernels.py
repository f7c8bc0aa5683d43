"""Every built kernel on the device, compared with torch in the same dtype and with float64. Needs a GPU, torch and built
artifacts.

`TILEC_ARTIFACTS` names the folder of artifacts, `artifacts/build` by default.
"""

from __future__ import annotations

import importlib
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).resolve().parents[2]
ARTIFACTS = Path(os.environ.get("TILEC_ARTIFACTS", ROOT / "artifacts" / "build"))


KERNELS = sorted(path.stem for path in (ROOT / "kernels_src").glob("*.py") if "@tl.kernel" in path.read_text("utf-8"))


@cache
def bench() -> tuple[Any, Any]:
    """The case module and the device with its loaded kernels; imported late, since a machine without a GPU has no torch."""
    return importlib.import_module("ci.bench.kernels.cases"), importlib.import_module("ci.bench.kernels.launch").Bench()


@cache
def artifacts() -> list[Any]:
    _, device = bench()
    entries, broken = importlib.import_module("ci.bench.kernels.launch").find_artifacts([ARTIFACTS], device.device.architecture)
    assert not broken
    return entries


def test_artifacts_of_every_kernel_are_here() -> None:
    assert {entry.manifest.kernel for entry in artifacts()} == set(KERNELS)


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_artifact_is_right_at_every_size(kernel: str) -> None:
    cases, device = bench()
    checked = 0
    for entry in (entry for entry in artifacts() if entry.manifest.kernel == kernel):
        for dims in cases.checked_sizes(entry.manifest):
            tensors = cases.make_tensors(entry.manifest, dims, "cuda")
            for result in cases.launched(device, entry, tensors):
                assert result.ok, (entry.variant, dims, result)
            assert cases.guards_intact(tensors), (entry.variant, dims)
            checked += 1
    assert checked > 0, f"no artifact of {kernel} in {ARTIFACTS}"


@pytest.mark.parametrize("kernel", ["add", "rms_norm"])
def test_a_captured_launch_replays_on_new_data(kernel: str) -> None:
    cases, device = bench()
    torch = cases.torch
    entry = next(entry for entry in artifacts() if entry.manifest.kernel == kernel)
    dims = next(iter(cases.checked_sizes(entry.manifest)))
    tensors = cases.make_tensors(entry.manifest, dims, "cuda")
    plan = device.plan(entry, tensors)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.launch(torch.cuda.current_stream())
    for _ in range(3):
        fresh = cases.make_tensors(entry.manifest, dims, "cuda")
        for name, tensor in fresh.items():
            tensors[name].copy_(tensor)
        graph.replay()
        torch.cuda.synchronize()
        assert all(result.ok for result in cases.compare(fresh, tensors, entry.manifest))


def test_our_own_arrays_need_no_torch_tensor() -> None:
    import numpy as np

    _, device = bench()
    candidates = [e for e in artifacts() if e.manifest.kernel == "add" and e.dtype == "f16"]
    kernel = device.kernel(candidates[0])
    names = [spec.name for spec in kernel.manifest.tensors]
    rng = np.random.default_rng()
    x, y = (rng.standard_normal(4096).astype(np.float16) for _ in range(2))
    out = device.device.empty((4096,), "f16")
    out.fill(0xFF)
    arrays = dict(zip(names, (device.device.from_numpy(x), device.device.from_numpy(y), out), strict=True))
    kernel(arrays)
    assert np.array_equal(out.to_numpy(), x + y)


def test_an_artifact_of_another_architecture_is_refused() -> None:
    from dataclasses import replace

    from tilec.runtime import Kernel, LaunchError

    _, device = bench()
    entry = artifacts()[0]
    other = "sm_100a" if device.device.architecture != "sm_100a" else "sm_120a"
    with pytest.raises(LaunchError, match="another architecture"):
        Kernel(replace(entry.manifest, arch=other), entry.cubin, device.device)
