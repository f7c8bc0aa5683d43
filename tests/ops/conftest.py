"""Fixtures of ops on PyTorch tensors: stubs of PyTorch and of the driver, and prebuilt kernels."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ops import prebuilt
from tests.ops.copying_driver import CopyingDriver
from tests.ops.fake_torch import FakeTorch
from tilec.runtime import Device


@pytest.fixture
def driver() -> CopyingDriver:
    return CopyingDriver()


@pytest.fixture
def torch(driver: CopyingDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTorch]:
    """The stub of PyTorch, installed as the real one."""
    device = Device(driver)
    fake = FakeTorch(device)
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.delitem(sys.modules, "tilec.ops.torch_op", raising=False)
    module = importlib.import_module("tilec.ops.torch_op")
    monkeypatch.setattr(module, "current_device", lambda: device)
    yield fake
    sys.modules.pop("tilec.ops.torch_op", None)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    manifests = [prebuilt.add("bf16"), prebuilt.add("f16"), prebuilt.rms_norm("bf16", 1024), prebuilt.rms_norm("bf16", 2048)]
    return prebuilt.write(tmp_path_factory.mktemp("artifacts"), *manifests, prebuilt.add_rms_norm("bf16", 1024))
