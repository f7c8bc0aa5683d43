"""Where the kernels of an op come from: a prebuilt one, by any of its names, needs no compiler; any other is compiled."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tilec
from tests.ops import prebuilt
from tests.runtime.fake_driver import FakeDriver
from tilec.artifact.signing_keys import generate
from tilec.frontend import read_interface
from tilec.ir.expr import from_json
from tilec.ops.declaration import solved
from tilec.ops.kernels import Kernels
from tilec.runtime import BundleError, Device, Kernel, LaunchError, ValueBounds
from tilec.toolchain import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
ADD = prebuilt.KERNELS / "add.py"
CONSTANTS = {"E": "bf16", "BLOCK": 2048}


def bundle_of(folder: Path, *manifests: dict[str, Any]) -> Path:
    path = folder / "ops-sm_90a.bundle"
    path.write_bytes(prebuilt.bundle(*manifests))
    return path


def found(source: Path | None, **constants: Any) -> Kernel:
    return Kernels(read_interface(ADD), ADD, source).get(CONSTANTS | constants, Device(FakeDriver()))


def test_folders_and_bundles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = prebuilt.write(tmp_path / "build", prebuilt.add("bf16"), prebuilt.add("f16", 256))
    bundle = bundle_of(tmp_path, prebuilt.add("bf16"), prebuilt.add("f16", 256))
    for source in (folder, folder / "sm_90a", bundle):
        assert found(source).manifest.constants == CONSTANTS
        assert found(source, E="f16", BLOCK=256).manifest.constants == {"E": "f16", "BLOCK": 256}
        with pytest.raises(BundleError, match="E0707"):
            found(source, E="f16")
        monkeypatch.setenv("TILEC_PREBUILT", str(source))
        assert found(None).manifest.constants == CONSTANTS
    with pytest.raises(BundleError, match="E0703"):
        found(tmp_path / "absent")


def test_a_policy_refuses_folders_which_nobody_signs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tmp_path / "trust.toml"
    (tmp_path / "key.pub").write_bytes(generate("ed25519").public_key.pem())
    policy.write_text('[trust]\nformat = 2\nkeys = ["key.pub"]\n')
    folder, bundle = prebuilt.write(tmp_path / "build", prebuilt.add("bf16")), bundle_of(tmp_path, prebuilt.add("bf16"))
    monkeypatch.setenv("TILEC_TRUST", str(policy))
    for source in (folder, folder / "sm_90a"):
        for named in (source, None):
            monkeypatch.setenv("TILEC_PREBUILT", "" if named else str(source))
            with pytest.raises(BundleError, match=f"`{source}` is a folder of unsigned artifacts") as caught:
                found(named)
            assert caught.value.code == "E0714" and str(policy) in caught.value.message and "TILEC_TRUST" in caught.value.hint
    with pytest.raises(BundleError, match="is not signed"):
        found(bundle)
    monkeypatch.setenv("TILEC_TRUST", "none")
    assert found(folder).manifest.constants == CONSTANTS


def test_a_kernel_of_another_signature_is_refused(tmp_path: Path) -> None:
    other = prebuilt.add("bf16")
    other["tensors"] = [*other["tensors"][1::-1], *other["tensors"][2:]]
    folder = prebuilt.write(tmp_path, other)
    for _ in range(2):
        with pytest.raises(LaunchError, match=r"E0919.*given y: in, x: in, out: out; required x: in, y: in, out: out"):
            found(folder)


def test_a_kernel_that_was_refused_is_not_launched_later(tmp_path: Path) -> None:
    other = prebuilt.add("bf16")
    other["tensors"] = [*other["tensors"][1::-1], *other["tensors"][2:]]
    driver = FakeDriver()
    kernels, device = Kernels(read_interface(ADD), ADD, prebuilt.write(tmp_path, other)), Device(driver)
    for _ in range(3):
        with pytest.raises(LaunchError, match="E0919"):
            kernels.get(CONSTANTS, device)
        assert kernels.loaded == () and driver.images and not any(driver.images)


PRODUCTION = """
import importlib.abc, json, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in MODULES or name == "tilec.pipeline":
            raise ImportError(name + " is not here")

MODULES = json.loads(sys.argv[1])
sys.meta_path.insert(0, Absent())
import tilec
from tests.runtime.fake_driver import FakeDriver
from tilec.ops import kernels
from tilec.ops import tensor_op
from tilec.runtime import Device
device = Device(FakeDriver())
tensor_op.current_device = lambda: device
kernels.is_installed = lambda package: False
add = tilec.op(sys.argv[2], constants={"BLOCK": 2048})
x, y = device.empty((5000,), "bf16"), device.empty((5000,), "bf16")
try:
    print(add(x, y=y).shape, device.driver.launches[0].grid)
except Exception as error:
    print(error)
"""


@pytest.mark.parametrize("where", ["variable", "pulled", "nowhere"])
def test_no_compiler_is_needed(tmp_path: Path, where: str) -> None:
    """In a process without one: `tilec.op` finds a prebuilt kernel, or reports where it looked."""
    environment = {"PYTHONPATH": str(ROOT), "TILEC_CACHE_DIR": str(tmp_path / "store")}
    if where == "variable":
        environment["TILEC_PREBUILT"] = str(prebuilt.write(tmp_path / "build", prebuilt.add("bf16")))
    elif where == "pulled":
        (tmp_path / "store" / "bundles").mkdir(parents=True, mode=0o700)
        (tmp_path / "store").chmod(0o700)
        bundle_of(tmp_path / "store" / "bundles", prebuilt.add("bf16"))
    modules = sorted({package.module.partition(".")[0] for package in PACKAGES} - {"numpy", "cuda", "nvidia"})
    command = [sys.executable, "-P", "-c", PRODUCTION, json.dumps(modules), str(ADD)]
    process = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert process.stderr == ""
    if where == "nowhere":
        assert process.stdout.startswith("error[E0735]: no bundle with a kernel for `add`, E = bf16, BLOCK = 2048, sm_90a")
        assert "prebuilt=" in process.stdout
    else:
        assert process.stdout == "(5000,) (3, 1, 1)\n"


@pytest.mark.parametrize(
    ("kernel", "options", "message"),
    [
        ("add", {"mutates": ["x"]}, "names `x`, which is not an `Out` tensor; required `out`"),
        ("add", {"values": {"x": lambda low, high, distinct: True}}, "`TRUSTED` or `ValueBounds`"),
        ("add", {"constants": 5}, r"`constants` does not return a dict of values; given a value of type `int`"),
        ("add", {"constants": {"BLOK": 5}}, "there is no constant `BLOK`; required `E`, `BLOCK`"),
        ("add", {}, "the constant `BLOCK` has no value"),
        ("matvec_argmax", {"constants": {"B": 1, "K": 16, "ROWS": 8, "BLOCK": 16}}, "no argument determines `P`"),
    ],
)
def test_an_invalid_op_declaration(
    kernel: str, options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    device = Device(FakeDriver())
    monkeypatch.setattr("tilec.ops.tensor_op.current_device", lambda: device)
    folder = prebuilt.write(tmp_path, prebuilt.add("bf16"))
    x = device.empty((1, 16) if kernel == "matvec_argmax" else (16,), "bf16")
    with pytest.raises(LaunchError, match="E0919") as caught:
        tilec.op(prebuilt.KERNELS / f"{kernel}.py", prebuilt=folder, **options)(x, x)
    assert message in str(caught.value)


def test_values_and_dims_are_given_to_the_op(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    driver = FakeDriver()
    device = Device(driver)
    monkeypatch.setattr("tilec.ops.tensor_op.current_device", lambda: device)
    tensors = [prebuilt.tensor("x", "in", "i32", "N"), prebuilt.tensor("half", "out", "f32", "M")]
    tensors.append(prebuilt.tensor("work", "scratch", "f32", "N"))
    manifest = prebuilt.manifest("halve", {}, tensors, [], ["N", "M"], ["M"], [["x", "half"]])
    manifest["value_checks"] = [{"tensor": "x", "low": 0, "high": "N", "distinct": False}]
    source = tmp_path / "halve.py"
    source.write_text(
        "import tilec\nfrom tilec import Dim, In, Out, Scratch, f32, grid, i32\n\n"
        "class N(Dim): ''\nclass M(Dim): ''\n\n"
        "@tilec.kernel\ndef halve(x: In[i32, N], half: Out[f32, M], work: Scratch[f32, N]):\n    grid(M)\n"
    )
    folder = prebuilt.write(tmp_path / "build", manifest)
    x = device.empty((64,), "i32")
    bounds = {"x": ValueBounds(0, 64)}
    halve = tilec.op(source, prebuilt=folder, dims=lambda known: {"M": known["N"] // 2}, values=bounds)
    assert (halve(x).shape, driver.launches[0].grid) == ((32,), (32, 1, 1))
    with pytest.raises(LaunchError, match="E0913"):
        tilec.op(source, prebuilt=folder, dims={"M": 32})(x)
    with pytest.raises(LaunchError, match=r"E0919.*no argument determines `M`"):
        tilec.op(source, prebuilt=folder, values=bounds)(x)


@pytest.mark.parametrize(
    ("dim", "extent", "found"),
    [
        (["+", "R", 1], 11, ("R", 10)),
        (["*", 3, "R"], 12, ("R", 4)),
        (["*", "T", "K"], 56, ("K", 8)),
        (["-", 20, "R"], 4, ("R", 16)),
        (["*", ["-", "R", 2], 4], 40, ("R", 12)),
        ("T", 7, None),  # known
        (["+", "R", "R"], 8, None),  # in two axes
        (["//", "R", 2], 4, None),  # of two symbols
        (["*", 0, "R"], 0, None),
    ],
)
def test_an_extent_determines_its_symbol(dim: Any, extent: int, found: tuple[str, int] | None) -> None:
    assert solved(from_json(dim), extent, {"T": 7}) == found


def test_a_dim_is_solved_from_a_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    driver = FakeDriver()
    device = Device(driver)
    monkeypatch.setattr("tilec.ops.tensor_op.current_device", lambda: device)
    tensors = [prebuilt.tensor("starts", "in", "i32", ["+", "R", 1]), prebuilt.tensor("out", "out", "f32", "R")]
    manifest = prebuilt.manifest("sums", {}, tensors, [], ["R"], ["R"], [["starts", "out"]])
    source = tmp_path / "sums.py"
    source.write_text(
        "from typing import Literal\nimport tilec\nfrom tilec import Dim, In, Out, f32, grid, i32\n\n"
        "class R(Dim): ''\n\n"
        "@tilec.kernel\ndef sums(starts: In[i32, Literal['R + 1']], out: Out[f32, R]):\n    grid(R)\n"
    )
    sums = tilec.op(source, prebuilt=prebuilt.write(tmp_path / "build", manifest))
    assert (sums(device.empty((9,), "i32")).shape, driver.launches[0].grid) == ((8,), (8, 1, 1))


def test_a_device_is_asked_for_its_properties_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call asks for the current one alone, which may be another."""
    kernels = importlib.import_module("tilec.ops.kernels")

    class Driver(FakeDriver):
        current, asked = 0, 0

        def open_device(self) -> int:
            return self.current

        def device_attribute(self, ordinal: int, attribute: str) -> int:
            self.asked += 1
            return super().device_attribute(ordinal, attribute)

    driver = Driver()
    monkeypatch.setattr(kernels, "_devices", {})
    monkeypatch.setattr(kernels, "Device", lambda: Device(driver))
    first, asked = kernels.current_device(), driver.asked
    assert kernels.current_device() is first and driver.asked == asked
    driver.current = 1
    other = kernels.current_device()
    assert other is not first and other.ordinal == 1 and driver.asked == 2 * asked
    driver.current = 0
    assert kernels.current_device() is first and driver.asked == 2 * asked
