"""The case of long runs: what other processes do to the card changes figures alone, and what the engine leaves is found."""

from __future__ import annotations

import itertools
import re
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_api import FakeApi, constant_call
from test_cuda_backend import SMALLEST

from ci.bench.engine import engine_soak
from ci.bench.engine.ledger import ENDS, STRAY, Ledger
from ci.bench.front import Unfinished
from engine.errors import DeviceError
from engine.tools.dummy_weights import dummy_weights
from tests.files import ROOT
from tilec.runtime import Bundle
from tilec.runtime.driver import CudaDriver

WEIGHTS = dummy_weights(SMALLEST, "bf16")


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    fake = FakeApi()
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", fake)  # type: ignore[arg-type]
    return fake


@pytest.fixture
def ledger(api: FakeApi) -> Ledger:
    return Ledger()


def drifted(bundle: Bundle, ledger: Ledger, each: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """The result of 12 steps, captured again every 4; `each` runs before each count."""
    backend = engine_soak.loaded(bundle, ledger.device(), SMALLEST, WEIGHTS, 4096)

    def kept() -> dict[str, int]:
        each()
        return ledger.kept()

    try:
        return engine_soak.drift(backend, SMALLEST, 12, kept, 4)
    finally:
        backend.close()


def cycled(shipped_bundle: Path, ledger: Ledger, count: int = 4) -> dict[str, Any]:
    return engine_soak.cycles(shipped_bundle, SMALLEST, WEIGHTS, count, ledger.device, ledger.kept)


def busy(api: FakeApi) -> None:
    """Others take more at each look, then less: as much as the run that failed lost, and more."""
    steps = itertools.cycle([196608, 196608, 1 << 21, -(1 << 20)])
    api.others_take = lambda: next(steps)


def test_memory_that_others_take_changes_no_verdict(api: FakeApi, ledger: Ledger, bundle: Bundle, shipped_bundle: Path) -> None:
    busy(api)
    found = drifted(bundle, ledger)
    assert found["ok"] and found["kept_more"] == {} and found["free_bytes_spread"] > 0 and found["captures"] == 3
    found = cycled(shipped_bundle, ledger)
    assert found["ok"] and found["kept_more"] == {} and found["free_bytes_lost"] > 0 and found["cycles"] == 4


@pytest.mark.parametrize("end", ["destroy_graph", "destroy_event"])
def test_what_is_not_ended_is_found_after_the_first_cycle(
    end: str, ledger: Ledger, shipped_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CudaDriver, end, constant_call(lambda: None))
    found = cycled(shipped_bundle, ledger)
    created = {"destroy_graph": "cuGraphInstantiate", "destroy_event": "cuEventCreate"}[end]
    assert not found["ok"] and found["cycles"] == 1 and {*found["kept_more"]} == {created}


def test_memory_that_is_not_freed_is_found(ledger: Ledger, shipped_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, kept = CudaDriver.free, itertools.chain([True], itertools.repeat(False))

    def free(driver: CudaDriver, pointer: int, stream: int) -> None:
        if not next(kept):
            real(driver, pointer, stream)

    monkeypatch.setattr(CudaDriver, "free", free)
    found = cycled(shipped_bundle, ledger)
    assert not found["ok"] and {*found["kept_more"]} == {"cuMemAllocAsync"} and found["kept_more"]["cuMemAllocAsync"] > 0


def test_a_graph_that_stays_after_a_capture_is_found(
    api: FakeApi, ledger: Ledger, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CudaDriver, "destroy_graph", constant_call(lambda: None))
    found = drifted(bundle, ledger)
    assert not found["ok"] and found["kept_more"]["cuGraphInstantiate"] > 0


def test_memory_that_others_free_hides_no_leak(
    api: FakeApi, ledger: Ledger, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.others, api.others_take = 1 << 31, lambda: -(1 << 20)
    found = drifted(bundle, ledger, lambda: ledger.cuMemAllocAsync(4096, 0))
    assert not found["ok"] and found["kept_more"] == {"cuMemAllocAsync": 2 * 4096}


def test_a_long_context_is_checked_by_what_is_kept(api: FakeApi, ledger: Ledger, bundle: Bundle) -> None:
    busy(api)
    backend = engine_soak.loaded(bundle, ledger.device(), SMALLEST, WEIGHTS, 128)
    monotone = iter(range(4096, 1 << 20, 4096))
    with pytest.warns(RuntimeWarning):  # a device that writes nothing has logits of zero, whose relative error is 0 / 0
        found = engine_soak.long_context(backend, SMALLEST, 128, ledger.kept)
        assert found["kept_more"] == {} and found["free_bytes_lost"] != 0 and found["one_more_refused"]
        found = engine_soak.long_context(backend, SMALLEST, 128, lambda: {"cuMemAllocAsync": next(monotone)})
    assert found["kept_more"] == {"cuMemAllocAsync": 4096} and not found["ok"]
    backend.close()


def test_a_card_whose_memory_others_hold_gives_no_verdict(api: FakeApi, ledger: Ledger, bundle: Bundle) -> None:
    api.others = api.limit - (64 << 20)
    with pytest.raises(Unfinished, match="other processes hold the card"):
        engine_soak.loaded(bundle, ledger.device(), SMALLEST, WEIGHTS, 4096)
    api.others, api.fail = 0, {"cuMemAllocAsync"}
    with pytest.raises(Unfinished, match="cannot give"):
        engine_soak.loaded(bundle, ledger.device(), SMALLEST, WEIGHTS, 4096)


def test_another_error_of_the_device_is_one(api: FakeApi, ledger: Ledger, bundle: Bundle) -> None:
    api.fail = {"cuModuleLoadData"}
    with pytest.raises(DeviceError):
        engine_soak.loaded(bundle, ledger.device(), SMALLEST, WEIGHTS, 4096)


def test_a_ledger_counts_what_succeeded(api: FakeApi, ledger: Ledger) -> None:
    _, pointer = ledger.cuMemAllocAsync(100, 0)
    _, event = ledger.cuEventCreate(0)
    api.fail = {"cuEventCreate"}
    ledger.cuEventCreate(0)
    assert ledger.kept() == {"cuMemAllocAsync": 100, "cuEventCreate": 1}
    ledger.cuMemFreeAsync(pointer, 0)
    ledger.cuEventDestroy(event)
    assert ledger.kept() == {} == api.handles
    api.handles[99] = "given by no call"
    ledger.cuEventDestroy(99)
    assert ledger.kept() == {STRAY: 1}


def test_every_call_of_the_runtime_that_creates_something_is_counted() -> None:
    text = (ROOT / "tilec/runtime/driver.py").read_text(encoding="utf-8")
    called = {*re.findall(r'"(cu[A-Z]\w+)"', text)}
    creating = {
        name for name in called if re.search(r"Create|Alloc|LoadData|Instantiate|EndCapture|Retain|Register|Map(?!s)", name)
    }
    ending = {name for name in called if re.search(r"Destroy|Free|Unload|Release|Unregister", name)}
    assert creating - {"cuDevicePrimaryCtxRetain", "cuTensorMapEncodeTiled", "cuTensorMapReplaceAddress"} == {*ENDS}
    assert ending == {*ENDS.values()}


def test_the_bindings_have_these_calls_and_their_handles_are_numbers() -> None:
    real = pytest.importorskip("cuda.bindings.driver")
    assert all(hasattr(real, name) for pair in ENDS.items() for name in pair)
    for kind in ("CUdeviceptr", "CUmodule", "CUstream", "CUevent", "CUgraph", "CUgraphExec"):
        assert int(getattr(real, kind)(4096)) == 4096


def test_the_page_says_what_is_checked(api: FakeApi, ledger: Ledger, bundle: Bundle) -> None:
    found = drifted(bundle, ledger)
    record = {"model": "m", "drift": found, "long": found | {"kept_more": {"cuEventCreate": 3}}, "cycles": found}
    text = "\n".join(engine_soak.report(record))
    assert "| kept_more | nothing |" in text and "| kept_more | cuEventCreate +3 |" in text and "`kept_more` is checked" in text


def test_the_case_counts_the_calls_of_its_own_backend(
    api: FakeApi, shipped_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole case, with a model whose device writes nothing: all but the relative error of its zeros is right."""
    monkeypatch.setattr(engine_soak, "config_of", constant_call(lambda: SMALLEST))
    monkeypatch.setattr(engine_soak, "BlockWeights", constant_call(lambda: WEIGHTS))
    busy(api)
    options = Namespace(bundles=shipped_bundle.parent, model="qwen3-0.6b", steps=12, cycles=3, long=128)
    with pytest.warns(RuntimeWarning):
        outcome = engine_soak.measure(options)
    assert outcome.data["drift"]["ok"] and outcome.data["cycles"]["ok"] and not outcome.data["long"]["ok"]
    assert all(outcome.data[name]["kept_more"] == {} for name in engine_soak.CHECKS) and not api.memory and not api.handles
