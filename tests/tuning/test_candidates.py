"""Candidates on a device: right ones are timed alternately, wrong ones are named, and a faulting one is announced before it
runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tuning import tuned_project
from tests.tuning.tuned_project import HostGpu, microseconds
from tilec.runtime import Device, DriverError, LaunchError
from tilec.tuning import child
from tilec.tuning.bench import Bench
from tilec.tuning.clock import ROUNDS, spread
from tilec.tuning.records import shape_of

SHAPE = shape_of({"N": 20000})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tuned_project.make(tmp_path)


def bench(root: Path, driver: HostGpu) -> Bench:
    return Bench(Device(driver), tuned_project.artifacts(root), (root / "kernels_src/reference.py", "double"))


def test_times_are_measured_on_the_device_alternately(root: Path) -> None:
    driver = HostGpu()
    names = list(tuned_project.artifacts(root))
    started: list[str] = []
    times, wrong = bench(root, driver).times(names, SHAPE, started.append)
    assert not wrong
    for name, block in zip(names, tuned_project.BLOCKS, strict=True):
        assert times[name] == pytest.approx([microseconds(block, 20000)] * 3)
    assert driver.runs[3:] == list(tuned_project.BLOCKS) * (ROUNDS + 1)
    assert started == [*names, *names, ""]
    assert not driver.buffers or sum(buffer.size for buffer in driver.buffers.values()) < 1 << 20, "memory is given back"


def test_more_argument_sets_than_the_cache_holds(root: Path) -> None:
    """Three times the fake device's mebibyte, in sets of 160 kB."""
    driver = HostGpu()
    allocated: list[int] = []
    original = driver.allocate

    def allocate(size: int, stream: int) -> int:
        allocated.append(size)
        return original(size, stream)

    driver.allocate = allocate
    bench(root, driver).times(list(tuned_project.artifacts(root)), SHAPE, lambda _: None)
    assert sum(allocated) > 3 << 20


def test_a_wrong_candidate_is_named_by_the_reference_and_by_the_others(root: Path) -> None:
    driver = HostGpu(wrong=(128,))
    candidates = bench(root, driver)
    names = list(tuned_project.artifacts(root))
    assert [bool(candidates.problem(name)) for name in names] == [False, True, False]
    assert "`out[" in candidates.problem(names[1])
    times, wrong = candidates.times(names, SHAPE, lambda _: None)
    assert times.keys() == {names[0], names[2]}
    assert "`out[" in wrong[names[1]]
    assert "not that of the others" in wrong[names[1]]


def test_each_step_is_reported_as_a_line(root: Path) -> None:
    names = list(tuned_project.artifacts(root))
    sent: list[dict[str, Any]] = []
    device = child.greet(sent.append, HostGpu(wrong=(64,)))
    assert device is not None
    job = {
        "artifacts": {name: str(path) for name, path in tuned_project.artifacts(root).items()},
        "reference": [str(root / "kernels_src/reference.py"), "double"], "check": names,
        "time": [[list(map(list, SHAPE)), names]],
    }  # fmt: skip
    child.work(job, device, sent.append)
    assert sent[0]["arch"] == "sm_90a"
    assert [line["wrong"] == "" for line in sent if "checked" in line] == [False, True, True]
    assert sent[-1]["us"].keys() == set(names[1:])


def test_a_fault_ends_the_process_after_the_name_of_the_candidate(root: Path) -> None:
    names = list(tuned_project.artifacts(root))
    sent: list[dict[str, Any]] = []
    device = child.greet(sent.append, HostGpu(faulty=(256,)))
    assert device is not None
    artifacts = {name: str(path) for name, path in tuned_project.artifacts(root).items()}
    with pytest.raises(DriverError):
        child.work({"artifacts": artifacts, "reference": None, "check": [], "time": [[SHAPE, names]]}, device, sent.append)
    assert sent[-1] == {"at": names[2]}


def test_a_shape_must_give_every_extent(root: Path) -> None:
    with pytest.raises(LaunchError, match="gives no `N`"):
        bench(root, HostGpu()).times(list(tuned_project.artifacts(root)), shape_of({"M": 3}), lambda _: None)


def test_spread() -> None:
    assert spread([float(value) for value in range(1, 22)]) == (11, 3, 19)
