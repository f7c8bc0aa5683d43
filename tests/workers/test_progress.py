"""The slot that a worker writes and its parent reads: texts, limits, and that nothing happens if nobody watches."""

from __future__ import annotations

import mmap
import time
from collections.abc import Generator

import pytest

from tilec import progress
from tilec.progress import Limits, Slot


@pytest.fixture
def slot() -> Generator[Slot]:
    watched = Slot(mmap.mmap(-1, progress.SIZE))
    progress.attach(watched)
    yield watched
    progress.attach(None)


def test_nobody_watches() -> None:
    progress.note("x")
    progress.notify("x")
    with progress.stage("s", Limits()), progress.scratch("/tmp/x"):
        pass


def test_stage_and_note(slot: Slot) -> None:
    assert slot.running() is None
    progress.note("before")
    with progress.stage("stage `proofs` of kernel `k`", Limits(7, 3)):
        running = slot.running()
        assert running is not None
        assert (running.what, running.seconds, running.bytes) == ("stage `proofs` of kernel `k`", 7, 3 << 20)
        assert abs(running.seconds_before - time.process_time()) < 5 and running.bytes_before > 1 << 20
        assert slot.noted() == ""
        progress.note("bounds of `x`, n // 3")
        assert slot.noted() == "bounds of `x`, n // 3"
    assert slot.running() is None
    with progress.stage("another", Limits()):
        assert slot.running().number == 2  # type: ignore[union-attr]


@pytest.mark.parametrize("text", ["", "é" * 2000, "\ud800", "a" * 10_000, "a\0b\n"])
def test_any_text_fits(slot: Slot, text: str) -> None:
    with progress.stage(text, Limits()):
        progress.note(text)
        noted = slot.noted()
    assert noted == text or len(noted.encode()) <= 1536 + 3
    assert slot.scratched() == ""


def test_scratch_is_a_whole_path_or_none(slot: Slot) -> None:
    with progress.scratch("/tmp/ü\udcff"):
        assert slot.scratched() == "/tmp/ü\udcff"
    assert slot.scratched() == ""
    with progress.scratch("/" + "x" * 9000):
        assert slot.scratched() == ""  # a truncated path could name another file


def test_a_note_is_cheap(slot: Slot) -> None:
    start = time.process_time()
    for _ in range(10_000):
        progress.note("bounds of `x` at `load(x, i, shape=BLOCK)`")
    assert time.process_time() - start < 10
