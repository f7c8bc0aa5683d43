"""Tensors on a device, between guard zones: whatever is written where it may not be is named."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest

from tests.audit import samples
from tests.runtime.fake_driver import FakeDriver
from tilec.artifact.records import Manifest, TensorSpec
from tilec.ir.expr import const
from tilec.qualify import arena as arenas
from tilec.qualify.arena import Arena, Staging
from tilec.qualify.recipe import PERIOD


def made(*specs: TensorSpec, staging: int = 1 << 16, loose: bool = False) -> tuple[Arena, FakeDriver]:
    driver = FakeDriver()
    manifest: Manifest = replace(samples.manifest("add"), tensors=specs, value_checks=())
    return Arena(driver, Staging(driver, staging), manifest, {}, "normal", loose=loose), driver


def tensor(name: str, access: str, count: int, dtype: str = "bf16") -> TensorSpec:
    return TensorSpec(name, access, dtype, (const(count),), None, 16)


def strided(name: str, access: str) -> TensorSpec:
    """Three rows of four elements, at every sixth."""
    return TensorSpec(name, access, "f32", (const(3), const(4)), (const(6), const(1)), 16)


@pytest.mark.parametrize("access", ["in", "out", "inout", "scratch", "atomic"])
@pytest.mark.parametrize("count", [1, 3, 40_000, 2 * PERIOD + 5])
def test_a_new_arena_is_unharmed_and_reset_restores_it(access: str, count: int) -> None:
    arena, _ = made(tensor("a", "in", 7), tensor("x", access, count))
    assert arena.harm() == ""
    before = arena.result("x").copy()
    if access != "in":
        ctypes.memset(arena.views()["x"].byte_range()[0], 1, 2 * count)
    arena.reset()
    assert (arena.result("x").view(np.uint16) == before.view(np.uint16)).all()
    assert arena.harm() == ""


@pytest.mark.parametrize("align", [2, 16, 32, 512, 1024, 4096])
def test_a_trial_has_the_least_aligned_bases_that_the_contract_allows(align: int) -> None:
    """A kernel whose loads need more than its manifest says then faults here, and not at the first user's odd address."""
    specs = [replace(tensor(name, access, 1000), align=align) for name, access in (("x", "in"), ("y", "inout"), ("z", "out"))]
    arena, _ = made(*specs, loose=True)
    for view in arena.views().values():
        assert view.pointer % align == 0 and (view.pointer % (2 * align) or align >= arenas.ALIGN)
    assert arena.harm() == ""
    ctypes.memset(arena.views()["y"].byte_range()[1], 7, 1)
    assert "bytes after the end of `y`" in arena.harm()


def test_a_timing_has_bases_as_allocators_give_them() -> None:
    arena, _ = made(tensor("x", "in", 1000), tensor("y", "inout", 1000))
    assert all(view.pointer % arenas.ALIGN == 0 for view in arena.views().values())


@pytest.mark.parametrize("distance", [0, 1, 100, arenas.GUARD - 1])
@pytest.mark.parametrize("access", ["in", "out", "inout"])
def test_a_byte_next_to_a_tensor_is_named(access: str, distance: int) -> None:
    arena, _ = made(tensor("a", "in", 5), tensor("x", access, 1000), tensor("b", "out", 3))
    first, end = arena.views()["x"].byte_range()
    ctypes.memset(end + distance, 7, 1)
    assert "bytes" in arena.harm()
    ctypes.memset(end + distance, arenas.PATTERN, 1)
    assert arena.harm() == ""
    ctypes.memset(first - 1 - distance, 7, 1)
    assert "bytes" in arena.harm()


def test_the_nearest_tensor_is_named() -> None:
    arena, _ = made(tensor("a", "in", 5), tensor("x", "out", 1000), tensor("b", "out", 3))
    first, end = arena.views()["x"].byte_range()
    ctypes.memset(first - 3, 7, 1)
    assert arena.harm() == "3 bytes before `x`: 0x07 (1 bytes of this guard zone)"
    ctypes.memset(first - 3, arenas.PATTERN, 1)
    ctypes.memset(end + 2, 7, 4)
    assert arena.harm() == "2 bytes after the end of `x`: 0x07 (4 bytes of this guard zone)"


@pytest.mark.parametrize("offset", [0, 1, 2 * PERIOD - 1, 2 * PERIOD, 4 * PERIOD + 8])
def test_a_changed_byte_of_an_input_is_named(offset: int) -> None:
    arena, _ = made(tensor("x", "in", 2 * PERIOD + 5), staging=1 << 23)
    address = arena.views()["x"].pointer + offset
    (old,) = ctypes.string_at(address, 1)
    ctypes.memset(address, old ^ 1, 1)
    assert arena.harm().startswith(f"`x`, which is only read: byte {offset} is {old ^ 1:#04x}, not {old:#04x}")


def test_a_staging_buffer_smaller_than_a_period_sees_as_much() -> None:
    arena, _ = made(tensor("x", "in", PERIOD + 1), staging=1 << 16)
    ctypes.memset(arena.views()["x"].byte_range()[1] - 1, 0, 1)
    assert "which is only read" in arena.harm()


def test_elements_between_those_of_a_strided_tensor_are_guarded() -> None:
    arena, _ = made(strided("x", "out"), strided("y", "in"))
    assert arena.harm() == ""
    view = arena.views()["x"]
    assert arena.result("x").shape == (12,)
    assert np.isnan(arena.result("x")).all()
    ctypes.memset(view.pointer + 4 * 4, 0, 4)
    assert arena.harm() == "between the elements of `x`, at byte 16"
    arena.reset()
    assert arena.harm() == ""
    ctypes.memset(arena.views()["y"].pointer + 4 * 4, 0, 4)
    assert "`y`, which is only read: byte 16" in arena.harm()


def test_the_parts_of_a_large_result_are_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arenas, "PART", 1 << 10)
    arena, _ = made(tensor("x", "inout", 3000, "f32"))
    whole = arena.result("x")
    seen = np.zeros(3000, np.bool_)
    for number in range(50):
        start, part = arena.part("x", number)
        assert (whole[start : start + part.size] == part).all()
        seen[start : start + part.size] = True
    assert seen.all()


def test_memory_is_freed() -> None:
    arena, driver = made(tensor("x", "out", 8))
    arena.close()
    arena.staging.close()
    assert not driver.buffers
