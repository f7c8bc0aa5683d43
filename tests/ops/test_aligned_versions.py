"""Which version of a kernel an op launches: the aligned one for exactly the sizes that satisfy its precondition, wherever the
two come from, and none that asks more of a launch than the general one would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tilec
from tests.ops import prebuilt
from tests.ops.copying_driver import CopyingDriver
from tests.ops.fake_torch import FakeTorch
from tests.runtime.fake_driver import FakeDriver
from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import read_interface
from tilec.ir.aligned import ALIGNED
from tilec.ops import tensor_op
from tilec.ops.kernels import Kernels
from tilec.project.build import just_in_time
from tilec.runtime import Bundle, BundleError, Device, Kernel, LaunchError, open_bundle

ADD = prebuilt.KERNELS / "add.py"
CONSTANTS = {"E": "bf16", "BLOCK": 2048}
SIZES = ((8, True), (5000, True), (5001, False), (4, False), (8, True), (1, False), (16, True), (4, False))


def both(**changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    general = prebuilt.add("bf16")
    return general, prebuilt.aligned(general, "N", 8) | changes


def packed(folder: Path, *manifests: dict[str, Any]) -> Path:
    path = folder / "ops-sm_90a.bundle"
    path.write_bytes(prebuilt.bundle(*manifests))
    return path


def is_aligned(driver: FakeDriver, op: Any) -> bool:
    """Whether the last launch was of the aligned version; modules are numbered in the order of loading."""
    kernels = [kernel for kernel in op.loaded if kernel.function == driver.launches[-1].function]
    return ALIGNED in kernels[0].manifest.constants


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_it_is_chosen_for_exactly_its_sizes(
    torch: FakeTorch, driver: CopyingDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packs: bool, named: bool
) -> None:
    """At the first call of a kind and at later ones, by an op of PyTorch; from a folder or bundle, named or by variable."""
    source = packed(tmp_path, *both()) if packs else prebuilt.write(tmp_path, *both())
    monkeypatch.setenv("TILEC_PREBUILT", "" if named else str(source))
    add = tilec.op(ADD, constants={"BLOCK": 2048}, prebuilt=source if named else None)
    for size, fits in SIZES * 2:
        x, y = (torch.empty(size, dtype="bfloat16") for _ in range(2))
        assert add(x, y).shape == (size,)
        assert is_aligned(driver, add) is fits
    assert len(driver.images) == 2 and torch.operators["tilec::add"].calls == 0


def test_without_torch_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(FakeDriver())
    monkeypatch.setattr(tensor_op, "current_device", lambda: device)
    add = tilec.op(ADD, constants={"BLOCK": 2048}, prebuilt=prebuilt.write(tmp_path, *both()))
    for size, fits in SIZES:
        add(device.empty((size,), "bf16"), device.empty((size,), "bf16"))
        assert is_aligned(device.driver, add) is fits  # pyright: ignore[reportArgumentType]


def test_fake_tensors_choose_nothing(torch: FakeTorch, driver: CopyingDriver, tmp_path: Path) -> None:
    """A graph is traced with one size and called with others: the op in it chooses at each call."""
    add = tilec.op(ADD, constants={"BLOCK": 2048}, prebuilt=prebuilt.write(tmp_path, *both()))
    torch.compiling = True
    for size in (8, 9):
        x, y = (torch.empty(size, dtype="bfloat16", device="meta") for _ in range(2))
        assert add(x, y).shape == (size,)
    assert not driver.images
    for size, fits in SIZES:
        add(*(torch.empty(size, dtype="bfloat16") for _ in range(2)))
        assert is_aligned(driver, add) is fits
    assert torch.operators["tilec::add"].calls == 2 + len(SIZES)


def test_a_stride_decides(torch: FakeTorch, driver: CopyingDriver, tmp_path: Path) -> None:
    source = tmp_path / "rows.py"
    source.write_text(prebuilt.ROWS)
    folder = prebuilt.write(tmp_path / "build", prebuilt.rows(), prebuilt.aligned(prebuilt.rows(), "S", 16))
    strided = tilec.op(source, prebuilt=folder)
    x = torch.empty(4, 64, dtype="bfloat16")  # room for the largest stride: nothing else may lie in it
    x.shape = (4, 8)
    for stride, fits in ((8, False), (64, True), (24, False), (16, True), (8, False)):
        x.strides = (stride, 1)
        strided(x, 1)
        assert is_aligned(driver, strided) is fits


def test_forced_upon_other_sizes_it_is_refused(tmp_path: Path) -> None:
    """Nothing but its own launch checks makes it safe, so they hold however it is reached."""
    device = Device(FakeDriver())
    with open_bundle(packed(tmp_path, *both())) as bundle:
        kernel = bundle.load(bundle.find("add", **CONSTANTS, **{ALIGNED: "N % 8 == 0"}), device)
        assert ALIGNED not in bundle.find("add", **CONSTANTS).manifest.constants
    for size, fits in SIZES:
        arguments = {name: device.empty((size,), "bf16") for name in ("x", "y", "out")}
        if fits:
            kernel.plan(arguments)
        else:
            with pytest.raises(LaunchError, match=r"E0910.*requires\(N % 8 == 0\)"):
                kernel.plan(arguments)


def test_a_precondition_that_its_checks_do_not_state_never_counts(
    torch: FakeTorch, driver: CopyingDriver, tmp_path: Path
) -> None:  # fmt: skip
    """A manifest whose constant promises less than its checks demand: the general version serves what these refuse."""
    general, aligned = both()
    aligned["launch_checks"] = prebuilt.aligned(general, "N", 64)["launch_checks"]
    add = tilec.op(ADD, constants={"BLOCK": 2048}, prebuilt=prebuilt.write(tmp_path, general, aligned))
    for size, fits in ((8, False), (64, True), (72, False)):
        add(*(torch.empty(size, dtype="bfloat16") for _ in range(2)))
        assert is_aligned(driver, add) is fits


@pytest.mark.parametrize("text", ["N % 8", "", "N % 8 == 0 or N > 0", 8])
def test_a_text_that_is_no_precondition_is_of_no_version(
    torch: FakeTorch, driver: CopyingDriver, tmp_path: Path, text: Any
) -> None:
    add = tilec.op(
        ADD, constants={"BLOCK": 2048},
        prebuilt=prebuilt.write(tmp_path, prebuilt.add("bf16"), both(constants={**CONSTANTS, ALIGNED: text})[1]),
    )  # fmt: skip
    add(*(torch.empty(8, dtype="bfloat16") for _ in range(2)))
    assert not is_aligned(driver, add)


def test_a_version_of_stricter_bases_is_not_used(torch: FakeTorch, driver: CopyingDriver, tmp_path: Path) -> None:
    """Later calls with the same sizes have other addresses, which are checked when it is too late to choose."""
    general, aligned = both()
    aligned["tensors"] = [one | {"align": 32} for one in aligned["tensors"]]
    add = tilec.op(ADD, constants={"BLOCK": 2048}, prebuilt=prebuilt.write(tmp_path, general, aligned))
    for _ in range(3):
        add(*(torch.empty(8, dtype="bfloat16") for _ in range(2)))
        assert not is_aligned(driver, add)
    assert sum(map(bool, driver.images)) == 1


def test_it_alone_is_not_the_kernel(tmp_path: Path) -> None:
    general, aligned = both()
    kernels = Kernels(read_interface(ADD), ADD, prebuilt.write(tmp_path, aligned))
    with pytest.raises(BundleError, match="E0707"):
        kernels.get(CONSTANTS, Device(FakeDriver()), lambda manifest: {"N": 8})
    path = packed(tmp_path, general, aligned)
    bundle: Bundle
    with open_bundle(path) as bundle:
        assert bundle.find("add").manifest.constants == CONSTANTS


KERNEL = '''"""As users write them."""
import tilec as tl


class M(tl.Dim):
    """rows"""


class N(tl.Dim):
    """columns"""


@tl.kernel
def twice(x: tl.In[tl.bf16, M, N], out: tl.Out[tl.bf16, M, N]):
    tl.grid(M, tl.cdiv(N, 1024))
    at = (tl.bid(0), tl.bid(1))
    tl.store(out, at, tl.load(x, at, shape=(1, 1024), pad=0) * 2, mask=True)
'''


@pytest.fixture
def twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    path = tmp_path / "twice.py"
    path.write_text(KERNEL)
    return path


def launched(device: Device, op: Any, columns: int) -> bool:
    op(device.empty((3, columns), "bf16"))
    return is_aligned(device.driver, op)  # pyright: ignore[reportArgumentType]


@pytest.mark.usefixtures("kept_workers")
def test_it_is_compiled_when_it_is_first_needed(twice: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(FakeDriver())
    monkeypatch.setattr(tensor_op, "current_device", lambda: device)
    op = tilec.op(twice)
    assert not launched(device, op, 1001) and len(op.loaded) == 1
    assert launched(device, op, 1000) and len(op.loaded) == 2
    assert not launched(device, op, 1001)
    (twice.parent / "build.toml").write_text(
        '[build]\nkernels = "."\narch = ["sm_90"]\n[[kernel]]\nname = "twice"\naligned = false\n'
    )
    assert not launched(device, tilec.op(twice), 1000)


@pytest.mark.usefixtures("kept_workers")
def test_if_it_cannot_be_compiled_the_general_one_runs(twice: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(FakeDriver())
    monkeypatch.setattr(tensor_op, "current_device", lambda: device)

    def refuse(*_: Any, **__: Any) -> Kernel:
        raise CompileError(())

    monkeypatch.setattr(just_in_time, "compile", refuse)
    op = tilec.op(twice)
    assert not launched(device, op, 1000) and not launched(device, op, 2000)
