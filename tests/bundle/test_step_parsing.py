"""Texts of steps may be read by several threads, such as those that load the parts of several GPUs."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator

import pytest

from tilec.step import parsing

TEXT = "a + (b * (c + [d, (e, f)])) + " * 20 + "1"


@pytest.fixture
def busy_collections() -> Iterator[None]:
    """Garbage is collected every few objects, and Python code runs then, so that threads take turns while a tree is built."""

    def work(phase: str, info: dict[str, int]) -> None:
        sum(range(200))

    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    gc.callbacks.append(work)
    gc.set_threshold(20)
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*threshold)
    gc.callbacks.remove(work)


@pytest.mark.usefixtures("busy_collections")
def test_threads_that_parse_together_get_their_trees() -> None:
    errors: list[BaseException] = []

    def parse() -> None:
        try:
            for _ in range(100):
                parsing.term(TEXT)
                parsing.module(TEXT)
        except SystemError as error:
            errors.append(error)

    threads = [threading.Thread(target=parse) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_each_is_the_tree_of_its_kind() -> None:
    assert parsing.term("a").__class__.__name__ == "Name"
    assert parsing.module("a = 1").body[0].__class__.__name__ == "Assign"
    with pytest.raises(SyntaxError):
        parsing.term("a = 1")
