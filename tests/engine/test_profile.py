"""The profile of a decode step: kinds, bytes and times, on a driver with a known clock."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace

import pytest
from one_sequence import OneSequence
from rich.console import Console
from test_cuda_backend import SMALLEST, FakeDriver, backend

from engine.backends import cuda
from engine.tools.profile import OpProfile, StepProfile, profile_decode, table

__all__ = ["backend"]


@pytest.mark.parametrize(("filled", "attention"), [(100, ["attention"]), (300, ["attention", "merge"])])
def test_kinds_bytes_and_times(
    backend: tuple[OneSequence, FakeDriver], monkeypatch: pytest.MonkeyPatch, filled: int, attention: list[str]
) -> None:
    """Each launch of the fake device takes a microsecond; the step has the form for this context length."""
    loaded, driver = backend
    monkeypatch.setattr(cuda, "time", SimpleNamespace(perf_counter=lambda: 1e-6 * len(driver.launches)))
    loaded.prefill([1] * filled)
    profile = profile_decode(loaded.backend, loaded.sequence)
    names = [item.name for item in profile.operations]
    layer = [f"layers.*.{name}" for name in ("embed_tokens", "qkv_proj", *attention, "o_proj", "gate_up_proj")]
    assert names == [*layer, "layers.*.down_proj", "last_down_proj", "norm", "lm_head", "argmax", "advance"]
    layers = SMALLEST.num_hidden_layers
    assert [item.launches for item in profile.operations] == [1, *[layers] * (3 + len(attention)), layers - 1, 1, 1, 1, 1, 1]
    assert all(item.seconds == pytest.approx(1e-6) for item in profile.operations)
    by_name = {item.name: item for item in profile.operations}
    assert by_name["layers.*.o_proj"].bytes == 2 * (1024 * 2048 + 2048 + 4 * 1024) + 4 * 256
    assert by_name["lm_head"].bytes == 2 * (2048 * 1024 + 1024) + 660 * 8
    assert profile.seconds == pytest.approx(1e-6 * (sum(item.launches for item in profile.operations) - 1))
    assert profile.bandwidth == pytest.approx((2 * (2048 * 1024 + 1024) + 2 * 2048) * 1e6)
    assert profile.filled == filled
    assert loaded.position == filled


def test_the_table_shows_the_profile() -> None:
    out = io.StringIO()
    rows = (OpProfile("layers.*.o_proj", "matvec_add", 36, 5e-6, 2e7), OpProfile("lm_head", "matvec_argmax", 1, 170e-6, 7.8e8))
    Console(file=out, width=128).print(table(StepProfile(rows, 340e-6, 4.6e12, 17)))
    lines = [re.sub(r"\s+", " ", line).strip() for line in out.getvalue().splitlines()]
    assert "layers.*.o_proj matvec_add 36 5.00 180.0 51.4% 720.00 4.00 87%" in lines
    assert "lm_head matvec_argmax 1 170.00 170.0 48.6% 780.00 4.59 100%" in lines
    assert "sum 350.0 100.0% 1500.00 4.29" in lines
    assert "the step 340.0 97.1% 1500.00 4.41 96%" in lines
