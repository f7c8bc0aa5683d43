"""What a test costs: work of its own and of processes it starts, and waits, but not the machine's load."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator

import pytest

from tests.spent_time import Watch

BUSY = "import time\nwhile time.process_time() < 0.6: pass"
READY = "print('on', flush=True)\n"


@pytest.fixture
def watch() -> Generator[Watch]:
    found = Watch()
    found.start()
    yield found
    found.stop()


def compute(seconds: float = 0.4) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def in_a_thread() -> None:
    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()


def in_an_ended_process() -> None:
    subprocess.run([sys.executable, "-c", BUSY], check=True)


@pytest.mark.parametrize("work", [compute, in_a_thread, in_an_ended_process])
def test_work_costs_its_processor_time(watch: Watch, work: Callable[[], None]) -> None:
    before = watch.spent()
    work()
    assert 0.35 < watch.spent() - before < 1.5


def test_a_process_that_lives_on_counts(watch: Watch) -> None:
    code = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', sys.argv[1]])\n" + READY + "sys.stdin.read()"
    before = watch.spent()
    process = subprocess.Popen([sys.executable, "-c", code, BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "on\n"
    alive = watch.spent() - before
    process.communicate()
    assert 0.55 < alive < 2
    assert watch.spent() - before >= alive


def test_a_wait_costs_its_time(watch: Watch) -> None:
    """A lower bound that holds if another watch in this process is awake at some of the looks."""
    before = watch.spent()
    while watch.spent() - before < 0.4:
        time.sleep(1)
    assert watch.asleep > 0.2


def test_waiting_for_a_process_that_computes_is_no_sleep(watch: Watch) -> None:
    in_an_ended_process()
    assert watch.asleep < 0.3


def test_load_costs_nothing(watch: Watch) -> None:
    """Threads of this process that do not get the interpreter's lock stand in for processes that do not get a processor."""
    others = [threading.Thread(target=compute) for _ in range(3)]
    before = watch.spent()
    for thread in others:
        thread.start()
    compute()
    for thread in others:
        thread.join()
    assert watch.spent() - before < 2.4
