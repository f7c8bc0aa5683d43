"""The times of the all-reduce next to NCCL's, on drivers that compute a sum where a GPU's kernel would: what is timed of each
size, and that a sum with other bits is seen."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import sys
import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fake_gpus import IpcApi, together
from fake_torch import torch_of

from ci.bench.engine import all_reduce
from engine.ranks.peers import DriverCalls
from tilec.runtime import Bundle, Device

sys.path.append(str(Path(__file__).resolve().parents[2] / "runtime"))
from fake_driver import FakeDriver, Recorded, argument_bytes

SIZES = (1 << 14, 1 << 19)
"""The greatest has the rows of the sums that are compared."""


class SummingDriver(FakeDriver):
    """Adds what ranks have when `all_reduce` is launched, but not in the launch of number `omitted`."""

    def __init__(self, rank: int, bundle: Bundle, omitted: int) -> None:
        super().__init__(devices=2)
        self.rank, self._abi, self._left = rank, bundle.find("all_reduce", E="bf16", RANKS=2).manifest.abi, omitted

    def open_device(self) -> int:
        return self.rank

    def pointer_device(self, pointer: int) -> int:
        return self.rank

    def elapsed(self, begin: list[int], end: list[int]) -> float:
        return 0.5

    def launch(self, function: Any, grid: Any, block: int, shared: int, stream: int, parameters: int, overlap: bool) -> None:
        super().launch(function, grid, block, shared, stream, parameters, overlap)
        if self.capturing is not None or function[1] != "all_reduce":
            return
        self._left -= 1
        if self._left == 0:
            return
        given = argument_bytes(
            Recorded(function, grid, block, shared, stream, parameters),
            [8 if slot.kind == "pointer" else 4 for slot in self._abi],
        )
        values = {slot.name: int.from_bytes(value, "little") for slot, value in zip(self._abi, given, strict=True)}
        elements = 64 * all_reduce.COLUMNS
        parts = [_array(values[name] % IpcApi.MAPPED, elements).astype(np.float32) for name in ("x_0", "x_1")]
        _array(values["out"], elements)[:] = (parts[0] + parts[1]).astype(ml_dtypes.bfloat16)


def _array(pointer: int, elements: int) -> Any:
    raw = (ctypes.c_uint16 * elements).from_address(pointer)
    return np.ctypeslib.as_array(raw).view(ml_dtypes.bfloat16)


def found_by_ranks(
    bundle: Bundle, path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, omitted: int = -1
) -> dict[str, Any]:
    torch, distributed = torch_of(2)
    drivers = [SummingDriver(rank, bundle, omitted) for rank in range(2)]
    for name, value in {"SIZES": SIZES, "SUMS": 20, "COPIES": 2, "REPEATS": 3}.items():
        monkeypatch.setattr(all_reduce, name, value)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda *_, **__: None)
    monkeypatch.setattr(all_reduce, "open_rank", lambda *_: None)
    file = folder / "sums.json"

    own = threading.local()
    monkeypatch.setattr(all_reduce, "DriverCalls", lambda: DriverCalls(IpcApi(own.rank)))
    monkeypatch.setattr(all_reduce, "Device", lambda: Device(drivers[own.rank]))

    def of_rank(rank: int) -> int:
        own.rank = rank
        return all_reduce.main(str(path), str(file), str(rank), "2", "60")

    assert together(2, of_rank) == [0, 0]
    return json.loads(file.read_text(encoding="utf-8"))


def test_what_is_found_of_each_size(
    bundle: Bundle, shipped_ranks_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = found_by_ranks(bundle, shipped_ranks_bundle, tmp_path, monkeypatch)
    assert found["same"] and found["repeats"] == 20 and found["meet_us"] == 250
    us = {"all_reduce_us": 250, "all_reduce_add_us": 250, "nccl_us": 250}
    assert found["sizes"] == [{"bytes": size, **us, "GB_s": size / 250e3} for size in SIZES]


@pytest.mark.parametrize("omitted", [1, 20])
def test_one_sum_with_other_bits_is_seen(
    omitted: int, bundle: Bundle, shipped_ranks_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not found_by_ranks(bundle, shipped_ranks_bundle, tmp_path, monkeypatch, omitted)["same"]
