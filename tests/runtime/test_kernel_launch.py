"""Loading artifacts, exact architectures, launches, driver errors, and what a launch costs the host."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from fake_driver import FakeDriver, argument_bytes
from launch_contracts import SCHEDULE, embedding_like, loaded, manifest, tensor, view
from launch_contracts import T as rows

from tests.bundle import samples
from tilec.artifact.records import Manifest, Resources, ScalarSpec, to_json
from tilec.runtime import TRUSTED, Device, DriverError, Kernel, LaunchError, load
from tilec.runtime.scalars import pack_scalar


def small() -> Manifest:
    return manifest((tensor("x", "out", "f32", rows),))


X = {"x": view(4096, "f32", (10,))}


CUBIN = samples.cubin("demo")


def write(folder: Path, kernel_manifest: Manifest, cubin: bytes = CUBIN) -> Path:
    digests = {"cubin": hashlib.sha256(cubin).hexdigest()}
    (folder / "demo.json").write_text(json.dumps(to_json(replace(kernel_manifest, digests=digests))))
    (folder / "demo.cubin").write_bytes(cubin)
    return folder / "demo.json"


def test_artifact_from_disk_launches(tmp_path: Path) -> None:
    driver = FakeDriver()
    kernel = load(write(tmp_path, embedding_like()), Device(driver))
    assert driver.images == [CUBIN]
    assert kernel.manifest.value_checks == embedding_like().value_checks


def test_changed_cubin_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, small())
    (tmp_path / "demo.cubin").write_bytes(b"\x7fELG")
    with pytest.raises(LaunchError) as caught:
        load(path, Device(FakeDriver()))
    assert caught.value.code == "E0901"


@pytest.mark.parametrize("text", ["", "{}", "[1]", "null", '{"kernel": 3}', "\x00", '{"kernel": "demo"}'])
def test_malformed_manifest_is_one_clear_error(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, small())
    path.write_text(text)
    with pytest.raises(LaunchError) as caught:
        load(path, Device(FakeDriver()))
    assert caught.value.code == "E0901"
    assert "\n" not in str(caught.value)


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"cannot read .*absent\.json"):
        load(tmp_path / "absent.json", Device(FakeDriver()))
    path = write(tmp_path, small())
    (tmp_path / "demo.cubin").unlink()
    with pytest.raises(LaunchError, match=r"cannot read .*demo\.cubin"):
        load(path, Device(FakeDriver()))


@pytest.mark.parametrize(
    ("arch", "capability", "accepted"),
    [
        ("sm_90a", (9, 0), True), ("sm_100a", (10, 0), True), ("sm_120a", (12, 0), True), ("sm_100a", (9, 0), False),
        ("sm_90a", (10, 0), False), ("sm_100a", (10, 3), False), ("sm_120a", (12, 1), False), ("sm_90a", (8, 9), False),
        ("sm_90", (9, 0), False),
    ],
)  # fmt: skip
def test_architecture_is_exact(arch: str, capability: tuple[int, int], accepted: bool) -> None:
    driver = FakeDriver(capability)
    if accepted:
        loaded(replace(small(), arch=arch), driver)
        return
    with pytest.raises(LaunchError) as caught:
        loaded(replace(small(), arch=arch), driver)
    assert caught.value.code == "E0902"
    assert caught.value.given == f"`{arch}`"
    assert "\n" not in str(caught.value)
    assert not driver.images


def test_shared_memory_limit_and_opt_in() -> None:
    driver = FakeDriver()
    kernel = loaded(replace(small(), resources=Resources(32, 0, 0, 0, 200_000)), driver)
    assert driver.dynamic_shared == {kernel.function: 200_000}
    kernel.plan(X).launch()
    assert driver.launches[0].shared == 200_000
    with pytest.raises(LaunchError) as caught:
        loaded(replace(small(), resources=Resources(32, 0, 0, 40_000, 200_000)))
    assert caught.value.code == "E0916"


@pytest.mark.parametrize(
    ("persistent", "blocks", "multiprocessors", "tokens", "launched"),
    [
        (False, None, 148, 12, 6),
        (False, None, 1, 4 * 3000, 6000),
        (True, None, 148, 12, 6),
        (True, None, 148, 4 * 3000, 148),
        (True, None, 7, 4 * 3000, 6),
        (True, 3, 7, 4 * 3000, 20),
        (True, None, 1, 12, 2),
    ],
)
def test_a_grid_of_pairs(persistent: bool, blocks: int | None, multiprocessors: int, tokens: int, launched: int) -> None:
    """Two blocks for each of the kernel's; persistent ones in whole pairs, and no fewer than one pair."""
    driver = FakeDriver(multiprocessors=multiprocessors)
    schedule = SCHEDULE | {"cluster": 2, "persistent": persistent, "blocks": blocks}
    plan = loaded(replace(small(), cluster=2, schedule=schedule), driver).plan({"x": view(4096, "f32", (tokens,))})
    plan.launch()
    assert [record.grid for record in driver.launches] == [plan.grid] == [(launched, 1, 1)]


@pytest.mark.parametrize("cluster", [3, 4, 8])
def test_larger_clusters_are_refused(cluster: int) -> None:
    with pytest.raises(LaunchError) as caught:
        loaded(replace(small(), cluster=cluster, schedule=SCHEDULE | {"cluster": cluster}))
    assert (caught.value.code, caught.value.given, caught.value.required) == ("E0916", f"{cluster} blocks", "1 or 2")


@pytest.mark.parametrize(
    ("call", "name"),
    [("cuModuleLoadData", "CUDA_ERROR_NO_BINARY_FOR_GPU"), ("cuLaunchKernel", "CUDA_ERROR_LAUNCH_FAILED")],
)
def test_driver_errors_keep_their_names(call: str, name: str) -> None:
    with pytest.raises(DriverError, match=name) as caught:
        loaded(small(), FakeDriver(fail={call: name})).plan(X).launch()
    assert (caught.value.call, caught.value.name, caught.value.code) == (call, name, "E0915")


class TorchStream:
    cuda_stream = 41


class ProtocolStream:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 42


@pytest.mark.parametrize(("stream", "handle"), [(0, 0), (None, 0), (40, 40), (TorchStream(), 41), (ProtocolStream(), 42)])
def test_streams_of_other_libraries(stream: Any, handle: int) -> None:
    driver = FakeDriver()
    loaded(small(), driver)(X, stream=stream)
    assert driver.launches[0].stream == handle


def test_a_plan_outlives_its_arguments_dict_and_launches_the_same_bytes_again() -> None:
    driver = FakeDriver()
    device = Device(driver)
    plan = Kernel(small(), b"", device).plan({"x": device.empty((10,), "f32")})
    plan.launch()
    plan.launch()
    first, second = (argument_bytes(launch, [8, 4]) for launch in driver.launches)
    assert first == second
    assert int.from_bytes(first[0], "little") in driver.buffers


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("bf16", 1.0, "803f"), ("bf16", 1.00390625, "803f"), ("bf16", 1.01171875, "823f"), ("f16", 1.0, "003c"),
        ("f32", 1.0, "0000803f"), ("i64", -1, "ff" * 8), ("u8", 255, "ff"), ("bool", 1, "01"), ("i16", -2, "feff"),
    ],
)  # fmt: skip
def test_scalar_bytes(dtype: str, value: float, expected: str) -> None:
    assert pack_scalar(dtype, value).hex() == expected


def test_bool_scalar_is_passed_as_a_byte() -> None:
    driver = FakeDriver()
    kernel_manifest = manifest((tensor("x", "out", "f32", rows),), (ScalarSpec("causal", "bool"),))
    plan = loaded(kernel_manifest, driver).plan(X | {"causal": True})
    plan.launch()
    assert argument_bytes(driver.launches[0], [8, 4, 1])[2] == b"\x01"


def test_launch_does_no_checking_on_the_host() -> None:
    """Planning may be slow, but a launch must do next to nothing except the driver call, because decode waits for it. The test
    counts interpreter instructions, of some ten nanoseconds each, since seconds depend on the machine's load."""
    kernel = loaded(embedding_like())
    arguments = {
        "ids": view(4096, "i32", (3,)), "table": view(1 << 20, "bf16", (5, 8)), "out": view(1 << 24, "bf16", (3, 8)),
        "scale": 1.0, "pos": 0,
    }  # fmt: skip
    plan = kernel.plan(arguments, values={"ids": TRUSTED})
    assert 0 < _instructions(plan.launch) < 100 < _instructions(lambda: kernel.plan(arguments, values={"ids": TRUSTED}))


def _instructions(call: Callable[[], object]) -> int:
    """The number of Python bytecode instructions in `tilec/runtime` during a call."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if "/tilec/runtime/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    here, before = sys._getframe(), sys.gettrace()
    # Python 3.12 counts instructions of a frame only if some frame asked for it before tracing starts.
    here.f_trace_opcodes = True
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
        here.f_trace_opcodes = False
    return count


def test_runtime_imports_no_compiler_package_and_no_torch() -> None:
    script = (
        "import sys, tilec.runtime; "
        "print(sorted({m.split('.')[0] for m in sys.modules} "
        "& {'torch', 'torch_mlir', 'mlir', 'llvmlite', 'islpy', 'networkx', 'platformdirs'}))"
    )
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"


def test_no_driver_is_one_clear_error() -> None:
    script = (
        "from tilec.runtime import Device, LaunchError\n"
        "try:\n    Device(); print('gpu')\nexcept LaunchError as error:\n    print(error.code, str(error).count(chr(10)))"
    )
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert process.stdout.strip() in ("E0915 0", "gpu")


def test_a_launch_overlaps_only_where_the_kernel_waits_by_itself() -> None:
    driver = FakeDriver()
    waiting = loaded(small(), driver)
    waiting.plan(X).launch()
    waiting.plan(X).launch(overlap=True)
    assert [launch.overlap for launch in driver.launches] == [False, True]
    non_waiting = loaded(replace(small(), dependent_launch=False), driver)
    non_waiting.plan(X).launch()
    with pytest.raises(LaunchError) as caught:
        non_waiting.plan(X).launch(overlap=True)
    assert caught.value.code == "E0917"


def test_a_captured_graph_launches_what_was_recorded() -> None:
    driver = FakeDriver()
    plan = loaded(small(), driver).plan(X)
    stream = driver.create_stream()
    driver.begin_capture(stream)
    plan.launch(stream)
    plan.launch(stream, overlap=True)
    graph = driver.end_capture(stream)
    assert driver.launches == []
    driver.launch_graph(graph, stream)
    driver.launch_graph(graph, stream)
    assert [launch.overlap for launch in driver.launches] == [False, True] * 2
